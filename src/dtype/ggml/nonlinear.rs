//! IQ4: four-bit codes of sixteen values that are not evenly spaced.

use super::blocks::{blocks, half, part};
use crate::simd::for_each_cpu;

/// The values of the codes.
static VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

/// 32 values, which share a scale: the low halves of the bytes, then the high ones.
#[inline(always)]
fn codes(codes: &[u8; 16], scale: f32, out: &mut [f32; 32]) {
    for (e, &q) in codes.iter().enumerate() {
        out[e] = scale * f32::from(VALUES[usize::from(q & 15)]);
        out[e + 16] = scale * f32::from(VALUES[usize::from(q >> 4)]);
    }
}

for_each_cpu! {
    pub(super) fn iq4_nl(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 18], out: &mut [f32; 32]| {
            codes(&part(b, 2), half(b, 0), out);
        });
    }
}

for_each_cpu! {
    pub(super) fn iq4_xs(bytes: &[u8], out: &mut [f32]) {
        blocks(bytes, out, |b: &[u8; 136], out: &mut [f32; 256]| {
            let (head, q) = b.split_at(8);
            let d = half(head, 0);
            let high = u16::from_le_bytes([head[2], head[3]]);
            let groups = q.as_chunks::<16>().0.iter().zip(out.as_chunks_mut::<32>().0);
            for (j, (q, out)) in groups.enumerate() {
                let low = head[4 + j / 2] >> (4 * (j % 2)) & 15;
                let scale = u16::from(low) | (high >> (2 * j) & 3) << 4;
                codes(q, d * (f32::from(scale) - 32.0), out);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::VALUES;
    use crate::dtype::ggml::testing::{check, half, nib, u16_at};

    #[test]
    fn values_are_those_of_the_formulas() {
        check("IQ4_NL", &[0], |b, e| {
            half(b, 0) * f32::from(VALUES[nib(b[2 + e % 16], e / 16) as usize])
        });
        check("IQ4_XS", &[0], |b, e| {
            let j = e / 32;
            let high = i32::from(u16_at(b, 2) >> (2 * j) & 3);
            let s = nib(b[4 + j / 2], j % 2) + 16 * high;
            let q = nib(b[8 + 16 * j + e % 16], e / 16 % 2);
            (half(b, 0) * (s - 32) as f32) * f32::from(VALUES[q as usize])
        });
    }
}
