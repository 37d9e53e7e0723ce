//! Fusions of FP8 layers: stored words if blocks allow it, values otherwise.

use serde_json::Value;

use super::ones;
use crate::dtype::Dtype;
use crate::model::{Model, ModelOptions};
use crate::quant::scale_grid::ScaleGrid;
use crate::quant::testing::TestModel;
use crate::view::read_all;

/// q, k and v with this many rows each, K = 256, and scales whose shape `scale` determines.
fn attention(rows: [u64; 3], scale: impl Fn(u64) -> Vec<u64>) -> Model {
    let mut tensors = Vec::new();
    for (part, n) in ["q", "k", "v"].iter().zip(rows) {
        let names = [
            format!("l.{part}_proj.weight"),
            format!("l.{part}_proj.weight_scale_inv"),
        ];
        tensors.extend(ones(&names[0], &[n, 256], &names[1], Dtype::F32, &scale(n)));
    }
    let model = TestModel::safetensors(&tensors, Value::Null);
    Model::new(model.catalog, ModelOptions::default())
}

#[test]
fn whole_blocks_and_rows_fuse_as_stored_and_others_as_values() {
    let blocks = |n: u64| vec![n.div_ceil(128), 2];
    let (weight, scale) = ("l.qkv_proj.weight", "l.qkv_proj.weight_scale_inv");
    // The last part may end in a ragged block.
    let model = attention([256, 128, 130], blocks);
    let (_, fused) = model.find(weight).unwrap();
    assert_eq!(
        (fused.dtype.name(), fused.shape),
        ("F8_E4M3", &[514, 256][..])
    );
    assert_eq!(model.kind(&fused.raw), "fused");
    assert_eq!(*model.find(scale).unwrap().1.shape, [5, 2]);
    // The fused layer decodes like its parts, because the same rules find the same blocks.
    let grid = ScaleGrid::find(&[514, 256], &[5, 2], || None).unwrap();
    assert_eq!(grid.block_cols(), 128);

    let straddles = attention([256, 130, 128], blocks);
    let (id, fused) = straddles.find(weight).unwrap();
    assert_eq!((fused.dtype.name(), fused.shape), ("F32", &[514, 256][..]));
    let remark = straddles.remark(id).unwrap();
    assert!(
        remark.contains("k_proj") && remark.contains("whole block"),
        "{remark}"
    );
    assert!(straddles.find(scale).is_err());

    for (shape, joined) in [(vec![0], vec![514]), (vec![0, 1], vec![514, 1])] {
        let rows = attention([256, 130, 128], |n| {
            shape.iter().map(|&d| if d == 0 { n } else { d }).collect()
        });
        assert_eq!(rows.find(weight).unwrap().1.dtype.name(), "F8_E4M3");
        assert_eq!(*rows.find(scale).unwrap().1.shape, *joined);
    }
    for scalar in [vec![], vec![1], vec![1, 1]] {
        let model = attention([256, 128, 128], |_| scalar.clone());
        let (id, fused) = model.find(weight).unwrap();
        assert_eq!(fused.dtype.name(), "F32");
        assert!(model.find(scale).is_err());
        let f32 = read_all(&*model.f32(id).unwrap().unwrap()).unwrap();
        assert!(f32 == read_all(&*model.raw(id).unwrap()).unwrap());
    }
    let spaced = attention([256, 128, 130], |n| vec![n.div_ceil(128), 1, 2, 1]);
    assert_eq!(spaced.find(weight).unwrap().1.dtype.name(), "F8_E4M3");
    assert_eq!(*spaced.find(scale).unwrap().1.shape, [5, 1, 2, 1]);
    // One per row, one in blocks.
    let mixed = attention(
        [256, 128, 128],
        |n| if n == 256 { vec![n] } else { blocks(n) },
    );
    assert_eq!(mixed.find(weight).unwrap().1.dtype.name(), "F32");
}

#[test]
fn experts_stack_with_their_grids() {
    let mut tensors = Vec::new();
    for e in 0..3 {
        for (part, shape) in [
            ("gate", [128, 256]),
            ("up", [128, 256]),
            ("down", [256, 128]),
        ] {
            let names = [
                format!("m.experts.{e}.{part}_proj.weight"),
                format!("m.experts.{e}.{part}_proj.weight_scale_inv"),
            ];
            let scale = shape.map(|d| d / 128);
            tensors.extend(ones(&names[0], &shape, &names[1], Dtype::F32, &scale));
        }
    }
    let model = TestModel::safetensors(&tensors, Value::Null);
    let model = Model::new(model.catalog, ModelOptions::default());
    let shape = |name: &str| model.find(name).unwrap().1.shape.to_vec();
    assert_eq!(shape("m.experts.gate_up_proj"), [3, 256, 256]);
    assert_eq!(shape("m.experts.gate_up_proj.weight_scale_inv"), [3, 2, 2]);
    assert_eq!(shape("m.experts.down_proj"), [3, 256, 128]);
    assert_eq!(shape("m.experts.down_proj.weight_scale_inv"), [3, 2, 1]);
    let (_, fused) = model.find("m.experts.gate_up_proj").unwrap();
    assert_eq!(fused.dtype.name(), "F8_E4M3");
}

#[test]
fn one_damaged_part_and_there_is_no_fusion() {
    let model = attention([256, 128, 128], |n| {
        vec![n / 128, if n == 256 { 2 } else { 3 }]
    });
    let reason = model.find("l.qkv_proj.weight").err().unwrap().to_string();
    assert!(reason.contains("k_proj"), "{reason}");
    assert!(model.find("l.q_proj.weight").unwrap().1.values.is_some());
}
