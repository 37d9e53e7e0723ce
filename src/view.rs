//! Views: lazy bytes of a known length. What a file of the mount shows is a view, and views nest
//! (npy over cast over concat over stored).
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

mod bytes;
mod cast;
mod concat;
mod floats;
mod npy;
mod scratch;
mod slice;
#[cfg(test)]
mod tests;
mod tile_cache;

pub use bytes::{Bytes, Deferred, StoredBytes};
pub use cast::Cast;
pub use concat::Concat;
pub use floats::{FloatSource, Floats};
pub use npy::{Npy, npy_header};
pub use scratch::Scratch;
pub use slice::Slice;
pub use tile_cache::TileCache;

/// Lazy bytes of an exact, known length. Nothing is computed before it is read.
pub trait View: Send + Sync {
    /// The length in bytes, exact, without computing one of them.
    fn len(&self) -> u64;

    /// Whether there is not one byte.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` with the bytes from `offset` on.
    ///
    /// The caller keeps `offset + buf.len() ≤ self.len()`; any offset and any length within that is
    /// allowed. Sources are read with `pread`, never through a mapping: a file that was truncated
    /// is [`Error::Truncated`](crate::Error::Truncated), not a SIGBUS.
    ///
    /// # Errors
    /// The source cannot give the bytes, or their contents make values impossible.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// The same bytes as one piece of a mapping or of shared memory, if they are that: the zero-copy
    /// way. `None` means "use [`View::read_at`]".
    fn piece(&self, offset: u64, len: usize) -> Option<Piece<'_>> {
        let _ = (offset, len);
        None
    }

    /// Announces byte ranges that are about to be read, in any order and any number of reads, so that
    /// a source can fetch them at the same time. Only a hint: it must not fail, and must not wait.
    fn will_need(&self, ranges: &[Range<u64>]) {
        let _ = ranges;
    }

    /// A granularity, in bytes, at which reads are cheapest (a row, a tile): a hint for callers that
    /// read the whole view in pieces. 1 when it does not matter.
    fn grain(&self) -> u64 {
        1
    }
}

/// A view that several holders share.
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
}

/// Ranges of a view that begins `by` bytes into another, as ranges of that.
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
