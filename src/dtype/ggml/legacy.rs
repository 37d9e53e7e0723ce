//! Blocks with one scale, and perhaps a minimum.

use super::blocks::{blocks, half};
use crate::simd::for_each_cpu;

for_each_cpu! {
    pub(super) fn q4_0(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 18], out: &mut [f32; 32]| {
            let d = half(b, 0);
            for (e, &q) in b[2..].iter().enumerate() {
                out[e] = d * (f32::from(q & 15) - 8.0);
                out[e + 16] = d * (f32::from(q >> 4) - 8.0);
            }
        });
    }
}

for_each_cpu! {
    pub(super) fn q4_1(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 20], out: &mut [f32; 32]| {
            let (d, m) = (half(b, 0), half(b, 2));
            for (e, &q) in b[4..].iter().enumerate() {
                out[e] = d * f32::from(q & 15) + m;
                out[e + 16] = d * f32::from(q >> 4) + m;
            }
        });
    }
}

for_each_cpu! {
    pub(super) fn q5_0(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 22], out: &mut [f32; 32]| {
            let d = half(b, 0);
            let high = u32::from_le_bytes([b[2], b[3], b[4], b[5]]);
            for (e, &q) in b[6..].iter().enumerate() {
                let [low, high] = five(q, high >> e);
                out[e] = d * (low - 16) as f32;
                out[e + 16] = d * (high - 16) as f32;
            }
        });
    }
}

for_each_cpu! {
    pub(super) fn q5_1(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 24], out: &mut [f32; 32]| {
            let (d, m) = (half(b, 0), half(b, 2));
            let high = u32::from_le_bytes([b[4], b[5], b[6], b[7]]);
            for (e, &q) in b[8..].iter().enumerate() {
                let [low, high] = five(q, high >> e);
                out[e] = d * low as f32 + m;
                out[e + 16] = d * high as f32 + m;
            }
        });
    }
}

/// The two codes of five bits whose lower four are in `q`, and whose fifths are bits 0 and 16 of
/// `high`.
#[inline(always)]
fn five(q: u8, high: u32) -> [i32; 2] {
    let q = u32::from(q);
    [
        (q & 15 | (high & 1) << 4) as i32,
        (q >> 4 | (high >> 16 & 1) << 4) as i32,
    ]
}

for_each_cpu! {
    pub(super) fn q8_0(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 34], out: &mut [f32; 32]| {
            let d = half(b, 0);
            for (out, &q) in out.iter_mut().zip(&b[2..]) {
                *out = f32::from(q as i8) * d;
            }
        });
    }
}

for_each_cpu! {
    pub(super) fn q1_0(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 18], out: &mut [f32; 128]| {
            let d = half(b, 0);
            for (out, &q) in out.as_chunks_mut::<8>().0.iter_mut().zip(&b[2..]) {
                for (i, out) in out.iter_mut().enumerate() {
                    *out = if q >> i & 1 == 1 { d } else { -d };
                }
            }
        });
    }
}

for_each_cpu! {
    pub(super) fn q2_0(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 18], out: &mut [f32; 64]| {
            let d = half(b, 0);
            for (out, &q) in out.as_chunks_mut::<4>().0.iter_mut().zip(&b[2..]) {
                for (i, out) in out.iter_mut().enumerate() {
                    *out = ((q >> (2 * i) & 3) as i32 - 1) as f32 * d;
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use crate::dtype::ggml::testing::{check, half, nib, u32_at};

    /// Bit `e` of the word at byte `at`, times 16.
    fn fifth(b: &[u8], at: usize, e: usize) -> i32 {
        16 * (u32_at(b, at) >> e & 1) as i32
    }

    #[test]
    fn values_are_those_of_the_formulas() {
        check("Q4_0", &[0], |b, e| {
            half(b, 0) * (nib(b[2 + e % 16], e / 16) - 8) as f32
        });
        check("Q4_1", &[0, 2], |b, e| {
            (half(b, 0) * nib(b[4 + e % 16], e / 16) as f32) + half(b, 2)
        });
        check("Q5_0", &[0], |b, e| {
            half(b, 0) * (nib(b[6 + e % 16], e / 16) + fifth(b, 2, e) - 16) as f32
        });
        check("Q5_1", &[0, 2], |b, e| {
            (half(b, 0) * (nib(b[8 + e % 16], e / 16) + fifth(b, 4, e)) as f32) + half(b, 2)
        });
        check("Q8_0", &[0], |b, e| f32::from(b[2 + e] as i8) * half(b, 0));
        check("Q1_0", &[0], |b, e| match b[2 + e / 8] >> (e % 8) & 1 {
            1 => half(b, 0),
            _ => -half(b, 0),
        });
        check("Q2_0", &[0], |b, e| {
            (i32::from(b[2 + e / 4] >> (2 * (e % 4)) & 3) - 1) as f32 * half(b, 0)
        });
    }
}
