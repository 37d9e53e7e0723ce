//! Damaged layers have a reason with both numbers.

use serde_json::json;

use super::{config, four_bits, int4, nvfp4, refused, shape, with, zeros};
use crate::dtype::Dtype;
use crate::quant::testing::{Stored, TestModel, stored};
use crate::view::View;

#[test]
fn damaged_integers_say_why_with_both_numbers() {
    let none = json!(null);
    refused(
        &four_bits(&["a.weight_scale"]),
        none.clone(),
        &["weight_scale is missing"],
    );
    refused(
        &four_bits(&["a.weight_shape"]),
        none.clone(),
        &["weight_shape is missing"],
    );
    let shaped = |n, k| with(four_bits(&[]), shape(n, k));
    refused(&shaped(8, 0), none.clone(), &["[8, 0]", "two positive"]);
    refused(&shaped(-8, 64), none.clone(), &["[-8, 64]", "two positive"]);
    refused(&shaped(9, 64), none.clone(), &["9 rows", "has 8"]);
    refused(
        &shaped(8, 1000),
        none.clone(),
        &["rows of 8 words", "1000 values"],
    );
    refused(&shaped(8, i64::MAX), none.clone(), &["rows of 8 words"]);
    refused(&shaped(8, 63), none.clone(), &["2 groups", "63 columns"]);
    let eight = config("pack-quantized", json!({"num_bits": 8}));
    refused(
        &four_bits(&[]),
        eight,
        &["rows of 8 words", "64 values of 8 bits need 16"],
    );
    let three = config("pack-quantized", json!({"num_bits": 3}));
    refused(&four_bits(&[]), three, &["need 6 (dense) or 7 (padded)"]);
    let sixteen = config("pack-quantized", json!({"num_bits": 16}));
    refused(&four_bits(&[]), sixteen, &["16 bits", "1 to 8"]);
    refused(
        &four_bits(&[]),
        int4(json!({"group_size": 16})),
        &["2 groups", "32 of 64", "declares 16"],
    );
    let odd_shape = zeros("a.weight_shape", Dtype::I64, &[3]);
    refused(
        &with(four_bits(&[]), odd_shape),
        none.clone(),
        &["I64 of 3", "I64 or I32 of 2"],
    );
    let scale = |dtype, shape: &[u64]| with(four_bits(&[]), zeros("a.weight_scale", dtype, shape));
    refused(
        &scale(Dtype::BF16, &[7, 2]),
        none.clone(),
        &["[7, 2]", "[8, groups]", "8 packed rows"],
    );
    refused(&scale(Dtype::BF16, &[8, 0]), none.clone(), &["0 groups"]);
    refused(
        &scale(Dtype::BF16, &[8, 3]),
        none.clone(),
        &["3 groups", "64 columns"],
    );
    refused(
        &scale(Dtype::I32, &[8, 2]),
        none.clone(),
        &["I32", "needs F16, BF16 or F32"],
    );
    let deep = with(
        four_bits(&[]),
        zeros("a.weight_packed", Dtype::I32, &[2, 4, 8]),
    );
    refused(&deep, none.clone(), &["[2, 4, 8]", "two dimensions"]);
    let wide = with(
        four_bits(&[]),
        zeros("a.weight_packed", Dtype::I64, &[8, 4]),
    );
    refused(&wide, none, &["I64", "needs I32 words or U8 codes"]);
}

#[test]
fn damaged_zero_points_and_orders_say_why() {
    let asymmetric = || int4(json!({"symmetric": false}));
    refused(
        &four_bits(&[]),
        asymmetric(),
        &["weight_zero_point is missing", "symmetric: false"],
    );
    let zero =
        |dtype, shape: &[u64]| with(four_bits(&[]), zeros("a.weight_zero_point", dtype, shape));
    refused(
        &zero(Dtype::I32, &[2, 2]),
        asymmetric(),
        &["2 rows", "8 zero points of 4 bits need 1"],
    );
    refused(
        &zero(Dtype::I32, &[1, 3]),
        asymmetric(),
        &["[1, 3]", "2 columns"],
    );
    refused(
        &zero(Dtype::I64, &[1, 2]),
        asymmetric(),
        &["I64", "needs I32"],
    );
    refused(
        &zero(Dtype::I32, &[2, 2]),
        json!(null),
        &["weight_zero_point"],
    );
    let tensor = with(
        zero(Dtype::I32, &[1, 1]),
        zeros("a.weight_scale", Dtype::F32, &[1]),
    );
    refused(&tensor, asymmetric(), &["needs I8 of one element"]);
    // The config declares it symmetric, so zero points are ignored.
    let model =
        TestModel::safetensors(&zero(Dtype::I32, &[2, 2]), int4(json!({"symmetric": true})));
    assert_eq!(model.recognized("a.weight").unwrap().parts.len(), 3);
    assert_eq!(*model.layer("a.weight").shape, [8, 64]);
    let order = |dtype, len| with(four_bits(&[]), zeros("a.weight_g_idx", dtype, &[len]));
    refused(
        &order(Dtype::I32, 63),
        json!(null),
        &["63 elements", "64 columns"],
    );
    refused(&order(Dtype::I64, 64), json!(null), &["I64", "needs I32"]);
}

