//! The inner loops: from packed rows to codes, and from codes to numbers.

use crate::quant::bits::{eight, value};
use crate::quant::e2m1;
use crate::simd::for_each_cpu;

/// How the codes of one row follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    /// One bit stream, lowest bits first; values may straddle words.
    Dense,
    /// As many whole values as fit into a 32-bit word, low first; its top bits may be unused.
    Padded,
}

/// The width of codes, and how they follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    /// Bits per code: 1 to 8.
    pub bits: u32,
    /// How they follow each other.
    pub packing: Packing,
}

impl Layout {
    /// The smallest run of codes that begins and ends at a byte boundary: its number of codes and
    /// of bytes.
    pub fn unit(self) -> (u64, u64) {
        match self.packing {
            Packing::Dense => (8, u64::from(self.bits)),
            Packing::Padded => (u64::from(32 / self.bits), 4),
        }
    }

    /// How many 32-bit words `n` codes take; `None` on overflow.
    pub fn words(self, n: u64) -> Option<u64> {
        match self.packing {
            Packing::Dense => Some(n.checked_mul(u64::from(self.bits))?.div_ceil(32)),
            Packing::Padded => Some(n.div_ceil(u64::from(32 / self.bits))),
        }
    }

    /// Whether `n` codes end at the end of a 32-bit word.
    pub fn fills_words(self, n: u64) -> bool {
        match self.packing {
            Packing::Dense => n.wrapping_mul(u64::from(self.bits)).is_multiple_of(32),
            Packing::Padded => n.is_multiple_of(u64::from(32 / self.bits)),
        }
    }

    /// The position of code `n` in a run of 32-bit words: its word, its lowest bit there, and
    /// whether the next word holds its upper bits.
    pub fn place(self, n: u64) -> (u64, u32, bool) {
        let per = u64::from(32 / self.bits);
        match self.packing {
            Packing::Dense => {
                // 32 codes take exactly `bits` words; within such a block, products stay small.
                let bit = (n % 32) as u32 * self.bits;
                let word = n / 32 * u64::from(self.bits) + u64::from(bit / 32);
                (word, bit % 32, bit % 32 + self.bits > 32)
            }
            Packing::Padded => (n / per, (n % per) as u32 * self.bits, false),
        }
    }
}

/// What a code means, before its scale is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Numbers {
    /// The code minus its group's bias.
    Integers,
    /// A 4-bit float (E2M1).
    E2m1,
    /// A 6-bit float (E2M3).
    E2m3,
}

/// What to subtract from integer codes.
#[derive(Debug, Clone, Copy)]
pub(super) enum Biases<'a> {
    /// The same number for all.
    One(i32),
    /// One for each scale.
    Each(&'a [i32]),
}

/// A run of columns of one row, ready to be decoded.
pub(super) struct Segment<'a> {
    /// Packed codes, from the start of the first column's unit.
    pub bytes: &'a [u8],
    /// The number of codes in that unit before the first column.
    pub skip: usize,
    /// The number of columns from the first one to the end of its group.
    pub left: usize,
    /// Columns of a group.
    pub group: usize,
    /// The scales of the first column's group and those after it, or of the whole row if there is
    /// an `order`.
    pub scales: &'a [f32],
    /// The biases, one for each scale.
    pub biases: Biases<'a>,
    /// The group of each column, if groups are not contiguous.
    pub order: Option<&'a [u32]>,
}

for_each_cpu! {
    /// Decodes `out.len()` columns. `codes` is scratch space, at least as long.
    pub(super) fn decode(
        layout: Layout,
        numbers: Numbers,
        segment: &Segment,
        codes: &mut [u8],
        out: &mut [f32],
    ) {
        let codes = &mut codes[..out.len()];
        unpack(layout, segment.bytes, segment.skip, codes);
        match (numbers, segment.biases) {
            (Numbers::Integers, Biases::One(bias)) => scale(segment, codes, out, |code, _| {
                (i32::from(code) - bias) as f32
            }),
            (Numbers::Integers, Biases::Each(biases)) => scale(segment, codes, out, |code, group| {
                (i32::from(code) - biases[group]) as f32
            }),
            (Numbers::E2m1, _) => scale(segment, codes, out, |code, _| {
                e2m1::doubled(u32::from(code)) * 0.5
            }),
            (Numbers::E2m3, _) => scale(segment, codes, out, |code, _| e2m3(u32::from(code))),
        }
    }
}

