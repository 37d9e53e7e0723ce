//! I-quants: groups of eight values are entries of a grid, each entry four or eight small integers.
//!
//! The grids follow no formula. `grids.bin` holds them as packed 16-bit words, which are ggml's
//! (MIT license), taken from `gguf.quants` of the Python package `gguf` 0.19.0: for IQ2_XXS,
//! IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S and IQ1_S in this order, `bytes.fromhex(T.grid_hex.decode())`.

use super::blocks::{blocks, half};
use crate::simd::for_each_cpu;

static PACKED: [u8; 9216] = *include_bytes!("grids.bin");

static IQ2_XXS: [[i8; 8]; 256] = unpack(0, [8, 25, 43, 0]);
static IQ2_XS: [[i8; 8]; 512] = unpack(512, [8, 25, 43, 0]);
static IQ2_S: [[i8; 8]; 1024] = unpack(1536, [8, 25, 43, 0]);
static IQ3_XXS: [[i8; 4]; 256] = unpack(3584, [4, 12, 20, 28, 36, 44, 52, 62]);
static IQ3_S: [[i8; 4]; 512] = unpack(4096, [1, 3, 5, 7, 9, 11, 13, 15]);
static IQ1: [[i8; 8]; 2048] = unpack(5120, [-1, 0, 1, 0]);

/// The grid at byte `at` of [`PACKED`]: an entry is a little-endian 16-bit word, split evenly into
/// its `W` values, lowest bits first. `map` gives the value of each code.
const fn unpack<const N: usize, const W: usize, const M: usize>(
    at: usize,
    map: [i8; M],
) -> [[i8; W]; N] {
    let mut grid = [[0; W]; N];
    let mut entry = 0;
    while entry < N {
        let word = u16_at(&PACKED, at + 2 * entry);
        let mut k = 0;
        while k < W {
            grid[entry][k] = map[(word >> (16 / W * k)) as usize % M];
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

/// Eight values: an entry of a grid times `scale`, negative where `signs` has a bit.
#[inline(always)]
fn signed(grid: &[i8; 8], scale: f32, signs: u8, out: &mut [f32; 8]) {
    for (k, (o, &g)) in out.iter_mut().zip(grid).enumerate() {
        // As multiplying by -1 last, which makes 0 into -0.
        let sign = u32::from(signs) << (31 - k) & 1 << 31;
        *o = f32::from_bits((scale * f32::from(g)).to_bits() ^ sign);
    }
}

/// The low (0) or high (1) four bits of a byte.
#[inline(always)]
fn nibble(byte: u8, which: usize) -> f32 {
    f32::from(byte >> (4 * which) & 15)
}

#[inline(always)]
const fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

#[inline(always)]
fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

/// Two entries of four values.
#[inline(always)]
fn pair(a: [i8; 4], b: [i8; 4]) -> [i8; 8] {
    [a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]]
}

/// Eight values: an entry of a grid, moved by `delta`, times `scale`.
#[inline(always)]
fn moved(grid: &[i8; 8], delta: f32, scale: f32, out: &mut [f32; 8]) {
    for (o, &g) in out.iter_mut().zip(grid) {
        *o = scale * (f32::from(g) + delta);
    }
}

for_each_cpu! {
    pub(super) fn iq2_xxs(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 66], out: &mut [f32; 256]| {
            let d = half(b, 0);
            for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let a = u32_at(b, 2 + 8 * j + 4);
                let scale = (d * (0.5 + (a >> 28) as f32)) * 0.25;
                for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let entry = usize::from(b[2 + 8 * j + l]);
                    let signs = SIGNS[(a >> (7 * l) & 127) as usize];
                    signed(&IQ2_XXS[entry], scale, signs, out);
                }
            }
        });
    }
}

for_each_cpu! {
    pub(super) fn iq2_xs(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 74], out: &mut [f32; 256]| {
            let d = half(b, 0);
            for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let scale = (d * (0.5 + nibble(b[66 + i / 2], i % 2))) * 0.25;
                for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let q = usize::from(u16_at(b, 2 + 2 * (2 * i + l)));
                    signed(&IQ2_XS[q & 511], scale, SIGNS[q >> 9], out);
                }
            }
        });
    }
}

for_each_cpu! {
    pub(super) fn iq2_s(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 82], out: &mut [f32; 256]| {
            let d = half(b, 0);
            for (i, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let scale = (d * (0.5 + nibble(b[74 + i / 2], i % 2))) * 0.25;
                for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let k = 2 * i + l;
                    let high = b[66 + k / 4] >> (2 * (k % 4)) & 3;
                    let entry = usize::from(b[2 + k]) + 256 * usize::from(high);
                    signed(&IQ2_S[entry], scale, b[34 + k], out);
                }
            }
        });
    }
}

for_each_cpu! {
    pub(super) fn iq3_xxs(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 98], out: &mut [f32; 256]| {
            let d = half(b, 0);
            for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let a = u32_at(b, 66 + 4 * j);
                let scale = (d * (0.5 + (a >> 28) as f32)) * 0.5;
                for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let entry = |i| IQ3_XXS[usize::from(b[2 + 8 * j + 2 * l + i])];
                    let signs = SIGNS[(a >> (7 * l) & 127) as usize];
                    signed(&pair(entry(0), entry(1)), scale, signs, out);
                }
            }
        });
    }
}

