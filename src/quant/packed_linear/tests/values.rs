//! Values: the worked examples, and the formula, element by element.

use half::f16;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::Sample;
use crate::dtype::Dtype;
use crate::quant::testing::{TestModel, assert_values, random, stored};
use crate::view::View;

fn words(text: &str) -> Vec<u32> {
    let words = text.split_whitespace();
    words.map(|w| u32::from_str_radix(w, 16).unwrap()).collect()
}

fn le(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn halves(bits: &[u32]) -> Vec<u8> {
    bits.iter()
        .flat_map(|&b| (b as u16).to_le_bytes())
        .collect()
}

const V2: fn() -> Value = || json!({"quantization_config": {"checkpoint_format": "gptq_v2"}});

/// K = 16, N = 8, two groups, of 4 bits.
fn example(zeros: &str, config: Value) -> TestModel {
    let rows = "52fc9630 1d951d95 d83e94fa 93d71b5f 5e7092b4 19191919 d4b2907e 9f5b17d3
                da741eb8 1d951d95 50b61c72 93d71b5f d6f81a3c 19191919 5c3a18f6 9f5b17d3";
    let scales = "3800 3400 3000 3c00 4000 3800 3800 3800 2c00 2e66 3c00 3c00 3c00 3c00 3c00 b800";
    let index: Vec<u32> = [[0; 4], [1; 4], [1; 4], [0; 4]].concat();
    let tensors = [
        stored("l.qweight", Dtype::I32, &[2, 8], le(&words(rows))),
        stored("l.qzeros", Dtype::I32, &[2, 1], le(&words(zeros))),
        stored("l.scales", Dtype::F16, &[2, 8], halves(&words(scales))),
        stored("l.g_idx", Dtype::I32, &[16], le(&index)),
    ];
    TestModel::safetensors(&tensors, config)
}

#[test]
fn gptq_by_hand() {
    for (zeros, config) in [
        ("877e0677 a9876547", Value::Null),
        ("988f1788 ba987658", V2()),
    ] {
        let got = example(zeros, config).values("l.weight");
        let row = |n: usize| &got[n * 16..][..16];
        #[rustfmt::skip]
        assert_eq!(row(0), [
            -4., -2.5, -1., 0.5, 0.25, 0.4375, -0.375, -0.1875,
            0., 0.1875, 0.375, -0.4375, -2., -0.5, 1., 2.5,
        ]);
        let (a, b) = (0.399_902_34, 0.799_804_7);
        #[rustfmt::skip]
        assert_eq!(row(1), [
            -0.75, 0.25, 1.25, -1.75, 0., a, b, -a, 0., a, b, -a, -0.75, 0.25, 1.25, -1.75,
        ]);
        #[rustfmt::skip]
        assert_eq!(row(7), [
            -3., 2., -1., -4., 0., 3., -2., 1., 4., -1., 2., 5., 1., -2., 3., 0.,
        ]);
        // A difference of 0 under a negative scale.
        assert_eq!(row(7)[4].to_bits(), 0x8000_0000);
        assert_eq!(row(7)[15].to_bits(), 0);
    }
}

/// Zero points 0 and seven times 8: storing the first as -1 borrowed from the next field.
#[test]
fn a_zero_point_of_zero_borrows() {
    let layer = |zeros: u32, config| {
        let tensors = [
            stored("l.qweight", Dtype::I32, &[1, 8], le(&[0; 8])),
            stored("l.qzeros", Dtype::I32, &[1, 1], le(&[zeros])),
            stored("l.scales", Dtype::F16, &[1, 8], halves(&[0x3c00; 8])),
        ];
        let values = TestModel::safetensors(&tensors, config).values("l.weight");
        values.iter().step_by(8).copied().collect::<Vec<_>>()
    };
    let want = [0., -8., -8., -8., -8., -8., -8., -8.];
    assert_eq!(layer(0x7777_776f, Value::Null), want);
    assert_eq!(layer(0x8888_8880, V2()), want);
}

#[test]
fn three_bits_straddle_words() {
    let column = |words: [u32; 3]| {
        let tensors = [
            stored(
                "l.qweight",
                Dtype::I32,
                &[3, 32],
                le(&words.map(|w| [w; 32]).concat()),
            ),
            stored("l.qzeros", Dtype::I32, &[1, 3], le(&[0; 3])),
            stored("l.scales", Dtype::F16, &[1, 32], halves(&[0x3c00; 32])),
        ];
        TestModel::safetensors(&tensors, V2()).values("l.weight")[..32].to_vec()
    };
    let lone = |at: usize| {
        (0..32)
            .map(|i| if i == at { 7. } else { 0. })
            .collect::<Vec<f32>>()
    };
    let wrapped: Vec<f32> = (0..32).map(|i| (i % 8) as f32).collect();
    assert_eq!(column([0x88fa_c688, 0xc688_fac6, 0xfac6_88fa]), wrapped);
    assert_eq!(column([0xc000_0000, 1, 0]), lone(10));
    assert_eq!(column([0, 0x8000_0000, 3]), lone(21));
}

#[test]
fn awq_by_hand() {
    let scales =
        [0.5, 0.25, 1., 2., 0.125, -1., 0.1, 0.5].map(|s| u32::from(f16::from_f32(s).to_bits()));
    let tensors = [
        stored(
            "l.qweight",
            Dtype::I32,
            &[2, 1],
            le(&words("75316420 9280318f")),
        ),
        stored("l.qzeros", Dtype::I32, &[1, 1], le(&words("871027f8"))),
        stored("l.scales", Dtype::F16, &[1, 8], halves(&scales)),
    ];
    let got = TestModel::safetensors(&tensors, Value::Null).values("l.weight");
    let input = |k: usize| got.iter().skip(k).step_by(2).copied().collect::<Vec<_>>();
    assert_eq!(
        input(0),
        [-4., 0.25, -13., 4., -0.375, 2., 0.399_902_34, -0.5]
    );
    assert_eq!(input(1), [3.5, 0., -7., 14., -0.75, 5., 0.099_975_586, 0.5]);
    assert_eq!(got[12].to_bits(), 0x3ecc_c000);
    assert_eq!(got[13].to_bits(), 0x3dcc_c000);
}

fn hold(sample: &Sample, size: usize, seed: u64) {
    let method = if sample.awq { "awq" } else { "gptq" };
    let format = if sample.as_is { "gptq_v2" } else { "gptq" };
    let config = json!({"quantization_config": {
        "quant_method": method, "checkpoint_format": format, "group_size": size,
    }});
    let model = TestModel::safetensors(&sample.tensors(), config);
    let layer = model.layer("l.weight");
    assert_eq!(*layer.shape, [sample.n as u64, sample.k as u64]);
    assert_eq!(layer.bits as usize, sample.bits);
    assert_values(&*model.view("l.weight"), &sample.values(size), seed);
}

/// Larger than one panel in both directions, so that pieces meet inside requests.
#[test]
fn layers_of_many_panels() {
    let mut seed = 1;
    let shapes = [
        ((false, 8, false), [640, 2304, 18], 128),
        ((false, 4, true), [544, 4128, 33], 128),
        ((false, 3, false), [544, 5664, 59], 96),
        ((false, 2, false), [576, 8256, 129], 64),
        ((true, 4, false), [4128, 544, 17], 32),
    ];
    for (kind, shape, size) in shapes {
        let sample = Sample::random(kind, shape, Dtype::F16, &mut seed);
        hold(&sample, size, 2);
        if !kind.0 {
            hold(&sample.scattered(&mut seed), size, 3);
        }
    }
}

/// A `g_idx` with the groups that follow from the group size: the same values, decoded in the same
/// way.
#[test]
fn an_orderly_index_changes_nothing() {
    let mut sample = Sample::random((false, 4, false), [32, 96, 3], Dtype::BF16, &mut 4);
    let without = sample.values(32);
    sample.index = Some((0..96).map(|k| k / 32).collect());
    assert_eq!(sample.values(7).len(), without.len());
    hold(&sample, 7, 5);
}

/// The first configured size that gives this number of groups counts; the last group may be short.
#[test]
fn the_last_group_may_be_short() {
    let sample = Sample::random((false, 4, false), [32, 160, 2], Dtype::F32, &mut 6);
    for (sizes, size) in [
        (json!(128), 128),
        (json!(96), 96),
        (json!(-1), 80),
        (json!(16), 80),
    ] {
        let config = json!({"quantization_config": {"group_size": sizes}});
        let model = TestModel::safetensors(&sample.tensors(), config);
        assert_eq!(model.layer("l.weight").group_size, Some(size as u64));
        assert_values(&*model.view("l.weight"), &sample.values(size), 7);
    }
}

/// A `g_idx` out of range: only values that need it cannot be read, and `check` counts all.
#[test]
fn a_bad_group_index_is_an_error_where_it_is_needed() {
    let mut sample =
        Sample::random((false, 4, false), [32, 64, 4], Dtype::F16, &mut 8).scattered(&mut 9);
    let index = sample.index.as_mut().unwrap();
    index[40] = 4;
    index[50] = u32::MAX as usize;
    let model = TestModel::safetensors(&sample.tensors(), Value::Null);
    let view = model.view("l.weight");
    let mut row = vec![0; 64 * 4];
    for n in 0..32u64 {
        view.read_at(n * 256, &mut row[..160]).unwrap();
        view.read_at(n * 256 + 51 * 4, &mut row[..52]).unwrap();
        let error = view.read_at(n * 256, &mut row[..161]).unwrap_err();
        assert_eq!(error.errno(), libc::EIO);
        assert!(error.to_string().starts_with("l.g_idx: "), "{error}");
        assert!(error.to_string().contains("input 40"), "{error}");
    }
    let recognized = model.recognized("l.weight").unwrap();
    let layer = model.layer("l.weight");
    let problems = layer.kernel.check(&recognized.raw_parts(&model.catalog));
    let want =
        "l.g_idx: 2 of 64 group indices are out of range 0 to 3, the first is 4 for input 40";
    assert_eq!(problems, [want]);
}

/// A `g_idx` of any integer type.
#[test]
fn the_index_may_be_any_integer() {
    let sample =
        Sample::random((false, 2, false), [32, 64, 4], Dtype::F16, &mut 10).scattered(&mut 11);
    let index = sample.index.clone().unwrap();
    for dtype in [
        Dtype::I8,
        Dtype::U8,
        Dtype::I16,
        Dtype::U16,
        Dtype::U32,
        Dtype::I64,
        Dtype::U64,
    ] {
        let width = dtype.bits() as usize / 8;
        let bytes = index
            .iter()
            .flat_map(|g| g.to_le_bytes().into_iter().take(width));
        let mut tensors = sample.tensors();
        tensors.pop();
        tensors.push(stored("l.g_idx", dtype, &[64], bytes.collect::<Vec<_>>()));
        let model = TestModel::safetensors(&tensors, Value::Null);
        assert_values(&*model.view("l.weight"), &sample.values(0), 12);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn the_formula_element_by_element(
        kind in prop_oneof![
            (Just(false), prop_oneof![Just(2usize), Just(3), Just(4), Just(8)], any::<bool>()),
            Just((true, 4, false)),
        ],
        (n, k, groups) in (1usize..6, 1usize..8, 1usize..9),
        scale in prop_oneof![Just(Dtype::F16), Just(Dtype::BF16), Just(Dtype::F32)],
        scattered in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut seed = seed;
        let (awq, bits, _) = kind;
        // The smallest steps of N and K for which words come out whole.
        let (unit_n, unit_k) = match (awq, bits) {
            (true, _) => (8, 1),
            (_, 3) => (32, 32),
            _ => (32 / bits, 32 / bits),
        };
        let (n, k) = (n * unit_n, k * unit_k * groups);
        let mut sample = Sample::random(kind, [n, k, groups], scale, &mut seed);
        if scattered && !awq {
            sample = sample.scattered(&mut seed);
        }
        hold(&sample, k / groups, random(&mut seed));
    }
}
