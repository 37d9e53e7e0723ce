//! Values: worked examples from MLX itself, and the formula, element by element.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::dtype::Dtype;
use crate::dtype::decode::{F4, F8_E4M3, F8_E8M0, decode};
use crate::quant::bits;
use crate::quant::mlx::{BITS, GROUP_SIZES};
use crate::quant::testing::{Stored, TestModel, assert_values, random_bytes, stored};
use crate::simd::plainly;
use crate::view::read_all;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(|b| *b != b' ').collect();
    let pairs = digits.as_chunks::<2>().0;
    pairs
        .iter()
        .map(|p| u8::from_str_radix(std::str::from_utf8(p).unwrap(), 16).unwrap())
        .collect()
}

fn le(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn config(bits: u32, group_size: u64) -> Value {
    json!({"quantization": {"bits": bits, "group_size": group_size}})
}

fn values_of(
    codes: &str,
    scale: (Dtype, Vec<u8>),
    bias: Option<(Dtype, Vec<u8>)>,
    config: Value,
) -> Vec<f32> {
    let codes = hex(codes);
    let words = codes.len() as u64 / 4;
    let mut tensors = vec![
        stored("a.weight", Dtype::U32, &[1, words], codes),
        stored("a.scales", scale.0, &[1, 1], scale.1),
    ];
    tensors.extend(bias.map(|(dtype, bytes)| stored("a.biases", dtype, &[1, 1], bytes)));
    TestModel::safetensors(&tensors, config).values("a.weight")
}

#[test]
fn four_bits() {
    let codes = "10325476 98badcfe ".repeat(2);
    let f32s = |s: f32, b: f32| (Some((Dtype::F32, le(&[b]))), (Dtype::F32, le(&[s])));
    let (bias, scale) = f32s(0.25, -1.5);
    let got = values_of(&codes, scale, bias, config(4, 32));
    let want: Vec<f32> = (0..32).map(|i| (i % 16) as f32 * 0.25 - 1.5).collect();
    assert_eq!(got, want);

    let bf16 = |bits: u16| (Dtype::BF16, bits.to_le_bytes().to_vec());
    let got = values_of(&codes, bf16(0x3c9d), Some(bf16(0xbe2b)), config(4, 32));
    let bits: Vec<u32> = got.iter().map(|v| v.to_bits()).collect();
    assert_eq!(
        bits[..4],
        [0xbe2b_0000, 0xbe17_6000, 0xbe03_c000, 0xbde0_4000]
    );
    assert_eq!(bits[15], 0x3df6_c000);
}

#[test]
fn widths_that_straddle_bytes() {
    let cases = [
        (3, "88c6fa".repeat(4), 8),
        (
            5,
            "2088418a3928a9c59a7b30ca49abbd38ebcdbbff".to_string(),
            32,
        ),
        (
            6,
            "40200c44611c48a22c4ce33c50244d5465 5d58a66d5ce77d".to_string(),
            64,
        ),
    ];
    for (bits, codes, wrap) in cases {
        let one = |v: f32| (Dtype::F16, half::f16::from_f32(v).to_le_bytes().to_vec());
        let got = values_of(&codes, one(0.5), Some(one(-2.0)), config(bits, 32));
        let want: Vec<f32> = (0..32).map(|i| (i % wrap) as f32 * 0.5 - 2.0).collect();
        assert_eq!(got, want, "{bits} bits");
    }
}

#[test]
fn the_modes_without_biases() {
    let codes = "10325476 98badcfe ".repeat(2);
    let got = values_of(&codes, (Dtype::U8, vec![126]), None, Value::Null);
    let want = [0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0];
    assert_eq!(got[..8], want);
    assert_eq!(got[8].to_bits(), 0x8000_0000);
    assert_eq!(got[9..16], want[1..].iter().map(|v| -v).collect::<Vec<_>>());

    let codes = "00013840c07e7f80".repeat(4);
    let got = values_of(&codes, (Dtype::U8, vec![128]), None, Value::Null);
    assert_eq!(got[..6], [0.0, (-8f32).exp2(), 2.0, 4.0, -4.0, 896.0]);
    assert!(got[6].is_nan());
    assert_eq!(got[7].to_bits(), 0x8000_0000);

    let got = values_of("10325476 98badcfe", (Dtype::U8, vec![8]), None, Value::Null);
    assert_eq!(got[1], (-7f32).exp2());

    // Scale 0 is the subnormal 2^-127, 255 is NaN, and the product may overflow.
    let mxfp4 = |scale: u8| {
        values_of(
            &"10325476 98badcfe ".repeat(2),
            (Dtype::U8, vec![scale]),
            None,
            Value::Null,
        )
    };
    assert_eq!(mxfp4(0)[2].to_bits(), 0x0040_0000);
    assert_eq!(mxfp4(254)[4], f32::INFINITY);
    assert!(mxfp4(255).iter().all(|v| v.is_nan()));
}

/// NaN has many bit patterns, and the instruction determines which of two operands a sum takes. So
/// every build and every piece of a read must add the same two, also if only the product is NaN (∞
/// · 0).
#[test]
fn sums_of_two_nans_have_the_same_bits_everywhere() {
    let f32s = |bits: &[u32]| {
        let bytes = bits.iter().flat_map(|b| b.to_le_bytes());
        bytes.collect::<Vec<u8>>()
    };
    let scales = [0xFFC0_0001u32, 0x7F80_0000, 0x3F80_0000, 0x7FC0_1234];
    let biases = [0x7FC0_0002u32, 0xFFC0_0003, 0xFFFF_FFFF, 0x3F80_0000];
    for bits in &BITS {
        let words = 4 * u64::from(*bits);
        let codes: Vec<u8> = (0..words * 4).map(|i| (i * 37) as u8).collect();
        let tensors = [
            stored("a.weight", Dtype::U32, &[1, words], codes),
            stored("a.scales", Dtype::F32, &[1, 4], f32s(&scales)),
            stored("a.biases", Dtype::F32, &[1, 4], f32s(&biases)),
        ];
        let model = TestModel::safetensors(&tensors, config(*bits, 32));
        let view = model.view("a.weight");
        let all = read_all(&*view).unwrap();
        assert!(all == plainly(|| read_all(&*view).unwrap()), "{bits} bits");
        for (i, value) in all.as_chunks::<4>().0[..96].iter().enumerate() {
            assert_eq!(*value, f32::NAN.to_le_bytes(), "{bits} bits, value {i}");
            let mut alone = [0; 4];
            view.read_at(4 * i as u64, &mut alone).unwrap();
            assert_eq!(*value, alone, "{bits} bits, value {i}");
        }
    }
}

/// Longer than what is read at a time, so that pieces meet inside groups and inside rows.
#[test]
fn blocks_meet_without_a_seam() {
    let mut seed = 1;
    let mut bytes = |len| random_bytes(&mut seed, len);
    let tensors = [
        stored("a.weight", Dtype::U32, &[600, 36], bytes(600 * 36 * 4)),
        stored("a.scales", Dtype::F16, &[600, 3], bytes(600 * 3 * 2)),
        stored("a.biases", Dtype::F32, &[600, 3], bytes(600 * 3 * 4)),
    ];
    let want = naive(&tensors, 3, 128);
    assert_eq!(want.len(), 600 * 384);
    let model = TestModel::safetensors(&tensors, config(3, 128));
    for seed in 0..8 {
        assert_values(&*model.view("a.weight"), &want, seed);
    }
}

/// Every element by itself, from the formula. Products and sums are computed in binary64, which is
/// precise enough that rounding to binary32 afterwards is the only rounding.
fn naive(tensors: &[Stored], bits: u32, group_size: usize) -> Vec<f32> {
    let count = tensors[0].bytes.len() * 8 / bits as usize;
    let wide = |t: &Stored| {
        let mut out = vec![0.0; t.bytes.len() * 8 / t.dtype.bits() as usize];
        decode(t.dtype, &t.bytes, 0, &mut out);
        out
    };
    let (scales, biases) = (wide(&tensors[1]), wide(&tensors[2]));
    (0..count)
        .map(|i| {
            let code = bits::value(&tensors[0].bytes, bits, i);
            let product = (f64::from(code) * f64::from(scales[i / group_size])) as f32;
            (f64::from(product) + f64::from(biases[i / group_size])) as f32
        })
        .collect()
}

fn float() -> impl Strategy<Value = Dtype> {
    prop_oneof![Just(Dtype::F16), Just(Dtype::BF16), Just(Dtype::F32)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Random bits in codes, scales and biases: subnormals, NaN and Inf among them.
    #[test]
    fn affine_is_the_formula(
        bits in prop::sample::select(BITS.to_vec()),
        group_size in prop::sample::select(GROUP_SIZES.to_vec()),
        groups in 1u64..5,
        lead in prop::collection::vec(1u64..9, 1..4),
        (scales, biases) in (float(), float()),
        mut seed: u64,
    ) {
        let shape = |last: u64| [&lead[..], &[last]].concat();
        let mut tensor = |name: &str, dtype: Dtype, shape: Vec<u64>| {
            let len = dtype.bytes(shape.iter().product()).unwrap() as usize;
            stored(name, dtype, &shape, random_bytes(&mut seed, len))
        };
        let words = groups * group_size * u64::from(bits) / 32;
        let tensors = [
            tensor("a.weight", Dtype::U32, shape(words)),
            tensor("a.scales", scales, shape(groups)),
            tensor("a.biases", biases, shape(groups)),
        ];
        let want = naive(&tensors, bits, group_size as usize);
        let model = TestModel::safetensors(&tensors, config(bits, group_size));
        let layer = model.layer("a.weight");
        prop_assert_eq!(&*layer.shape, &shape(groups * group_size)[..]);
        prop_assert_eq!((layer.bits, layer.group_size, layer.exact), (bits, Some(group_size), false));
        assert_values(&*model.view("a.weight"), &want, seed);
    }

    #[test]
    fn the_other_modes_are_their_tables(
        mode in 0usize..3,
        groups in 1u64..9,
        rows in 1u64..40,
        mut seed: u64,
    ) {
        let (name, bits, size) = [("mxfp4", 4u64, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)][mode];
        let codes = random_bytes(&mut seed, (rows * groups * size * bits / 8) as usize);
        let scales = random_bytes(&mut seed, (rows * groups) as usize);
        let want: Vec<f32> = (0..rows * groups * size)
            .map(|i| {
                let code = bits::value(&codes, bits as u32, i as usize) as usize;
                let element = if bits == 4 { F4[code] } else { F8_E4M3[code] };
                let scale = usize::from(scales[(i / size) as usize]);
                let scale = if mode == 2 { F8_E4M3[scale] } else { F8_E8M0[scale] };
                (f64::from(element) * f64::from(scale)) as f32
            })
            .collect();
        let words = groups * size * bits / 32;
        let tensors = [
            stored("a.weight", Dtype::U32, &[rows, words], codes),
            stored("a.scales", Dtype::U8, &[rows, groups], scales),
        ];
        let model = TestModel::safetensors(&tensors, json!({"quantization": {"mode": name}}));
        let layer = model.layer("a.weight");
        prop_assert_eq!(&*layer.shape, &[rows, groups * size]);
        prop_assert_eq!((layer.bits, layer.group_size), (bits as u32, Some(size)));
        prop_assert_eq!(layer.exact, mode != 2);
        assert_values(&*model.view("a.weight"), &want, seed);
    }
}
