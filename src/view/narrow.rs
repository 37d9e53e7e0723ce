//! binary32 → narrower floats, rounded to nearest, ties to even.

use std::ops::Range;
use std::sync::Arc;

use half::slice::{HalfBitsSliceExt, HalfFloatSliceExt};

use super::floats::{in_bytes, in_elements, read_values};
use super::{Scratch, SharedView, View};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::patience;
use crate::simd::for_each_cpu;

/// Values that are read and rounded at a time: few enough for the L2 cache.
const PIECE: usize = 16 << 10;

/// Rounds values into the bytes of as many elements.
type Round = fn(&[f32], &mut [u8]);

/// The values of a view in a narrower type.
pub struct Narrow {
    values: SharedView,
    to: Dtype,
    width: u64,
    round: Round,
}

impl Narrow {
    /// The values of `values` (binary32, little-endian) as elements of `dtype`: F16, BF16, F8_E4M3 or F8_E5M2, or
    /// F32 for `values` itself. Beyond the type's range, F8_E4M3 has NaN and the others have infinity. `None`
    /// for any other type.
    pub fn view(values: SharedView, dtype: Dtype) -> Option<SharedView> {
        let (width, round): (u64, Round) = match dtype {
            Dtype::F32 => return Some(values),
            Dtype::F16 => (2, to_f16),
            Dtype::BF16 => (2, to_bf16),
            Dtype::F8_E4M3 => (1, to_e4m3),
            Dtype::F8_E5M2 => (1, to_e5m2),
            _ => return None,
        };
        Some(Arc::new(Narrow {
            values,
            to: dtype,
            width,
            round,
        }))
    }

    /// Fills `buf` with whole elements from `first` on.
    fn fill(&self, first: u64, buf: &mut [u8]) -> Result<()> {
        let width = self.width as usize;
        let mut values = Scratch::<f32>::take(PIECE.min(buf.len() / width));
        for (i, out) in buf.chunks_mut(PIECE * width).enumerate() {
            let values = &mut values[..out.len() / width];
            read_values(&*self.values, first + (i * PIECE) as u64, values)?;
            (self.round)(values, out);
        }
        Ok(())
    }
}

impl View for Narrow {
    fn len(&self) -> u64 {
        self.values.len() / 4 * self.width
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let width = self.width;
        patience::take_time(buf.len() as u64 / width)?;
        // An element of which only the second byte is wanted, and one of which only the first.
        let (mut at, mut rest) = (offset, buf);
        if at % width != 0 && !rest.is_empty() {
            let (now, later) = rest.split_at_mut(1);
            let mut whole = [0; 2];
            self.fill(at / width, &mut whole)?;
            now[0] = whole[1];
            (at, rest) = (at + 1, later);
        }
        let tail = rest.len() % width as usize;
        let (now, last) = rest.split_at_mut(rest.len() - tail);
        self.fill(at / width, now)?;
        if let [last] = last {
            let mut whole = [0; 2];
            self.fill((at + now.len() as u64) / width, &mut whole)?;
            *last = whole[0];
        }
        Ok(())
    }

    fn will_need(&self, ranges: &[Range<u64>]) {
        let elements = in_elements(ranges, self.width);
        self.values.will_need(&in_bytes(&elements, 4));
    }

    fn grain(&self) -> u64 {
        (self.values.grain() / 4).max(1).saturating_mul(self.width)
    }

    fn opened(&self) -> Option<SharedView> {
        Narrow::view(self.values.opened()?, self.to)
    }
}

/// By F16C where the machine has it.
fn to_f16(values: &[f32], out: &mut [u8]) {
    match bytemuck::try_cast_slice_mut::<u8, u16>(out) {
        Ok(out) => out
            .reinterpret_cast_mut::<half::f16>()
            .convert_from_f32_slice(values),
        // At an odd address.
        Err(_) => {
            let mut aligned = Scratch::<u16>::take(values.len());
            aligned
                .reinterpret_cast_mut::<half::f16>()
                .convert_from_f32_slice(values);
            out.copy_from_slice(bytemuck::cast_slice(&aligned));
        }
    }
}

