//! Recognition, damage and fusions of ModelOpt's four-bit floats. The tests of `scaled` also
//! compare the values with the formula.

use serde_json::{Value, json};

use crate::dtype::Dtype;
use crate::model::{Model, ModelOptions};
use crate::quant::testing::{Stored, TestModel, stored};
use crate::view::read_all;

/// A tensor of module `m` full of one byte.
fn full(last: &str, dtype: Dtype, shape: &[u64], byte: u8) -> Stored {
    let count = shape.iter().product::<u64>() as usize * dtype.bits() as usize / 8;
    stored(&format!("m.{last}"), dtype, shape, vec![byte; count])
}

fn weight(shape: &[u64]) -> Stored {
    full("weight", Dtype::U8, shape, 0x87)
}

fn e4m3(shape: &[u64]) -> Stored {
    full("weight_scale", Dtype::F8_E4M3, shape, 0x21)
}

fn second() -> Stored {
    stored(
        "m.weight_scale_2",
        Dtype::F32,
        &[],
        [0x17, 0xB7, 0xD1, 0x38],
    )
}

fn declared(algorithm: &str) -> Value {
    json!({"quantization_config": {"quant_method": "modelopt", "quant_algo": algorithm,
        "ignore": ["lm_head"]}})
}

#[test]
fn the_worked_example_comes_out() {
    let tensors = [weight(&[1, 8]), e4m3(&[1, 1]), second()];
    let model = TestModel::safetensors(&tensors, Value::Null);
    let values = model.values("m.weight");
    assert_eq!(values[0].to_bits(), 0x38B0_F27C);
    // Code 8 is -0.
    assert_eq!(values[1].to_bits(), 0x8000_0000);
    let layer = model.layer("m.weight");
    assert_eq!(
        (layer.bits, layer.group_size, layer.exact),
        (4, Some(16), false)
    );
    assert_eq!(*layer.shape, [1, 16]);
    let recognized = model.recognized("m.weight").unwrap();
    assert_eq!(
        (recognized.method, recognized.parameters),
        ("nvfp4", Some(16))
    );
}

#[test]
fn u8_scales_mean_mxfp4() {
    for dtype in [Dtype::U8, Dtype::F8_E8M0] {
        let tensors = [weight(&[2, 16]), full("weight_scale", dtype, &[2, 1], 130)];
        let model = TestModel::safetensors(&tensors, Value::Null);
        let layer = model.layer("m.weight");
        assert_eq!(
            (layer.bits, layer.group_size, layer.exact),
            (4, Some(32), true)
        );
        assert_eq!(model.values("m.weight")[..2], [48.0, -0.0]);
        assert_eq!(model.recognized("m.weight").unwrap().method, "mxfp4");
    }
}

