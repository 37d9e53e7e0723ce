//! Rules: what is recognized, what is refused and why, and where bits and group size are stated.

use serde_json::{Value, json};

use crate::dtype::Dtype;
use crate::quant::testing::{Stored, TestModel};
use crate::quant::{Component, Join};

use super::{Kind, affine, layer, without_biases, zeros};

fn model(tensors: &[Stored], quantization: Value) -> TestModel {
    let config = match quantization {
        Value::Null => Value::Null,
        said => json!({"quantization": said}),
    };
    TestModel::safetensors(tensors, config)
}

/// Bits and group size of `a.weight`.
fn found(tensors: &[Stored], quantization: Value) -> (u32, u64) {
    let layer = model(tensors, quantization).layer("a.weight");
    (layer.bits, layer.group_size.unwrap())
}

#[track_caller]
fn refused(tensors: &[Stored], quantization: Value, parts: &[&str]) {
    let model = model(tensors, quantization);
    let reason = model.reason("a.weight");
    for part in parts {
        assert!(reason.contains(part), "{part:?} is not in: {reason}");
    }
    // The layer keeps its parts, so that none of them counts as a weight by itself.
    let recognized = model.recognized("a.weight").unwrap();
    assert_eq!(recognized.parts.len(), tensors.len());
}

#[test]
fn a_layer_is_its_triple() {
    let tensors = [
        zeros("a.weight", Dtype::U32, &[3, 5, 12]),
        zeros("a.scales", Dtype::F16, &[3, 5, 2]),
        zeros("a.biases", Dtype::F32, &[3, 5, 2]),
        zeros("a.bias", Dtype::F16, &[3, 5]),
    ];
    let model = model(&tensors, json!({"bits": 3, "group_size": 64}));
    let recognized = model.recognized("a.weight").unwrap();
    let index = |name: &str| model.catalog.find(name).unwrap();
    let parts = ["a.weight", "a.scales", "a.biases"].map(index);
    assert_eq!(recognized.parts, parts);
    assert_eq!(
        (recognized.method, recognized.parameters),
        ("mlx", Some(3 * 5 * 128))
    );
    let layer = model.layer("a.weight");
    assert_eq!(*layer.shape, [3, 5, 128]);
    assert_eq!(
        layer.compatible,
        "MLX affine, 3 bits, groups of 64, K 128, F16 scales, F32 biases"
    );
    let components = ["weight", "scales", "biases"].into_iter().zip(parts);
    let components: Vec<_> = components
        .map(|(suffix, tensor)| Component {
            suffix,
            tensor,
            join: Join::Rows,
            whole: true,
        })
        .collect();
    assert_eq!(layer.components, components);
}

#[test]
fn a_layer_saved_by_itself_has_no_module_path() {
    let tensors = [
        zeros("weight", Dtype::U32, &[1, 8]),
        zeros("scales", Dtype::F16, &[1, 1]),
        zeros("biases", Dtype::F16, &[1, 1]),
    ];
    assert_eq!(model(&tensors, Value::Null).layer("weight").bits, 4);
}

#[test]
fn other_tensors_stay_what_they_are() {
    let tensors = [
        // Plain integers, of a name that no layer has, or of one dimension.
        zeros("a.position_ids", Dtype::U32, &[2, 8]),
        zeros("a.scales", Dtype::F16, &[2, 1]),
        zeros("a.biases", Dtype::F16, &[2, 1]),
        zeros("b.weight", Dtype::U32, &[8]),
        zeros("overweight", Dtype::U32, &[2, 8]),
        // Other formats' words, and a float weight that has scales.
        zeros("c.weight", Dtype::I32, &[2, 8]),
        zeros("c.scales", Dtype::F16, &[2, 1]),
        zeros("c.biases", Dtype::F16, &[2, 1]),
        zeros("d.qweight", Dtype::I32, &[2, 8]),
        zeros("d.qzeros", Dtype::I32, &[2, 1]),
        zeros("d.scales", Dtype::F16, &[2, 8]),
        zeros("e.weight_packed", Dtype::U8, &[2, 8]),
        zeros("f.weight", Dtype::BF16, &[2, 8]),
        zeros("f.scales", Dtype::BF16, &[2, 1]),
        zeros("f.biases", Dtype::BF16, &[2, 1]),
    ];
    let model = model(&tensors, json!({"bits": 4, "group_size": 64}));
    for t in &tensors {
        assert!(model.recognized(&t.name).is_none(), "{}", t.name);
    }
}