for_each_cpu! {
    pub(super) fn iq3_s(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 110], out: &mut [f32; 256]| {
            let d = half(b, 0);
            for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let scale = d * (1.0 + 2.0 * nibble(b[106 + j / 2], j % 2));
                for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let high = b[66 + j] >> (2 * l);
                    let entry = |i| {
                        let high = usize::from(high >> i & 1);
                        IQ3_S[usize::from(b[2 + 8 * j + 2 * l + i]) + 256 * high]
                    };
                    signed(&pair(entry(0), entry(1)), scale, b[74 + 4 * j + l], out);
                }
            }
        });
    }
}

for_each_cpu! {
    pub(super) fn iq1_s(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 50], out: &mut [f32; 256]| {
            let d = half(b, 0);
            for (j, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let h = u16_at(b, 34 + 2 * j);
                let scale = d * f32::from(2 * (h >> 12 & 7) + 1);
                let delta = if h >> 15 == 1 { -0.125 } else { 0.125 };
                for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let high = usize::from(h >> (3 * l) & 7);
                    let entry = usize::from(b[2 + 4 * j + l]) + 256 * high;
                    moved(&IQ1[entry], delta, scale, out);
                }
            }
        });
    }
}

for_each_cpu! {
    pub(super) fn iq1_m(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 56], out: &mut [f32; 256]| {
            // The upper four bits of each word of scales are a part of the block's.
            let words: [u16; 4] = std::array::from_fn(|i| u16_at(b, 48 + 2 * i));
            let d = words.iter().rev().fold(0, |bits, w| bits << 4 | w >> 12);
            let d = half(&d.to_le_bytes(), 0);
            for (k, out) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let scale = d * f32::from(2 * (words[k / 4] >> (3 * (k % 4)) & 7) + 1);
                for (l, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let h = b[32 + k] >> (4 * l) & 15;
                    let entry = usize::from(b[2 * k + l]) + 256 * usize::from(h & 7);
                    let delta = if h & 8 != 0 { -0.125 } else { 0.125 };
                    moved(&IQ1[entry], delta, scale, out);
                }
            }
        });
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
            digest
                .iter()
                .map(|b| format!("{b:02x}"))
                .collect::<String>()
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
        assert_eq!(IQ2_XXS[0], [8; 8]);
        assert_eq!(IQ2_XXS[255], [8, 25, 8, 8, 25, 43, 43, 43]);
        assert_eq!((IQ2_XS[0], IQ2_XS[511]), ([8; 8], [43; 8]));
        assert_eq!((IQ2_S[0], IQ2_S[1023]), ([8; 8], [43; 8]));
        assert_eq!((IQ3_XXS[0], IQ3_XXS[255]), ([4; 4], [4, 28, 52, 62]));
        assert_eq!((IQ3_S[0], IQ3_S[511]), ([1; 4], [1, 1, 15, 15]));
        assert_eq!((IQ1[0], IQ1[2047]), ([-1; 8], [1; 8]));
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
            let g = IQ2_XXS[usize::from(b[2 + 8 * (e / 32) + l])][e % 8];
            (scale * f32::from(g)) * sign(a >> (7 * l) & 127, e)
        });
        check("IQ2_XS", &[0], |b, e| {
            let q = u16_at(b, 2 + 2 * (e / 8));
            let s = nib(b[66 + e / 32], e / 16 % 2) as f32;
            let scale = (half(b, 0) * (0.5 + s)) * 0.25;
            (scale * f32::from(IQ2_XS[usize::from(q & 511)][e % 8])) * sign(u32::from(q >> 9), e)
        });
        check("IQ2_S", &[0], |b, e| {
            let k = e / 8;
            let s = nib(b[74 + e / 32], e / 16 % 2) as f32;
            let scale = (half(b, 0) * (0.5 + s)) * 0.25;
            let high = usize::from(b[66 + k / 4] >> (2 * (k % 4)) & 3);
            let g = IQ2_S[usize::from(b[2 + k]) + 256 * high][e % 8];
            (scale * f32::from(g)) * bit_sign(b[34 + k].into(), e)
        });
        check("IQ3_XXS", &[0], |b, e| {
            let a = u32_at(b, 66 + 4 * (e / 32));
            let scale = (half(b, 0) * (0.5 + (a >> 28) as f32)) * 0.5;
            let g = IQ3_XXS[usize::from(b[2 + e / 4])][e % 4];
            (scale * f32::from(g)) * sign(a >> (7 * (e / 8 % 4)) & 127, e)
        });
        check("IQ3_S", &[0], |b, e| {
            let k = e / 4;
            let s = nib(b[106 + e / 64], e / 32 % 2) as f32;
            let high = usize::from(b[66 + k / 8] >> (k % 8) & 1);
            let g = IQ3_S[usize::from(b[2 + k]) + 256 * high][e % 4];
            ((half(b, 0) * (1.0 + 2.0 * s)) * f32::from(g)) * bit_sign(b[74 + e / 8].into(), e)
        });
        check("IQ1_S", &[0], |b, e| {
            let h = u16_at(b, 34 + 2 * (e / 32));
            let scale = half(b, 0) * (2 * (h >> 12 & 7) + 1) as f32;
            let high = usize::from(h >> (3 * (e / 8 % 4)) & 7);
            let g = IQ1[usize::from(b[2 + e / 8]) + 256 * high][e % 8];
            let delta = if h >> 15 == 1 { -0.125 } else { 0.125 };
            scale * (f32::from(g) + delta)
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
            let g = IQ1[usize::from(b[e / 8]) + 256 * (h & 7)][e % 8];
            let delta = if h & 8 != 0 { -0.125 } else { 0.125 };
            scale * (f32::from(g) + delta)
        });
    }
}
