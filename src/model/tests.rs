//! Tensors of kinds that no container reads yet: block types, and bytes that are any view.

use std::ffi::OsStr;
use std::sync::Arc;

use serde_json::{Value, json};

use super::recipe::testing::of_bytes as row;
use super::{Model, ModelOptions};
use crate::catalog::{Catalog, MemoryStore, Row, RowBytes, RowOrigin, Store};
use crate::dtype::{Block, Dtype, ElementType};
use crate::export::{Export, float_model};
use crate::layout::document;
use crate::meta::ModelSummary;
use crate::view::{Bytes, read_all};

mod exports;
mod ggml_names;
mod strided;

/// Four values of one byte each, after a byte that is added to them.
static BLOCK: Block = Block {
    name: "Q8_TEST",
    elements: 4,
    bytes: 5,
    exact: true,
    abi: 300,
    decode: Some(|bytes, out| {
        for (block, values) in bytes.chunks_exact(5).zip(out.chunks_exact_mut(4)) {
            for (value, &code) in values.iter_mut().zip(&block[1..]) {
                *value = f32::from(block[0]) + f32::from(code);
            }
        }
    }),
};

/// Values that cannot be decoded.
static SCRATCH: Block = Block {
    name: "Q8_SCRATCH",
    elements: 4,
    bytes: 5,
    exact: false,
    abi: 301,
    decode: None,
};

const FILE: &[u8] =
    b"\x0a\x00\x01\x02\x03\x14\x00\x01\x02\x03\x1e\x00\x01\x02\x03\x28\x00\x01\x02\x03";

fn model(rows: Vec<Row>) -> Model {
    Model::new(catalog(rows), ModelOptions::default())
}

fn catalog(rows: Vec<Row>) -> Catalog {
    let store = MemoryStore::new(&[("x.test", FILE), ("y.test", FILE)]);
    let source = store.source(None);
    let open = |name| store.open(OsStr::new(name)).unwrap();
    let files = vec![open("x.test"), open("y.test")];
    Catalog::of_rows(&source, files, rows).unwrap()
}

fn blocks(name: &str, shape: &[u64], offset: u64) -> Row {
    let extent = RowBytes::Extent { file: 0, offset };
    row(name, ElementType::Block(&BLOCK), shape, extent)
}

fn of(name: &str, dtype: impl Into<ElementType>, shape: &[u64]) -> Row {
    let extent = RowBytes::Extent { file: 0, offset: 0 };
    row(name, dtype, shape, extent)
}

fn values(model: &Model, name: &str) -> Vec<f32> {
    let (id, _) = model.find(name).unwrap();
    let bytes = read_all(&*model.f32(id).unwrap().unwrap()).unwrap();
    bytemuck::pod_collect_to_vec(&bytes)
}

fn meta(model: &Model, name: &str) -> Value {
    let (id, _) = model.find(name).unwrap();
    serde_json::from_slice(&document(model, id)).unwrap()
}

#[test]
fn blocks_have_values_and_join_as_they_are() {
    let m = model(vec![
        blocks("l.q_proj.weight", &[1, 4], 0),
        blocks("l.k_proj.weight", &[1, 4], 5),
        blocks("l.v_proj.weight", &[2, 4], 10),
    ]);
    assert_eq!(values(&m, "l.k_proj.weight"), [20.0, 21.0, 22.0, 23.0]);
    let (id, fused) = m.find("l.qkv_proj.weight").unwrap();
    assert_eq!((fused.dtype.name(), fused.shape), ("Q8_TEST", &[4, 4][..]));
    assert_eq!(read_all(&*m.raw(id).unwrap()).unwrap(), FILE);
    let want: Vec<f32> = (1..5)
        .flat_map(|b| (0..4).map(move |i| (10 * b + i) as f32))
        .collect();
    assert_eq!(values(&m, "l.qkv_proj.weight"), want);
    // Any range, also one that begins and ends inside a block.
    let view = m.f32(id).unwrap().unwrap();
    for (from, to) in [(1, 3), (3, 9), (4, 12), (0, 16), (15, 16)] {
        let mut got = vec![0f32; to - from];
        view.read_at(4 * from as u64, bytemuck::cast_slice_mut(&mut got))
            .unwrap();
        assert_eq!(got, want[from..to]);
    }
}

#[test]
fn what_is_said_of_blocks_counts_values() {
    let m = model(vec![blocks("w", &[2, 4], 0), blocks("v", &[1, 4], 10)]);
    let meta = meta(&m, "w");
    assert_eq!(meta["dtype"], "Q8_TEST");
    assert_eq!((&meta["numel"], &meta["nbytes"]), (&json!(8), &json!(10)));
    let f32 = json!({"dtype": "F32", "shape": [2, 4], "nbytes": 32, "exact": true});
    assert_eq!(meta["views"]["f32"], f32);
    assert_eq!(meta["views"]["npy"]["descr"], "<f4");
    assert_eq!(ModelSummary::of(&m).parameters, 12);
    let floats: Vec<bool> = float_model(&m)
        .into_iter()
        .map(|(_, values)| values)
        .collect();
    assert_eq!(floats, [true, true]);
}

