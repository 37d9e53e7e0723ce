//! I-quants: groups of eight values are entries of a grid, each entry four or eight small integers.
//!
//! The grids follow no formula. `grids.bin` holds them as packed 16-bit words, which are ggml's
//! (`grids.bin.license`), taken from `gguf.quants` of the Python package `gguf` 0.19.0: for IQ2_XXS,
//! IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S and IQ1_S in this order, `bytes.fromhex(T.grid_hex.decode())`.

use super::blocks::part;
use super::lanes::decoder;

static PACKED: [u8; 9216] = *include_bytes!("grids.bin");

static IQ2_XXS: [u64; 256] = unpack(0, 8, [8, 25, 43, 0]);
static IQ2_XS: [u64; 512] = unpack(512, 8, [8, 25, 43, 0]);
static IQ2_S: [u64; 1024] = unpack(1536, 8, [8, 25, 43, 0]);
static IQ3_XXS: [u64; 256] = unpack(3584, 4, [4, 12, 20, 28, 36, 44, 52, 62]);
static IQ3_S: [u64; 512] = unpack(4096, 4, [1, 3, 5, 7, 9, 11, 13, 15]);
/// Eight times the values -1, 0 and 1, plus 8: room for an eighth to be added or subtracted.
static IQ1: [u64; 2048] = unpack(5120, 8, [0, 8, 16, 0]);

/// The grid at byte `at` of [`PACKED`]: an entry is a little-endian 16-bit word, split evenly into
/// its values (`width` of them), lowest bits first. `map` gives the value of each code; the values
/// become the bytes of a word, lowest first.
const fn unpack<const N: usize, const M: usize>(
    at: usize,
    width: usize,
    map: [u64; M],
) -> [u64; N] {
    let mut grid = [0; N];
    let mut entry = 0;
    while entry < N {
        let packed = u16::from_le_bytes([PACKED[at + 2 * entry], PACKED[at + 2 * entry + 1]]);
        let mut k = 0;
        while k < width {
            let code = (packed >> (16 / width * k)) as usize % M;
            grid[entry] |= map[code] << (8 * k);
            k += 1;
        }
        entry += 1;
    }
    grid
}

/// The signs of eight values from the seven bits that are stored: the eighth makes the number of
/// negative ones even.
static SIGNS: [u8; 128] = signs();

const fn signs() -> [u8; 128] {
    let mut signs = [0; 128];
    let mut i = 0;
    while i < 128 {
        signs[i] = i as u8 | (i.count_ones() as u8 & 1) << 7;
        i += 1;
    }
    signs
}

/// The signs of 32 values from four times seven bits.
#[inline(always)]
fn four_signs(bits: u32) -> [u8; 4] {
    let signs = |l: u32| SIGNS[(bits >> (7 * l) & 127) as usize];
    [signs(0), signs(1), signs(2), signs(3)]
}

#[inline(always)]
fn nibble(byte: u8, which: usize) -> f32 {
    f32::from(byte >> (4 * which) & 15)
}

decoder! {
    pub(super) fn iq2_xxs(lanes, b: [u8; 66]) -> [f32; 256] as out {
        let d = lanes.half(b, 0);
        for (j, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let q: [u8; 4] = part(b, 2 + 8 * j);
            let a = u32::from_le_bytes(part(b, 2 + 8 * j + 4));
            let scale = (d * (0.5 + (a >> 28) as f32)) * 0.25;
            let codes = lanes.words(q.map(|q| IQ2_XXS[usize::from(q)]));
            let codes = lanes.negate(codes, lanes.bits(&four_signs(a), 0, 255));
            lanes.products([scale; 2], codes, out);
        }
    }
}

decoder! {
    pub(super) fn iq2_xs(lanes, b: [u8; 74]) -> [f32; 256] as out {
        let d = lanes.half(b, 0);
        for (j, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let q = |l: usize| usize::from(u16::from_le_bytes(part(b, 2 + 8 * j + 2 * l)));
            let q = [q(0), q(1), q(2), q(3)];
            let scale = |i| (d * (0.5 + nibble(b[66 + j], i))) * 0.25;
            let codes = lanes.words(q.map(|q| IQ2_XS[q & 511]));
            let signs = q.map(|q| SIGNS[q >> 9]);
            let codes = lanes.negate(codes, lanes.bits(&signs, 0, 255));
            lanes.products([scale(0), scale(1)], codes, out);
        }
    }
}

