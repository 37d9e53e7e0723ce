//! What is recognized, what is refused and why, and what joins.

use serde_json::{Value, json};

use super::{config, four_bits, int4, nvfp4, refused, shape, with, zeros};
use crate::dtype::Dtype;
use crate::quant::testing::{Stored, TestModel};
use crate::quant::{Join, Target};
use crate::view::View;

#[test]
fn a_layer_is_found_by_its_tensors_with_and_without_a_config() {
    for config in [
        json!(null),
        int4(json!({"group_size": 32})),
        json!({"quantization_config": {"quant_method": "gptq"}}),
    ] {
        let model = TestModel::safetensors(&four_bits(&[]), config);
        let found = model.recognized("a.weight").unwrap();
        assert_eq!(found.method, "compressed-tensors");
        assert_eq!(found.target, Target::Named("a.weight".into()));
        assert_eq!(found.parameters, Some(8 * 64));
        let names: Vec<_> = found
            .parts
            .iter()
            .map(|&i| model.catalog.tensors.get(i).name)
            .collect();
        assert_eq!(
            names,
            ["a.weight_packed", "a.weight_scale", "a.weight_shape"]
        );
        let layer = model.layer("a.weight");
        assert_eq!(*layer.shape, [8, 64]);
        assert_eq!(
            (layer.bits, layer.group_size, layer.exact),
            (4, Some(32), false)
        );
    }
}

#[test]
fn an_ignored_module_with_packed_words_is_packed_all_the_same() {
    let mut config = int4(json!({"num_bits": 8}));
    config["quantization_config"]["ignore"] = json!(["a"]);
    let model = TestModel::safetensors(&four_bits(&[]), config);
    assert_eq!(model.layer("a.weight").bits, 4);
}

#[test]
fn a_tensor_that_merely_has_the_name_is_plain() {
    let alone = [zeros("a.weight_packed", Dtype::I32, &[8, 8])];
    assert!(
        TestModel::safetensors(&alone, json!(null))
            .recognized("a.weight")
            .is_none()
    );
    let other = [
        zeros("a.my_weight_packed", Dtype::I32, &[8, 8]),
        zeros("a.compressed", Dtype::F32, &[1]),
    ];
    let model = TestModel::safetensors(&other, int4(json!({})));
    assert!(crate::quant::recognize(&model.catalog).is_empty());
    // With a compressed-tensors config it is a layer with missing parts.
    refused(&alone, int4(json!({})), &["weight_scale is missing"]);
    // The empty module path is a path.
    let root: Vec<Stored> = four_bits(&[])
        .into_iter()
        .map(|t| Stored {
            name: t.name.replace("a.", ""),
            ..t
        })
        .collect();
    assert_eq!(
        *TestModel::safetensors(&root, json!(null))
            .layer("weight")
            .shape,
        [8, 64]
    );
}

#[test]
fn formats_that_store_something_else_are_refused_by_name() {
    let exactly = |tensors: &[Stored], config: Value, name: &str| {
        assert_eq!(
            TestModel::safetensors(tensors, config).reason("a.weight"),
            name
        );
    };
    let marlin = [
        zeros("a.weight_packed", Dtype::I32, &[4, 16]),
        zeros("a.scale_packed", Dtype::F16, &[1, 8]),
        zeros("a.meta", Dtype::I16, &[4, 4]),
    ];
    exactly(&marlin, json!(null), "marlin-24");
    exactly(
        &marlin,
        config("marlin-24", json!({"num_bits": 4})),
        "marlin-24",
    );
    let mask = |more: &[&str]| -> Vec<Stored> {
        let names = ["a.compressed", "a.bitmask", "a.shape"];
        let names = names.iter().chain(more);
        names.map(|name| zeros(name, Dtype::U8, &[8, 4])).collect()
    };
    exactly(&mask(&[]), json!(null), "sparse-24-bitmask");
    exactly(&mask(&["a.row_offsets"]), json!(null), "sparse-bitmask");
    let older: Vec<Stored> = mask(&["a.row_offsets"])
        .into_iter()
        .map(|t| Stored {
            name: t.name.replace("a.", "a.weight."),
            ..t
        })
        .collect();
    exactly(&older, json!(null), "sparse-bitmask");
    // The tensors look like nvfp4, but in this format a scale's sign has another meaning.
    let mixed = config("mixed-precision", json!({}));
    let mut mixed = mixed;
    mixed["quantization_config"]["config_groups"]["group_0"]["format"] =
        json!("mixfp4-pack-quantized");
    exactly(&nvfp4(), mixed, "mixfp4-pack-quantized");
    exactly(
        &four_bits(&[]),
        config("nonsense", json!({"num_bits": 4})),
        "nonsense",
    );
    // A familiar name on tensors of another kind is merely stale.
    let model = TestModel::safetensors(&nvfp4(), config("pack-quantized", json!({"num_bits": 4})));
    assert_eq!(model.layer("a.weight").group_size, Some(16));
}

fn joins(model: &TestModel) -> Vec<(&'static str, Join, bool)> {
    let layer = model.layer("a.weight");
    let of = |c: &crate::quant::Component| (c.suffix, c.join, c.whole);
    layer.components.iter().map(of).collect()
}

