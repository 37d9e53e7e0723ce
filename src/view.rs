//! Views: lazy bytes of a known length. Each file of the mount is a view, and views nest (npy over
//! cast over concat over stored).
//!
//! ```text
//! shard ── StoredBytes ──┬── raw                          (replied straight from the mapping)
//!                        ├── Cast ── f32                  (pread a block, widen it)
//!                        ├── Concat ── fused, stacked     (only the parts a read touches)
//!                        ├── quant::… ── dequantized f32  (only the tiles a read touches)
//!                        └── Npy ── header + any of these
//! ```

use std::ops::Range;
use std::sync::Arc;

use crate::catalog::Piece;
use crate::error::Result;

mod arithmetic;
mod bytes;
mod cast;
mod concat;
mod floats;
mod narrow;
mod npy;
mod parts;
mod product;
mod same;
mod scratch;
mod shared;
mod slice;
mod strided;
#[cfg(test)]
mod tests;
mod tile_cache;
mod zeros;

pub use arithmetic::{Arithmetic, Negated, Operand};
pub use bytes::{Bytes, Deferred, StoredBytes};
pub use cast::Cast;
pub use concat::Concat;
pub use floats::{FloatSource, Floats};
pub use narrow::Narrow;
pub use npy::{Npy, npy_header};
pub use parts::Parts;
pub use product::Product;
pub use same::Same;
pub use scratch::Scratch;
pub use shared::Shared;
pub use slice::Slice;
pub use strided::{Gathered, Layout as StridedLayout, Swap};
pub use tile_cache::TileCache;
pub use zeros::Zeros;

/// Lazy bytes of an exact, known length. Nothing is computed before it is read.
pub trait View: Send + Sync {
    /// The exact length in bytes. Computes none of them.
    fn len(&self) -> u64;

    /// Whether it has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` with the bytes from `offset` on.
    ///
    /// The caller guarantees `offset + buf.len() ≤ self.len()`; any offset and length within that
    /// are allowed. Sources are read with `pread`, never through a mapping, so a truncated file is
    /// [`Error::Truncated`](crate::Error::Truncated), not a SIGBUS.
    ///
    /// # Errors
    /// The source cannot be read, or its contents make values impossible.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// The same bytes without a copy, if they are one piece of a mapping or of shared memory.
    /// `None` means "use [`View::read_at`]".
    fn piece(&self, offset: u64, len: usize) -> Option<Piece<'_>> {
        let _ = (offset, len);
        None
    }

    /// Announces byte ranges that are about to be read, in any order and any number of reads, so
    /// that a source can fetch them all at once. Only a hint: it must not fail, and must not wait.
    fn will_need(&self, ranges: &[Range<u64>]) {
        let _ = ranges;
    }

    /// A granularity, in bytes, at which reads are cheapest (a row, a tile): a hint for callers
    /// that read the whole view in pieces. 1 if it does not matter.
    fn grain(&self) -> u64 {
        1
    }

    /// What one of its elements takes to compute.
    fn effort(&self) -> Effort {
        Effort::default()
    }

    /// The same bytes for one more reader, who has caches of its own, which go with it. `None` if the
    /// view keeps nothing between reads.
    fn opened(&self) -> Option<SharedView> {
        None
    }
}

/// What it takes to compute one element of a view that was made by a recipe: another recipe may build on it, and
/// both together have limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Effort {
    /// Views on top of one another.
    pub depth: u32,
    /// Source elements that it depends on.
    pub reach: u32,
}

impl Default for Effort {
    /// That of a stored element.
    fn default() -> Effort {
        Effort { depth: 0, reach: 1 }
    }
}

/// A view with several owners.
pub type SharedView = Arc<dyn View>;

impl<V: View + ?Sized> View for Arc<V> {
    fn len(&self) -> u64 {
        (**self).len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        (**self).read_at(offset, buf)
    }
    fn piece(&self, offset: u64, len: usize) -> Option<Piece<'_>> {
        (**self).piece(offset, len)
    }
    fn will_need(&self, ranges: &[Range<u64>]) {
        (**self).will_need(ranges);
    }
    fn grain(&self) -> u64 {
        (**self).grain()
    }
    fn effort(&self) -> Effort {
        (**self).effort()
    }
    fn opened(&self) -> Option<SharedView> {
        (**self).opened()
    }
}

/// Converts ranges of a view that begins `by` bytes into another view to ranges of the latter.
fn shifted(ranges: &[Range<u64>], by: u64) -> Vec<Range<u64>> {
    ranges.iter().map(|r| r.start + by..r.end + by).collect()
}

/// Reads the whole of a small view.
///
/// # Errors
/// As [`View::read_at`], or out of memory (ENOMEM) if the view is too large.
pub fn read_all(view: &dyn View) -> Result<Vec<u8>> {
    let len = usize::try_from(view.len()).unwrap_or(usize::MAX);
    let mut out = Vec::new();
    out.try_reserve_exact(len).map_err(|_| {
        crate::Error::other(libc::ENOMEM, format!("no memory for {} bytes", view.len()))
    })?;
    out.resize(len, 0);
    view.read_at(0, &mut out)?;
    Ok(out)
}
