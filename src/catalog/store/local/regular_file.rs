//! Opens files that must be regular: a FIFO or a device under a model file's name must neither
//! block the program nor supply data forever.

use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat};

use crate::error::{Error, Result};

/// Opens `path` for reading if it is a regular file or a link to one.
pub(super) fn open(path: &Path) -> Result<(File, Metadata)> {
    open_at(CWD, path, path)
}

/// The same for `name` in an open directory; `path` is for messages.
pub(super) fn open_at(dir: impl AsFd, name: &Path, path: &Path) -> Result<(File, Metadata)> {
    let what = || format!("open {}", path.display());
    // O_NONBLOCK, because opening a FIFO would wait for a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file =
        openat(dir, name, flags, Mode::empty()).map_err(|e| not_opened(path, what(), e.into()))?;
    let file = File::from(file);
    let meta = file.metadata().map_err(|e| Error::io(what(), e))?;
    match meta.is_file() {
        true => Ok((file, meta)),
        false => Err(Error::invalid(path, "is not a regular file")),
    }
}

/// The error about a path that could not be opened while doing `what`. It mentions a dangling link,
/// which is what a hub cache contains if a blob is missing.
pub(super) fn not_opened(path: &Path, what: String, error: io::Error) -> Error {
    let link = match error.kind() {
        io::ErrorKind::NotFound => std::fs::read_link(path).ok(),
        _ => None,
    };
    match link {
        Some(target) => Error::invalid(
            path,
            format!(
                "is a link to {}, which is missing ({error}): the download is unfinished, or what was downloaded has been removed; 'hf download' fetches it",
                target.display()
            ),
        ),
        None => Error::io(what, error),
    }
}
