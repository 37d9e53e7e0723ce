//! Stored elements of any dtype → binary32.
//!
//! Small floats use tables, built from their definitions at compile time (OCP MX v1.0 for F4, F6
//! and E8M0; Micikevicius et al. 2022 for E4M3 and E5M2; Noune et al. 2022 for the FNUZ kinds).
//! Wider types convert by IEEE rules: round to nearest, ties to even.

use half::slice::HalfFloatSliceExt;

use super::Dtype;

#[cfg(target_arch = "x86_64")]
mod f8_x86;
#[cfg(target_arch = "x86_64")]
use f8_x86 as vectors;

/// Vector loops for F8, which return how many elements they decoded. None exist for this
/// architecture: the tables decode everything.
#[cfg(not(target_arch = "x86_64"))]
mod vectors {
    pub fn e4m3(_: &[u8], _: &mut [f32]) -> usize {
        0
    }
    pub use e4m3 as e5m2;
    pub use e4m3 as e4m3fnuz;
}

/// What the codes at the top of a small float's range, and the code of negative zero, mean.
#[derive(Clone, Copy)]
enum Specials {
    /// Every code is a number (F4, F6).
    None,
    /// NaN is the top exponent with a mantissa of all ones (E4M3).
    NanOnly,
    /// The top exponent is Inf and NaN, as in IEEE 754 (E5M2).
    Ieee,
    /// Negative zero's code is the only NaN (FNUZ).
    Fnuz,
}

/// 2^e for -149 ≤ e ≤ 127.
const fn exp2(e: i32) -> f32 {
    if e < -126 {
        f32::from_bits(1 << (e + 149))
    } else {
        f32::from_bits(((e + 127) as u32) << 23)
    }
}

const fn small_float(code: u32, exp_bits: u32, man_bits: u32, bias: i32, special: Specials) -> f32 {
    let man = code & ((1 << man_bits) - 1);
    let exp = (code >> man_bits) & ((1 << exp_bits) - 1);
    let negative = (code >> (man_bits + exp_bits)) & 1 == 1;
    let top = (1 << exp_bits) - 1;
    match special {
        Specials::NanOnly if exp == top && man == (1 << man_bits) - 1 => return f32::NAN,
        Specials::Ieee if exp == top && man != 0 => return f32::NAN,
        Specials::Ieee if exp == top && negative => return f32::NEG_INFINITY,
        Specials::Ieee if exp == top => return f32::INFINITY,
        Specials::Fnuz if negative && exp == 0 && man == 0 => return f32::NAN,
        _ => {}
    }
    // Both products are exact: at most four significant bits, far inside binary32's range.
    let magnitude = if exp == 0 {
        man as f32 * exp2(1 - bias - man_bits as i32)
    } else {
        (man + (1 << man_bits)) as f32 * exp2(exp as i32 - bias - man_bits as i32)
    };
    if negative { -magnitude } else { magnitude }
}

const fn table<const N: usize>(e: u32, m: u32, bias: i32, special: Specials) -> [f32; N] {
    let mut t = [0.0; N];
    let mut code = 0;
    while code < N {
        t[code] = small_float(code as u32, e, m, bias, special);
        code += 1;
    }
    t
}

const fn e8m0_table() -> [f32; 256] {
    let mut t = [f32::NAN; 256];
    let mut code = 0;
    while code < 255 {
        t[code] = exp2(code as i32 - 127);
        code += 1;
    }
    t
}

/// F4 (OCP E2M1): the values of codes 0 to 15. Code 8 is -0.
pub static F4: [f32; 16] = table(2, 1, 1, Specials::None);
/// F6 E2M3: the values of codes 0 to 63.
pub static F6_E2M3: [f32; 64] = table(2, 3, 1, Specials::None);
/// F6 E3M2: the values of codes 0 to 63.
pub static F6_E3M2: [f32; 64] = table(3, 2, 3, Specials::None);
/// F8 E4M3 (the finite kind: no Inf, 0x7F and 0xFF are NaN).
pub static F8_E4M3: [f32; 256] = table(4, 3, 7, Specials::NanOnly);
/// F8 E5M2 (with Inf and NaN as in IEEE 754).
pub static F8_E5M2: [f32; 256] = table(5, 2, 15, Specials::Ieee);
/// F8 E4M3 FNUZ (bias 8; 0x80 is the one NaN, there is no -0).
pub static F8_E4M3FNUZ: [f32; 256] = table(4, 3, 8, Specials::Fnuz);
/// F8 E5M2 FNUZ (bias 16; 0x80 is the one NaN, there is no -0).
pub static F8_E5M2FNUZ: [f32; 256] = table(5, 2, 16, Specials::Fnuz);
/// F8 E8M0: 2^(code - 127); code 0 is the subnormal 2^-127, code 255 is NaN.
pub static F8_E8M0: [f32; 256] = e8m0_table();