/// The value of a six-bit float (OCP MX v1.0: sign, two bits of exponent, three of mantissa, bias
/// 1), computed in a form that the compiler vectorizes, unlike a table. Bits above the code's six
/// must be 0.
#[inline(always)]
fn e2m3(code: u32) -> f32 {
    let (exponent, mantissa) = (code >> 3 & 3, code & 7);
    // Eight times the magnitude is a whole number. Exponent 0 is subnormal and scaled like exponent
    // 1.
    let eighths = (mantissa | u32::from(exponent > 0) << 3) << exponent.saturating_sub(1);
    f32::from_bits((eighths as i32 as f32 * 0.125).to_bits() | (code & 32) << 26)
}

/// Unpacks codes, one per byte.
#[inline(always)]
fn unpack(layout: Layout, bytes: &[u8], skip: usize, codes: &mut [u8]) {
    match (layout.packing, layout.bits) {
        (Packing::Padded, bits) => unpack_padded(bits, bytes, skip, codes),
        (Packing::Dense, 1) => unpack_dense::<1>(bytes, skip, codes),
        (Packing::Dense, 2) => unpack_dense::<2>(bytes, skip, codes),
        (Packing::Dense, 3) => unpack_dense::<3>(bytes, skip, codes),
        (Packing::Dense, 4) => unpack_dense::<4>(bytes, skip, codes),
        (Packing::Dense, 5) => unpack_dense::<5>(bytes, skip, codes),
        (Packing::Dense, 6) => unpack_dense::<6>(bytes, skip, codes),
        (Packing::Dense, 7) => unpack_dense::<7>(bytes, skip, codes),
        (Packing::Dense, _) => codes.copy_from_slice(&bytes[skip..skip + codes.len()]),
    }
}

#[inline(always)]
fn unpack_dense<const B: usize>(bytes: &[u8], skip: usize, codes: &mut [u8]) {
    let head = if skip == 0 { 0 } else { 8 - skip };
    let (head, codes) = codes.split_at_mut(head.min(codes.len()));
    for (i, code) in head.iter_mut().enumerate() {
        *code = value(bytes, B as u32, skip + i) as u8;
    }
    if codes.is_empty() {
        return;
    }
    let bytes = &bytes[if skip == 0 { 0 } else { B }..];
    let (whole, tail) = codes.as_chunks_mut::<8>();
    let (packed, rest) = bytes.split_at(whole.len() * B);
    for (eight_codes, packed) in whole.iter_mut().zip(packed.as_chunks::<B>().0) {
        *eight_codes = eight(packed).map(|code| code as u8);
    }
    for (i, code) in tail.iter_mut().enumerate() {
        *code = value(rest, B as u32, i) as u8;
    }
}

#[inline(always)]
fn unpack_padded(bits: u32, bytes: &[u8], mut skip: usize, mut codes: &mut [u8]) {
    let per = (32 / bits) as usize;
    for word in bytes.as_chunks::<4>().0 {
        let word = u32::from_le_bytes(*word) >> (skip as u32 * bits);
        let (here, rest) = codes.split_at_mut((per - skip).min(codes.len()));
        for (i, code) in here.iter_mut().enumerate() {
            *code = (word >> (i as u32 * bits) & ((1 << bits) - 1)) as u8;
        }
        codes = rest;
        skip = 0;
    }
}

