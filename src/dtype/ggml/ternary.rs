//! Ternary types: a scale times -1, 0 or 1 (TQ2_0 has a code for 2, too).

use super::blocks::part;
use super::lanes::{Lanes, decoder, times};

/// The first digits of 32 codes of TQ1_0.
///
/// A code is a fraction of 256, whose digits to base 3 are what passes 256 when it is multiplied by
/// 3, again and again.
#[inline(always)]
fn first_digits<L: Lanes>(lanes: L, d: f32, codes: L::Codes, out: &mut [f32; 32]) {
    lanes.products([d; 2], lanes.minus(lanes.thrice_over(codes), 1), out);
}

decoder! {
    pub(super) fn tq1_0(lanes, b: [u8; 54]) -> [f32; 256] as out {
        let d = lanes.half(b, 52);
        let (out, _) = out.as_chunks_mut();
        // 32 codes of five digits; the first digits of all come first.
        let mut codes = lanes.load(b, 0);
        for out in &mut out[..5] {
            first_digits(lanes, d, codes, out);
            codes = lanes.thrice(codes);
        }
        // 16 codes of five digits.
        let x = [32, 40].map(|at| u64::from_le_bytes(part(b, at)));
        let mut codes = lanes.words([x[0], x[1], times(x[0], 3), times(x[1], 3)]);
        for out in &mut out[5..7] {
            first_digits(lanes, d, codes, out);
            codes = lanes.thrice(lanes.thrice(codes));
        }
        // Their last digits, and 4 codes of four digits.
        let y = u64::from(u32::from_le_bytes(part(b, 48)));
        let y = y | times(y, 3) << 32;
        let codes = lanes.words([times(x[0], 81), times(x[1], 81), y, times(y, 9)]);
        first_digits(lanes, d, codes, &mut out[7]);
    }
}

decoder! {
    pub(super) fn tq2_0(lanes, b: [u8; 66]) -> [f32; 256] as out {
        let d = lanes.half(b, 64);
        for (j, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let codes = lanes.field(lanes.load(b, 32 * (j / 4)), 2 * (j % 4), 2);
            lanes.products([d; 2], lanes.minus(codes, 1), out);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::dtype::ggml::testing::{check, half};

    #[test]
    fn values_are_those_of_the_formulas() {
        check("TQ1_0", &[52], |b, e| {
            let (x, p) = match e {
                0..160 => (b[e % 32], e / 32),
                160..240 => (b[32 + (e - 160) % 16], (e - 160) / 16),
                _ => (b[48 + (e - 240) % 4], (e - 240) / 4),
            };
            let t = ((u32::from(x) * 3u32.pow(p as u32) % 256) * 3) >> 8;
            half(b, 52) * (t as f32 - 1.0)
        });
        check("TQ2_0", &[64], |b, e| {
            let q = b[32 * (e / 128) + e % 32] >> (2 * (e / 32 % 4)) & 3;
            half(b, 64) * (f32::from(q) - 1.0)
        });
    }
}