#[test]
fn damage_has_a_reason() {
    let bf16 = |shape: &[u64]| full("weight_scale", Dtype::BF16, shape, 0x3C);
    let two = |dtype, shape: &[u64]| full("weight_scale_2", dtype, shape, 0);
    let cases: Vec<(Vec<Stored>, Value, &str)> = vec![
        (
            vec![weight(&[4, 8]), e4m3(&[4, 1])],
            Value::Null,
            "'m.weight_scale_2' is missing",
        ),
        (
            vec![weight(&[4, 8]), second()],
            Value::Null,
            "'m.weight_scale' is missing",
        ),
        (
            vec![weight(&[4, 8])],
            declared("NVFP4"),
            "'m.weight_scale' is missing",
        ),
        (
            vec![weight(&[4, 8])],
            declared("W4A8_MXFP4_FP8"),
            "'m.weight_scale' is missing",
        ),
        (
            vec![weight(&[4, 8]), e4m3(&[4, 2]), second()],
            Value::Null,
            "[4, 16]",
        ),
        (
            vec![weight(&[4, 8]), e4m3(&[3, 1]), second()],
            Value::Null,
            "[3, 1]",
        ),
        (
            vec![weight(&[4, 9]), e4m3(&[4, 1]), second()],
            Value::Null,
            "[4, 18]",
        ),
        (
            vec![weight(&[4, 8]), bf16(&[4, 1]), second()],
            Value::Null,
            "not F8_E4M3",
        ),
        (
            vec![weight(&[4, 8]), e4m3(&[4, 1]), two(Dtype::F32, &[4])],
            Value::Null,
            "[4]",
        ),
        (
            vec![weight(&[4, 8]), e4m3(&[4, 1]), two(Dtype::I32, &[])],
            Value::Null,
            "I32",
        ),
        (
            vec![weight(&[4, 8]), full("weight_scale", Dtype::U8, &[4, 1], 1)],
            Value::Null,
            "not one for every 32 values",
        ),
        (
            vec![weight(&[4, 8]), bf16(&[4, 1])],
            declared("NVFP4"),
            "BF16",
        ),
        // Two rows per byte.
        (
            vec![weight(&[4, 128]), bf16(&[8, 1])],
            declared("W4A16_AWQ"),
            "W4A16_AWQ",
        ),
        (
            vec![weight(&[4, 128]), bf16(&[8, 1])],
            Value::Null,
            "W4A16_AWQ",
        ),
        (vec![weight(&[4, 128])], declared("W4A8_AWQ"), "W4A16_AWQ"),
    ];
    for (tensors, config, part) in cases {
        let reason = TestModel::safetensors(&tensors, config).reason("m.weight");
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn plain_bytes_stay_plain() {
    let lone = |name: &str, config: Value| {
        let tensor = stored(name, Dtype::U8, &[4, 8], [1; 32]);
        TestModel::safetensors(&[tensor], config)
            .recognized(name)
            .is_none()
    };
    assert!(lone("m.weight", Value::Null));
    assert!(lone("lm_head.weight", declared("NVFP4")));
    assert!(lone("m.mask", declared("NVFP4")));
    assert!(lone("m.weight", declared("FP8")));
    let beside = full("weight_scale", Dtype::F32, &[4, 1], 0x3C);
    let model = TestModel::safetensors(&[weight(&[4, 8]), beside], Value::Null);
    assert!(model.recognized("m.weight").is_none());
}

fn gate_and_up(parts: impl Fn() -> Vec<Stored>) -> Model {
    let mut tensors = Vec::new();
    for part in ["gate", "up"] {
        for mut t in parts() {
            t.name = t.name.replacen('m', &format!("l.{part}_proj"), 1);
            tensors.push(t);
        }
    }
    let model = TestModel::safetensors(&tensors, Value::Null);
    Model::new(model.catalog, ModelOptions::default())
}

#[test]
fn a_second_scale_keeps_words_apart() {
    let model = gate_and_up(|| vec![weight(&[4, 8]), e4m3(&[4, 1]), second()]);
    let (id, fused) = model.find("l.gate_up_proj.weight").unwrap();
    assert_eq!((fused.dtype.name(), fused.shape), ("F32", &[8, 16][..]));
    assert_eq!(
        read_all(&*model.raw(id).unwrap()).unwrap().len(),
        8 * 16 * 4
    );
    for none in ["weight_scale", "weight_scale_2"] {
        assert!(model.find(&format!("l.gate_up_proj.{none}")).is_err());
    }
    let mx = gate_and_up(|| {
        vec![
            weight(&[4, 16]),
            full("weight_scale", Dtype::U8, &[4, 1], 127),
        ]
    });
    let (id, fused) = mx.find("l.gate_up_proj.weight").unwrap();
    assert_eq!((fused.dtype.name(), fused.shape), ("U8", &[8, 16][..]));
    let values = fused.values.as_ref().unwrap();
    assert_eq!((values.shape, values.exact), (&[8, 32][..], true));
    assert_eq!(mx.f32(id).unwrap().unwrap().len(), 8 * 32 * 4);
    assert_eq!(
        *mx.find("l.gate_up_proj.weight_scale").unwrap().1.shape,
        [8, 1]
    );
}