/// Multiplies each code's number by its group's scale, with one rounding. `number` gets the code
/// and the group's index in the segment's scales.
#[inline(always)]
fn scale(segment: &Segment, codes: &[u8], out: &mut [f32], number: impl Fn(u8, usize) -> f32) {
    if let Some(order) = segment.order {
        for ((out, &code), &group) in out.iter_mut().zip(codes).zip(order) {
            let group = group as usize;
            *out = number(code, group) * segment.scales[group];
        }
        return;
    }
    let (mut codes, mut out) = (codes, out);
    let mut n = segment.left.min(out.len());
    for (group, &scale) in segment.scales.iter().enumerate() {
        let (here, rest) = out.split_at_mut(n);
        let (codes_here, codes_rest) = codes.split_at(n);
        for (out, &code) in here.iter_mut().zip(codes_here) {
            *out = number(code, group) * scale;
        }
        (codes, out) = (codes_rest, rest);
        n = segment.group.min(out.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::plainly;

    /// A minimal generator: the values only have to differ.
    fn bytes(n: usize, seed: u32) -> Vec<u8> {
        let mut x = seed | 1;
        let step = |_| {
            x ^= x << 13;
            x ^= x >> 17;
            x ^= x << 5;
            (x >> 11) as u8
        };
        (0..n).map(step).collect()
    }

    #[test]
    fn the_worked_example_of_three_bits_unpacks_dense_and_padded() {
        let want: Vec<u8> = (0..12).map(|i| i % 8).collect();
        let words = |w: [u32; 2]| w.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>();
        let mut codes = [0; 12];
        let dense = Layout {
            bits: 3,
            packing: Packing::Dense,
        };
        unpack(dense, &words([0x88FA_C688, 0x6]), 0, &mut codes);
        assert_eq!(codes, *want);
        let padded = Layout {
            bits: 3,
            packing: Packing::Padded,
        };
        unpack(padded, &words([0x08FA_C688, 0x1A]), 0, &mut codes);
        assert_eq!(codes, *want);
        assert_eq!((dense.words(12), padded.words(12)), (Some(2), Some(2)));
        assert_eq!((dense.words(32), padded.words(32)), (Some(3), Some(4)));
    }

    #[test]
    fn a_run_from_anywhere_is_a_part_of_the_whole() {
        for bits in 1..=8 {
            for packing in [Packing::Dense, Packing::Padded] {
                let layout = Layout { bits, packing };
                let packed = bytes(400, bits);
                let whole: Vec<u8> = (0..100)
                    .map(|n| {
                        let (word, low, straddles) = layout.place(n);
                        let at = |w: u64| {
                            let b = packed.as_chunks::<4>().0[w as usize];
                            u64::from(u32::from_le_bytes(b))
                        };
                        let next = if straddles { at(word + 1) } else { 0 };
                        ((at(word) | next << 32) >> low) as u8 & ((1u32 << bits) - 1) as u8
                    })
                    .collect();
                let (unit, unit_bytes) = layout.unit();
                for first in 0..60u64 {
                    for n in [0, 1, 5, 8, 9, 40] {
                        let start = (first / unit * unit_bytes) as usize;
                        let end = (first + n as u64).div_ceil(unit) * unit_bytes;
                        // Only the bytes of the touched units, because the row may end there.
                        let span = &packed[start..(end as usize).max(start)];
                        let mut codes = vec![0xEE; n];
                        unpack(layout, span, (first % unit) as usize, &mut codes);
                        assert_eq!(
                            codes,
                            whole[first as usize..][..n],
                            "{layout:?} {first} {n}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn six_bit_floats_are_their_table() {
        for (code, value) in crate::dtype::decode::F6_E2M3.iter().enumerate() {
            assert_eq!(e2m3(code as u32).to_bits(), value.to_bits(), "{code}");
        }
    }

    #[test]
    fn both_compilations_agree_bit_for_bit() {
        for bits in 1..=8 {
            for numbers in [Numbers::Integers, Numbers::E2m1, Numbers::E2m3] {
                for n in [1, 7, 100, 1000] {
                    agree(bits, numbers, n);
                }
            }
        }
    }

    fn agree(bits: u32, numbers: Numbers, n: usize) {
        let layout = Layout {
            bits,
            packing: Packing::Dense,
        };
        let packed = bytes(n + 8, bits);
        // All kinds of scales, including subnormal, infinite and NaN.
        let scales: Vec<f32> = bytes(4 * n, 7)
            .as_chunks::<4>()
            .0
            .iter()
            .map(|b| f32::from_le_bytes(*b))
            .collect();
        let biases: Vec<i32> = (0..n as i32).map(|i| i * 7 % 256).collect();
        let order: Vec<u32> = (0..n as u32).map(|i| i * 13 % n as u32).collect();
        for (group, order) in [(1, None), (16, None), (33, None), (16, Some(&order[..]))] {
            for biases in [Biases::One(8), Biases::Each(&biases)] {
                let segment = Segment {
                    bytes: &packed,
                    skip: 3,
                    left: group,
                    group,
                    scales: &scales,
                    biases,
                    order,
                };
                let run = || {
                    let (mut codes, mut out) = (vec![0; n], vec![0.0; n]);
                    decode(layout, numbers, &segment, &mut codes, &mut out);
                    out.iter().map(|v| v.to_bits()).collect::<Vec<_>>()
                };
                assert_eq!(run(), plainly(run), "{bits} bits, {numbers:?}, {n} columns");
            }
        }
    }
}
