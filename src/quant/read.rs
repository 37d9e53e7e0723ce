//! Helpers for kernels: access to parts, and memory that may not be available.

use crate::error::{Error, Result};
use crate::view::SharedView;

/// Part `index` of a layer.
///
/// # Errors
/// EIO if there are fewer parts, which the format's description should rule out.
pub fn part(parts: &[SharedView], index: usize) -> Result<&SharedView> {
    let lacks = || {
        format!(
            "a quantized layer has {} parts, and part {index} is needed",
            parts.len()
        )
    };
    parts
        .get(index)
        .ok_or_else(|| Error::other(libc::EIO, lacks()))
}

/// `len` zeros.
///
/// # Errors
/// ENOMEM: a hostile file may ask for any size.
pub fn zeroed<T: Default + Clone>(len: usize) -> Result<Vec<T>> {
    let mut room = Vec::new();
    room.try_reserve_exact(len).map_err(|_| {
        let bytes = len.saturating_mul(size_of::<T>());
        Error::other(libc::ENOMEM, format!("no memory for {bytes} bytes"))
    })?;
    room.resize(len, T::default());
    Ok(room)
}
