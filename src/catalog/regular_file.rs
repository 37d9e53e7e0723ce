//! Opening what must be a regular file: a FIFO or a device under a model file's name must neither
//! block the program nor feed it without end.

use std::fs::{File, Metadata};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::{Error, Result};

/// Opens `path` for reading if it is a regular file or a link to one.
pub(super) fn open(path: &Path) -> Result<(File, Metadata)> {
    let io = |e| Error::io(format!("open {}", path.display()), e);
    // Not blocking: the open of a FIFO would wait for a writer.
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path)
        .map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    match meta.is_file() {
        true => Ok((file, meta)),
        false => Err(Error::invalid(path, "is not a regular file")),
    }
}
