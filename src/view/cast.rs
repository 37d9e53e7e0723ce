//! Stored elements of any type → binary32, in pieces.

use std::sync::Arc;

use super::scratch::Scratch;
use super::{FloatSource, Floats, SharedView, View};
use crate::dtype::decode::{decode, elements_per_unit};
use crate::dtype::{Block, DecodeBlocks, Dtype, ElementType};
use crate::error::Result;

/// How many stored bytes are read and widened at a time: few enough to stay in the L2 cache between
/// the `pread` and the loop that widens them.
const PIECE: usize = 64 * 1024;

/// The elements of a view of some dtype, as binary32.
pub struct Cast {
    source: SharedView,
    dtype: Dtype,
}

impl Cast {
    /// The `f32` of `source`, whose bytes are elements of `dtype`. For F32 this is `source` itself,
    /// so that even NaN payloads stay. `None` if the type has no real values.
    pub fn view(source: SharedView, dtype: impl Into<ElementType>) -> Option<SharedView> {
        match dtype.into() {
            ElementType::Known(Dtype::F32) => Some(source),
            ElementType::Known(dtype) if dtype.has_f32() => {
                Some(Arc::new(Floats(Cast { source, dtype })))
            }
            ElementType::Block(block) => Some(Arc::new(Floats(Blocks {
                source,
                block,
                decode: block.decode?,
            }))),
            ElementType::Known(_) | ElementType::Other(_) => None,
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
        let most = (PIECE as u64 / unit_bytes * per_unit) as usize;
        let mut scratch = Scratch::<u8>::take(PIECE);
        let mut done = 0;
        while done < out.len() {
            let at = first + done as u64;
            let skip = (at % per_unit) as usize;
            let n = (out.len() - done).min(most - skip);
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

/// The values of a block type. Blocks are independent, so a read decodes only the blocks that it
/// touches.
struct Blocks {
    source: SharedView,
    block: &'static Block,
    decode: DecodeBlocks,
}

impl Blocks {
    /// Reads as many whole blocks from `first` on as `out` holds, and decodes them.
    fn whole(&self, first: u64, out: &mut [f32], scratch: &mut Scratch<u8>) -> Result<()> {
        let size = self.block.bytes as usize;
        let bytes = &mut scratch[..out.len() / self.block.elements as usize * size];
        self.source.read_at(first * size as u64, bytes)?;
        (self.decode)(bytes, out);
        Ok(())
    }
}

impl FloatSource for Blocks {
    fn numel(&self) -> u64 {
        self.source.len() / u64::from(self.block.bytes) * u64::from(self.block.elements)
    }

    fn fill(&self, first: u64, out: &mut [f32]) -> Result<()> {
        let elements = self.block.elements as usize;
        let blocks = (PIECE / self.block.bytes as usize).max(1);
        let mut scratch = Scratch::<u8>::take(blocks * self.block.bytes as usize);
        let mut done = 0;
        while done < out.len() {
            let at = first + done as u64;
            let (block, skip) = (at / elements as u64, (at % elements as u64) as usize);
            let left = &mut out[done..];
            if skip == 0 && left.len() >= elements {
                let n = (left.len() / elements).min(blocks) * elements;
                self.whole(block, &mut left[..n], &mut scratch)?;
                done += n;
            } else {
                let mut values = Scratch::<f32>::take(elements);
                self.whole(block, &mut values, &mut scratch)?;
                let n = left.len().min(elements - skip);
                left[..n].copy_from_slice(&values[skip..skip + n]);
                done += n;
            }
        }
        Ok(())
    }

    fn grain(&self) -> u64 {
        self.block.elements.into()
    }
}
