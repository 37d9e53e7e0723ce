//! IQ4: four-bit codes of sixteen values that are not evenly spaced.

use super::lanes::decoder;

/// The values of the codes.
static VALUES: [i8; 16] = [
    -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113,
];

decoder! {
    pub(super) fn iq4_nl(lanes, b: [u8; 18]) -> [f32; 32] as out {
        let codes = lanes.lookup(&VALUES, lanes.nibbles(b, 2));
        lanes.products([lanes.half(b, 0); 2], codes, out);
    }
}

decoder! {
    pub(super) fn iq4_xs(lanes, b: [u8; 136]) -> [f32; 256] as out {
        let d = lanes.half(b, 0);
        let high = u16::from_le_bytes([b[2], b[3]]);
        for (j, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let low = b[4 + j / 2] >> (4 * (j % 2)) & 15;
            let scale = u16::from(low) | (high >> (2 * j) & 3) << 4;
            let codes = lanes.lookup(&VALUES, lanes.nibbles(b, 8 + 16 * j));
            lanes.products([d * (f32::from(scale) - 32.0); 2], codes, out);
        }
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