#[test]
fn words_alone_are_integers_unless_quantization_is_declared() {
    let words = layer(&[2, 8], None, None);
    let declared = |said| model(&words, said).recognized("a.weight").is_some();
    assert!(!declared(Value::Null));
    assert!(!declared(json!({"a": false})));
    refused(&words, json!({}), &["a.scales is missing"]);
    refused(&words, json!({"a": true}), &["a.scales is missing"]);
    let gptq = json!({"quantization_config": {"quant_method": "gptq", "bits": 4}});
    assert!(
        TestModel::safetensors(&words, gptq)
            .recognized("a.weight")
            .is_none()
    );
}

#[test]
fn without_a_config_the_shapes_decide_where_they_can() {
    for (bits, group_size) in [
        (4, 64),
        (2, 32),
        (3, 32),
        (5, 32),
        (5, 64),
        (5, 128),
        (6, 128),
        (8, 128),
    ] {
        let words = bits * group_size / 32;
        let got = found(&affine(words, 1), Value::Null);
        assert_eq!(got, (bits as u32, group_size));
    }
    for (words, pairs) in [
        (4, ["2 bits in groups of 64", "4 bits in groups of 32"]),
        (6, ["3 bits in groups of 64", "6 bits in groups of 32"]),
        (12, ["3 bits in groups of 128", "6 bits in groups of 64"]),
        (16, ["4 bits in groups of 128", "8 bits in groups of 64"]),
    ] {
        refused(&affine(words, 1), Value::Null, &pairs);
    }
    refused(&affine(7, 1), Value::Null, &["224 bits"]);
    for (words, bits, group_size) in [(4, 4, 32), (8, 8, 32), (2, 4, 16)] {
        let got = found(&without_biases(words, 1), Value::Null);
        assert_eq!(got, (bits, group_size));
    }
}

#[test]
fn a_config_decides_what_the_shapes_leave_open() {
    assert_eq!(
        found(&affine(8, 1), json!({"bits": 8, "group_size": 32})),
        (8, 32)
    );
    assert_eq!(
        found(&affine(8, 1), json!({"bits": 2, "group_size": 128})),
        (2, 128)
    );
    assert_eq!(
        found(&affine(1, 1), json!({"bits": 1, "group_size": 32})),
        (1, 32)
    );
    // An affine router in a model of another mode; an override inherits neither mode nor bits.
    let mxfp4 = |own: Value| json!({"mode": "mxfp4", "bits": 4, "group_size": 32, "a": own});
    assert_eq!(found(&affine(16, 1), mxfp4(json!({"bits": 8}))), (8, 64));
    assert_eq!(found(&affine(8, 1), mxfp4(json!({}))), (4, 64));
    assert_eq!(found(&affine(4, 1), mxfp4(Value::Null)), (4, 32));
    assert_eq!(found(&without_biases(4, 1), mxfp4(json!(true))), (4, 32));
}

#[test]
fn what_is_missing_is_named() {
    let scales: Kind = (Dtype::F16, &[2, 1]);
    refused(
        &layer(&[2, 8], Some(scales), None),
        Value::Null,
        &["a.biases is missing"],
    );
    refused(
        &layer(&[2, 8], None, Some(scales)),
        Value::Null,
        &["a.scales is missing"],
    );
}

