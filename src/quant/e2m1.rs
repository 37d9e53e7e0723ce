//! The four-bit float E2M1 (OCP MX v1.0: codes 0 to 7 are 0, .5, 1, 1.5, 2, 3, 4, 6, then the same
//! negated), computed in a form that the compiler vectorizes. It does not vectorize a table of
//! sixteen floats.

/// Exactly twice the value of a code; -0 for code 8. Bits above the code's four must be 0.
///
/// Every doubled magnitude is a whole number. Multiplied by half a scale, this is bit for bit the
/// value times the scale, if halving the scale is exact (as for every E8M0 or E4M3).
#[inline(always)]
pub fn doubled(code: u32) -> f32 {
    /// The doubled magnitudes of codes 0 to 7, one nibble each.
    const MAGNITUDES: u32 = 0xC864_3210;
    let magnitude = MAGNITUDES >> (4 * (code & 7)) & 15;
    f32::from_bits((magnitude as i32 as f32).to_bits() | (code & 8) << 28)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::decode::{F4, F8_E4M3, F8_E8M0};

    #[test]
    fn is_the_table_under_every_scale() {
        for scale in F8_E8M0.iter().chain(&F8_E4M3) {
            for (code, element) in F4.iter().enumerate() {
                let (got, want) = (doubled(code as u32) * (scale * 0.5), element * scale);
                assert!(
                    got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                    "code {code}, scale {scale:e}: {got:e}, not {want:e}"
                );
            }
        }
    }
}
