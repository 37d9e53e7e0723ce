//! The steps with AVX2.

use std::arch::x86_64::*;

use super::Lanes;

/// For machines with AVX2 and F16C. Its field is private and only [`Avx2::found`] makes one, after it has
/// asked the machine: so whatever takes a `self` may use their instructions. Every SAFETY comment below
/// rests on that.
#[derive(Clone, Copy)]
pub(in super::super) struct Avx2(());

impl Avx2 {
    /// The steps, if this machine has both.
    #[inline]
    pub(in super::super) fn found() -> Option<Avx2> {
        let found = crate::simd::avx2() && is_x86_feature_detected!("f16c");
        found.then_some(Avx2(()))
    }

    /// `value(i, the eight codes from 8 i on)`.
    #[inline(always)]
    fn each(self, codes: __m256i, out: &mut [f32; 32], value: impl Fn(usize, __m256) -> __m256) {
        // SAFETY: the machine has these instructions, since there is a `self`.
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

impl Lanes for Avx2 {
    type Codes = __m256i;

    #[inline(always)]
    fn half(self, block: &[u8], at: usize) -> f32 {
        let bits = i32::from(u16::from_le_bytes([block[at], block[at + 1]]));
        // SAFETY: there is a `self`.
        unsafe { _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(bits))) }
    }

    #[inline(always)]
    fn load(self, block: &[u8], at: usize) -> __m256i {
        bytemuck::pod_read_unaligned(&block[at..at + 32])
    }

    #[inline(always)]
    fn nibbles(self, block: &[u8], at: usize) -> __m256i {
        let bytes = bytemuck::pod_read_unaligned(&block[at..at + 16]);
        // SAFETY: there is a `self`.
        unsafe {
            let both = _mm256_set_m128i(_mm_srli_epi16::<4>(bytes), bytes);
            _mm256_and_si256(both, _mm256_set1_epi8(15))
        }
    }

    #[inline(always)]
    fn nibbles_by_eights(self, block: &[u8], at: usize) -> __m256i {
        // SAFETY: there is a `self`.
        unsafe { _mm256_permute4x64_epi64::<0b11_01_10_00>(self.nibbles(block, at)) }
    }

    #[inline(always)]
    fn words(self, [a, b, c, d]: [u64; 4]) -> __m256i {
        // SAFETY: there is a `self`.
        unsafe { _mm256_setr_epi64x(a as i64, b as i64, c as i64, d as i64) }
    }

    #[inline(always)]
    fn bits(self, block: &[u8], at: usize, code: u8) -> __m256i {
        let word: i32 = bytemuck::pod_read_unaligned(&block[at..at + 4]);
        // SAFETY: there is a `self`.
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
        // SAFETY: there is a `self`.
        unsafe {
            let moved = _mm256_srl_epi16(codes, _mm_cvtsi32_si128(shift as i32));
            _mm256_and_si256(moved, _mm256_set1_epi8((1 << bits) - 1))
        }
    }

    #[inline(always)]
    fn above(self, low: __m256i, codes: __m256i, shift: usize, bits: usize, to: usize) -> __m256i {
        // SAFETY: there is a `self`.
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
        // SAFETY: there is a `self`.
        unsafe { _mm256_sub_epi8(codes, _mm256_set1_epi8(n as i8)) }
    }

    #[inline(always)]
    fn lookup(self, table: &[i8; 16], codes: __m256i) -> __m256i {
        // SAFETY: there is a `self`.
        unsafe {
            let table = _mm256_broadcastsi128_si256(bytemuck::cast(*table));
            _mm256_shuffle_epi8(table, codes)
        }
    }

    #[inline(always)]
    fn negate(self, codes: __m256i, mask: __m256i) -> __m256i {
        // SAFETY: there is a `self`.
        unsafe { _mm256_sub_epi8(_mm256_xor_si256(codes, mask), mask) }
    }

    #[inline(always)]
    fn thrice(self, codes: __m256i) -> __m256i {
        // SAFETY: there is a `self`.
        unsafe { _mm256_add_epi8(codes, _mm256_add_epi8(codes, codes)) }
    }

    #[inline(always)]
    fn thrice_over(self, codes: __m256i) -> __m256i {
        // SAFETY: there is a `self`.
        unsafe {
            // 86 × 3 is the first product over 255, and 171 × 3 the first over 511.
            let from = |n| _mm256_cmpeq_epi8(_mm256_max_epu8(codes, _mm256_set1_epi8(n)), codes);
            _mm256_abs_epi8(_mm256_add_epi8(from(86), from(171u8 as i8)))
        }
    }

    #[inline(always)]
    fn products(self, scales: [f32; 2], codes: __m256i, out: &mut [f32; 32]) {
        // SAFETY: there is a `self`.
        self.each(codes, out, |i, codes| unsafe {
            _mm256_mul_ps(_mm256_set1_ps(scales[i / 2]), codes)
        });
    }

    #[inline(always)]
    fn sums(self, scales: [f32; 2], codes: __m256i, add: [f32; 2], out: &mut [f32; 32]) {
        // SAFETY: there is a `self`.
        self.each(codes, out, |i, codes| unsafe {
            let product = _mm256_mul_ps(_mm256_set1_ps(scales[i / 2]), codes);
            _mm256_add_ps(product, _mm256_set1_ps(add[i / 2]))
        });
    }
}
