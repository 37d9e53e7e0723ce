//! Computed binary32 values as bytes: the common part of cast and every dequantizer.

use std::ops::Range;

use super::{Scratch, SharedView, View};
use crate::error::Result;

/// Values that can be computed for any range of elements.
pub trait FloatSource: Send + Sync {
    /// The number of elements.
    fn numel(&self) -> u64;

    /// Fills `out` with the elements from `first` on. The caller guarantees that the range is
    /// within `numel`.
    ///
    /// # Errors
    /// The source cannot be read, or its contents make values impossible.
    fn fill(&self, first: u64, out: &mut [f32]) -> Result<()>;

    /// The number of elements that are cheapest to compute at a time (a row, a tile); 1 if it does
    /// not matter.
    fn grain(&self) -> u64 {
        1
    }

    /// As [`View::will_need`], for ranges of elements.
    fn will_need(&self, elements: &[Range<u64>]) {
        let _ = elements;
    }

    /// As [`View::opened`].
    fn opened(&self) -> Option<SharedView> {
        None
    }
}

/// Fills `out` with the values of a view from element `first` on.
///
/// # Errors
/// As [`View::read_at`].
pub(super) fn read_values(view: &dyn View, first: u64, out: &mut [f32]) -> Result<()> {
    view.read_at(first * 4, bytemuck::cast_slice_mut(out))
}

/// Ranges of elements as ranges of bytes, of `width` bytes each.
pub(super) fn in_bytes(elements: &[Range<u64>], width: u64) -> Vec<Range<u64>> {
    let bytes = elements.iter().map(|r| r.start * width..r.end * width);
    bytes.collect()
}

/// Ranges of bytes as ranges of the elements, of `width` bytes each, that they touch.
pub(super) fn in_elements(bytes: &[Range<u64>], width: u64) -> Vec<Range<u64>> {
    let elements = bytes.iter();
    let elements = elements.map(|r| r.start / width..r.end.div_ceil(width));
    elements.collect()
}

/// A [`FloatSource`] as a view: little-endian binary32, no header.
pub struct Floats<S>(pub S);

impl<S: FloatSource> View for Floats<S> {
    fn len(&self) -> u64 {
        self.0.numel() * 4
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        // The usual case: whole elements into an aligned buffer, with no copy between.
        if offset.is_multiple_of(4)
            && let Ok(out) = bytemuck::try_cast_slice_mut::<u8, f32>(buf)
        {
            return self.0.fill(offset / 4, out);
        }
        self.read_unaligned(offset, buf)
    }

    fn grain(&self) -> u64 {
        // A view without values may have rows of any length.
        self.0.grain().saturating_mul(4)
    }

    fn will_need(&self, ranges: &[Range<u64>]) {
        self.0.will_need(&in_elements(ranges, 4));
    }

    fn opened(&self) -> Option<SharedView> {
        self.0.opened()
    }
}

impl<S: FloatSource> Floats<S> {
    /// For a range that begins or ends inside an element, or a misaligned buffer: computes whole
    /// elements in a buffer of its own.
    fn read_unaligned(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        const CHUNK: u64 = 64 * 1024;
        let end = offset + buf.len() as u64;
        let mut values = Scratch::<f32>::take((buf.len() as u64 / 4 + 2).min(CHUNK) as usize);
        let mut at = offset;
        while at < end {
            let first = at / 4;
            let count = (end.div_ceil(4) - first).min(values.len() as u64);
            let values = &mut values[..count as usize];
            self.0.fill(first, values)?;
            let stop = end.min((first + count) * 4);
            let bytes: &[u8] = bytemuck::cast_slice(values);
            let from = (at - first * 4) as usize;
            let n = (stop - at) as usize;
            buf[(at - offset) as usize..][..n].copy_from_slice(&bytes[from..from + n]);
            at = stop;
        }
        Ok(())
    }
}