#[test]
fn what_joins_and_how() {
    let rows = |suffix| (suffix, Join::Rows, true);
    let model = TestModel::safetensors(&four_bits(&[]), json!(null));
    assert_eq!(joins(&model), [rows("weight_packed"), rows("weight_scale")]);
    let said = model.layer("a.weight").compatible;
    assert_eq!(
        said,
        "pack-quantized, 4 bits, groups of 32, K 64, BF16 scales, symmetric"
    );

    let zero = zeros("a.weight_zero_point", Dtype::I32, &[1, 2]);
    let order = zeros("a.weight_g_idx", Dtype::I32, &[64]);
    let all = with(with(four_bits(&[]), zero), order);
    let model = TestModel::safetensors(&all, json!(null));
    let same = ("weight_g_idx", Join::Same, true);
    assert_eq!(
        joins(&model),
        [
            rows("weight_packed"),
            rows("weight_scale"),
            rows("weight_zero_point"),
            same
        ]
    );

    // Six rows of four-bit zero points end inside a word.
    let ragged = TestModel::safetensors(
        &[
            zeros("a.weight_packed", Dtype::I32, &[6, 8]),
            zeros("a.weight_scale", Dtype::BF16, &[6, 2]),
            zeros("a.weight_zero_point", Dtype::I32, &[1, 2]),
            shape(6, 64),
        ],
        json!(null),
    );
    assert_eq!(joins(&ragged)[2], ("weight_zero_point", Join::Rows, false));

    let one = with(four_bits(&[]), zeros("a.weight_scale", Dtype::BF16, &[1]));
    let model = TestModel::safetensors(&one, json!(null));
    assert!(matches!(joins(&model)[1].1, Join::Never(_)));

    let model = TestModel::safetensors(&nvfp4(), json!(null));
    assert!(matches!(
        joins(&model)[2],
        ("weight_global_scale", Join::Never(_), _)
    ));
}

#[test]
fn widths_without_a_config_are_those_that_fit() {
    let bits = |words: u64, k: i64, zero_rows: Option<u64>| {
        let mut tensors = vec![
            zeros("a.weight_packed", Dtype::I32, &[64, words]),
            zeros("a.weight_scale", Dtype::F16, &[64, 1]),
            shape(64, k),
        ];
        tensors.extend(zero_rows.map(|r| zeros("a.weight_zero_point", Dtype::I32, &[r, 1])));
        let layer = TestModel::safetensors(&tensors, json!(null)).layer("a.weight");
        (layer.bits, layer.compatible.contains("padded"))
    };
    for want in 2..=8 {
        assert_eq!(bits(u64::from(want) * 4, 128, None), (want, false));
    }
    // Six words of 32 values: six bits dense, or five bits padded, which are tried first.
    assert_eq!(bits(6, 32, None), (5, true));
    assert_eq!(bits(6, 32, Some(12)), (6, false));
    assert_eq!(bits(10, 96, None), (3, true));
    // With K = 8, one word may have 4 or 3 bits; the zero points decide.
    assert_eq!(bits(1, 8, None), (4, false));
    assert_eq!(bits(1, 8, Some(8)), (4, false));
    assert_eq!(bits(1, 8, Some(6)), (3, false));
    assert_eq!(bits(1, 8, Some(7)), (3, true));
}

#[test]
fn an_empty_layer_has_no_values() {
    let tensors = [
        zeros("a.weight_packed", Dtype::U8, &[4, 0]),
        zeros("a.weight_scale", Dtype::U8, &[4, 0]),
    ];
    let model = TestModel::safetensors(&tensors, json!(null));
    assert_eq!(model.view("a.weight").len(), 0);
    assert!(model.view("a.weight").grain() > 0);
    assert!(model.values("a.weight").is_empty());
    // No rows, each of which would have 2^62 values.
    let tensors = [
        zeros("a.weight_packed", Dtype::U8, &[0, 1 << 61]),
        zeros("a.weight_scale", Dtype::U8, &[0, 1 << 57]),
    ];
    let model = TestModel::safetensors(&tensors, json!(null));
    assert_eq!(model.view("a.weight").grain(), u64::MAX);
    assert!(model.values("a.weight").is_empty());
}

/// `ls --why` names an expression that compiles but turns out to be unusable on some path.
#[test]
fn remarks_name_expressions_that_fail_when_they_are_matched() {
    let mut config = int4(json!({"group_size": 32}));
    config["quantization_config"]["ignore"] = json!([r"re:(?:(a+)\1*)+b"]);
    let path = format!("{}!", "a".repeat(40));
    let mut layer = four_bits(&[]);
    for tensor in &mut layer {
        tensor.name = tensor.name.replacen('a', &path, 1);
    }
    let model = TestModel::safetensors(&layer, config);
    let remarks = crate::quant::remarks(&model.catalog);
    assert_eq!(remarks.len(), 1, "{remarks:?}");
    assert!(remarks[0].contains("is not used"), "{remarks:?}");
}