/// How many elements of `dtype` one indivisible unit of whole bytes holds: 2 for F4 (one byte),
/// 4 for F6 (three bytes), 1 for the rest.
pub fn elements_per_unit(dtype: Dtype) -> u64 {
    match dtype {
        Dtype::F4 => 2,
        Dtype::F6_E2M3 | Dtype::F6_E3M2 => 4,
        _ => 1,
    }
}

/// Decodes `out.len()` elements. `src` begins at a unit ([`elements_per_unit`]), whose first `skip`
/// elements are skipped, and holds every unit that is touched. C64 has no real values
/// ([`Dtype::has_f32`]), so no view decodes it; here it gives NaN.
///
/// # Panics
/// If `src` is shorter than the elements asked for.
pub fn decode(dtype: Dtype, src: &[u8], skip: usize, out: &mut [f32]) {
    debug_assert!((skip as u64) < elements_per_unit(dtype));
    match dtype {
        Dtype::Bool => each(src, out, |[b]: [u8; 1]| f32::from(u8::from(b != 0))),
        Dtype::U8 => each(src, out, |[b]: [u8; 1]| f32::from(b)),
        Dtype::I8 => each(src, out, |[b]: [u8; 1]| f32::from(b as i8)),
        Dtype::F4 => f4(src, skip, out),
        Dtype::F6_E2M3 => f6(&F6_E2M3, src, skip, out),
        Dtype::F6_E3M2 => f6(&F6_E3M2, src, skip, out),
        Dtype::F8_E4M3 => f8(vectors::e4m3, &F8_E4M3, src, out),
        Dtype::F8_E5M2 => f8(vectors::e5m2, &F8_E5M2, src, out),
        Dtype::F8_E4M3FNUZ => f8(vectors::e4m3fnuz, &F8_E4M3FNUZ, src, out),
        Dtype::F8_E5M2FNUZ => lookup(&F8_E5M2FNUZ, src, out),
        Dtype::F8_E8M0 => lookup(&F8_E8M0, src, out),
        Dtype::I16 => each(src, out, |b| f32::from(i16::from_le_bytes(b))),
        Dtype::U16 => each(src, out, |b| f32::from(u16::from_le_bytes(b))),
        Dtype::F16 => f16(src, out),
        Dtype::BF16 => bf16(src, out),
        Dtype::I32 => each(src, out, |b| i32::from_le_bytes(b) as f32),
        Dtype::U32 => each(src, out, |b| u32::from_le_bytes(b) as f32),
        Dtype::F32 => each(src, out, f32::from_le_bytes),
        Dtype::F64 => each(src, out, |b| f64::from_le_bytes(b) as f32),
        Dtype::I64 => each(src, out, |b| i64::from_le_bytes(b) as f32),
        Dtype::U64 => each(src, out, |b| u64::from_le_bytes(b) as f32),
        Dtype::C64 => out.fill(f32::NAN),
    }
}

fn each<const W: usize>(src: &[u8], out: &mut [f32], value: impl Fn([u8; W]) -> f32) {
    let (elements, _) = src[..out.len() * W].as_chunks::<W>();
    for (o, &e) in out.iter_mut().zip(elements) {
        *o = value(e);
    }
}

fn lookup(table: &[f32; 256], src: &[u8], out: &mut [f32]) {
    let src = &src[..out.len()];
    for (o, &code) in out.iter_mut().zip(src) {
        *o = table[usize::from(code)];
    }
}

/// Decodes by the vector loop as far as it goes, and the rest by the table.
fn f8(vectors: fn(&[u8], &mut [f32]) -> usize, table: &[f32; 256], src: &[u8], out: &mut [f32]) {
    let done = vectors(&src[..out.len()], out);
    lookup(table, &src[done..], &mut out[done..]);
}

fn bf16(src: &[u8], out: &mut [f32]) {
    each(src, out, |b| {
        f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16)
    });
}

