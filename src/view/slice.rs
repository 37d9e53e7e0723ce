//! A range of another view's bytes.

use std::ops::Range;
use std::sync::Arc;

use super::{SharedView, View, shifted};
use crate::catalog::Piece;
use crate::error::Result;

/// `len` bytes of a view from `start` on, which must lie within it.
pub struct Slice {
    of: SharedView,
    start: u64,
    len: u64,
}

impl Slice {
    /// Those bytes of `of`.
    pub fn new(of: SharedView, start: u64, len: u64) -> Slice {
        debug_assert!(start + len <= of.len());
        Slice { of, start, len }
    }
}

impl View for Slice {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        debug_assert!(offset + buf.len() as u64 <= self.len);
        self.of.read_at(self.start + offset, buf)
    }

    fn piece(&self, offset: u64, len: usize) -> Option<Piece<'_>> {
        debug_assert!(offset + len as u64 <= self.len);
        self.of.piece(self.start + offset, len)
    }

    fn will_need(&self, ranges: &[Range<u64>]) {
        debug_assert!(ranges.iter().all(|r| r.end <= self.len));
        self.of.will_need(&shifted(ranges, self.start));
    }

    fn grain(&self) -> u64 {
        self.of.grain()
    }

    fn opened(&self) -> Option<SharedView> {
        let of = self.of.opened()?;
        Some(Arc::new(Slice { of, ..*self }))
    }
}
