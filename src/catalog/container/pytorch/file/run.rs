//! Runs pickles of a file.

use crate::catalog::Object;
use crate::catalog::container::cursor::Cursor;
use crate::catalog::container::pytorch::pickle::{self, Place};
use crate::error::Result;

/// What the pickle at `start` of `file` would have executed.
///
/// # Errors
/// The file cannot be read.
pub(super) fn hostile(file: &dyn Object, start: u64, of: Place<'_>) -> Result<Vec<String>> {
    Ok(pickle::read(&mut Cursor::new(file, start, file.len()), of)?.hostile)
}