decoder! {
    pub(super) fn iq2_s(lanes, b: [u8; 82]) -> [f32; 256] as out {
        let d = lanes.half(b, 0);
        for (j, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let scale = |i| (d * (0.5 + nibble(b[74 + j], i))) * 0.25;
            let (q, high): ([u8; 4], _) = (part(b, 2 + 4 * j), usize::from(b[66 + j]));
            let entry = |l: usize| IQ2_S[usize::from(q[l]) | high << (8 - 2 * l) & 0x300];
            let codes = lanes.words([entry(0), entry(1), entry(2), entry(3)]);
            let codes = lanes.negate(codes, lanes.bits(b, 34 + 4 * j, 255));
            lanes.products([scale(0), scale(1)], codes, out);
        }
    }
}

decoder! {
    pub(super) fn iq3_xxs(lanes, b: [u8; 98]) -> [f32; 256] as out {
        let d = lanes.half(b, 0);
        for (j, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let a = u32::from_le_bytes(part(b, 66 + 4 * j));
            let scale = (d * (0.5 + (a >> 28) as f32)) * 0.5;
            let q: [u8; 8] = part(b, 2 + 8 * j);
            let pair = |k| IQ3_XXS[usize::from(q[k])] | IQ3_XXS[usize::from(q[k + 1])] << 32;
            let codes = lanes.words([pair(0), pair(2), pair(4), pair(6)]);
            let codes = lanes.negate(codes, lanes.bits(&four_signs(a), 0, 255));
            lanes.products([scale; 2], codes, out);
        }
    }
}

decoder! {
    pub(super) fn iq3_s(lanes, b: [u8; 110]) -> [f32; 256] as out {
        let d = lanes.half(b, 0);
        for (j, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let scale = d * (1.0 + 2.0 * nibble(b[106 + j / 2], j % 2));
            let (q, high): ([u8; 8], _) = (part(b, 2 + 8 * j), usize::from(b[66 + j]));
            let entry = |k: usize| IQ3_S[usize::from(q[k]) | high << (8 - k) & 256];
            let pair = |k| entry(k) | entry(k + 1) << 32;
            let codes = lanes.words([pair(0), pair(2), pair(4), pair(6)]);
            let codes = lanes.negate(codes, lanes.bits(b, 74 + 4 * j, 255));
            lanes.products([scale; 2], codes, out);
        }
    }
}

// IQ1 adds an eighth to each value of the grid, or subtracts it. Here codes are eight times as
// large, and scales an eighth: only exponents change.

decoder! {
    pub(super) fn iq1_s(lanes, b: [u8; 50]) -> [f32; 256] as out {
        let d = lanes.half(b, 0);
        for (j, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let h = u16::from_le_bytes(part(b, 34 + 2 * j));
            let scale = (d * f32::from(2 * (h >> 12 & 7) + 1)) * 0.125;
            let q: [u8; 4] = part(b, 2 + 4 * j);
            let entry = |l: usize| IQ1[usize::from(q[l]) | usize::from(h >> (3 * l) & 7) << 8];
            let codes = lanes.words([entry(0), entry(1), entry(2), entry(3)]);
            let codes = lanes.minus(codes, 7 + 2 * (h >> 15) as u8);
            lanes.products([scale; 2], codes, out);
        }
    }
}

