//! Recognition, damage and fusions of eight-bit integers. The tests of `scaled` compare the values
//! with the formula.

use serde_json::{Value, json};

use crate::dtype::Dtype;
use crate::model::{Model, ModelOptions};
use crate::quant::testing::{Stored, TestModel, stored};

fn weight(shape: &[u64]) -> Stored {
    let count = shape.iter().product::<u64>() as usize;
    stored("m.weight", Dtype::I8, shape, vec![0xFE; count])
}

fn scale(dtype: Dtype, shape: &[u64]) -> Stored {
    let one: &[u8] = match dtype {
        Dtype::F32 => &[0, 0, 0x80, 0x3F],
        Dtype::BF16 => &[0x80, 0x3F],
        Dtype::I64 => &[1, 0, 0, 0, 0, 0, 0, 0],
        _ => &[1],
    };
    let count = shape.iter().product::<u64>() as usize;
    stored("m.weight_scale", dtype, shape, one.repeat(count))
}

fn zeros(dtype: Dtype, shape: &[u64]) -> Stored {
    let count = shape.iter().product::<u64>() as usize * dtype.bits() as usize / 8;
    stored("m.weight_zero_point", dtype, shape, vec![3; count])
}

fn declared(symmetric: Value) -> Value {
    json!({"quantization_config": {"quant_method": "compressed-tensors", "format": "int-quantized",
        "config_groups": {"g": {"targets": ["Linear"], "weights":
            {"num_bits": 8, "type": "int", "symmetric": symmetric}}}}})
}

#[test]
fn values_are_differences_times_scales() {
    for shape in [&[][..], &[1], &[2], &[2, 1], &[2, 2]] {
        let symmetric = [weight(&[2, 4]), scale(Dtype::F32, shape)];
        let model = TestModel::safetensors(&symmetric, Value::Null);
        assert_eq!(model.values("m.weight"), [-2.0; 8], "{shape:?}");
        assert!(!model.layer("m.weight").exact);
        let asymmetric = [
            weight(&[2, 4]),
            scale(Dtype::BF16, shape),
            zeros(Dtype::I8, shape),
        ];
        let model = TestModel::safetensors(&asymmetric, declared(json!(false)));
        assert_eq!(model.values("m.weight"), [-5.0; 8], "{shape:?}");
    }
    // A difference of 0 is +0.
    let same = stored("m.weight_zero_point", Dtype::I8, &[], [0xFE]);
    let tensors = [weight(&[1, 1]), scale(Dtype::F32, &[1]), same];
    let model = TestModel::safetensors(&tensors, Value::Null);
    assert_eq!(model.values("m.weight")[0].to_bits(), 0);
}

#[test]
fn plain_integers_stay_plain() {
    let model = TestModel::safetensors(&[weight(&[2, 4])], Value::Null);
    assert!(model.recognized("m.weight").is_none());
    let other = stored("m.codes", Dtype::I8, &[2, 4], [1; 8]);
    let beside = scale(Dtype::F32, &[1]);
    assert!(
        TestModel::safetensors(&[other, beside], declared(Value::Null))
            .recognized("m.codes")
            .is_none()
    );
}

#[test]
fn damage_has_a_reason() {
    let cases: Vec<(Vec<Stored>, Value, &str)> = vec![
        (
            vec![weight(&[4, 4])],
            declared(Value::Null),
            "'m.weight_scale' is missing",
        ),
        (
            vec![weight(&[4, 4]), zeros(Dtype::I8, &[4])],
            Value::Null,
            "'m.weight_scale' is missing",
        ),
        (
            vec![weight(&[4, 4]), scale(Dtype::F32, &[3])],
            Value::Null,
            "[3]",
        ),
        (
            vec![weight(&[4, 4]), scale(Dtype::I64, &[4])],
            Value::Null,
            "I64",
        ),
        (
            vec![weight(&[4, 4]), scale(Dtype::U8, &[4])],
            Value::Null,
            "U8",
        ),
        (
            vec![weight(&[4, 4]), scale(Dtype::F32, &[4])],
            declared(json!(false)),
            "'m.weight_zero_point' is missing",
        ),
        (
            vec![
                weight(&[4, 4]),
                scale(Dtype::F32, &[4]),
                zeros(Dtype::I8, &[4, 1]),
            ],
            Value::Null,
            "[4, 1]",
        ),
        (
            vec![
                weight(&[4, 4]),
                scale(Dtype::F32, &[4]),
                zeros(Dtype::BF16, &[4]),
            ],
            Value::Null,
            "BF16",
        ),
    ];
    for (tensors, config, part) in cases {
        let reason = TestModel::safetensors(&tensors, config).reason("m.weight");
        assert!(reason.contains(part), "{reason}");
    }
}

#[test]
fn zero_points_in_a_missing_shard_are_missed() {
    let tensors = [weight(&[4, 4]), scale(Dtype::F32, &[4])];
    let partial = |config| TestModel::partial(&tensors, "m.weight_zero_point", config);
    let reason = partial(Value::Null).reason("m.weight");
    assert!(
        reason.contains("m.weight_zero_point is not in the available files"),
        "{reason}"
    );
    let symmetric = partial(declared(json!(true)));
    assert_eq!(symmetric.values("m.weight").len(), 16);
}

#[test]
fn zero_points_fuse_with_their_scales() {
    let part = |name: &str, n: u64, asymmetric: bool| {
        let rename = |mut t: Stored| {
            t.name = t.name.replace('m', name);
            t
        };
        let mut tensors = vec![rename(weight(&[n, 8])), rename(scale(Dtype::F32, &[n, 2]))];
        if asymmetric {
            tensors.push(rename(zeros(Dtype::I8, &[n, 2])));
        }
        tensors
    };
    let model = |all: bool| {
        let parts = [part("l.gate_proj", 4, true), part("l.up_proj", 6, all)];
        let tensors: Vec<Stored> = parts.into_iter().flatten().collect();
        let model = TestModel::safetensors(&tensors, Value::Null);
        Model::new(model.catalog, ModelOptions::default())
    };
    let both = model(true);
    assert_eq!(
        both.find("l.gate_up_proj.weight").unwrap().1.dtype.name(),
        "I8"
    );
    let (_, zeros) = both.find("l.gate_up_proj.weight_zero_point").unwrap();
    assert_eq!(*zeros.shape, [10, 2]);
    // Only one has zero points, so only the values fuse.
    let one = model(false);
    assert_eq!(
        one.find("l.gate_up_proj.weight").unwrap().1.dtype.name(),
        "F32"
    );
    for none in ["weight_scale", "weight_zero_point"] {
        assert!(one.find(&format!("l.gate_up_proj.{none}")).is_err());
    }
}