#[test]
fn shapes_and_dtypes_must_fit() {
    fn bf16(shape: &'static [u64]) -> Option<Kind<'static>> {
        Some((Dtype::BF16, shape))
    }
    let cases: [(Vec<Stored>, &[&str]); 9] = [
        (
            layer(&[2, 8], bf16(&[3, 1]), bf16(&[3, 1])),
            &["[2, 8]", "[3, 1]"],
        ),
        (
            layer(&[2, 8], bf16(&[1, 2, 1]), bf16(&[1, 2, 1])),
            &["[2, 8]", "[1, 2, 1]"],
        ),
        (layer(&[8], bf16(&[1]), bf16(&[1])), &["[8]", "[1]"]),
        (layer(&[], bf16(&[]), bf16(&[])), &["[]"]),
        (
            layer(&[2, 8], bf16(&[2, 1]), bf16(&[2, 2])),
            &["[2, 1]", "[2, 2]"],
        ),
        (
            layer(&[2, 8], bf16(&[2, 3]), bf16(&[2, 3])),
            &["8 words", "3 groups"],
        ),
        (
            layer(&[2, 8], bf16(&[2, 0]), bf16(&[2, 0])),
            &["8 words", "0 groups"],
        ),
        (
            layer(&[2, 8], Some((Dtype::F64, &[2, 1])), bf16(&[2, 1])),
            &["a.scales", "F64"],
        ),
        (
            layer(&[2, 8], bf16(&[2, 1]), Some((Dtype::I32, &[2, 1]))),
            &["a.biases", "I32"],
        ),
    ];
    for (tensors, parts) in cases {
        refused(&tensors, Value::Null, parts);
    }
    let scales: Kind = (Dtype::U8, &[2, 2]);
    refused(
        &layer(&[2, 8], Some(scales), Some(scales)),
        Value::Null,
        &["U8"],
    );
    refused(
        &layer(&[2, 8], Some((Dtype::I8, &[2, 2])), None),
        Value::Null,
        &["I8"],
    );
    refused(&without_biases(3, 1), Value::Null, &["96 bits"]);
}

#[test]
fn settings_and_shapes_must_agree() {
    let bits = |b: u64, g: u64| json!({"bits": b, "group_size": g});
    refused(&affine(8, 1), bits(8, 64), &["256", "512"]);
    refused(&affine(7, 1), bits(7, 32), &["7 bits"]);
    refused(&affine(2, 1), bits(4, 16), &["groups of 16"]);
    refused(&affine(8, 1), json!({"mode": "mxfp5"}), &["mxfp5"]);
    refused(&without_biases(4, 1), json!({"mode": "mxfp5"}), &["mxfp5"]);
    refused(&affine(8, 1), json!({"bits": "4"}), &["\"4\""]);
    refused(&affine(8, 1), json!({"a": false}), &["false"]);
    refused(&without_biases(4, 1), json!({"a": false}), &["false"]);
    // A mode that the tensors do not have.
    refused(
        &affine(4, 1),
        json!({"a": {"mode": "mxfp4"}}),
        &["mxfp4", "affine"],
    );
    refused(
        &without_biases(4, 1),
        json!({"mode": "mxfp8"}),
        &["mxfp8", "mxfp4"],
    );
    refused(
        &without_biases(4, 1),
        json!({"bits": 4, "group_size": 32}),
        &["affine", "mxfp4"],
    );
    refused(
        &without_biases(4, 1),
        json!({"mode": "mxfp4", "group_size": 64}),
        &["64", "32"],
    );
}

#[test]
fn a_row_too_long_to_count_is_refused() {
    let huge = 1u64 << 60;
    refused(
        &layer(
            &[0, huge],
            Some((Dtype::F16, &[0, huge])),
            Some((Dtype::F16, &[0, huge])),
        ),
        Value::Null,
        &["1152921504606846976"],
    );
}

#[test]
fn one_bad_layer_leaves_the_others_alone() {
    let mut tensors = affine(7, 1);
    tensors.extend([
        zeros("b.weight", Dtype::U32, &[2, 8]),
        zeros("b.scales", Dtype::F16, &[2, 1]),
        zeros("b.biases", Dtype::F16, &[2, 1]),
    ]);
    let model = model(&tensors, Value::Null);
    model.reason("a.weight");
    assert_eq!(model.layer("b.weight").bits, 4);
}
