//! Small layers to recognize. The tests are in the modules below.

use serde_json::{Value, json};

use crate::dtype::Dtype;
use crate::quant::testing::{Stored, TestModel, stored};

mod config;
mod damage;
mod rules;
mod values;

fn zeros(name: &str, dtype: Dtype, shape: &[u64]) -> Stored {
    let len = dtype.bytes(shape.iter().product()).unwrap();
    stored(name, dtype, shape, vec![0; len as usize])
}

/// A `weight_shape`.
fn shape(n: i64, k: i64) -> Stored {
    let bytes: Vec<u8> = [n, k].iter().flat_map(|d| d.to_le_bytes()).collect();
    stored("a.weight_shape", Dtype::I64, &[2], bytes)
}

/// A config with one group for every matrix.
fn config(format: &str, weights: Value) -> Value {
    json!({"quantization_config": {"quant_method": "compressed-tensors", "format": format,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}}})
}

/// A symmetric 4-bit layer [8, 64] in two groups, without the tensors named.
fn four_bits(without: &[&str]) -> Vec<Stored> {
    let mut all = vec![
        zeros("a.weight_packed", Dtype::I32, &[8, 8]),
        zeros("a.weight_scale", Dtype::BF16, &[8, 2]),
        shape(8, 64),
    ];
    all.retain(|t| !without.contains(&t.name.as_str()));
    all
}

fn with(mut tensors: Vec<Stored>, more: Stored) -> Vec<Stored> {
    tensors.retain(|t| t.name != more.name);
    tensors.push(more);
    tensors
}

fn int4(more: Value) -> Value {
    let mut weights = json!({"num_bits": 4, "type": "int"});
    if let (Some(w), Value::Object(more)) = (weights.as_object_mut(), more) {
        w.extend(more);
    }
    config("pack-quantized", weights)
}

fn nvfp4() -> Vec<Stored> {
    vec![
        zeros("a.weight_packed", Dtype::U8, &[4, 32]),
        zeros("a.weight_scale", Dtype::F8_E4M3, &[4, 4]),
        zeros("a.weight_global_scale", Dtype::F32, &[1]),
    ]
}

#[track_caller]
fn refused(tensors: &[Stored], config: Value, why: &[&str]) {
    let reason = TestModel::safetensors(tensors, config).reason("a.weight");
    for part in why {
        assert!(reason.contains(part), "'{part}' is not in: {reason}");
    }
}
