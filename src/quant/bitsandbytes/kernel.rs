//! The values of a 4-bit weight: `map[code] · a`, where a is the statistic of the value's block.

use std::sync::Arc;

use super::state::{Nested, State};
use crate::dtype::Dtype;
use crate::dtype::decode::{decode, nibbles};
use crate::error::Result;
use crate::quant::Kernel;
use crate::quant::read::part;
use crate::quant::scaled::{combine_runs, one_nan};
use crate::view::{FloatSource, Floats, Scratch, SharedView};

/// Values are computed at most this many at a time; the bytes for them stay in the L2 cache.
const PIECE: usize = 64 * 1024;
/// Values are looked up and scaled this many at a time, in the L1 cache.
const STRIP: usize = 4096;

/// Parts: weight, absmax, quant_map, and also nested_absmax, nested_quant_map if [`Nested`].
pub struct FourBitKernel {
    numel: u64,
    block: u64,
    nested: Option<Nested>,
}

impl FourBitKernel {
    /// For a state that the tensors' lengths match.
    pub fn new(state: &State) -> FourBitKernel {
        FourBitKernel {
            numel: state.numel,
            block: state.block,
            nested: state.nested,
        }
    }
}

impl Kernel for FourBitKernel {
    fn view(&self, parts: &[SharedView]) -> Result<SharedView> {
        let part = |i| part(parts, i).cloned();
        let nested = match self.nested {
            Some(nested) => Some(NestedViews {
                nested,
                absmax: part(3)?,
                map: part(4)?,
            }),
            None => None,
        };
        Ok(Arc::new(Floats(FourBitValues {
            numel: self.numel,
            block: self.block,
            codes: part(0)?,
            absmax: part(1)?,
            map: part(2)?,
            nested,
        })))
    }
}

struct FourBitValues {
    numel: u64,
    block: u64,
    codes: SharedView,
    absmax: SharedView,
    map: SharedView,
    nested: Option<NestedViews>,
}

struct NestedViews {
    nested: Nested,
    absmax: SharedView,
    map: SharedView,
}

/// The two values that each byte of codes represents.
type Pairs = [[f32; 2]; 256];

impl FloatSource for FourBitValues {
    fn numel(&self) -> u64 {
        self.numel
    }

    fn fill(&self, first: u64, out: &mut [f32]) -> Result<()> {
        let mut pairs = [[0.0; 2]; 256];
        self.read_map(&mut pairs)?;
        let mut at = first;
        for piece in out.chunks_mut(PIECE) {
            self.piece(at, piece, &pairs)?;
            at += piece.len() as u64;
        }
        Ok(())
    }
}

impl FourBitValues {
    /// The stored map, as every byte's two values: the high nibble comes first.
    fn read_map(&self, pairs: &mut Pairs) -> Result<()> {
        let mut map = [0.0; 16];
        read_floats(&self.map, 0, &mut map)?;
        for (byte, pair) in pairs.iter_mut().enumerate() {
            *pair = [map[byte >> 4], map[byte & 15]];
        }
        Ok(())
    }

    fn piece(&self, first: u64, out: &mut [f32], pairs: &Pairs) -> Result<()> {
        let first_block = first / self.block;
        let last_block = (first + out.len().max(1) as u64 - 1) / self.block;
        let statistics = self.read_statistics(first_block, last_block)?;
        let start = first / 2;
        let stop = (first + out.len() as u64).div_ceil(2);
        let mut bytes = Scratch::<u8>::take((stop - start) as usize);
        self.codes.read_at(start, &mut bytes)?;
        let mut at = first;
        for strip in out.chunks_mut(STRIP) {
            let codes = &bytes[(at / 2 - start) as usize..];
            nibbles(pairs, codes, (at % 2) as usize, strip);
            let by = &statistics[(at / self.block - first_block) as usize..];
            combine_runs(strip, at % self.block, self.block, by, |v, a| v * a);
            at += strip.len() as u64;
        }
        Ok(())
    }

    /// The statistics of blocks `first..=last`.
    fn read_statistics(&self, first: u64, last: u64) -> Result<Scratch<f32>> {
        let count = (last - first + 1) as usize;
        let mut statistics = Scratch::take(count);
        let Some(views) = &self.nested else {
            read_floats(&self.absmax, first, &mut statistics)?;
            return Ok(statistics);
        };
        let mut map = [0.0; 256];
        read_floats(&views.map, 0, &mut map)?;
        let Nested { block, offset } = views.nested;
        let outer_first = first / block;
        let mut outer = Scratch::take((last / block - outer_first + 1) as usize);
        read_floats(&views.absmax, outer_first, &mut outer)?;
        let mut codes = Scratch::<u8>::take(count);
        self.absmax.read_at(first, &mut codes)?;
        for (a, &code) in statistics.iter_mut().zip(&*codes) {
            *a = map[usize::from(code)];
        }
        combine_runs(&mut statistics, first % block, block, &outer, |m, a| {
            m * a + offset
        });
        one_nan(&mut statistics);
        Ok(statistics)
    }
}

/// Reads F32 elements from `first` on.
fn read_floats(view: &SharedView, first: u64, out: &mut [f32]) -> Result<()> {
    let mut bytes = Scratch::<u8>::take(out.len() * 4);
    view.read_at(first * 4, &mut bytes)?;
    decode(Dtype::F32, &bytes, 0, out);
    one_nan(out);
    Ok(())
}
