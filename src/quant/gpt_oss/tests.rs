use std::sync::Arc;

use proptest::prelude::*;
use serde_json::Value;

use super::kernel::Experts;
use crate::catalog::{Extent, MemoryObject, MemoryStore};
use crate::dtype::Dtype;
use crate::dtype::decode::{F4, F8_E8M0};
use crate::quant::testing::{Stored, TestModel, assert_values, random_bytes, stored};
use crate::quant::{Kernel, Target};
use crate::view::{SharedView, StoredBytes, View};

const X: &str = "model.layers.0.mlp.experts.down_proj";

fn tensors(blocks: &[u64], scales: &[u64], mut seed: u64) -> [Stored; 2] {
    let mut tensor = |suffix: &str, shape: &[u64]| {
        let len = shape.iter().product::<u64>() as usize;
        let bytes = random_bytes(&mut seed, len);
        stored(&format!("{X}{suffix}"), Dtype::U8, shape, bytes)
    };
    [tensor("_blocks", blocks), tensor("_scales", scales)]
}

fn model(tensors: &[Stored]) -> TestModel {
    TestModel::safetensors(tensors, Value::Null)
}

/// X[e, k, n] is row n, column k of expert e's blocks, computed one element at a time.
fn naive([blocks, scales]: &[Stored; 2]) -> Vec<f32> {
    let [e, n, groups, _] = blocks.shape[..] else {
        panic!("blocks have four dimensions");
    };
    let mut out = Vec::new();
    for expert in 0..e {
        for k in 0..32 * groups {
            for row in 0..n {
                let group = (expert * n + row) * groups + k / 32;
                let byte = blocks.bytes[(group * 16 + k % 32 / 2) as usize];
                let code = if k % 2 == 0 { byte & 15 } else { byte >> 4 };
                let scale = F8_E8M0[usize::from(scales.bytes[group as usize])];
                out.push((f64::from(F4[usize::from(code)]) * f64::from(scale)) as f32);
            }
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn values_are_the_formula_transposed(
        e in 1u64..4,
        n in 1u64..90,
        groups in 1u64..5,
        seed: u64,
    ) {
        let tensors = tensors(&[e, n, groups, 16], &[e, n, groups], seed);
        let model = model(&tensors);
        let layer = model.layer(X);
        prop_assert_eq!(&*layer.shape, &[e, 32 * groups, n]);
        assert_values(&*model.view(X), &naive(&tensors), seed);
    }
}

/// More block rows, and more groups, than a tile holds.
#[test]
fn tiles_meet_without_a_seam() {
    for (n, groups) in [(8192 + 77, 2), (8192, 130)] {
        let tensors = tensors(&[1, n, groups, 16], &[1, n, groups], 5);
        assert_values(&*model(&tensors).view(X), &naive(&tensors), 6);
    }
}

#[test]
fn every_scale_of_every_code() {
    let codes: Vec<u8> = (0..8).map(|i| 0x10 + 0x22 * i).collect();
    let mut tensors = tensors(&[1, 256, 1, 16], &[1, 256, 1], 0);
    tensors[0].bytes = codes.repeat(2 * 256);
    tensors[1].bytes = (0..=255).collect();
    let values = model(&tensors).values(X);
    // Row k of X is code k mod 16 under scales 0 to 255.
    assert_eq!(
        values[2 * 256].to_bits(),
        0x0040_0000,
        "1 · 2^-127, a subnormal"
    );
    assert_eq!(values[256].to_bits(), 0x0020_0000, "0.5 · 2^-127");
    assert_eq!(values[8 * 256 + 127].to_bits(), 0x8000_0000, "-0");
    assert_eq!(values[15 * 256 + 128], -12.0);
    assert_eq!(values[4 * 256 + 254], f32::INFINITY, "2 · 2^127");
    assert!((0..32).all(|k| values[k * 256 + 255].is_nan()));
    assert_values(&*model(&tensors).view(X), &naive(&tensors), 1);
}

#[test]
fn it_stands_under_the_parameters_name() {
    let model = model(&tensors(&[2, 6, 3, 16], &[2, 6, 3], 0));
    let recognized = model.recognized(X).unwrap();
    assert_eq!(recognized.target, Target::Named(X.into()));
    assert_eq!(
        (recognized.method, recognized.parameters),
        ("mxfp4", Some(2 * 6 * 96))
    );
    let layer = model.layer(X);
    assert_eq!(
        (layer.bits, layer.group_size, layer.exact),
        (4, Some(32), true)
    );
    assert!(layer.components.is_empty());
}

#[test]
fn damage_is_a_reason() {
    let refused = |tensors: &[Stored], parts: &[&str]| {
        let reason = model(tensors).reason(X);
        for part in parts {
            assert!(reason.contains(part), "{part:?} is not in: {reason}");
        }
    };
    let good = || tensors(&[2, 6, 3, 16], &[2, 6, 3], 0);
    refused(&good()[..1], &["_scales is missing"]);
    let partial = TestModel::partial(&good()[..1], &format!("{X}_scales"), Value::Null);
    assert!(
        partial
            .reason(X)
            .contains("some shards of the model are missing")
    );
    let mut wide = good();
    wide[1].dtype = Dtype::I8;
    refused(&wide, &["I8"]);
    for (blocks, scales) in [
        (&[2, 6, 3, 16][..], &[2, 3, 6][..]),
        (&[2, 6, 3, 16], &[2, 6, 3, 1]),
        (&[2, 6, 3, 32], &[2, 6, 3]),
        (&[6, 3, 16], &[6, 3]),
    ] {
        refused(
            &tensors(blocks, scales, 0),
            &[&format!("{blocks:?}"), "need ["],
        );
    }
}

#[test]
fn other_bytes_stay_what_they_are() {
    let tensors = [
        stored("num_blocks", Dtype::U8, &[16], vec![0; 16]),
        stored("_blocks", Dtype::U8, &[1, 1, 1, 16], vec![0; 16]),
        stored(
            "a.mlp1_weight.blocks",
            Dtype::U8,
            &[1, 1, 1, 16],
            vec![0; 16],
        ),
        stored("a.mlp1_weight.scales", Dtype::U8, &[1, 1, 1], vec![0]),
        stored("b_blocks", Dtype::I8, &[1, 1, 1, 16], vec![0; 16]),
        stored("b_scales", Dtype::U8, &[1, 1, 1], vec![0]),
    ];
    let model = model(&tensors);
    assert!(crate::quant::recognize(&model.catalog).is_empty());
}

#[test]
fn no_experts_are_no_values() {
    for shape in [[0, 6, 3], [2, 0, 3], [2, 6, 0]] {
        let [e, n, groups] = shape;
        let model = model(&tensors(&[e, n, groups, 16], &shape, 0));
        assert!(model.values(X).is_empty());
        assert_eq!(*model.layer(X).shape, [e, 32 * groups, n]);
    }
}

/// Rows of so many groups that a tile takes a strip of each: the strips are announced together, before
/// the first is read.
#[test]
fn strips_of_long_rows_are_announced_and_are_the_formula() {
    let (n, groups) = (512u64, 1025u64);
    let mut seed = 5;
    let [blocks, scales] =
        [16, 1].map(|unit| random_bytes(&mut seed, (n * groups * unit) as usize));
    let store = MemoryStore::new(&[("blocks", &blocks), ("scales", &scales)]);
    let object = |name: &str| store.object(name).unwrap();
    let part = |file: Arc<MemoryObject>, len: usize| -> SharedView {
        let len = len as u64;
        Arc::new(StoredBytes(Extent {
            file,
            offset: 0,
            len,
        }))
    };
    let parts = [
        part(object("blocks"), blocks.len()),
        part(object("scales"), scales.len()),
    ];
    let view = Experts::new(1, n, groups).view(&parts).unwrap();
    // In the second tile of 512 groups.
    let (group, line) = (700, 9);
    let mut row = vec![0; 4 * n as usize];
    view.read_at(4 * (group * 32 + line) * n, &mut row).unwrap();
    for (value, column) in row.chunks_exact(4).zip(0..n) {
        let at = (column * groups + group) as usize;
        let code = blocks[16 * at + line as usize / 2] >> 4;
        let scale = F8_E8M0[usize::from(scales[at])];
        let want = (f64::from(F4[usize::from(code)]) * f64::from(scale)) as f32;
        let got = f32::from_le_bytes(value.try_into().unwrap());
        assert!(got == want || got.is_nan() && want.is_nan(), "{column}");
    }
    for (name, unit) in [("blocks", 16), ("scales", 1)] {
        let announced = std::mem::take(&mut *object(name).announced.lock().unwrap());
        let strip = |row: u64| (row * groups + 512) * unit..(row * groups + 1024) * unit;
        assert!(announced.into_iter().eq((0..n).map(strip)), "{name}");
    }
}
