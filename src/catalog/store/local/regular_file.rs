//! Opens files that must be regular: a FIFO or a device under a model file's name must neither
//! block the program nor supply data forever.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::{Error, Result};

/// Opens `path` for reading if it is a regular file or a link to one.
pub(super) fn open(path: &Path) -> Result<(File, Metadata)> {
    let io = |e| Error::io(format!("open {}", path.display()), e);
    // O_NONBLOCK, because opening a FIFO would wait for a writer.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(|e| not_opened(path, format!("open {}", path.display()), e))?;
    let meta = file.metadata().map_err(io)?;
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
