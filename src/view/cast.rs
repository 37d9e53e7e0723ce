//! Any stored dtype → binary32, block by block.

use super::scratch::Scratch;
use super::{FloatSource, Floats, SharedView, View};
use crate::dtype::Dtype;
use crate::dtype::decode::{decode, elements_per_unit};
use crate::error::Result;

/// Stored bytes are read and widened this many at a time: a block stays in the L2 cache between
/// the `pread` that fills it and the loop that widens it.
const BLOCK: usize = 64 * 1024;

/// The elements of a view of some dtype, as binary32.
pub struct Cast {
    source: SharedView,
    dtype: Dtype,
}

impl Cast {
    /// The `f32` of `source`, whose bytes are elements of `dtype`. F32 is `source` itself: the
    /// same bytes, NaN payloads too. `None` for C64, which has no real values.
    pub fn view(source: SharedView, dtype: Dtype) -> Option<SharedView> {
        match dtype {
            Dtype::F32 => Some(source),
            Dtype::C64 => None,
            _ => Some(std::sync::Arc::new(Floats(Cast { source, dtype }))),
        }
    }
}

impl FloatSource for Cast {
    fn numel(&self) -> u64 {
        self.source.len() * 8 / u64::from(self.dtype.bits())
    }

    fn fill(&self, first: u64, out: &mut [f32]) -> Result<()> {
        let per_unit = elements_per_unit(self.dtype);
        let unit_bytes = per_unit * u64::from(self.dtype.bits()) / 8;
        let block = (BLOCK as u64 / unit_bytes * per_unit) as usize;
        let mut scratch = Scratch::<u8>::take(BLOCK);
        let mut done = 0;
        while done < out.len() {
            let at = first + done as u64;
            let skip = (at % per_unit) as usize;
            let n = (out.len() - done).min(block - skip);
            let start = at / per_unit * unit_bytes;
            let stop = (at + n as u64).div_ceil(per_unit) * unit_bytes;
            let bytes = &mut scratch[..(stop - start) as usize];
            self.source.read_at(start, bytes)?;
            decode(self.dtype, bytes, skip, &mut out[done..done + n]);
            done += n;
        }
        Ok(())
    }
}
