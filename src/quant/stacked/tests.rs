//! What is a stack and what is not, what does not fit, and values compared with those of single
//! layers.

use serde_json::{Value, json};

use super::{NAMES, split};
use crate::dtype::Dtype;
use crate::model::{Model, ModelOptions, STACKED};
use crate::quant::recognize;
use crate::quant::testing::{Stored, TestModel, assert_values, random_bytes, stored};
use crate::view::read_all;

const X: &str = "m.experts.down_proj";

fn zeros(last: &str, dtype: Dtype, shape: &[u64]) -> Stored {
    let len = dtype.bytes(shape.iter().product()).unwrap();
    stored(&format!("{X}{last}"), dtype, shape, vec![0; len as usize])
}

fn mlx() -> Value {
    json!({"quantization": {"bits": 4, "group_size": 64}})
}

/// Three experts of MLX's, all zero.
fn three() -> [Stored; 3] {
    [
        zeros("", Dtype::U32, &[3, 4, 8]),
        zeros(".scales", Dtype::F16, &[3, 4, 1]),
        zeros(".biases", Dtype::F16, &[3, 4, 1]),
    ]
}

#[test]
fn names_are_those_that_stacks_have() {
    for rule in STACKED {
        assert!(NAMES.contains(&rule.stacked), "{}", rule.stacked);
    }
    assert_eq!(split(X), Some((X, "weight")));
    assert_eq!(split("experts.down_proj.scales").unwrap().1, "scales");
    let scale = "a.experts.gate_up_proj_scale_inv";
    assert_eq!(
        split(scale),
        Some(("a.experts.gate_up_proj", "weight_scale_inv"))
    );
    for plain in [
        "m.experts.0.down_proj.weight",
        "m.down_proj",
        "m.shared_experts.down_proj",
        "m.experts.router",
        "m.experts.down_proj_bias",
        "m.experts.down_proj.weight.absmax",
    ] {
        assert_eq!(split(plain), None, "{plain}");
    }
}

#[test]
fn a_part_must_be_for_every_expert() {
    for (scales, why) in [
        (&[2, 4, 1][..], "[2, 4, 1] does not begin with an axis of 3"),
        (&[4, 1], "[4, 1] does not begin with an axis of 3"),
        (&[3], "[3] does not begin with an axis of 3"),
    ] {
        let [words, _, biases] = three();
        let tensors = [words, zeros(".scales", Dtype::F16, scales), biases];
        let reason = TestModel::safetensors(&tensors, mlx()).reason(X);
        assert!(reason.contains(why), "{reason}");
        assert!(reason.contains("a stack of 3 experts"), "{reason}");
    }
    // The format judges the shape of each expert.
    let [words, _, biases] = three();
    let tensors = [words, zeros(".scales", Dtype::F16, &[3, 5, 1]), biases];
    let reason = TestModel::safetensors(&tensors, mlx()).reason(X);
    assert!(reason.contains("each of 3 stacked layers"), "{reason}");
    assert!(reason.contains("scales [5, 1]"), "{reason}");
}

#[test]
fn one_number_may_be_for_all_of_them() {
    let one = stored(
        &format!("{X}.weight_scale"),
        Dtype::F32,
        &[],
        2f32.to_le_bytes(),
    );
    let codes = stored(X, Dtype::F8_E4M3, &[2, 1, 2], [0x38, 0xB8, 0x40, 0]);
    let model = TestModel::safetensors(&[codes, one], Value::Null);
    assert_eq!(model.values(X), [2.0, -2.0, 4.0, 0.0]);
}

#[test]
fn a_float_model_has_nothing_of_what_is_beside_a_stack() {
    let tensors = [
        stored(X, Dtype::F8_E4M3, &[2, 1, 2], [0x38; 4]),
        zeros(".weight_scale", Dtype::F32, &[2, 1, 1]),
        zeros(".input_scale", Dtype::F32, &[2, 1]),
    ];
    let model = TestModel::safetensors(&tensors, Value::Null);
    let model = Model::new(model.catalog, ModelOptions::default());
    let floats = crate::export::float_model(&model);
    let names: Vec<&str> = floats.iter().map(|&(id, _)| model.name(id)).collect();
    assert_eq!(names, [X]);
}

