//! What is recognized from shapes, and how it is described.

use serde_json::{Value, json};

use super::Sample;
use crate::dtype::Dtype;
use crate::quant::testing::{Stored, TestModel, stored};
use crate::quant::{Join, Layer, Outcome, remarks};

const GPTQ: (bool, usize, bool) = (false, 4, false);
const AWQ: (bool, usize, bool) = (true, 4, false);

fn sample(kind: (bool, usize, bool), shape: [usize; 3]) -> Sample {
    Sample::random(kind, shape, Dtype::F16, &mut 1)
}

fn layer(sample: &Sample, config: Value) -> (&'static str, Layer) {
    let model = TestModel::safetensors(&sample.tensors(), config);
    let method = model.recognized("l.weight").unwrap().method;
    (method, model.layer("l.weight"))
}

#[test]
fn shapes_decide_kind_bits_and_groups() {
    for bits in [2, 3, 4, 8] {
        let (method, layer) = layer(&sample((false, bits, false), [64, 96, 3]), Value::Null);
        assert_eq!((method, layer.bits), ("gptq", bits as u32));
        assert_eq!((&*layer.shape, layer.group_size), (&[64, 96][..], Some(32)));
    }
    let (method, awq) = layer(&sample(AWQ, [64, 96, 3]), Value::Null);
    assert_eq!((method, awq.bits, &*awq.shape), ("awq", 4, &[64, 96][..]));
    // Square, with one group.
    let (method, layer) = layer(&sample(GPTQ, [128, 128, 1]), Value::Null);
    assert_eq!((method, layer.group_size), ("gptq", Some(128)));
    assert_eq!(
        self::layer(&sample(AWQ, [128, 128, 1]), Value::Null).0,
        "awq"
    );
}

#[test]
fn exact_unless_the_scales_are_f32() {
    for (dtype, exact) in [(Dtype::F16, true), (Dtype::BF16, true), (Dtype::F32, false)] {
        let sample = Sample::random(GPTQ, [32, 32, 1], dtype, &mut 2);
        assert_eq!(layer(&sample, Value::Null).1.exact, exact);
    }
}

#[test]
fn parts_and_parameters() {
    let mut tensors = sample((false, 3, false), [32, 64, 2])
        .scattered(&mut 3)
        .tensors();
    tensors.push(stored("l.bias", Dtype::F16, &[32], vec![0; 64]));
    let model = TestModel::safetensors(&tensors, Value::Null);
    let found = model.recognized("l.weight").unwrap();
    let names: Vec<&str> = found
        .parts
        .iter()
        .map(|&i| model.catalog.tensors.get(i).name)
        .collect();
    assert_eq!(names, ["l.qweight", "l.scales", "l.qzeros", "l.g_idx"]);
    assert_eq!(found.parameters, Some(32 * 64));
}

#[test]
fn words_join_by_columns_and_the_index_must_be_the_same() {
    let (_, with) = layer(&sample(GPTQ, [32, 64, 2]).scattered(&mut 4), Value::Null);
    let joins: Vec<_> = with
        .components
        .iter()
        .map(|c| (c.suffix, c.join, c.whole))
        .collect();
    assert_eq!(
        joins,
        [
            ("qweight", Join::Columns, true),
            ("qzeros", Join::Columns, true),
            ("scales", Join::Columns, true),
            ("g_idx", Join::Same, true),
        ]
    );
    let (_, without) = layer(&sample(GPTQ, [32, 64, 2]), Value::Null);
    assert_eq!(without.components.len(), 3);
    let (_, wider) = layer(&sample(GPTQ, [96, 64, 2]), Value::Null);
    assert_eq!(without.compatible, wider.compatible);
    let different = [
        with,
        layer(&sample(GPTQ, [32, 64, 1]), Value::Null).1,
        layer(&sample(GPTQ, [32, 128, 2]), Value::Null).1,
        layer(&sample((false, 8, false), [32, 64, 2]), Value::Null).1,
        layer(&sample(AWQ, [32, 64, 2]), Value::Null).1,
        layer(
            &Sample::random(GPTQ, [32, 64, 2], Dtype::BF16, &mut 5),
            Value::Null,
        )
        .1,
    ];
    for other in different {
        assert_ne!(without.compatible, other.compatible);
    }
}

#[test]
fn an_empty_index_says_nothing() {
    let sample = sample(GPTQ, [32, 64, 2]);
    let mut tensors = sample.tensors();
    tensors.push(stored("l.g_idx", Dtype::I32, &[0], vec![]));
    let model = TestModel::safetensors(&tensors, Value::Null);
    assert_eq!(model.values("l.weight").len(), 32 * 64);
    assert_eq!(model.layer("l.weight").components.len(), 4);
}

#[test]
fn a_layer_may_stand_at_the_root() {
    let tensors: Vec<Stored> = sample(GPTQ, [32, 64, 2])
        .tensors()
        .into_iter()
        .map(|t| Stored {
            name: t.name.trim_start_matches("l.").into(),
            ..t
        })
        .collect();
    assert_eq!(
        TestModel::safetensors(&tensors, Value::Null)
            .layer("weight")
            .bits,
        4
    );
    let other = [stored("l.notqweight", Dtype::I32, &[1], vec![0; 4])];
    let model = TestModel::safetensors(&other, Value::Null);
    assert!(crate::quant::recognize(&model.catalog).is_empty());
}

#[test]
fn a_config_that_names_the_other_is_overruled_and_mentioned() {
    let says = |method: &str| json!({"quantization_config": {"quant_method": method, "bits": 4}});
    for (kind, method, other) in [(GPTQ, "gptq", "awq"), (AWQ, "awq", "gptq")] {
        let model = TestModel::safetensors(&sample(kind, [64, 64, 2]).tensors(), says(other));
        assert_eq!(model.recognized("l.weight").unwrap().method, method);
        let remark = format!(
            "the config has quant_method '{other}', but the shapes of 1 of its layers are those of {method}; they are read as {method}"
        );
        assert_eq!(remarks(&model.catalog), [remark]);
        let model = TestModel::safetensors(&sample(kind, [64, 64, 2]).tensors(), says(method));
        assert!(remarks(&model.catalog).is_empty());
    }
}

/// AWQ's gemv layout of K = 128 in groups of 64 has the shapes of GPTQ in groups of 8.
#[test]
fn gemv_is_not_mistaken() {
    let twin = sample(GPTQ, [16, 512, 64]);
    let reason = TestModel::safetensors(&twin.tensors(), Value::Null).reason("l.weight");
    assert!(reason.contains("gemv"), "{reason}");
    let says_gptq = json!({"quantization_config": {"quant_method": "gptq"}});
    assert_eq!(layer(&twin, says_gptq).1.group_size, Some(8));
    layer(&twin.clone().scattered(&mut 6), Value::Null);
    // What AutoAWQ writes for N = 64, K = 256 in groups of 128.
    let gemv = [
        stored("l.qweight", Dtype::I32, &[64, 32], vec![0; 64 * 32 * 4]),
        stored("l.qzeros", Dtype::I32, &[64, 1], vec![0; 64 * 4]),
        stored("l.scales", Dtype::F16, &[64, 8], vec![0; 64 * 8 * 2]),
    ];
    let config = json!({"quantization_config": {"quant_method": "awq", "version": "GEMV"}});
    for config in [config, Value::Null] {
        let model = TestModel::safetensors(&gemv, config);
        let found = model.recognized("l.weight").unwrap();
        assert!(matches!(found.outcome, Outcome::Damaged(_)));
    }
}
