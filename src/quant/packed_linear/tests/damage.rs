//! Layers that cannot be decoded, each with its reason.

use serde_json::{Value, json};

use super::Sample;
use crate::catalog::{Catalog, OpenOptions};
use crate::dtype::Dtype;
use crate::quant::testing::{Stored, TestModel, stored};
use crate::quant::{Outcome, recognize};

/// A layer of N = 64, K = 128 in two groups, of 4 bits.
fn good(awq: bool) -> Vec<Stored> {
    let sample = Sample::random((awq, 4, false), [64, 128, 2], Dtype::F16, &mut 1);
    match awq {
        true => sample.tensors(),
        false => sample.scattered(&mut 2).tensors(),
    }
}

/// A tensor of zeros.
fn zeros(name: &str, dtype: Dtype, shape: &[u64]) -> Stored {
    let len = dtype.bytes(shape.iter().product()).unwrap();
    stored(name, dtype, shape, vec![0; len as usize])
}

/// The reason if `instead` replaces the good tensor of its name.
fn reason_with(awq: bool, instead: Stored) -> String {
    let mut tensors = good(awq);
    tensors.retain(|t| t.name != instead.name);
    tensors.push(instead);
    TestModel::safetensors(&tensors, Value::Null).reason("l.weight")
}

#[test]
fn a_part_is_missing() {
    for awq in [false, true] {
        for (part, suffix) in [("l.scales", "scales"), ("l.qzeros", "qzeros")] {
            let mut tensors = good(awq);
            tensors.retain(|t| t.name != part);
            let symmetric = json!({"quantization_config": {"sym": true}});
            let model = TestModel::safetensors(&tensors, symmetric);
            let want =
                format!("l.{suffix} is missing: a packed layer needs qweight, scales and qzeros");
            assert_eq!(model.reason("l.weight"), want);
            let found = model.recognized("l.weight").unwrap();
            assert_eq!(found.parameters, None);
            assert_eq!(found.parts.len(), tensors.len());
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_named() {
    let i32s = |name, shape: &[u64]| zeros(name, Dtype::I32, shape);
    let f16s = |shape: &[u64]| zeros("l.scales", Dtype::F16, shape);
    let cases = [
        // Rows and columns of each.
        (false, i32s("l.qweight", &[17, 64]), "g_idx is I32 [128]"),
        (false, i32s("l.qweight", &[16, 63]), "qweight [16, 63]"),
        (
            false,
            i32s("l.qzeros", &[3, 8]),
            "qzeros have 3 groups, scales 2",
        ),
        (false, i32s("l.qzeros", &[2, 9]), "32·9/64"),
        (false, i32s("l.qzeros", &[2, 10]), "2, 3, 4 or 8"),
        (false, i32s("l.qzeros", &[2, 0]), "2, 3, 4 or 8"),
        (false, i32s("l.qzeros", &[2, 6]), "3 bits need"),
        (false, f16s(&[1, 64]), "qzeros have 2 groups, scales 1"),
        (false, f16s(&[2, 65]), "scales [2, 65]"),
        (false, f16s(&[2, 0]), "no groups or no outputs"),
        (false, f16s(&[128]), "must be matrices"),
        (false, i32s("l.qweight", &[1, 16, 64]), "must be matrices"),
        (false, i32s("l.qweight", &[0, 64]), "holds no inputs"),
        (true, i32s("l.qweight", &[127, 8]), "127 inputs"),
        (true, i32s("l.qweight", &[0, 8]), "holds no inputs"),
        (true, i32s("l.qweight", &[128, 9]), "qweight [128, 9]"),
        (true, i32s("l.qzeros", &[2, 7]), "qzeros [2, 7]"),
        (true, f16s(&[2, 63]), "scales [2, 63]"),
        // A g_idx of another length, or not of integers.
        (false, i32s("l.g_idx", &[127]), "one for each of 128 inputs"),
        (false, i32s("l.g_idx", &[1, 128]), "g_idx is I32 [1, 128]"),
        (false, zeros("l.g_idx", Dtype::F32, &[128]), "g_idx is F32"),
        (true, i32s("l.g_idx", &[128]), "AWQ's, which has no g_idx"),
        // Other types of words and scales.
        (
            false,
            zeros("l.qweight", Dtype::F32, &[16, 64]),
            "not integers",
        ),
        (
            false,
            zeros("l.qweight", Dtype::I16, &[32, 64]),
            "pack_dtype",
        ),
        (
            true,
            zeros("l.qweight", Dtype::I16, &[16, 128]),
            "gemv_fast",
        ),
        (
            false,
            zeros("l.qzeros", Dtype::U32, &[2, 8]),
            "qzeros are U32, qweight is I32",
        ),
        (
            false,
            zeros("l.scales", Dtype::I32, &[2, 64]),
            "not F16, BF16 or F32",
        ),
        (
            false,
            zeros("l.scales", Dtype::F64, &[2, 64]),
            "not F16, BF16 or F32",
        ),
    ];
    for (awq, tensor, part) in cases {
        let what = format!("{} {:?} {:?}", tensor.name, tensor.dtype, tensor.shape);
        let reason = reason_with(awq, tensor);
        assert!(reason.contains(part), "{what}: {reason}");
    }
}

#[test]
fn groups_that_nothing_explains() {
    let sample = Sample::random((false, 4, false), [64, 160, 3], Dtype::F16, &mut 3);
    let config = json!({"quantization_config": {"group_size": 128}});
    let reason = TestModel::safetensors(&sample.tensors(), config).reason("l.weight");
    assert!(
        reason.contains("3 groups do not divide 160 inputs"),
        "{reason}"
    );
    assert!(reason.contains("[128]"), "{reason}");
}

#[test]
fn one_bad_layer_leaves_the_others() {
    let mut tensors = good(false);
    tensors.extend(good(true).into_iter().map(|t| Stored {
        name: t.name.replace("l.", "m."),
        ..t
    }));
    tensors.retain(|t| t.name != "m.qzeros");
    let model = TestModel::safetensors(&tensors, Value::Null);
    assert!(model.reason("m.weight").contains("m.qzeros"));
    assert_eq!(model.values("l.weight").len(), 64 * 128);
}

#[test]
fn marlin_has_a_reason() {
    let tensors = |n: u64| {
        [
            zeros("l.B", Dtype::I32, &[8, 128]),
            zeros("l.s", Dtype::F16, &[1, n]),
        ]
    };
    let says = json!({"quantization_config": {"quant_method": "gptq", "is_marlin_format": true}});
    for (n, config) in [(64, Value::Null), (64, says.clone()), (60, says)] {
        let model = TestModel::safetensors(&tensors(n), config);
        assert!(model.reason("l.weight").contains("marlin"));
        assert_eq!(model.recognized("l.weight").unwrap().method, "marlin");
    }
    // Without a config, only tensors with exactly these shapes.
    let model = TestModel::safetensors(&tensors(60), Value::Null);
    assert!(recognize(&model.catalog).is_empty());
}

/// A shard by itself, or an incomplete download: a missing tensor is not assumed not to exist.
#[test]
fn an_index_in_another_file_is_missed() {
    let dir = tempfile::tempdir().unwrap();
    let mut tensors = good(false);
    let index = tensors.pop().unwrap();
    let other = zeros("m.g_idx", Dtype::I32, &[128]);
    let write = |name: &str, tensors: &[Stored]| {
        let views = tensors.iter().map(|t| {
            let dtype = serde_json::from_value(json!(t.dtype.name())).unwrap();
            let shape = t.shape.iter().map(|&d| d as usize).collect();
            let view = safetensors::tensor::TensorView::new(dtype, shape, &t.bytes);
            (t.name.clone(), view.unwrap())
        });
        safetensors::serialize_to_file(views, None, &dir.path().join(name)).unwrap();
    };
    tensors.push(other);
    write("a.safetensors", &tensors);
    write("b.safetensors", &[index]);
    let reason = |catalog: &Catalog| match &recognize(catalog)[0].outcome {
        Outcome::Damaged(reason) => reason.to_string(),
        _ => String::new(),
    };
    let lone = dir.path().join("a.safetensors");
    let lone = Catalog::open(&lone, OpenOptions::default()).unwrap();
    assert!(reason(&lone).contains("l.g_idx is not in the available files"));
    let whole = Catalog::open(dir.path(), OpenOptions::default()).unwrap();
    assert_eq!(reason(&whole), "");

    let names = ["l.qweight", "l.scales", "l.qzeros", "m.g_idx"].map(|n| (n, "a.safetensors"));
    let map: serde_json::Map<_, _> = names
        .into_iter()
        .chain([("l.g_idx", "b.safetensors")])
        .map(|(name, file)| (name.to_string(), json!(file)))
        .collect();
    let index = json!({"metadata": {}, "weight_map": map}).to_string();
    std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    std::fs::remove_file(dir.path().join("b.safetensors")).unwrap();
    let options = OpenOptions {
        allow_missing: true,
    };
    let partial = Catalog::open(dir.path(), options).unwrap();
    assert!(reason(&partial).contains("l.g_idx is not in the available files"));
}

/// The same for the table of its scales, of which any value needs a whole band.
#[test]
fn too_many_groups_are_refused() {
    for (groups, refused) in [(1u64 << 16, false), (1 << 17, true)] {
        let model = TestModel::sparse(
            &[
                ("l.qweight", Dtype::I32, &[groups * 4, 8]),
                ("l.qzeros", Dtype::I32, &[groups, 1]),
                ("l.scales", Dtype::F16, &[groups, 8]),
            ],
            Value::Null,
        );
        if refused {
            let reason = model.reason("l.weight");
            let want = "it has 131072 groups, at most 65536 are decoded";
            assert_eq!(reason, want);
        } else {
            assert_eq!(model.layer("l.weight").group_size, Some(32));
        }
    }
}

/// A sparse file costs nothing to write, but reading its whole order would take all of the
/// machine's memory.
#[test]
fn an_order_for_too_many_inputs_is_refused() {
    let k = 1u64 << 27;
    let model = TestModel::sparse(
        &[
            ("l.qweight", Dtype::I32, &[k / 8, 8]),
            ("l.qzeros", Dtype::I32, &[1, 1]),
            ("l.scales", Dtype::F16, &[1, 8]),
            ("l.g_idx", Dtype::I32, &[k]),
        ],
        Value::Null,
    );
    let reason = model.reason("l.weight");
    assert!(
        reason.contains("134217728 inputs, at most 67108864"),
        "{reason}"
    );
}
