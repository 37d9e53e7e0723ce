//! 32 codes at a time. A decoder is written once, in steps that each machine has: AVX2 where it is
//! found at run time, plain Rust elsewhere. (The compiler vectorizes few of the loops that put
//! codes together from fields of bits.)

mod plain;

#[cfg(target_arch = "x86_64")]
mod avx2;

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;
pub(super) use plain::{Plain, times};

/// The steps on this machine. A code is a byte, and `Codes` are 32 of them.
pub(super) trait Lanes: Copy {
    type Codes: Copy;

    /// The F16 at byte `at`, widened.
    fn half(self, block: &[u8], at: usize) -> f32;

    /// The 32 bytes from `at` on.
    fn load(self, block: &[u8], at: usize) -> Self::Codes;

    /// The 16 bytes from `at` on: their low halves, then their high halves.
    fn nibbles(self, block: &[u8], at: usize) -> Self::Codes;

    /// As [`Lanes::nibbles`], of the first eight bytes before those of the other eight.
    fn nibbles_by_eights(self, block: &[u8], at: usize) -> Self::Codes;

    /// Eight codes in each word, lowest byte first.
    fn words(self, words: [u64; 4]) -> Self::Codes;

    /// The bits of the four bytes from `at` on, lowest first: `code` for each one, 0 for each zero.
    fn bits(self, block: &[u8], at: usize, code: u8) -> Self::Codes;

    /// `bits` bits from bit `shift` on.
    fn field(self, codes: Self::Codes, shift: usize, bits: usize) -> Self::Codes;

    /// As [`Lanes::field`], moved to bit `to`: above the ones that the codes of `low` have.
    fn above(
        self,
        low: Self::Codes,
        codes: Self::Codes,
        shift: usize,
        bits: usize,
        to: usize,
    ) -> Self::Codes;

    /// Each code, less than 128, minus `n`, as a signed byte.
    fn minus(self, codes: Self::Codes, n: u8) -> Self::Codes;

    /// The values of codes less than 16, as signed bytes.
    fn lookup(self, table: &[i8; 16], codes: Self::Codes) -> Self::Codes;

    /// Each code, from 1 to 127, as a signed byte: negative where `mask` is 255, and not where it
    /// is 0.
    fn negate(self, codes: Self::Codes, mask: Self::Codes) -> Self::Codes;

    /// Each code times 3, modulo 256.
    fn thrice(self, codes: Self::Codes) -> Self::Codes;

    /// What [`Lanes::thrice`] drops: each code times 3, divided by 256.
    fn thrice_over(self, codes: Self::Codes) -> Self::Codes;

    /// `scales[i / 16]` × code i, a signed byte.
    fn products(self, scales: [f32; 2], codes: Self::Codes, out: &mut [f32; 32]);

    /// `scales[i / 16]` × code i + `add[i / 16]`.
    fn sums(self, scales: [f32; 2], codes: Self::Codes, add: [f32; 2], out: &mut [f32; 32]);
}

/// Defines a decoder of whole blocks by the body that decodes one with some [`Lanes`].
macro_rules! decoder {
    (
        $(#[$attribute:meta])*
        $vis:vis fn $name:ident($lanes:ident, $b:ident: [u8; $bytes:literal]) -> [f32; $values:literal] as $out:ident $body:block
    ) => {
        $(#[$attribute])*
        $vis fn $name(bytes: &[u8], out: &mut [f32]) {
            #[inline(always)]
            fn all<L: $crate::dtype::ggml::lanes::Lanes>($lanes: L, bytes: &[u8], out: &mut [f32]) {
                let (blocks, _) = bytes.as_chunks::<$bytes>();
                let (out, _) = out.as_chunks_mut::<$values>();
                for ($b, $out) in blocks.iter().zip(out) $body
            }

            #[cfg(target_arch = "x86_64")]
            {
                use $crate::dtype::ggml::lanes::Avx2;

                #[target_feature(enable = "avx2,f16c")]
                fn avx2(lanes: Avx2, bytes: &[u8], out: &mut [f32]) {
                    all(lanes, bytes, out)
                }
                if let Some(lanes) = Avx2::found() {
                    // SAFETY: this machine has both features, since there is an `Avx2`.
                    return unsafe { avx2(lanes, bytes, out) };
                }
            }
            all($crate::dtype::ggml::lanes::Plain, bytes, out)
        }
    };
}
pub(super) use decoder;