fn f16(src: &[u8], out: &mut [f32]) {
    let src = &src[..out.len() * 2];
    match bytemuck::try_cast_slice::<u8, u16>(src) {
        Ok(words) => words.reinterpret_cast_f16().convert_to_f32_slice(out),
        // At an odd address, copy through a small aligned buffer.
        Err(_) => {
            let mut words = [0u16; 512];
            for (out, src) in out.chunks_mut(512).zip(src.chunks(1024)) {
                for (w, b) in words.iter_mut().zip(src.as_chunks::<2>().0) {
                    *w = u16::from_le_bytes(*b);
                }
                words[..out.len()]
                    .reinterpret_cast_f16()
                    .convert_to_f32_slice(out);
            }
        }
    }
}

/// The two values that each byte of F4 holds, low nibble first.
static F4_PAIRS: [[f32; 2]; 256] = f4_pairs();

const fn f4_pairs() -> [[f32; 2]; 256] {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [F4[byte & 15], F4[byte >> 4]];
        byte += 1;
    }
    pairs
}

/// Two elements per byte, low nibble first.
fn f4(src: &[u8], skip: usize, out: &mut [f32]) {
    nibbles(&F4_PAIRS, src, skip, out);
}

/// Decodes two values per byte, by a table of both values of every byte. The first `skip` (0 or 1)
/// values are skipped.
///
/// # Panics
/// If `src` is shorter than the values asked for.
pub fn nibbles(pairs: &[[f32; 2]; 256], mut src: &[u8], skip: usize, mut out: &mut [f32]) {
    if skip == 1 && !out.is_empty() {
        out[0] = pairs[usize::from(src[0])][1];
        src = &src[1..];
        out = &mut out[1..];
    }
    let src = &src[..out.len().div_ceil(2)];
    let (whole, last) = out.as_chunks_mut::<2>();
    for (o, &byte) in whole.iter_mut().zip(src) {
        *o = pairs[usize::from(byte)];
    }
    if let [last] = last {
        *last = pairs[usize::from(src[src.len() - 1])][0];
    }
}

/// Four elements in three bytes: a little-endian bit stream, lowest bits first.
fn f6(table: &[f32; 64], src: &[u8], skip: usize, out: &mut [f32]) {
    for (i, o) in out.iter_mut().enumerate() {
        let i = i + skip;
        let unit = &src[i / 4 * 3..][..3];
        let bits = u32::from_le_bytes([unit[0], unit[1], unit[2], 0]);
        *o = table[(bits >> (6 * (i % 4)) & 63) as usize];
    }
}

trait AsF16 {
    fn reinterpret_cast_f16(&self) -> &[half::f16];
}

