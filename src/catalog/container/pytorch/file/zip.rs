//! The ZIP archives of torch ≥ 1.6.

use super::detect::Other;
use crate::catalog::Object;
use crate::error::Result;

/// What an archive is instead of a checkpoint, by the names of its members; `None` if it is one, or is
/// damaged.
///
/// # Errors
/// It cannot be read.
pub(super) fn other(file: &dyn Object) -> Result<Option<Other>> {
    let _ = file;
    Ok(None)
}
