//! Ternary types: a scale times -1, 0 or 1 (TQ2_0 has a code for 2, too).

use super::blocks::{blocks, half, part};
use crate::simd::for_each_cpu;

/// Five digits of base 3 in each byte of `codes`, the first digits of all bytes first. A byte is a
/// fraction of 256; its digits are what passes 256 when it is multiplied by 3, again and again.
#[inline(always)]
fn digits<const N: usize>(mut codes: [u8; N], d: f32, out: &mut [f32]) {
    for out in out.as_chunks_mut::<N>().0 {
        for (out, code) in out.iter_mut().zip(&mut codes) {
            let digit = (u16::from(*code) * 3) >> 8;
            *out = d * f32::from(digit as i8 - 1);
            *code = code.wrapping_mul(3);
        }
    }
}

for_each_cpu! {
    pub(super) fn tq1_0(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 54], out: &mut [f32; 256]| {
            let d = half(b, 52);
            let (first, rest) = out.split_at_mut(160);
            let (second, third) = rest.split_at_mut(80);
            digits::<32>(part(b, 0), d, first);
            digits::<16>(part(b, 32), d, second);
            digits::<4>(part(b, 48), d, third);
        });
    }
}

for_each_cpu! {
    pub(super) fn tq2_0(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 66], out: &mut [f32; 256]| {
            let d = half(b, 64);
            let groups = b.as_chunks::<32>().0.iter().zip(out.as_chunks_mut::<128>().0);
            for (codes, out) in groups {
                for (k, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                    for (out, &code) in out.iter_mut().zip(codes) {
                        *out = d * f32::from((code >> (2 * k) & 3) as i8 - 1);
                    }
                }
            }
        });
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