decoder! {
    pub(super) fn iq1_m(lanes, b: [u8; 56]) -> [f32; 256] as out {
        // The upper four bits of each word of scales are a part of the block's.
        let word = |i: usize| u16::from_le_bytes(part(b, 48 + 2 * i));
        let words = [word(0), word(1), word(2), word(3)];
        let d = words[0] >> 12 | words[1] >> 12 << 4 | words[2] >> 12 << 8 | words[3] >> 12 << 12;
        let d = lanes.half(&d.to_le_bytes(), 0);
        for (j, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let scale = |i: usize| {
                let s = words[j / 2] >> (6 * (j % 2) + 3 * i) & 7;
                (d * f32::from(2 * s + 1)) * 0.125
            };
            let h = u16::from_le_bytes(part(b, 32 + 2 * j));
            let q: [u8; 4] = part(b, 4 * j);
            let entry = |l: usize| {
                let h = usize::from(h) >> (4 * l);
                // All codes lose 9, which subtracts an eighth. With 2 more, it adds one.
                let more = u64::from_le_bytes([if h & 8 == 0 { 2 } else { 0 }; 8]);
                IQ1[usize::from(q[l]) | (h & 7) << 8] + more
            };
            let codes = lanes.words([entry(0), entry(1), entry(2), entry(3)]);
            lanes.products([scale(0), scale(1)], lanes.minus(codes, 9), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    use super::*;
    use crate::dtype::ggml::testing::{Random, check, check_with, half, nib, put, u16_at, u32_at};

    /// What the package's recipe gives.
    #[test]
    fn grids_are_those_of_ggml() {
        let hash = |at: usize, len: usize| {
            let digest = Sha256::digest(&PACKED[at..at + len]);
            let bytes = digest.iter().map(|b| format!("{b:02x}"));
            bytes.collect::<String>()
        };
        #[rustfmt::skip]
        let hashes = [
            (0, 512, "915952ebc4af8ddba8113583ca1316fc818843f7b825bbf1a25ae1c39bf0e16d"),
            (512, 1024, "f66435966ca8d64e9e4a6e3c91e64afcf9015e700ec85962f527283ebae207b9"),
            (1536, 2048, "e6e75e121b65e8afa5c1f92b71463cfbe217b83893f438acde22fd5db06a43f7"),
            (3584, 512, "15d5c59616fa93701383d1d45da633a378dab68ea2a7dce31b772c604e14dd7c"),
            (4096, 1024, "881df6ab9508749ca9827814e44a01a4ab8fe8a4ae8d038d5b9d55d864ae135b"),
            (5120, 4096, "e9ffebfc997ad6023063a667c0bf4eedd8ebf7f56b3da399cbc7d1b1f7ea52c6"),
        ];
        for (at, len, expected) in hashes {
            assert_eq!(hash(at, len), expected, "the grid at {at}");
        }
        let ends = [
            (XXS2, vec![8; 8], vec![8, 25, 8, 8, 25, 43, 43, 43]),
            (XS2, vec![8; 8], vec![43; 8]),
            (S2, vec![8; 8], vec![43; 8]),
            (XXS3, vec![4; 4], vec![4, 28, 52, 62]),
            (S3, vec![1; 4], vec![1, 1, 15, 15]),
            (ONE, vec![-1; 8], vec![1; 8]),
        ];
        for (grid, first, last) in ends {
            let entry = |i| (0..grid.2).map(|k| grid.value(i, k)).collect::<Vec<i8>>();
            assert_eq!((entry(0), entry(grid.1 - 1)), (first, last));
        }
    }

    /// A grid: where it starts, its entries, the width of an entry, and the values of the codes.
    #[derive(Clone, Copy)]
    struct Grid(usize, usize, usize, &'static [i8]);

    const XXS2: Grid = Grid(0, 256, 8, &[8, 25, 43]);
    const XS2: Grid = Grid(512, 512, 8, &[8, 25, 43]);
    const S2: Grid = Grid(1536, 1024, 8, &[8, 25, 43]);
    const XXS3: Grid = Grid(3584, 256, 4, &[4, 12, 20, 28, 36, 44, 52, 62]);
    const S3: Grid = Grid(4096, 512, 4, &[1, 3, 5, 7, 9, 11, 13, 15]);
    const ONE: Grid = Grid(5120, 2048, 8, &[-1, 0, 1]);

    impl Grid {
        fn value(&self, entry: usize, k: usize) -> i8 {
            let bits = 16 / self.2;
            let code = u16_at(&PACKED, self.0 + 2 * entry) >> (bits * k) & ((1 << bits) - 1);
            self.3[usize::from(code)]
        }

        fn at(&self, entry: usize, e: usize) -> f32 {
            self.value(entry, e % self.2).into()
        }
    }

    /// The sign of value `e` for the seven stored bits `i`.
    fn sign(i: u32, e: usize) -> f32 {
        let parity = (0..7).map(|bit| i >> bit & 1).sum::<u32>() % 2;
        bit_sign(i | parity << 7, e)
    }

    fn bit_sign(bits: u32, e: usize) -> f32 {
        if bits >> (e % 8) & 1 == 1 { -1.0 } else { 1.0 }
    }

    #[test]
    fn values_are_those_of_the_formulas() {
        check("IQ2_XXS", &[0], |b, e| {
            let (a, l) = (u32_at(b, 2 + 8 * (e / 32) + 4), e / 8 % 4);
            let scale = (half(b, 0) * (0.5 + (a >> 28) as f32)) * 0.25;
            let g = XXS2.at(usize::from(b[2 + 8 * (e / 32) + l]), e);
            (scale * g) * sign(a >> (7 * l) & 127, e)
        });
        check("IQ2_XS", &[0], |b, e| {
            let q = u16_at(b, 2 + 2 * (e / 8));
            let s = nib(b[66 + e / 32], e / 16 % 2) as f32;
            let scale = (half(b, 0) * (0.5 + s)) * 0.25;
            (scale * XS2.at(usize::from(q & 511), e)) * sign(u32::from(q >> 9), e)
        });
        check("IQ2_S", &[0], |b, e| {
            let k = e / 8;
            let s = nib(b[74 + e / 32], e / 16 % 2) as f32;
            let scale = (half(b, 0) * (0.5 + s)) * 0.25;
            let high = usize::from(b[66 + k / 4] >> (2 * (k % 4)) & 3);
            let g = S2.at(usize::from(b[2 + k]) + 256 * high, e);
            (scale * g) * bit_sign(b[34 + k].into(), e)
        });
        check("IQ3_XXS", &[0], |b, e| {
            let a = u32_at(b, 66 + 4 * (e / 32));
            let scale = (half(b, 0) * (0.5 + (a >> 28) as f32)) * 0.5;
            let g = XXS3.at(usize::from(b[2 + e / 4]), e);
            (scale * g) * sign(a >> (7 * (e / 8 % 4)) & 127, e)
        });
        check("IQ3_S", &[0], |b, e| {
            let k = e / 4;
            let s = nib(b[106 + e / 64], e / 32 % 2) as f32;
            let high = usize::from(b[66 + k / 8] >> (k % 8) & 1);
            let g = S3.at(usize::from(b[2 + k]) + 256 * high, e);
            ((half(b, 0) * (1.0 + 2.0 * s)) * g) * bit_sign(b[74 + e / 8].into(), e)
        });
        check("IQ1_S", &[0], |b, e| {
            let h = u16_at(b, 34 + 2 * (e / 32));
            let scale = half(b, 0) * (2 * (h >> 12 & 7) + 1) as f32;
            let high = usize::from(h >> (3 * (e / 8 % 4)) & 7);
            let g = ONE.at(usize::from(b[2 + e / 8]) + 256 * high, e);
            let delta = if h >> 15 == 1 { -0.125 } else { 0.125 };
            scale * (g + delta)
        });
    }

    /// IQ1_M's scale lies in the upper four bits of four words.
    #[test]
    fn iq1_m_is_its_formula() {
        let fill = |b: &mut [u8], random: &mut Random| {
            let d = random.half();
            for i in 0..4 {
                let low = u16_at(b, 48 + 2 * i) & 0xFFF;
                put(b, 48 + 2 * i, low | (d >> (4 * i) & 15) << 12);
            }
        };
        check_with("IQ1_M", fill, |b, e| {
            let s = |i: usize| u16_at(b, 48 + 2 * i);
            let bits: u16 = (0..4).map(|i| (s(i) >> 12) << (4 * i)).sum();
            let d = half::f16::from_bits(bits).to_f32();
            let h = nib(b[32 + e / 16], e / 8 % 2) as usize;
            let k = e / 16;
            let scale = d * (2 * (s(k / 4) >> (3 * (k % 4)) & 7) + 1) as f32;
            let g = ONE.at(usize::from(b[e / 8]) + 256 * (h & 7), e);
            let delta = if h & 8 != 0 { -0.125 } else { 0.125 };
            scale * (g + delta)
        });
    }
}
