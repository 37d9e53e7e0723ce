//! Rounding, by its definition: the nearest code, the even one of two that are as near.

use half::{bf16, f16};

use super::*;
use crate::dtype::decode::{F8_E4M3, F8_E5M2};
use crate::simd::plainly;
use crate::view::{Bytes, read_all};

/// A type: its name, the values of its codes from 0 up to the largest finite one, and what is beyond.
struct Kind {
    dtype: Dtype,
    finite: Vec<f64>,
    over: Option<u16>,
    /// The sign bit of a code.
    sign: u16,
}

fn kinds() -> [Kind; 4] {
    let half = |dtype, value: fn(u16) -> f64, infinity: u16| Kind {
        dtype,
        finite: (0..infinity).map(value).collect(),
        over: Some(infinity),
        sign: 0x8000,
    };
    let small = |dtype, table: &[f32; 256], end: usize, over| Kind {
        dtype,
        finite: table[..end].iter().map(|&v| v.into()).collect(),
        over,
        sign: 0x80,
    };
    [
        half(Dtype::F16, |code| f16::from_bits(code).to_f64(), 0x7c00),
        half(Dtype::BF16, |code| bf16::from_bits(code).to_f64(), 0x7f80),
        small(Dtype::F8_E4M3, &F8_E4M3, 0x7f, None),
        small(Dtype::F8_E5M2, &F8_E5M2, 0x7c, Some(0x7c)),
    ]
}

impl Kind {
    /// The code of a value; `None` for NaN.
    fn nearest(&self, value: f32) -> Option<u16> {
        if value.is_nan() {
            return None;
        }
        let sign = if value.is_sign_negative() {
            self.sign
        } else {
            0
        };
        let magnitude = f64::from(value.abs());
        // As if there were one more number: the next in the row of the last ones.
        let [.., before, last] = self.finite[..] else {
            unreachable!()
        };
        let next = last + (last - before);
        let of = |code: usize| self.finite.get(code).copied().unwrap_or(next);
        let above = self.finite.partition_point(|&v| v < magnitude);
        let below = above.saturating_sub(1);
        let (down, up) = (magnitude - of(below), of(above) - magnitude);
        let code = match () {
            _ if above > self.finite.len() - 1 && magnitude >= next => above,
            _ if down < up => below,
            _ if up < down => above,
            _ if below % 2 == 0 => below,
            _ => above,
        };
        match code < self.finite.len() {
            true => Some(code as u16 | sign),
            false => self.over.map(|over| over | sign),
        }
    }

    /// The code at an element of the view's bytes; `None` for NaN.
    fn code(&self, bytes: &[u8], i: usize) -> Option<u16> {
        let code = match self.sign {
            0x80 => bytes[i].into(),
            _ => u16::from_le_bytes([bytes[2 * i], bytes[2 * i + 1]]),
        };
        let largest = self.over.unwrap_or(self.finite.len() as u16 - 1);
        (code & !self.sign <= largest).then_some(code)
    }
}

fn of_values(values: &[f32], dtype: Dtype) -> SharedView {
    let bytes = Bytes(bytemuck::cast_slice(values).into());
    Narrow::view(Arc::new(bytes), dtype).unwrap()
}

/// Every number of the type, those next to it, those half-way to the next and next to that, and others.
fn hard(kind: &Kind) -> Vec<f32> {
    let mut values = vec![
        0.0,
        f32::from_bits(1),
        f32::MIN_POSITIVE,
        f32::MAX,
        f32::INFINITY,
        f32::NAN,
        f32::from_bits(0x7f80_0001),
        f32::from_bits(0x7fff_ffff),
    ];
    let ends = [kind.finite[kind.finite.len() - 1] * 2.0];
    let pairs = kind.finite.iter().zip(kind.finite[1..].iter().chain(&ends));
    for (&a, &b) in pairs {
        for value in [a, (a + b) / 2.0, (3.0 * a + b) / 4.0] {
            let bits = (value as f32).to_bits();
            let near = [bits.saturating_sub(1), bits, bits + 1];
            values.extend(near.map(f32::from_bits));
        }
    }
    values.extend((0..200_000u32).map(|i| f32::from_bits(i.wrapping_mul(0x9E37_79B1))));
    let negative: Vec<f32> = values.iter().map(|v| -v).collect();
    values.extend(negative);
    values
}

