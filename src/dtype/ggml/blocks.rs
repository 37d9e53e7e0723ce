//! What the decoders of all families share.

/// Decodes as many blocks of `B` bytes and `N` values as `out` holds.
#[inline(always)]
pub(super) fn blocks<const B: usize, const N: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: impl Fn(&[u8; B], &mut [f32; N]),
) {
    let (bytes, _) = bytes.as_chunks();
    let (out, _) = out.as_chunks_mut();
    for (block, out) in bytes.iter().zip(out) {
        decode(block, out);
    }
}

/// The `N` bytes from `at` on, of a block that has them.
#[inline(always)]
pub(super) fn part<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    let mut part = [0; N];
    part.copy_from_slice(&block[at..at + N]);
    part
}

/// The F16 at byte `at` of a block, widened.
///
/// Without a call or a branch, so that it can be inlined: `half` asks the machine what it can do in
/// each call. Subnormal scales are common in K-quants and must not be slower than others.
#[inline(always)]
pub(super) fn half(block: &[u8], at: usize) -> f32 {
    const SIGN: u32 = 1 << 31;
    let bits = u32::from(u16::from_le_bytes([block[at], block[at + 1]])) << 13;
    let (sign, rest) = (bits << 3 & SIGN, bits & 0x7FFF << 13);
    let magnitude = match rest >> 23 {
        // The mantissa alone, below the last bit of an exponent that is subtracted again: exact.
        0 => f32::from_bits(rest + (113 << 23)) - f32::from_bits(113 << 23),
        31 => f32::from_bits(rest | 0xFF << 23),
        _ => f32::from_bits(rest + (112 << 23)),
    };
    f32::from_bits(magnitude.to_bits() | sign)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_half_widens_to_its_value() {
        for bits in 0..=u16::MAX {
            let got = super::half(&bits.to_le_bytes(), 0);
            let want = half::f16::from_bits(bits).to_f32();
            assert!(
                got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
                "{bits:04x}: {got} for {want}"
            );
        }
    }
}
