//! FP4 (E2M1) codes with a scale for every 32 (MXFP4) or 16 values (NVFP4).

use super::lanes::decoder;

/// Twice the values of the codes; the scales are half of what OCP's are. Code 8 is +0 here.
static VALUES: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// The scale of a byte of MXFP4: 2^(e - 128), infinity and NaN being none.
#[inline(always)]
fn e8m0(e: u8) -> f32 {
    f32::from_bits(match e {
        0 | 1 => 0x20_0000 << e,
        _ => (u32::from(e) - 1) << 23,
    })
}

/// The scales of the bytes of NVFP4.
static UE4M3: [f32; 256] = ue4m3();

/// E4M3, halved, whose sign bit does not count and whose NaN (without it) is 0.
const fn ue4m3() -> [f32; 256] {
    let mut table = [0.0; 256];
    let mut x = 0;
    while x < 256 {
        let (exponent, mantissa) = (x >> 3 & 15, x as u32 & 7);
        // All products are exact: four significant bits, far inside binary32's range.
        table[x] = match exponent {
            _ if x == 127 => 0.0,
            0 => mantissa as f32 / 1024.0,
            _ => (8 + mantissa) as f32 * (1 << exponent) as f32 / 2048.0,
        };
        x += 1;
    }
    table
}

decoder! {
    pub(super) fn mxfp4(lanes, b: [u8; 17]) -> [f32; 32] as out {
        let codes = lanes.lookup(&VALUES, lanes.nibbles(b, 1));
        lanes.products([e8m0(b[0]); 2], codes, out);
    }
}

decoder! {
    pub(super) fn nvfp4(lanes, b: [u8; 36]) -> [f32; 64] as out {
        for (i, out) in out.as_chunks_mut().0.iter_mut().enumerate() {
            let scales = [b[2 * i], b[2 * i + 1]].map(|x| UE4M3[usize::from(x)]);
            let codes = lanes.lookup(&VALUES, lanes.nibbles_by_eights(b, 4 + 16 * i));
            lanes.products(scales, codes, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::VALUES;
    use crate::dtype::ggml::testing::{check, nib};

    /// All scales occur: every byte of a block is random.
    #[test]
    fn values_are_those_of_the_formulas() {
        check("MXFP4", &[], |b, e| {
            let d = match u32::from(b[0]) {
                e @ 0..2 => f32::from_bits(0x20_0000 << e),
                e => f32::from_bits((e - 1) << 23),
            };
            d * f32::from(VALUES[nib(b[1 + e % 16], e / 16) as usize])
        });
        check("NVFP4", &[], |b, e| {
            let x = b[e / 16];
            let mantissa = f32::from(x & 7);
            let d = match x >> 3 & 15 {
                _ if x == 0 || x == 127 => 0.0,
                0 => mantissa * 2f32.powi(-10),
                exponent => (1.0 + mantissa / 8.0) * 2f32.powi(i32::from(exponent) - 8),
            };
            d * f32::from(VALUES[nib(b[4 + 8 * (e / 16) + e % 8], e / 8 % 2) as usize])
        });
    }
}
