//! Rules of a bin + manifest pair.

use serde_json::{Value, json};

use crate::dtype::Dtype;
use crate::model::{Model, ModelOptions};
use crate::quant::testing::{Stored, TestModel};

use super::{affine, layer, without_biases, zeros};

fn manifest(tensors: Vec<Stored>, bits: Option<u32>, defaults: Value) -> TestModel {
    // bits stand on every U32 tensor, whatever its name.
    let entries: Vec<_> = tensors
        .into_iter()
        .map(|t| {
            let own = bits.filter(|_| t.dtype == Dtype::U32);
            (t, own)
        })
        .collect();
    // A config.json beside a manifest does not count.
    TestModel::manifest(
        &entries,
        defaults,
        json!({"quantization": {"bits": 8, "group_size": 32}}),
    )
}

#[test]
fn a_manifest_gives_bits_and_the_shapes_the_group_size() {
    for (words, bits, group_size) in [
        (8, 4, 64),
        (4, 4, 32),
        (16, 8, 64),
        (16, 4, 128),
        (12, 3, 128),
    ] {
        let layer = manifest(affine(words, 1), Some(bits), json!({})).layer("a.weight");
        assert_eq!((layer.bits, layer.group_size), (bits, Some(group_size)));
    }
    // 8 bits in words of 8 would be groups of 32, 6 bits no whole number.
    let reason = |words, bits| manifest(affine(words, 1), Some(bits), json!({})).reason("a.weight");
    assert!(reason(8, 6).contains("256 bits"), "{}", reason(8, 6));
    assert!(reason(8, 16).contains("16 bits"), "{}", reason(8, 16));
    assert!(reason(64, 8).contains("groups of 256"), "{}", reason(64, 8));
    assert!(reason(8, 0).contains("0-bit"), "{}", reason(8, 0));
}

#[test]
fn a_manifest_without_bits_has_defaults() {
    let old = |words, defaults| manifest(affine(words, 1), None, defaults);
    let pair = |m: TestModel| {
        let layer = m.layer("a.weight");
        (layer.bits, layer.group_size.unwrap())
    };
    assert_eq!(pair(old(8, json!({}))), (4, 64));
    assert_eq!(
        pair(old(8, json!({"default_bits": 8, "default_group_size": 32}))),
        (8, 32)
    );
    assert_eq!(pair(old(16, json!({"default_bits": 8}))), (8, 64));
    // An 8-bit router that nothing declares.
    let reason = old(16, json!({})).reason("a.weight");
    assert!(reason.contains("512") && reason.contains("256"), "{reason}");
    let reason = old(8, json!({"default_group_size": "64"})).reason("a.weight");
    assert!(reason.contains("\"64\""), "{reason}");
}

#[test]
fn a_manifests_integers_are_integers() {
    let mut tensors = layer(&[2, 8], None, None);
    tensors.push(zeros("a.ids", Dtype::U32, &[2, 8]));
    assert!(
        manifest(tensors, Some(4), json!({}))
            .recognized("a.ids")
            .is_none()
    );
    // Words alone, with and without a declaration that they pack values.
    let alone = |bits, defaults| manifest(layer(&[2, 8], None, None), bits, defaults);
    assert!(
        alone(Some(4), json!({}))
            .reason("a.weight")
            .contains("a.scales is missing")
    );
    assert!(
        alone(None, json!({"default_bits": 4}))
            .reason("a.weight")
            .contains("a.scales is missing")
    );
    assert!(alone(None, json!({})).recognized("a.weight").is_none());
    assert!(
        alone(Some(0), json!({"default_bits": 4}))
            .recognized("a.weight")
            .is_none()
    );
    // There are no modes.
    let reason = manifest(without_biases(4, 1), Some(4), json!({})).reason("a.weight");
    assert!(reason.contains("U8"), "{reason}");
}

#[test]
fn a_manifest_may_give_the_logical_shape() {
    let mut tensors = affine(8, 1);
    tensors[0].shape = vec![2, 64];
    let model = manifest(tensors, Some(4), json!({}));
    let index = model.catalog.find("a.weight").unwrap();
    assert_eq!(*model.catalog.tensors.get(index).shape, [2, 8]);
    assert_eq!(*model.layer("a.weight").shape, [2, 64]);
}

/// Words count as the values that they pack according to the manifest, even if they cannot be
/// decoded.
#[test]
fn packed_words_without_scales_count_what_they_pack() {
    for (shape, bits, defaults, counted) in [
        ([2, 8], Some(4), json!({}), 128),
        ([2, 64], Some(4), json!({}), 128),
        ([2, 64], None, json!({}), 128),
        ([2, 8], None, json!({"default_bits": 8}), 64),
        ([2, 8], None, json!({}), 16),
        ([2, 8], Some(0), json!({}), 16),
    ] {
        for name in ["a.weight", "a.ids"] {
            let mut words = zeros(name, Dtype::U32, &[2, 8]);
            words.shape = shape.to_vec();
            let model = manifest(vec![words], bits, defaults.clone());
            let model = Model::new(model.catalog, ModelOptions::default());
            assert_eq!(model.parameters(0), counted, "{name} {shape:?} {bits:?}");
        }
    }
}