#[test]
fn an_order_out_of_range_is_data_not_header() {
    let order = |groups: &[i32]| {
        let mut all = groups.to_vec();
        all.resize(64, 0);
        let bytes: Vec<u8> = all.iter().flat_map(|g| g.to_le_bytes()).collect();
        with(
            four_bits(&[]),
            stored("a.weight_g_idx", Dtype::I32, &[64], bytes),
        )
    };
    let model = TestModel::safetensors(&order(&[0, 1, 2, -5]), json!(null));
    let view = model.view("a.weight");
    let error = view.read_at(0, &mut [0; 4]).unwrap_err();
    assert_eq!(error.errno(), libc::EIO);
    for part in [
        "a.weight_g_idx",
        "2 of 64",
        "0 to 1",
        "first is 2 for input 2",
    ] {
        assert!(error.to_string().contains(part), "{error}");
    }
    let found = model.recognized("a.weight").unwrap();
    let layer = found.resolve(&model.catalog).unwrap();
    let problems = layer.kernel.check(&found.raw_parts(&model.catalog));
    assert_eq!(problems.len(), 1);
    assert!(
        problems[0].contains("first is 2 for input 2"),
        "{problems:?}"
    );
    // A -1 anywhere means "no order", whatever the other values are.
    let none = TestModel::safetensors(&order(&[0, 9, -1]), json!(null));
    assert_eq!(none.values("a.weight").len(), 512);
    let found = none.recognized("a.weight").unwrap();
    let layer = found.resolve(&none.catalog).unwrap();
    assert!(
        layer
            .kernel
            .check(&found.raw_parts(&none.catalog))
            .is_empty()
    );
}

/// Without them every value could be wrong, so an optional part in a missing shard is not assumed not
/// to exist.
#[test]
fn parts_in_a_missing_shard_are_missed() {
    let partial = |absent: &str, config| TestModel::partial(&four_bits(&[]), absent, config);
    for part in ["a.weight_zero_point", "a.weight_g_idx"] {
        let reason = partial(part, json!(null)).reason("a.weight");
        let want = format!("{part} is not in the available files; mount the whole model");
        assert_eq!(reason, want);
    }
    let symmetric = int4(json!({"symmetric": true}));
    let other = partial("a.weight_zero_point", symmetric);
    assert_eq!(other.values("a.weight").len(), 8 * 64);
    let other = partial("b.weight_g_idx", json!(null));
    assert_eq!(other.values("a.weight").len(), 8 * 64);
}

#[test]
fn damaged_small_floats_say_why() {
    let none = json!(null);
    let scale = |dtype, shape: &[u64]| with(nvfp4(), zeros("a.weight_scale", dtype, shape));
    let without = |name: &str, mut tensors: Vec<Stored>| {
        tensors.retain(|t| t.name != name);
        tensors
    };
    refused(
        &without("a.weight_scale", nvfp4()),
        none.clone(),
        &["weight_scale is missing"],
    );
    let lone = without("a.weight_global_scale", nvfp4());
    refused(&lone, none.clone(), &["weight_global_scale is missing"]);
    let two = with(nvfp4(), zeros("a.weight_global_scale", Dtype::F32, &[2]));
    refused(&two, none.clone(), &["2 elements, needs 1"]);
    let odd = with(nvfp4(), zeros("a.weight_global_scale", Dtype::I32, &[1]));
    refused(&odd, none.clone(), &["I32, needs F32"]);
    refused(
        &scale(Dtype::F8_E4M3, &[4, 2]),
        none.clone(),
        &["2 columns", "64 values", "need 4"],
    );
    refused(
        &scale(Dtype::F8_E4M3, &[3, 4]),
        none.clone(),
        &["3 rows, weight_packed has 4"],
    );
    refused(
        &scale(Dtype::F8_E4M3, &[4]),
        none.clone(),
        &["[4]", "[4, groups]"],
    );
    refused(
        &scale(Dtype::BF16, &[4, 4]),
        none.clone(),
        &["BF16", "F8_E4M3"],
    );
    refused(
        &scale(Dtype::U8, &[4, 2]),
        none.clone(),
        &["no format with both"],
    );
    let mx = |shape: &[u64]| without("a.weight_global_scale", scale(Dtype::U8, shape));
    refused(
        &mx(&[4, 3]),
        none.clone(),
        &["32 bytes", "48 (mxfp4) or 72 (mxfp6)"],
    );
    assert_eq!(
        TestModel::safetensors(&mx(&[4, 2]), none)
            .layer("a.weight")
            .bits,
        4
    );
}
