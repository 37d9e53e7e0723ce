//! F8 E4M3, E5M2 and E4M3FNUZ → binary32, eight at a time, by way of binary16.
//!
//! A shift turns these kinds into binary16 numbers: E5M2 is binary16's upper byte, and E4M3's
//! exponent and mantissa stand one bit lower, with a bias 8 (FNUZ: 7) smaller. F16C widens binary16
//! exactly, subnormals and NaN included, at twice the speed of a table. A table behind AVX2's
//! gather is slower than either. (E5M2FNUZ uses a table, because it has finite numbers where
//! binary16 has Inf.)

use std::arch::x86_64::*;

/// The kinds.
const E4M3: u8 = 0;
const E5M2: u8 = 1;
const E4M3FNUZ: u8 = 2;

/// Decodes E4M3 codes and returns how many: a multiple of 8, or 0 on a machine without F16C. The
/// caller decodes the rest.
pub fn e4m3(src: &[u8], out: &mut [f32]) -> usize {
    on_this_machine::<E4M3>(src, out)
}

/// As [`e4m3`], for E5M2.
pub fn e5m2(src: &[u8], out: &mut [f32]) -> usize {
    on_this_machine::<E5M2>(src, out)
}

/// As [`e4m3`], for E4M3FNUZ.
pub fn e4m3fnuz(src: &[u8], out: &mut [f32]) -> usize {
    on_this_machine::<E4M3FNUZ>(src, out)
}

fn on_this_machine<const KIND: u8>(src: &[u8], out: &mut [f32]) -> usize {
    if !is_x86_feature_detected!("f16c") || !is_x86_feature_detected!("avx") {
        return 0;
    }
    // SAFETY: the check above shows that the machine has the features.
    unsafe { widen::<KIND>(src, out) }
}

#[target_feature(enable = "f16c,avx")]
fn widen<const KIND: u8>(src: &[u8], out: &mut [f32]) -> usize {
    let factor = match KIND {
        E4M3 => 256.0,
        E5M2 => 1.0,
        _ => 128.0,
    };
    let (out, _) = out.as_chunks_mut::<8>();
    let (src, _) = src.as_chunks::<8>();
    for (out, src) in out.iter_mut().zip(src) {
        let codes = _mm_cvtsi64_si128(i64::from_le_bytes(*src));
        let values = _mm256_cvtph_ps(as_half::<KIND>(codes));
        *out = bytemuck::cast(_mm256_mul_ps(values, _mm256_set1_ps(factor)));
    }
    out.len().min(src.len()) * 8
}

/// Converts the codes in the lower eight bytes to binary16 numbers, which for E4M3 and E4M3FNUZ are
/// too small by a power of two. Every NaN becomes the tables' NaN, so that a read gives the same
/// bytes wherever a vector begins.
#[target_feature(enable = "f16c,avx")]
fn as_half<const KIND: u8>(codes: __m128i) -> __m128i {
    let wide = _mm_cvtepi8_epi16(codes);
    let sign = _mm_and_si128(wide, _mm_set1_epi16(i16::MIN));
    let (magnitude, nan) = match KIND {
        E5M2 => {
            let magnitude = _mm_and_si128(_mm_slli_epi16::<8>(wide), _mm_set1_epi16(0x7F << 8));
            let nan = _mm_cmpgt_epi16(magnitude, _mm_set1_epi16(0x7C << 8));
            (magnitude, nan)
        }
        _ => {
            let all_ones = _mm_set1_epi16(0x7F << 7);
            let magnitude = _mm_and_si128(_mm_slli_epi16::<7>(wide), all_ones);
            let nan = match KIND {
                E4M3 => _mm_cmpeq_epi16(magnitude, all_ones),
                _ => _mm_cmpeq_epi16(wide, _mm_set1_epi16(-0x80)),
            };
            (magnitude, nan)
        }
    };
    _mm_or_si128(
        _mm_andnot_si128(nan, _mm_or_si128(magnitude, sign)),
        _mm_and_si128(nan, _mm_set1_epi16(0x7E00)),
    )
}
