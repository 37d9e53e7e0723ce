//! Computes the values of stored bytes one at a time from the formats' definitions, with integers
//! only: slow, and independent of the program's code.

use safetensors::Dtype;

/// `±magnitude · 2^exponent` as binary32: to nearest, ties to even.
fn round(negative: bool, mut magnitude: u128, mut exponent: i32) -> f32 {
    let sign = u32::from(negative) << 31;
    if magnitude == 0 {
        return f32::from_bits(sign);
    }
    // 24 bits, or fewer if the exponent is already that of binary32's subnormals.
    let excess = (128 - magnitude.leading_zeros() as i32) - 24;
    let drop = excess.max(-149 - exponent);
    if drop > 0 {
        let half = 1u128.checked_shl(drop as u32 - 1).unwrap_or(0);
        let rest = magnitude & half.wrapping_shl(1).wrapping_sub(1);
        magnitude = magnitude.checked_shr(drop as u32).unwrap_or(0);
        if half != 0 && (rest > half || (rest == half && magnitude & 1 == 1)) {
            magnitude += 1;
        }
    } else {
        magnitude <<= -drop;
    }
    exponent += drop;
    if magnitude == 1 << 24 {
        magnitude >>= 1;
        exponent += 1;
    }
    let bits = match magnitude < 1 << 23 {
        true => magnitude as u32, // subnormal, or zero
        false if exponent + 150 >= 255 => 0x7F80_0000,
        false => (exponent + 150) as u32 * (1 << 23) + (magnitude as u32 - (1 << 23)),
    };
    f32::from_bits(sign | bits)
}

/// A float of `e` exponent and `m` mantissa bits. `specials`: what the top exponent means.
fn float(code: u64, e: u32, m: u32, bias: i32, specials: &str) -> f32 {
    let negative = code >> (e + m) & 1 == 1;
    let (exp, man) = (code >> m & ((1 << e) - 1), code & ((1 << m) - 1));
    let top = exp == (1 << e) - 1;
    match specials {
        "ieee" if top && man != 0 => return f32::NAN,
        "ieee" if top => {
            return if negative {
                -f32::INFINITY
            } else {
                f32::INFINITY
            };
        }
        "fn" if top && man == (1 << m) - 1 => return f32::NAN,
        "fnuz" if negative && exp == 0 && man == 0 => return f32::NAN,
        _ => {}
    }
    match exp {
        0 => round(negative, man.into(), 1 - bias - m as i32),
        _ => round(
            negative,
            u128::from(man | 1 << m),
            exp as i32 - bias - m as i32,
        ),
    }
}

/// Element `i` of `data`, which holds elements of `dtype` (little-endian, sub-byte ones packed from
/// the lowest bit up). `None` for C64.
fn value(dtype: Dtype, data: &[u8], i: usize) -> Option<f32> {
    let bits = dtype.bitsize();
    let mut code = 0u64;
    for bit in 0..bits.min(64) {
        let at = i * bits + bit;
        code |= u64::from(data[at / 8] >> (at % 8) & 1) << bit;
    }
    let signed = |n: i64| round(n < 0, n.unsigned_abs().into(), 0);
    Some(match dtype {
        Dtype::BOOL => f32::from(u8::from(code != 0)),
        Dtype::U8 | Dtype::U16 | Dtype::U32 | Dtype::U64 => round(false, code.into(), 0),
        Dtype::I8 => signed((code as i8).into()),
        Dtype::I16 => signed((code as i16).into()),
        Dtype::I32 => signed((code as i32).into()),
        Dtype::I64 => signed(code as i64),
        Dtype::F4 => float(code, 2, 1, 1, "none"),
        Dtype::F6_E2M3 => float(code, 2, 3, 1, "none"),
        Dtype::F6_E3M2 => float(code, 3, 2, 3, "none"),
        Dtype::F8_E5M2 => float(code, 5, 2, 15, "ieee"),
        Dtype::F8_E4M3 => float(code, 4, 3, 7, "fn"),
        Dtype::F8_E4M3FNUZ => float(code, 4, 3, 8, "fnuz"),
        Dtype::F8_E5M2FNUZ => float(code, 5, 2, 16, "fnuz"),
        Dtype::F8_E8M0 if code == 255 => f32::NAN,
        Dtype::F8_E8M0 => round(false, 1, code as i32 - 127),
        Dtype::F16 => float(code, 5, 10, 15, "ieee"),
        Dtype::F64 => float(code, 11, 52, 1023, "ieee"),
        // Bit for bit, including NaN payloads.
        Dtype::BF16 => f32::from_bits((code as u32) << 16),
        Dtype::F32 => f32::from_bits(code as u32),
        Dtype::C64 => return None,
        other => panic!("{other}: a dtype that this test does not know"),
    })
}

