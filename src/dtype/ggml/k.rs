//! K-quants: blocks of 256 values in runs of 16 or 32. A run's scale (and minimum) is a small
//! integer, and the block has one factor for all of them.
//!
//! In each, `j` counts 32 values.

use super::lanes::decoder;

decoder! {
    pub(super) fn q2_k(lanes, b: [u8; 84]) -> [f32; 256] as out {
        let (d, m) = (lanes.half(b, 80), lanes.half(b, 82));
        for (j, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let runs = [b[2 * j], b[2 * j + 1]];
            let codes = lanes.field(lanes.load(b, 16 + 32 * (j / 4)), 2 * (j % 4), 2);
            let scales = runs.map(|s| d * f32::from(s & 15));
            lanes.sums(scales, codes, runs.map(|s| -(m * f32::from(s >> 4))), out);
        }
    }
}

decoder! {
    pub(super) fn q3_k(lanes, b: [u8; 110]) -> [f32; 256] as out {
        let d = lanes.half(b, 108);
        for (j, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let low = lanes.field(lanes.load(b, 32 + 32 * (j / 4)), 2 * (j % 4), 2);
            let codes = lanes.minus(lanes.above(low, lanes.load(b, 0), j, 1, 2), 4);
            let scale = |k: usize| {
                let low = b[96 + k % 8] >> (4 * (k / 8)) & 15;
                let high = b[104 + k % 4] >> (2 * (k / 4)) & 3;
                d * f32::from((low | high << 4) as i8 - 32)
            };
            lanes.products([scale(2 * j), scale(2 * j + 1)], codes, out);
        }
    }
}

decoder! {
    pub(super) fn q4_k(lanes, b: [u8; 144]) -> [f32; 256] as out {
        let (d, m) = (lanes.half(b, 0), lanes.half(b, 2));
        for (j, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let (scale, minimum) = scale_and_minimum(b, j);
            let codes = lanes.field(lanes.load(b, 16 + 32 * (j / 2)), 4 * (j % 2), 4);
            lanes.sums([d * scale; 2], codes, [-(m * minimum); 2], out);
        }
    }
}

decoder! {
    pub(super) fn q5_k(lanes, b: [u8; 176]) -> [f32; 256] as out {
        let (d, m) = (lanes.half(b, 0), lanes.half(b, 2));
        for (j, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let (scale, minimum) = scale_and_minimum(b, j);
            let low = lanes.field(lanes.load(b, 48 + 32 * (j / 2)), 4 * (j % 2), 4);
            let codes = lanes.above(low, lanes.load(b, 16), j, 1, 4);
            lanes.sums([d * scale; 2], codes, [-(m * minimum); 2], out);
        }
    }
}

/// The integers of run `j`'s scale and minimum in a block of Q4_K or Q5_K: six bits each, in twelve
/// bytes after the block's two factors.
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
    (scale.into(), minimum.into())
}

decoder! {
    pub(super) fn q6_k(lanes, b: [u8; 210]) -> [f32; 256] as out {
        let d = lanes.half(b, 208);
        for (j, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let low = lanes.load(b, 64 * (j / 4) + 32 * (j % 2));
            let low = lanes.field(low, 4 * (j / 2 % 2), 4);
            let high = lanes.load(b, 128 + 32 * (j / 4));
            let codes = lanes.minus(lanes.above(low, high, 2 * (j % 4), 2, 4), 32);
            let scales = [b[192 + 2 * j], b[193 + 2 * j]];
            lanes.products(scales.map(|s| d * f32::from(s as i8)), codes, out);
        }
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