#[test]
fn rows_that_are_not_whole_blocks_do_not_join() {
    let whole = |name| blocks(name, &[4], 0);
    let m = model(vec![
        whole("l.q_proj.bias"),
        whole("l.k_proj.bias"),
        whole("l.v_proj.bias"),
    ]);
    assert_eq!(m.find("l.qkv_proj.bias").unwrap().1.shape, [12]);
    // A row of four values is a whole block, a row of two is not.
    let block = ElementType::Block(&BLOCK);
    assert!(block.has_whole_rows(&[2, 4], 1) && !block.has_whole_rows(&[4, 2], 1));
}

#[test]
fn a_tensor_that_is_any_view_fuses_and_says_what_it_is() {
    let strided = |name: &str, bytes: &[u8]| Row {
        origin: Some(Box::new(RowOrigin {
            kind: "strided",
            fields: [("storage", json!("0")), ("strides", json!([1, 2]))].into(),
        })),
        ..row(
            name,
            Dtype::U8,
            &[2, 2],
            RowBytes::View {
                view: Arc::new(Bytes(bytes.into())),
                files: [0].into(),
                offset: Some(2),
            },
        )
    };
    let extent = RowBytes::Extent { file: 0, offset: 1 };
    let m = model(vec![
        strided("l.gate_proj.weight", b"abcd"),
        row("l.up_proj.weight", Dtype::U8, &[2, 2], extent),
    ]);
    assert_eq!(
        meta(&m, "l.gate_proj.weight")["origin"],
        json!({"kind": "strided", "file": "x.test", "offset": 2, "storage": "0", "strides": [1, 2]})
    );
    let index: serde_json::Value = serde_json::from_slice(&crate::meta::index_json(&m)).unwrap();
    let entry = &index["l.gate_proj.weight"];
    assert_eq!(
        (&entry["origin"], &entry["file"], &entry["offset"]),
        (&json!("strided"), &json!("x.test"), &json!(2))
    );
    let (id, tensor) = m.find("l.gate_up_proj.weight").unwrap();
    assert_eq!(m.kind(&tensor.raw), "fused");
    assert_eq!(
        read_all(&*m.raw(id).unwrap()).unwrap(),
        b"abcd\x00\x01\x02\x03"
    );
    assert_eq!(m.files_of(&tensor.raw), [0]);
    assert_eq!(m.stored_bytes(&tensor.raw), 8);
    let export = Export::Merged.view(&Arc::new(m)).unwrap();
    let bytes = read_all(&*export).unwrap();
    assert!(bytes.ends_with(b"abcd\x00\x01\x02\x03"));
}

/// A GPTQ layer of 32 inputs and 32 outputs, its words in file 0 and the rest in file 1.
fn gptq(module: &str) -> Vec<Row> {
    let part = |last: &str, dtype: Dtype, shape: &[u64], file| {
        let extent = RowBytes::Extent { file, offset: 0 };
        row(&format!("{module}.{last}"), dtype, shape, extent)
    };
    vec![
        part("qweight", Dtype::I32, &[4, 32], 0),
        part("qzeros", Dtype::I32, &[1, 4], 1),
        part("scales", Dtype::F16, &[1, 32], 1),
        part("g_idx", Dtype::I32, &[32], 1),
    ]
}

#[test]
fn joined_words_have_the_permissions_of_the_whole_layers() {
    let m = model(["l.q_proj", "l.k_proj", "l.v_proj"].map(gptq).concat());
    for name in [
        "l.q_proj.qweight",
        "l.qkv_proj.qweight",
        "l.qkv_proj.weight",
    ] {
        let (id, _) = m.find(name).unwrap();
        assert_eq!(m.source_files(id), [0, 1], "{name}");
    }
    let (_, words) = m.find("l.qkv_proj.qweight").unwrap();
    assert_eq!(m.files_of(&words.raw), [0]);
}

#[test]
fn an_expert_of_one_part_has_no_range() {
    let experts = ["e.experts.0.down_proj", "e.experts.1.down_proj"];
    let m = model(experts.map(gptq).concat());
    for last in ["qweight", "g_idx"] {
        let origin = &meta(&m, &format!("e.experts.down_proj.{last}"))["origin"];
        let part = |e: usize| json!({"name": format!("{}.{last}", experts[e]), "index": e});
        assert_eq!(origin["parts"], json!([part(0), part(1)]));
    }
    let m = model(["l.q_proj", "l.k_proj", "l.v_proj"].map(gptq).concat());
    let origin = &meta(&m, "l.qkv_proj.g_idx")["origin"];
    assert_eq!(
        (&origin["kind"], &origin["axis"]),
        (&json!("fused"), &json!(0))
    );
    assert_eq!(
        origin["parts"][2],
        json!({"name": "l.v_proj.g_idx", "range": [0, 32]})
    );
}