for_each_cpu! {
    fn to_bf16(values: &[f32], out: &mut [u8]) {
        let (values, rest) = values.as_chunks::<64>();
        let (out, rest_of_out) = out.as_chunks_mut::<2>().0.as_chunks_mut::<64>();
        out.iter_mut().zip(values).for_each(|(out, values)| block_to_bf16(values, out));
        for (out, value) in rest_of_out.iter_mut().zip(rest) {
            block_to_bf16(&[*value], std::array::from_mut(out));
        }
    }
}

for_each_cpu! {
    fn to_e4m3(values: &[f32], out: &mut [u8]) {
        for (out, value) in out.iter_mut().zip(values) {
            *out = small::<3, 7>(value.to_bits(), 0x7f, 0x7f, 0x7f);
        }
    }
}

for_each_cpu! {
    fn to_e5m2(values: &[f32], out: &mut [u8]) {
        for (out, value) in out.iter_mut().zip(values) {
            *out = small::<2, 15>(value.to_bits(), 0x7c, 0x7c, 0x7e);
        }
    }
}

/// NaN is rare, so blocks are searched for it while they are rounded as if they had none: 8.1 billion values a
/// second instead of 5.2.
#[inline(always)]
fn block_to_bf16<const N: usize>(values: &[f32; N], out: &mut [[u8; 2]; N]) {
    let mut has_nan = 0;
    for (out, value) in out.iter_mut().zip(values) {
        let bits = value.to_bits();
        has_nan |= u32::from(is_nan(bits));
        *out = bf16(bits).to_le_bytes();
    }
    if has_nan == 0 {
        return;
    }
    for (out, value) in out.iter_mut().zip(values) {
        let bits = value.to_bits();
        let nan = (bits >> 16) as u16 & 0x8000 | 0x7fc0;
        *out = (if is_nan(bits) { nan } else { bf16(bits) }).to_le_bytes();
    }
}

/// BF16 is the upper half: half of the lower one's range is added, so that the carry rounds, also to infinity.
#[inline(always)]
fn bf16(bits: u32) -> u16 {
    let even = (bits >> 16) & 1;
    (bits.wrapping_add(0x7fff + even) >> 16) as u16
}

/// Compared as signed numbers, which AVX2 can.
#[inline(always)]
fn is_nan(bits: u32) -> bool {
    (bits & 0x7fff_ffff) as i32 > 0x7f80_0000
}

/// An 8-bit float of `M` bits of mantissa and that bias. Codes from `limit` on are `over`, which infinity is, too;
/// NaN is `nan`.
#[inline(always)]
fn small<const M: u32, const BIAS: u32>(bits: u32, limit: u32, over: u32, nan: u32) -> u8 {
    let magnitude = bits & 0x7fff_ffff;
    // Normal numbers: bits below the mantissa are rounded away, and the exponent is counted from another bias.
    let drop = 23 - M;
    let even = (magnitude >> drop) & 1;
    let rounded = magnitude.wrapping_add((1 << (drop - 1)) - 1 + even) >> drop;
    let normal = rounded.wrapping_sub((127 - BIAS) << M);
    // Subnormal ones: a number whose last bit is worth the smallest of them is added, so that the sum is rounded
    // to a whole number of those.
    let one = (127 + 1 - BIAS - M + 23) << 23;
    let sum = f32::from_bits(magnitude) + f32::from_bits(one);
    let subnormal = sum.to_bits().wrapping_sub(one);
    let smallest_normal = (127 + 1 - BIAS) << 23;
    let code = if magnitude < smallest_normal {
        subnormal
    } else {
        normal
    };
    let code = if code >= limit { over } else { code };
    let code = if is_nan(bits) { nan } else { code };
    (code | (bits >> 24) & 0x80) as u8
}

#[cfg(test)]
mod tests;
