//! Bytes of zero: the end of a padded axis.

use std::sync::Arc;

use super::{SharedView, View};
use crate::error::Result;

/// As many bytes of zero.
pub struct Zeros(u64);

impl Zeros {
    /// `len` bytes of zero.
    pub fn view(len: u64) -> SharedView {
        Arc::new(Zeros(len))
    }
}

impl View for Zeros {
    fn len(&self) -> u64 {
        self.0
    }

    fn read_at(&self, _offset: u64, buf: &mut [u8]) -> Result<()> {
        buf.fill(0);
        Ok(())
    }
}