/// All values as the bytes of `f32`; `None` for C64.
pub fn f32_bytes(dtype: Dtype, data: &[u8]) -> Option<Vec<u8>> {
    let n = data.len() * 8 / dtype.bitsize();
    let values: Option<Vec<f32>> = (0..n).map(|i| value(dtype, data, i)).collect();
    Some(values?.iter().flat_map(|v| v.to_le_bytes()).collect())
}

/// Whether two `f32` files hold the same values: the same bits, but all NaN are equal unless the
/// dtype is F32 or BF16.
pub fn same_f32(dtype: Dtype, a: &[u8], b: &[u8]) -> bool {
    let bits = |x: &[u8]| u32::from_le_bytes(x.try_into().expect("four bytes"));
    let exact = matches!(dtype, Dtype::F32 | Dtype::BF16);
    a.len() == b.len()
        && a.chunks(4).zip(b.chunks(4)).all(|(x, y)| {
            let nans =
                !exact && f32::from_bits(bits(x)).is_nan() && f32::from_bits(bits(y)).is_nan();
            x == y || nans
        })
}

/// NumPy's `descr`, if NumPy has the dtype.
pub fn descr(dtype: Dtype) -> Option<&'static str> {
    Some(match dtype {
        Dtype::BOOL => "|b1",
        Dtype::I8 => "|i1",
        Dtype::U8 => "|u1",
        Dtype::I16 => "<i2",
        Dtype::U16 => "<u2",
        Dtype::I32 => "<i4",
        Dtype::U32 => "<u4",
        Dtype::I64 => "<i8",
        Dtype::U64 => "<u8",
        Dtype::F16 => "<f2",
        Dtype::F32 => "<f4",
        Dtype::F64 => "<f8",
        Dtype::C64 => "<c8",
        _ => return None,
    })
}

/// What `np.save` writes before the data of an array of few dimensions: 128 bytes.
pub fn npy_header(descr: &str, shape: &[usize]) -> Vec<u8> {
    let tuple = match shape {
        [] => "()".to_string(),
        [n] => format!("({n},)"),
        _ => format!(
            "({})",
            shape
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
                .join(", ")
        ),
    };
    let dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {tuple}, }}");
    let mut out = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    out.extend_from_slice(dict.as_bytes());
    assert!(out.len() < 127 - 21, "too long for this simple header");
    out.resize(127, b' ');
    out.push(b'\n');
    out
}

#[test]
fn rounding_is_ieees() {
    for (n, want) in [
        (0x100_0001u128, 16_777_216.0f32),
        (0x100_0003, 16_777_220.0),
        (0x1FF_FFFF, 33_554_432.0),
        (1, 1.0),
    ] {
        assert_eq!(round(false, n, 0), want);
    }
    assert_eq!(round(true, 1, -149).to_bits(), 0x8000_0001);
    assert_eq!(round(false, 1, -150).to_bits(), 0); // a tie, to even
    assert_eq!(round(false, 3, -151).to_bits(), 1);
    assert_eq!(round(false, 1, -1074).to_bits(), 0);
    assert_eq!(round(false, 1, 128), f32::INFINITY);
    assert_eq!(round(false, (1 << 24) - 1, 104), f32::MAX);
    assert_eq!(float(0x3C00, 5, 10, 15, "ieee"), 1.0);
    for bits in [
        0u64,
        1,
        0x3FF0_0000_0000_0000,
        0x36A0_0000_0000_0001,
        0x47EF_FFFF_F000_0000,
    ] {
        let want = f64::from_bits(bits) as f32;
        assert_eq!(float(bits, 11, 52, 1023, "ieee").to_bits(), want.to_bits());
    }
}
