//! Tensors that are gathered from a storage: everything that is made of `raw` is made of them, too.

use super::*;
use crate::catalog::Extent;
use crate::preview;
use crate::view::{Gathered, StoredBytes, StridedLayout, Swap, View};

/// A tensor whose first element is at `offset` of the first file.
fn strided(name: &str, dtype: Dtype, shape: &[u64], strides: &[u64], offset: u64) -> Row {
    let store = MemoryStore::new(&[("x.test", FILE)]);
    let source = Arc::new(StoredBytes(Extent {
        file: store.object("x.test").unwrap(),
        offset,
        len: FILE.len() as u64 - offset,
    }));
    let layout = StridedLayout {
        element: dtype.bits() / 8,
        shape: shape.into(),
        strides: strides.into(),
        swap: Swap::Nothing,
    };
    let bytes = RowBytes::View {
        view: Arc::new(Gathered::new(source, layout)),
        files: [0].into(),
        offset: Some(offset),
    };
    Row {
        origin: Some(Box::new(RowOrigin {
            kind: "strided",
            fields: [("storage", json!("7")), ("strides", json!(strides))].into(),
        })),
        ..row(name, dtype, shape, bytes)
    }
}

/// Two columns of four: bytes 1 to 8 of `FILE`.
const TURNED: [u8; 8] = [0, 20, 1, 0, 2, 1, 3, 2];

fn the_model() -> Arc<Model> {
    let extent = RowBytes::Extent { file: 0, offset: 4 };
    Arc::new(model(vec![
        strided("l.gate_proj.weight", Dtype::U8, &[4, 2], &[1, 4], 1),
        row("l.up_proj.weight", Dtype::U8, &[1, 2], extent),
    ]))
}

#[test]
fn every_view_is_of_the_gathered_elements() {
    let m = the_model();
    let (id, _) = m.find("l.gate_proj.weight").unwrap();
    assert_eq!(read_all(&m.raw(id).unwrap()).unwrap(), TURNED);
    let values: Vec<u8> = TURNED
        .iter()
        .flat_map(|&b| f32::from(b).to_le_bytes())
        .collect();
    let f32 = m.f32(id).unwrap().unwrap();
    let mut got = vec![0; 32];
    f32.read_at(0, &mut got).unwrap();
    assert_eq!(got, values);
    let npy = read_all(&m.npy(id).unwrap().unwrap()).unwrap();
    assert!(npy.starts_with(b"\x93NUMPY") && npy.ends_with(&TURNED));
    let picture = preview::Subject::of(&m, id).unwrap();
    assert!(picture.is_some());
    let want = json!({
        "kind": "strided", "file": "x.test", "offset": 1, "storage": "7", "strides": [1, 4],
    });
    assert_eq!(meta(&m, "l.gate_proj.weight")["origin"], want);
}

#[test]
fn it_fuses_and_is_exported() {
    let m = the_model();
    let (id, tensor) = m.find("l.gate_up_proj.weight").unwrap();
    assert_eq!((tensor.shape, m.kind(&tensor.raw)), (&[5, 2][..], "fused"));
    let fused = [&TURNED[..], &[3, 20]].concat();
    assert_eq!(read_all(&m.raw(id).unwrap()).unwrap(), fused);
    for (export, name, want) in [
        (Export::Merged, "l.gate_proj.weight", &TURNED[..]),
        (Export::Fused, "l.gate_up_proj.weight", &fused),
    ] {
        let file = read_all(&*export.view(&m).unwrap()).unwrap();
        let file = safetensors::SafeTensors::deserialize(&file).unwrap();
        assert_eq!(file.tensor(name).unwrap().data(), want);
    }
    let bin = read_all(&*Export::Bin.view(&m).unwrap()).unwrap();
    assert_eq!(bin[..8], TURNED);
}

/// Sizes are told at once, whatever they are; bytes are made when they are read.
#[test]
fn terabytes_of_one_element() {
    let m = Arc::new(model(vec![strided("a", Dtype::F32, &[1 << 40], &[0], 4)]));
    let (id, tensor) = m.find("a").unwrap();
    assert_eq!(tensor.nbytes, 1 << 42);
    let mut got = [0; 9];
    m.raw(id).unwrap().read_at(1 << 41, &mut got).unwrap();
    assert_eq!(got, [3, 20, 0, 1, 3, 20, 0, 1, 3]);
    let export = Export::Merged.view(&m).unwrap();
    assert_eq!(export.len(), 4096 + (1 << 42));
    export.read_at((1 << 42) + 4096 - 9, &mut got).unwrap();
    assert_eq!(got, [1, 3, 20, 0, 1, 3, 20, 0, 1]);
}
