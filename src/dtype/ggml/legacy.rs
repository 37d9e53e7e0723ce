//! Blocks with one scale, and perhaps a minimum.

use super::blocks::{blocks, half, part};
use super::lanes::decoder;
use crate::simd::for_each_cpu;

decoder! {
    pub(super) fn q4_0(lanes, b: [u8; 18]) -> [f32; 32] as out {
        let codes = lanes.minus(lanes.nibbles(b, 2), 8);
        lanes.products([lanes.half(b, 0); 2], codes, out);
    }
}

decoder! {
    pub(super) fn q4_1(lanes, b: [u8; 20]) -> [f32; 32] as out {
        let (d, m) = (lanes.half(b, 0), lanes.half(b, 2));
        lanes.sums([d; 2], lanes.nibbles(b, 4), [m; 2], out);
    }
}

decoder! {
    pub(super) fn q5_0(lanes, b: [u8; 22]) -> [f32; 32] as out {
        let codes = lanes.above(lanes.nibbles(b, 6), lanes.bits(b, 2, 1), 0, 1, 4);
        lanes.products([lanes.half(b, 0); 2], lanes.minus(codes, 16), out);
    }
}

decoder! {
    pub(super) fn q5_1(lanes, b: [u8; 24]) -> [f32; 32] as out {
        let codes = lanes.above(lanes.nibbles(b, 8), lanes.bits(b, 4, 1), 0, 1, 4);
        let (d, m) = (lanes.half(b, 0), lanes.half(b, 2));
        lanes.sums([d; 2], codes, [m; 2], out);
    }
}

// Its codes are bytes as they stand: the plain loop is vectorized, and faster.
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

decoder! {
    pub(super) fn q1_0(lanes, b: [u8; 18]) -> [f32; 128] as out {
        let d = lanes.half(b, 0);
        for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let codes = lanes.minus(lanes.bits(b, 2 + 4 * i, 2), 1);
            lanes.products([d; 2], codes, out);
        }
    }
}

decoder! {
    pub(super) fn q2_0(lanes, b: [u8; 18]) -> [f32; 64] as out {
        let d = lanes.half(b, 0);
        for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let words = std::array::from_fn(|k| spread(part(b, 2 + 8 * i + 2 * k)));
            lanes.products([d; 2], lanes.minus(lanes.words(words), 1), out);
        }
    }
}

/// The two bits of each code, lowest first, in a byte of its own.
#[inline(always)]
fn spread(codes: [u8; 2]) -> u64 {
    let word = u64::from(u16::from_le_bytes(codes));
    let word = (word | word << 24) & 0x0000_00FF_0000_00FF;
    let word = (word | word << 12) & 0x000F_000F_000F_000F;
    (word | word << 6) & 0x0303_0303_0303_0303
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