impl AsF16 for [u16] {
    fn reinterpret_cast_f16(&self) -> &[half::f16] {
        use half::slice::HalfBitsSliceExt;
        self.reinterpret_cast()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(dtype: Dtype, bytes: &[u8]) -> f32 {
        let mut out = [0.0];
        decode(dtype, bytes, 0, &mut out);
        out[0]
    }

    /// The extremes and special codes in the tables of the OCP MX and FP8 papers.
    #[test]
    fn small_floats_match_their_specifications() {
        assert_eq!(F8_E4M3[0x7E], 448.0);
        assert_eq!(F8_E4M3[0x01], exp2(-9));
        assert_eq!(F8_E4M3[0x08], exp2(-6));
        assert!(F8_E4M3[0x7F].is_nan() && F8_E4M3[0xFF].is_nan());
        assert_eq!(F8_E4M3[0x80].to_bits(), 0x8000_0000);
        assert_eq!(F8_E5M2[0x7B], 57344.0);
        assert_eq!(F8_E5M2[0x7C], f32::INFINITY);
        assert_eq!(F8_E5M2[0xFC], f32::NEG_INFINITY);
        assert!(F8_E5M2[0x7D].is_nan() && F8_E5M2[0xFF].is_nan());
        assert_eq!(F8_E5M2[0x01], exp2(-16));
        assert_eq!(F8_E4M3FNUZ[0x7F], 240.0);
        assert_eq!(F8_E4M3FNUZ[0x01], exp2(-10));
        assert!(F8_E4M3FNUZ[0x80].is_nan() && !F8_E4M3FNUZ[0xFF].is_nan());
        assert_eq!(F8_E5M2FNUZ[0x7F], 57344.0);
        assert_eq!(F8_E5M2FNUZ[0x01], exp2(-17));
        assert!(F8_E5M2FNUZ[0x80].is_nan());
        assert_eq!(F8_E8M0[0].to_bits(), 0x0040_0000);
        assert_eq!(F8_E8M0[254], exp2(127));
        assert!(F8_E8M0[255].is_nan());
        assert_eq!(F4[..8], [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]);
        assert_eq!(F4[8].to_bits(), 0x8000_0000);
        assert_eq!(F6_E2M3[31], 7.5);
        assert_eq!(F6_E3M2[31], 28.0);
        assert_eq!(F6_E2M3[1], 0.125);
        assert_eq!(F6_E3M2[1], 0.0625);
    }

    /// The vector code and the tables agree at every length and position in a vector.
    #[test]
    fn f8_is_its_table_at_every_length() {
        let codes: Vec<u8> = (0..=255).collect();
        for (dtype, table) in [
            (Dtype::F8_E4M3, &F8_E4M3),
            (Dtype::F8_E5M2, &F8_E5M2),
            (Dtype::F8_E4M3FNUZ, &F8_E4M3FNUZ),
        ] {
            for from in 0..256 {
                for len in [0, 1, 7, 8, 9, 31, 256] {
                    let src = &codes[from..(from + len).min(256)];
                    let mut out = vec![0.5; src.len()];
                    decode(dtype, src, 0, &mut out);
                    for (&code, v) in src.iter().zip(&out) {
                        let want = table[usize::from(code)];
                        assert_eq!(v.to_bits(), want.to_bits(), "{dtype} {code:#x}");
                    }
                }
            }
        }
    }

    #[test]
    fn packed_floats_unpack_low_bits_first() {
        let mut out = [0.0; 4];
        decode(Dtype::F6_E2M3, &[0x81, 0x10, 0x7E], 0, &mut out);
        assert_eq!(out, [0.125, 0.25, -0.125, 7.5]);
        decode(Dtype::F6_E3M2, &[0x81, 0x10, 0x7E], 0, &mut out);
        assert_eq!(out, [0.0625, 0.125, -0.0625, 28.0]);
        decode(Dtype::F4, &[0x10, 0x32], 0, &mut out);
        assert_eq!(out, [0.0, 0.5, 1.0, 1.5]);
        decode(Dtype::F4, &[0x10, 0x32], 1, &mut out[..3]);
        assert_eq!(out[..3], [0.5, 1.0, 1.5]);
        decode(Dtype::F6_E2M3, &[0x81, 0x10, 0x7E], 3, &mut out[..1]);
        assert_eq!(out[0], 7.5);
    }

    #[test]
    fn wide_types_round_to_nearest_even() {
        assert_eq!(one(Dtype::I32, &0x0100_0001i32.to_le_bytes()), 16777216.0);
        assert_eq!(one(Dtype::I32, &0x0100_0003i32.to_le_bytes()), 16777220.0);
        assert_eq!(one(Dtype::U64, &u64::MAX.to_le_bytes()), exp2(64 - 1) * 2.0);
        assert_eq!(one(Dtype::I64, &i64::MIN.to_le_bytes()), -exp2(63));
        assert_eq!(one(Dtype::F64, &1e300f64.to_le_bytes()), f32::INFINITY);
        assert_eq!(
            one(Dtype::F64, &(-1e-46f64).to_le_bytes()).to_bits(),
            0x8000_0000
        );
        assert_eq!(one(Dtype::Bool, &[7]), 1.0);
        assert_eq!(one(Dtype::I8, &[0x80]), -128.0);
    }

    #[test]
    fn f16_is_right_at_every_address_and_code() {
        let bytes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
        let mut shifted = vec![0u8];
        shifted.extend_from_slice(&bytes);
        let (mut a, mut b) = (vec![0.0; 65536], vec![0.0; 65536]);
        decode(Dtype::F16, &bytes, 0, &mut a);
        decode(Dtype::F16, &shifted[1..], 0, &mut b);
        for (code, (a, b)) in a.iter().zip(&b).enumerate() {
            let want = small_float(code as u32, 5, 10, 15, Specials::Ieee);
            assert!(a.to_bits() == want.to_bits() || (a.is_nan() && want.is_nan()));
            assert!(b.to_bits() == want.to_bits() || (b.is_nan() && want.is_nan()));
        }
    }
}