#[test]
fn torn_stacks_have_no_values_and_plain_ones_their_own() {
    let [words, ..] = three();
    let int8 = json!({"quantization_config": {"quant_method": "compressed-tensors",
        "format": "int-quantized",
        "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 8}}}}});
    let reason = TestModel::safetensors(&[words], mlx()).reason(X);
    assert!(
        reason.contains("m.experts.down_proj.scales is missing"),
        "{reason}"
    );
    let codes = || [zeros("", Dtype::I8, &[3, 4, 8])];
    let reason = TestModel::safetensors(&codes(), int8).reason(X);
    assert!(
        reason.contains("m.experts.down_proj.weight_scale"),
        "{reason}"
    );
    for dtype in [Dtype::U32, Dtype::I8, Dtype::U8, Dtype::BF16] {
        let model = TestModel::safetensors(&[zeros("", dtype, &[3, 4, 8])], Value::Null);
        assert!(model.recognized(X).is_none(), "{dtype}");
    }
}

#[test]
fn a_stored_tensor_wins() {
    let packed = || {
        [
            zeros(".weight_packed", Dtype::U8, &[2, 4, 16]),
            zeros(".weight_scale", Dtype::U8, &[2, 4, 1]),
        ]
    };
    let model = |more: Stored| {
        let [words, scales] = packed();
        let model = TestModel::safetensors(&[words, scales, more], Value::Null);
        Model::new(model.catalog, ModelOptions::default())
    };
    // Float values with the stack's name, and a module of that name, stay as they are.
    let plain = model(zeros("", Dtype::F32, &[2, 4, 8]));
    assert_eq!(
        *plain.find(X).unwrap().1.values.as_ref().unwrap().shape,
        [2, 4, 8]
    );
    let module = model(zeros(".weight", Dtype::F32, &[2, 4, 8]));
    assert!(module.find(X).is_err());
    assert!(
        module
            .find(&format!("{X}.weight"))
            .unwrap()
            .1
            .values
            .is_some()
    );
    let [words, scales] = packed();
    let model = TestModel::safetensors(&[words, scales], Value::Null);
    assert_eq!(*model.layer(X).shape, [2, 4, 32]);
    assert_eq!(model.recognized(X).unwrap().parameters, Some(256));
}

/// Bytes of GPTQ layers of 64 inputs and 32 outputs in two groups: words, zero points, scales and
/// the order of expert `e`.
fn gptq(e: u64) -> [Vec<u8>; 4] {
    let mut seed = e;
    let scales = (0..64).flat_map(|i| (0x3000 + i * 7 + e as u16).to_le_bytes());
    let order = (0..64u64).flat_map(|k| (((k + e) / 3 % 2) as i32).to_le_bytes());
    [
        random_bytes(&mut seed, 8 * 32 * 4),
        random_bytes(&mut seed, 2 * 4 * 4),
        scales.collect(),
        order.collect(),
    ]
}

const GPTQ: [(&str, Dtype, &[u64]); 4] = [
    ("qweight", Dtype::I32, &[8, 32]),
    ("qzeros", Dtype::I32, &[2, 4]),
    ("scales", Dtype::F16, &[2, 32]),
    ("g_idx", Dtype::I32, &[64]),
];

/// The experts' bytes, stacked.
fn gptq_stack(experts: &[[Vec<u8>; 4]]) -> Vec<Stored> {
    let tensor = |(i, &(last, dtype, shape)): (usize, &(&str, Dtype, &[u64]))| {
        let shape = [&[experts.len() as u64], shape].concat();
        let bytes: Vec<u8> = experts.iter().flat_map(|e| e[i].clone()).collect();
        stored(&format!("{X}.{last}"), dtype, &shape, bytes)
    };
    GPTQ.iter().enumerate().map(tensor).collect()
}

#[test]
fn values_are_those_of_single_layers() {
    let experts = [gptq(1), gptq(2), gptq(3)];
    let mut want = Vec::new();
    for expert in &experts {
        let tensors = GPTQ.iter().zip(expert).map(|(&(last, dtype, shape), b)| {
            stored(&format!("m.experts.0.{last}"), dtype, shape, b.clone())
        });
        let tensors: Vec<Stored> = tensors.collect();
        want.extend(TestModel::safetensors(&tensors, Value::Null).values("m.experts.0.weight"));
    }
    let model = TestModel::safetensors(&gptq_stack(&experts), Value::Null);
    assert_eq!(*model.layer(X).shape, [3, 32, 64]);
    assert_values(&*model.view(X), &want, 7);
}

#[test]
fn damaged_data_is_told_of_its_expert() {
    let mut bad = gptq(2);
    bad[3][..4].copy_from_slice(&9i32.to_le_bytes());
    let model = TestModel::safetensors(&gptq_stack(&[gptq(1), bad]), Value::Null);
    let found = model.recognized(X).unwrap();
    let problems = model
        .layer(X)
        .kernel
        .check(&found.raw_parts(&model.catalog));
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].starts_with("expert 1: "), "{problems:?}");
    let view = model.view(X);
    let mut expert = vec![0; 32 * 64 * 4];
    assert!(view.read_at(0, &mut expert).is_ok());
    assert!(view.read_at(32 * 64 * 4, &mut expert).is_err());
}

#[test]
fn shapes_in_data_must_be_alike() {
    let pack = |shapes: [[i64; 2]; 2]| {
        let bytes: Vec<u8> = shapes
            .as_flattened()
            .iter()
            .copied()
            .flat_map(i64::to_le_bytes)
            .collect();
        let name = format!("{X}.weight_shape");
        let tensors = [
            zeros(".weight_packed", Dtype::I32, &[2, 8, 8]),
            zeros(".weight_scale", Dtype::BF16, &[2, 8, 1]),
            stored(&name, Dtype::I64, &[2, 2], bytes),
        ];
        TestModel::safetensors(&tensors, Value::Null)
    };
    assert_eq!(*pack([[8, 64]; 2]).layer(X).shape, [2, 8, 64]);
    let reason = pack([[8, 64], [8, 62]]).reason(X);
    assert!(reason.contains("must be alike"), "{reason}");
    let reason = pack([[8, 64], [9, 64]]).reason(X);
    assert!(reason.contains("expert 1: "), "{reason}");
}

#[test]
fn a_hostile_number_of_experts_is_refused() {
    let stack = |experts: u64, outputs: u64, inputs: u64| {
        let names = [X.to_string(), format!("{X}.weight_scale")];
        let tensors = [
            (&*names[0], Dtype::F8_E4M3, &[experts, outputs, inputs][..]),
            (&*names[1], Dtype::F32, &[experts, outputs, 1][..]),
        ];
        TestModel::sparse(&tensors, Value::Null).reason(X)
    };
    let reason = stack(1 << 40, 0, 4);
    assert!(reason.contains("at most 16384"), "{reason}");
    let reason = stack(1 << 10, 1, 1 << 20);
    assert!(reason.contains("at most 67108864 inputs"), "{reason}");
}

#[test]
fn no_expert_is_no_stack() {
    let [words, scales, biases] = three();
    let none = [words, scales, biases].map(|t| {
        let shape = [&[0], &t.shape[1..]].concat();
        stored(&t.name, t.dtype, &shape, [])
    });
    let model = TestModel::safetensors(&none, mlx());
    assert!(recognize(&model.catalog).is_empty());
    let model = Model::new(model.catalog, ModelOptions::default());
    let (id, _) = model.find(X).unwrap();
    assert!(
        read_all(&*model.f32(id).unwrap().unwrap())
            .unwrap()
            .is_empty()
    );
}