#[test]
fn values_go_to_the_nearest_code_and_ties_to_the_even_one() {
    for kind in kinds() {
        let values = hard(&kind);
        let view = of_values(&values, kind.dtype);
        let bytes = read_all(&*view).unwrap();
        assert_eq!(bytes.len(), values.len() * kind.dtype.bits() as usize / 8);
        for (i, &value) in values.iter().enumerate() {
            let (got, want) = (kind.code(&bytes, i), kind.nearest(value));
            assert_eq!(got, want, "{value:e} as {}", kind.dtype);
        }
        assert!(plainly(|| read_all(&*view).unwrap()) == bytes);
    }
}

/// ml_dtypes' and NumPy's results for values at the edges.
#[test]
fn edges_are_those_of_ml_dtypes() {
    let bytes = |dtype, value: f32| read_all(&*of_values(&[value], dtype)).unwrap();
    let nan = f32::NAN;
    for (dtype, value, want) in [
        (Dtype::F8_E4M3, 448.0, &[0x7e][..]),
        (Dtype::F8_E4M3, 464.0, &[0x7e]),
        (Dtype::F8_E4M3, 464.00003, &[0x7f]),
        (Dtype::F8_E4M3, f32::INFINITY, &[0x7f]),
        (Dtype::F8_E4M3, f32::NEG_INFINITY, &[0xff]),
        (Dtype::F8_E4M3, nan, &[0x7f]),
        (Dtype::F8_E4M3, -nan, &[0xff]),
        (Dtype::F8_E4M3, -0.0, &[0x80]),
        (Dtype::F8_E5M2, 61439.996, &[0x7b]),
        (Dtype::F8_E5M2, 61440.0, &[0x7c]),
        (Dtype::F8_E5M2, -1e9, &[0xfc]),
        (Dtype::F8_E5M2, nan, &[0x7e]),
        (Dtype::F16, 65519.996, &[0xff, 0x7b]),
        (Dtype::F16, 65520.0, &[0x00, 0x7c]),
        (Dtype::F16, 2.980_232_2e-8, &[0x00, 0x00]),
        (Dtype::F16, 2.980_232_6e-8, &[0x01, 0x00]),
        (Dtype::BF16, f32::from_bits(0x7f7f_7fff), &[0x7f, 0x7f]),
        (Dtype::BF16, f32::from_bits(0x7f7f_8000), &[0x80, 0x7f]),
        (Dtype::BF16, f32::from_bits(1), &[0x00, 0x00]),
        (Dtype::BF16, -nan, &[0xc0, 0xff]),
    ] {
        assert_eq!(bytes(dtype, value), want, "{value} as {dtype}");
    }
}

#[test]
fn any_range_of_bytes_is_that_of_the_whole() {
    let values: Vec<f32> = (0..2 * PIECE + 5)
        .map(|i| i as f32 * 0.37 - 3000.0)
        .collect();
    for dtype in [Dtype::F16, Dtype::BF16, Dtype::F8_E4M3, Dtype::F8_E5M2] {
        let view = of_values(&values, dtype);
        let all = read_all(&*view).unwrap();
        let len = all.len();
        let width = dtype.bits() as usize / 8;
        let ends = [
            0,
            1,
            2,
            3,
            4097,
            width * PIECE - 1,
            width * PIECE + 1,
            len - 1,
            len,
        ];
        for (i, &from) in ends.iter().enumerate() {
            for &to in &ends[i..] {
                // At an odd address, too.
                for shift in [0, 1] {
                    let mut got = vec![0xAA; shift + to - from];
                    view.read_at(from as u64, &mut got[shift..]).unwrap();
                    assert!(got[shift..] == all[from..to], "{dtype} {from}..{to}");
                }
            }
        }
    }
}

#[test]
fn f32_is_itself_and_other_types_are_refused() {
    let values: SharedView = Arc::new(Bytes(Arc::new([0; 8])));
    let same = Narrow::view(values.clone(), Dtype::F32).unwrap();
    assert!(Arc::ptr_eq(&same, &values));
    for dtype in [Dtype::F8_E8M0, Dtype::F64, Dtype::I8, Dtype::F4] {
        assert!(Narrow::view(values.clone(), dtype).is_none());
    }
}
