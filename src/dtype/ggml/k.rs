//! K-quants: blocks of 256 values in runs of 16 or 32. A run's scale (and minimum) is a small
//! integer, and the block has one factor for all of them.

use super::blocks::{blocks, half};
use crate::simd::for_each_cpu;

for_each_cpu! {
    pub(super) fn q2_k(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 84], out: &mut [f32; 256]| {
            let (d, m) = (half(b, 80), half(b, 82));
            for (k, run) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let scale = d * f32::from(b[k] & 15);
                let minimum = m * f32::from(b[k] >> 4);
                let codes = &b[16 + 32 * (k / 8) + 16 * (k % 2)..][..16];
                for (out, q) in run.iter_mut().zip(codes) {
                    *out = scale * f32::from(q >> (2 * (k / 2 % 4)) & 3) - minimum;
                }
            }
        });
    }
}

for_each_cpu! {
    pub(super) fn q3_k(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 110], out: &mut [f32; 256]| {
            let d = half(b, 108);
            for (k, run) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let low = b[96 + k % 8] >> (4 * (k / 8)) & 15;
                let high = b[104 + k % 4] >> (2 * (k / 4)) & 3;
                let scale = d * (i32::from(low | high << 4) - 32) as f32;
                let thirds = &b[16 * (k % 2)..][..16];
                let codes = &b[32 + 32 * (k / 8) + 16 * (k % 2)..][..16];
                for ((out, q), h) in run.iter_mut().zip(codes).zip(thirds) {
                    let code = q >> (2 * (k / 2 % 4)) & 3 | (h >> (k / 2) & 1) << 2;
                    *out = scale * (i32::from(code) - 4) as f32;
                }
            }
        });
    }
}

for_each_cpu! {
    pub(super) fn q4_k(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 144], out: &mut [f32; 256]| {
            for (j, run) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let (scale, minimum) = scale_and_minimum(b, j);
                let codes = &b[16 + 32 * (j / 2)..][..32];
                for (out, q) in run.iter_mut().zip(codes) {
                    *out = scale * f32::from(q >> (4 * (j % 2)) & 15) - minimum;
                }
            }
        });
    }
}

for_each_cpu! {
    pub(super) fn q5_k(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 176], out: &mut [f32; 256]| {
            for (j, run) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                let (scale, minimum) = scale_and_minimum(b, j);
                let fifths = &b[16..48];
                let codes = &b[48 + 32 * (j / 2)..][..32];
                for ((out, q), h) in run.iter_mut().zip(codes).zip(fifths) {
                    let code = q >> (4 * (j % 2)) & 15 | (h >> j & 1) << 4;
                    *out = scale * f32::from(code) - minimum;
                }
            }
        });
    }
}

/// The scale and the minimum of run `j` of a block of Q4_K or Q5_K. The first two numbers of the
/// block are the factors of both; twelve bytes of six-bit integers follow.
#[inline(always)]
fn scale_and_minimum(b: &[u8], j: usize) -> (f32, f32) {
    let s = &b[4..16];
    let (scale, minimum) = match j {
        0..4 => (s[j] & 63, s[j + 4] & 63),
        _ => (
            s[j + 4] & 15 | s[j - 4] >> 6 << 4,
            s[j + 4] >> 4 | s[j] >> 6 << 4,
        ),
    };
    (
        half(b, 0) * f32::from(scale),
        half(b, 2) * f32::from(minimum),
    )
}

for_each_cpu! {
    pub(super) fn q6_k(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 210], out: &mut [f32; 256]| {
            let d = half(b, 208);
            for (k, run) in out.as_chunks_mut::<16>().0.iter_mut().enumerate() {
                let scale = d * f32::from(b[192 + k] as i8);
                let low = &b[64 * (k / 8) + 16 * (k % 4)..][..16];
                let high = &b[128 + 32 * (k / 8) + 16 * (k % 2)..][..16];
                for ((out, l), h) in run.iter_mut().zip(low).zip(high) {
                    let code = l >> (4 * (k / 4 % 2)) & 15 | (h >> (2 * (k / 2 % 4)) & 3) << 4;
                    *out = scale * (i32::from(code) - 32) as f32;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::dtype::ggml::testing::{check, half, nib};

    /// Two bits of a byte, from bit `at` on.
    fn two(byte: u8, at: usize) -> i32 {
        i32::from(byte >> at & 3)
    }

    /// The scale and minimum of Q4_K and Q5_K.
    fn six_bits(b: &[u8], j: usize) -> (i32, i32) {
        let s = |i: usize| i32::from(b[4 + i]);
        if j < 4 {
            (s(j) & 63, s(j + 4) & 63)
        } else {
            (
                (s(j + 4) & 15) + 16 * (s(j - 4) >> 6),
                (s(j + 4) >> 4) + 16 * (s(j) >> 6),
            )
        }
    }

    #[test]
    fn values_are_those_of_the_formulas() {
        check("Q2_K", &[80, 82], |b, e| {
            let s = i32::from(b[e / 16]);
            let q = two(b[16 + 32 * (e / 128) + e % 32], 2 * (e % 128 / 32));
            (half(b, 80) * (s & 15) as f32) * q as f32 - (half(b, 82) * (s >> 4) as f32)
        });
        check("Q3_K", &[108], |b, e| {
            let k = e / 16;
            let s = nib(b[96 + k % 8], k / 8) + 16 * two(b[104 + k % 4], 2 * (k / 4)) - 32;
            let low = two(b[32 + 32 * (e / 128) + e % 32], 2 * (e % 128 / 32));
            let high = b[e % 32] >> (e / 32) & 1;
            let q = low - if high == 1 { 0 } else { 4 };
            (half(b, 108) * s as f32) * q as f32
        });
        check("Q4_K", &[0, 2], |b, e| {
            let j = e / 32;
            let (s, t) = six_bits(b, j);
            let q = nib(b[16 + 32 * (e / 64) + e % 32], j % 2);
            (half(b, 0) * s as f32) * q as f32 - (half(b, 2) * t as f32)
        });
        check("Q5_K", &[0, 2], |b, e| {
            let j = e / 32;
            let (s, t) = six_bits(b, j);
            let high = i32::from(b[16 + e % 32] >> j & 1);
            let q = nib(b[48 + 32 * (e / 64) + e % 32], j % 2) + 16 * high;
            (half(b, 0) * s as f32) * q as f32 - (half(b, 2) * t as f32)
        });
        check("Q6_K", &[208], |b, e| {
            let low = nib(b[64 * (e / 128) + e % 64], e / 64 % 2);
            let high = two(b[128 + 32 * (e / 128) + e % 32], 2 * (e / 32 % 4));
            let q = low + 16 * high - 32;
            (half(b, 208) * f32::from(b[192 + e / 16] as i8)) * q as f32
        });
    }
}
