//! 32 codes at a time. A decoder is written once, in steps that each machine has: AVX2 where it is
//! found at run time, plain Rust elsewhere. (The compiler vectorizes few of the loops that put
//! codes together from fields of bits.)

/// The steps on this machine. A code is a byte, and `Codes` are 32 of them.
pub(super) trait Lanes: Copy {
    type Codes: Copy;

    /// The F16 at byte `at`, widened.
    fn half(self, block: &[u8], at: usize) -> f32;

    /// The 32 bytes from `at` on.
    fn load(self, block: &[u8], at: usize) -> Self::Codes;

    /// The 16 bytes from `at` on: their low halves, then their high halves.
    fn nibbles(self, block: &[u8], at: usize) -> Self::Codes;

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

    /// `scales[i / 16]` × code i, a signed byte.
    fn products(self, scales: [f32; 2], codes: Self::Codes, out: &mut [f32; 32]);

    /// `scales[i / 16]` × code i + `add[i / 16]`.
    fn sums(self, scales: [f32; 2], codes: Self::Codes, add: [f32; 2], out: &mut [f32; 32]);
}

/// For every machine: eight codes in a word. No step lets one reach into the next.
#[derive(Clone, Copy)]
pub(super) struct Plain;

/// A byte in each of the eight.
#[inline(always)]
const fn eight(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

impl Plain {
    #[inline(always)]
    fn each(words: [u64; 4], out: &mut [f32; 32], value: impl Fn(usize, f32) -> f32) {
        // From memory, so that the loop is vectorized. Otherwise the compiler shifts the bytes out
        // of the words one by one, at half the speed.
        let bytes = std::hint::black_box(words.map(u64::to_le_bytes));
        let codes: [[u8; 16]; 2] = bytemuck::cast(bytes);
        for (i, (out, codes)) in out
            .as_chunks_mut::<16>()
            .0
            .iter_mut()
            .zip(codes)
            .enumerate()
        {
            for (out, code) in out.iter_mut().zip(codes) {
                *out = value(i, f32::from(code as i8));
            }
        }
    }
}

impl Lanes for Plain {
    type Codes = [u64; 4];

    #[inline(always)]
    fn half(self, block: &[u8], at: usize) -> f32 {
        super::blocks::half(block, at)
    }

    #[inline(always)]
    fn load(self, block: &[u8], at: usize) -> [u64; 4] {
        let bytes: [[u8; 8]; 4] = bytemuck::pod_read_unaligned(&block[at..at + 32]);
        bytes.map(u64::from_le_bytes)
    }

    #[inline(always)]
    fn nibbles(self, block: &[u8], at: usize) -> [u64; 4] {
        let bytes: [[u8; 8]; 2] = bytemuck::pod_read_unaligned(&block[at..at + 16]);
        let [a, b] = bytes.map(u64::from_le_bytes);
        [a, b, a >> 4, b >> 4].map(|word| word & eight(15))
    }

    #[inline(always)]
    fn bits(self, block: &[u8], at: usize, code: u8) -> [u64; 4] {
        std::array::from_fn(|i| {
            // Byte k keeps bit k. Adding 127 to each moves it, wherever it stands, to bit 7.
            let bits = eight(block[at + i]) & 0x8040_2010_0804_0201;
            (bits + eight(127) >> 7 & eight(1)) * u64::from(code)
        })
    }

    #[inline(always)]
    fn field(self, codes: [u64; 4], shift: usize, bits: usize) -> [u64; 4] {
        codes.map(|word| word >> shift & eight((1 << bits) - 1))
    }

    #[inline(always)]
    fn above(
        self,
        low: [u64; 4],
        codes: [u64; 4],
        shift: usize,
        bits: usize,
        to: usize,
    ) -> [u64; 4] {
        let high = self.field(codes, shift, bits);
        std::array::from_fn(|i| low[i] | high[i] << to)
    }

    #[inline(always)]
    fn minus(self, codes: [u64; 4], n: u8) -> [u64; 4] {
        // Bit 7 of each byte is zero before, so that with it no byte borrows from the next.
        codes.map(|word| ((word | eight(128)) - eight(n)) ^ eight(128))
    }

    #[inline(always)]
    fn products(self, scales: [f32; 2], codes: [u64; 4], out: &mut [f32; 32]) {
        Plain::each(codes, out, |i, code| scales[i] * code);
    }

    #[inline(always)]
    fn sums(self, scales: [f32; 2], codes: [u64; 4], add: [f32; 2], out: &mut [f32; 32]) {
        Plain::each(codes, out, |i, code| scales[i] * code + add[i]);
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use avx2::Avx2;

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::Lanes;

    /// For machines with AVX2 and F16C. Exists only on such.
    #[derive(Clone, Copy)]
    pub(in super::super) struct Avx2(());

    impl Avx2 {
        /// It, if this machine has both.
        #[inline]
        pub(in super::super) fn found() -> Option<Avx2> {
            let found = crate::simd::avx2() && is_x86_feature_detected!("f16c");
            found.then_some(Avx2(()))
        }

        /// `value(i, the eight codes from 8 i on)`.
        #[inline(always)]
        fn each(codes: __m256i, out: &mut [f32; 32], value: impl Fn(usize, __m256) -> __m256) {
            // SAFETY: only methods of a value call it, and a value exists only on machines that
            // have these instructions.
            unsafe {
                let front = _mm256_castsi256_si128(codes);
                let back = _mm256_extracti128_si256::<1>(codes);
                let eights = [
                    front,
                    _mm_srli_si128::<8>(front),
                    back,
                    _mm_srli_si128::<8>(back),
                ];
                for (i, out) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
                    let codes = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(eights[i]));
                    *out = bytemuck::cast(value(i, codes));
                }
            }
        }
    }

    // SAFETY of all: a value exists only on machines that have these instructions.
    impl Lanes for Avx2 {
        type Codes = __m256i;

        #[inline(always)]
        fn half(self, block: &[u8], at: usize) -> f32 {
            let bits = i32::from(u16::from_le_bytes([block[at], block[at + 1]]));
            // SAFETY: as above.
            unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))) }
        }

        #[inline(always)]
        fn load(self, block: &[u8], at: usize) -> __m256i {
            bytemuck::pod_read_unaligned(&block[at..at + 32])
        }

        #[inline(always)]
        fn nibbles(self, block: &[u8], at: usize) -> __m256i {
            let bytes = bytemuck::pod_read_unaligned(&block[at..at + 16]);
            // SAFETY: as above.
            unsafe {
                let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
                _mm256_and_si256(both, _mm256_set1_epi8(15))
            }
        }

        #[inline(always)]
        fn bits(self, block: &[u8], at: usize, code: u8) -> __m256i {
            let word: i32 = bytemuck::pod_read_unaligned(&block[at..at + 4]);
            // SAFETY: as above.
            unsafe {
                let eights = _mm256_setr_epi64x(
                    0,
                    0x0101_0101_0101_0101,
                    0x0202_0202_0202_0202,
                    0x0303_0303_0303_0303,
                );
                let each = _mm256_set1_epi64x(i64::from_le_bytes([1, 2, 4, 8, 16, 32, 64, 128]));
                let bytes = _mm256_shuffle_epi8(_mm256_set1_epi32(word), eights);
                let ones = _mm256_cmpeq_epi8(_mm256_and_si256(bytes, each), each);
                _mm256_and_si256(ones, _mm256_set1_epi8(code as i8))
            }
        }

        #[inline(always)]
        fn field(self, codes: __m256i, shift: usize, bits: usize) -> __m256i {
            // SAFETY: as above.
            unsafe {
                let moved = _mm256_srl_epi16(codes, _mm_cvtsi32_si128(shift as i32));
                _mm256_and_si256(moved, _mm256_set1_epi8((1 << bits) - 1))
            }
        }

        #[inline(always)]
        fn above(
            self,
            low: __m256i,
            codes: __m256i,
            shift: usize,
            bits: usize,
            to: usize,
        ) -> __m256i {
            // SAFETY: as above.
            unsafe {
                let moved = if shift > to {
                    _mm256_srl_epi16(codes, _mm_cvtsi32_si128((shift - to) as i32))
                } else {
                    _mm256_sll_epi16(codes, _mm_cvtsi32_si128((to - shift) as i32))
                };
                let mask = _mm256_set1_epi8((((1 << bits) - 1) << to) as i8);
                _mm256_or_si256(low, _mm256_and_si256(moved, mask))
            }
        }

        #[inline(always)]
        fn minus(self, codes: __m256i, n: u8) -> __m256i {
            // SAFETY: as above.
            unsafe { _mm256_sub_epi8(codes, _mm256_set1_epi8(n as i8)) }
        }

        #[inline(always)]
        fn products(self, scales: [f32; 2], codes: __m256i, out: &mut [f32; 32]) {
            // SAFETY: as above.
            Avx2::each(codes, out, |i, codes| unsafe {
                _mm256_mul_ps(_mm256_set1_ps(scales[i / 2]), codes)
            });
        }

        #[inline(always)]
        fn sums(self, scales: [f32; 2], codes: __m256i, add: [f32; 2], out: &mut [f32; 32]) {
            // SAFETY: as above.
            Avx2::each(codes, out, |i, codes| unsafe {
                let product = _mm256_mul_ps(_mm256_set1_ps(scales[i / 2]), codes);
                _mm256_add_ps(product, _mm256_set1_ps(add[i / 2]))
            });
        }
    }
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
