//! Reads the small files around the weights: indexes, manifests, configs, references.

use std::fs::{File, Metadata};
use std::io::Read;
use std::path::Path;

use super::regular_file;
use crate::error::{Error, Result};

/// The whole of `path`, which must be a regular file (or a link to one) of at most `max` bytes.
///
/// # Errors
/// It cannot be read, is not a regular file, or is larger.
pub(super) fn read(path: &Path, max: u64) -> Result<Vec<u8>> {
    let (file, meta) = regular_file::open(path)?;
    read_open(file, &meta, path, max)
}

/// The same of a file that was opened as `path`.
pub(super) fn read_open(file: File, meta: &Metadata, path: &Path, max: u64) -> Result<Vec<u8>> {
    let io = |e| Error::io(format!("read {}", path.display()), e);
    let too_large =
        |len: u64| Error::invalid(path, format!("has {len} bytes, at most {max} are read"));
    if meta.len() > max {
        return Err(too_large(meta.len()));
    }
    let mut bytes = Vec::with_capacity(meta.len() as usize);
    // A file may grow while it is read, and files in /proc report size 0.
    file.take(max + 1).read_to_end(&mut bytes).map_err(io)?;
    match bytes.len() as u64 {
        len if len > max => Err(too_large(len)),
        _ => Ok(bytes),
    }
}
