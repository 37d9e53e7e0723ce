//! Compares `export/` with the safetensors library and with the model's own stored bytes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use proptest::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use stfs::catalog::OpenOptions;
use stfs::export::Export;
use stfs::model::{Model, ModelOptions};
use stfs::view::{View, read_all};

type Tensors = BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>;

fn bytes(n: usize, seed: u8) -> Vec<u8> {
    (0..n).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect()
}

/// Two layers: one whose q, k and v all have biases, one where only q has; experts; odd sizes.
fn tensors() -> Tensors {
    let mut t = Tensors::new();
    let mut add = |name: &str, dtype: Dtype, shape: &[usize]| {
        let n = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let seed = name.len() as u8;
        t.insert(name.into(), (dtype, shape.to_vec(), bytes(n, seed)));
    };
    for layer in 0..2 {
        for part in ["q_proj", "k_proj", "v_proj"] {
            add(&format!("l.{layer}.{part}.weight"), Dtype::BF16, &[8, 16]);
            if layer == 0 || part == "q_proj" {
                add(&format!("l.{layer}.{part}.bias"), Dtype::BF16, &[8]);
            }
        }
    }
    for e in 0..3 {
        for (part, shape) in [
            ("gate_proj", [4, 8]),
            ("up_proj", [4, 8]),
            ("down_proj", [8, 4]),
        ] {
            add(&format!("m.experts.{e}.{part}.weight"), Dtype::F16, &shape);
        }
    }
    add("ids", Dtype::I64, &[3]);
    add("odd", Dtype::U8, &[7]);
    add("empty", Dtype::F32, &[0, 4]);
    add("scalar", Dtype::F64, &[]);
    t
}

fn write(path: &Path, tensors: &Tensors, metadata: &[(&str, &str)]) {
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        (
            name.clone(),
            TensorView::new(*dtype, shape.clone(), data).unwrap(),
        )
    });
    let metadata = metadata
        .iter()
        .map(|(k, v)| (k.to_string(), v.to_string()))
        .collect();
    serialize_to_file(views, Some(metadata), path).unwrap();
}

/// The model in two shards, with an index.
fn sharded(dir: &Path) -> Arc<Model> {
    let all = tensors();
    let (mut a, mut b) = (Tensors::new(), Tensors::new());
    for (i, (name, t)) in all.into_iter().enumerate() {
        let half = if i % 2 == 0 { &mut a } else { &mut b };
        half.insert(name, t);
    }
    let mut map = serde_json::Map::new();
    for (file, half) in [("m-1.safetensors", &a), ("m-2.safetensors", &b)] {
        write(&dir.join(file), half, &[("format", "pt"), ("shard", file)]);
        for name in half.keys() {
            map.insert(name.clone(), file.into());
        }
    }
    let index = serde_json::json!({"metadata": {}, "weight_map": map});
    std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    open(dir)
}

fn open(path: &Path) -> Arc<Model> {
    Arc::new(Model::open(path, OpenOptions::default(), ModelOptions::default()).unwrap())
}

fn data_is_aligned(file: &[u8]) {
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    assert_eq!((header + 8) % 4096, 0);
}

#[test]
fn merged_holds_every_stored_tensor_and_the_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let file = read_all(&*Export::Merged.view(&sharded(dir.path())).unwrap()).unwrap();
    data_is_aligned(&file);
    let got = SafeTensors::deserialize(&file).unwrap();
    let want = tensors();
    assert_eq!(got.len(), want.len());
    for (name, (dtype, shape, data)) in &want {
        let t = got.tensor(name).unwrap();
        assert_eq!(
            (t.dtype(), t.shape(), t.data()),
            (*dtype, &shape[..], &data[..]),
            "{name}"
        );
    }
    // Tensors of a multiple of 64 bytes are aligned to 64, ahead of the others.
    for (name, t) in got.tensors() {
        if t.data().len() % 64 == 0 {
            let at = t.data().as_ptr() as usize - file.as_ptr() as usize;
            assert_eq!(at % 64, 0, "{name}");
        }
    }
    let (_, metadata) = SafeTensors::read_metadata(&file).unwrap();
    let metadata = metadata.metadata().clone().unwrap();
    assert_eq!(metadata["format"], "pt");
    assert_eq!(metadata["shard"], "m-1.safetensors");
}

#[test]
fn floats_are_widened_and_integers_kept() {
    let dir = tempfile::tempdir().unwrap();
    let file = read_all(&*Export::Floats.view(&sharded(dir.path())).unwrap()).unwrap();
    let got = SafeTensors::deserialize(&file).unwrap();
    assert_eq!(got.len(), tensors().len());
    assert_eq!(got.tensor("ids").unwrap().dtype(), Dtype::I64);
    assert_eq!(got.tensor("odd").unwrap().dtype(), Dtype::U8);
    let w = got.tensor("l.0.q_proj.weight").unwrap();
    let stored = &tensors()["l.0.q_proj.weight"].2;
    let widened: Vec<u8> = stored.chunks(2).flat_map(|b| [0, 0, b[0], b[1]]).collect();
    assert_eq!((w.dtype(), w.data()), (Dtype::F32, &widened[..]));
}

/// A float model has no scales of inputs or of the KV cache, whichever module they belong to. A
/// layer that cannot be decoded is kept as it is stored.
#[test]
fn floats_are_without_the_scales_of_activations() {
    let dir = tempfile::tempdir().unwrap();
    let mut t = Tensors::new();
    let mut add = |name: &str, dtype: Dtype, shape: &[usize]| {
        let n = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        t.insert(name.into(), (dtype, shape.to_vec(), bytes(n, 0)));
    };
    add("a.q_proj.weight", Dtype::F8_E4M3, &[8, 8]);
    add("a.q_proj.weight_scale", Dtype::F32, &[1]);
    add("a.q_proj.input_scale_ub", Dtype::F32, &[1]);
    add("a.k_scale", Dtype::BF16, &[1]);
    add("a.v_scale", Dtype::BF16, &[]);
    add("a.damaged.weight", Dtype::F8_E4M3, &[8, 8]);
    add("a.damaged.weight_scale", Dtype::F32, &[3, 5]);
    add("a.damaged.input_scale", Dtype::F32, &[1]);
    write(&dir.path().join("model.safetensors"), &t, &[]);
    let config = serde_json::json!({"quantization_config": {"quant_method": "fp8"}});
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let model = open(dir.path());
    let file = read_all(&*Export::Floats.view(&model).unwrap()).unwrap();
    let got = SafeTensors::deserialize(&file).unwrap();
    let mut names = got.names();
    names.sort_unstable();
    let damaged = ["input_scale", "weight", "weight_scale"].map(|n| format!("a.damaged.{n}"));
    assert_eq!(names, [&damaged[..], &["a.q_proj.weight".into()]].concat());
    let parameters: u64 = (0..t.len() as u32).map(|id| model.parameters(id)).sum();
    assert_eq!(parameters, 2 * 64);
}

/// In a safetensors file that name is reserved.
#[test]
fn a_tensor_named_like_the_metadata_is_in_the_manifest_alone() {
    let dir = tempfile::tempdir().unwrap();
    let entry = serde_json::json!({"offset": 0, "size": 4, "shape": [1], "dtype": "F32"});
    let manifest = serde_json::json!({"tensors": {"__metadata__": entry, "a": entry}, "k": "v"});
    std::fs::write(dir.path().join("w.json"), manifest.to_string()).unwrap();
    std::fs::write(dir.path().join("w.bin"), [1; 4]).unwrap();
    let model = open(dir.path());
    for export in [Export::Merged, Export::Floats, Export::Fused] {
        let file = read_all(&*export.view(&model).unwrap()).unwrap();
        let got = SafeTensors::deserialize(&file).unwrap();
        assert_eq!(got.names(), ["a"], "{}", export.name());
        let (_, metadata) = SafeTensors::read_metadata(&file).unwrap();
        assert_eq!(metadata.metadata().clone().unwrap()["k"], "v");
    }
    let json = read_all(&*Export::Manifest.view(&model).unwrap()).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert!(json["tensors"].get("__metadata__").is_some(), "{json}");
}

#[test]
fn fused_takes_the_outermost_join_and_leaves_half_biased_layers() {
    let dir = tempfile::tempdir().unwrap();
    let file = read_all(&*Export::Fused.view(&sharded(dir.path())).unwrap()).unwrap();
    let got = SafeTensors::deserialize(&file).unwrap();
    let mut names = got.names();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "empty",
            "ids",
            "l.0.qkv_proj.bias",
            "l.0.qkv_proj.weight",
            "l.1.k_proj.weight",
            "l.1.q_proj.bias",
            "l.1.q_proj.weight",
            "l.1.v_proj.weight",
            "m.experts.down_proj",
            "m.experts.gate_up_proj",
            "odd",
            "scalar",
        ]
    );
    let t = tensors();
    let joined: Vec<u8> = ["q_proj", "k_proj", "v_proj"]
        .iter()
        .flat_map(|p| t[&format!("l.0.{p}.weight")].2.clone())
        .collect();
    let qkv = got.tensor("l.0.qkv_proj.weight").unwrap();
    assert_eq!((qkv.shape(), qkv.data()), (&[24, 16][..], &joined[..]));
    assert_eq!(
        got.tensor("m.experts.gate_up_proj").unwrap().shape(),
        [3, 8, 8]
    );
    assert_eq!(
        got.tensor("m.experts.down_proj").unwrap().shape(),
        [3, 8, 4]
    );
}

#[test]
fn bin_and_manifest_are_a_model_again() {
    let dir = tempfile::tempdir().unwrap();
    let model = sharded(dir.path());
    let out = tempfile::tempdir().unwrap();
    for export in [Export::Bin, Export::Manifest] {
        let bytes = read_all(&*export.view(&model).unwrap()).unwrap();
        std::fs::write(out.path().join(export.name()), bytes).unwrap();
    }
    let again = open(out.path());
    assert_eq!(again.catalog.tensors.len(), tensors().len());
    for (name, (_, shape, data)) in tensors() {
        let (id, t) = again.find(&name).unwrap();
        let stored = again.catalog.extent(id).unwrap();
        assert_eq!(stored.offset % 64, 0, "{name}");
        assert!(t.shape.iter().map(|&d| d as usize).eq(shape), "{name}");
        assert_eq!(read_all(&*again.raw(id).unwrap()).unwrap(), data, "{name}");
    }
}

#[test]
fn the_same_model_gives_the_same_bytes() {
    let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (a, b) = (sharded(a.path()), sharded(b.path()));
    for export in Export::ALL.into_iter().filter(|e| e.exists(&a).is_ok()) {
        let [x, y] = [&a, &b].map(|m| read_all(&*export.view(m).unwrap()).unwrap());
        assert_eq!(x, y, "{}", export.name());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any range of an export equals the same range of the whole.
    #[test]
    fn any_range_is_served(export in 0usize..5, at in 0.0..1.0f64, len in prop::sample::select(vec![1usize, 7, 64, 4096, 70_000])) {
        let dir = tempfile::tempdir().unwrap();
        let view = Export::ALL[export].view(&sharded(dir.path())).unwrap();
        let whole = read_all(&*view).unwrap();
        let start = (at * whole.len() as f64) as usize;
        let n = len.min(whole.len() - start);
        let mut got = vec![0xAA; n];
        view.read_at(start as u64, &mut got).unwrap();
        prop_assert_eq!(&got[..], &whole[start..start + n]);
        if let Some(piece) = view.piece(start as u64, n) {
            let mut file = tempfile::tempfile().unwrap();
            piece.write_to(&file, "the test's file").unwrap();
            let mut got = Vec::new();
            std::io::Seek::rewind(&mut file).unwrap();
            std::io::Read::read_to_end(&mut file, &mut got).unwrap();
            prop_assert_eq!(&got[..], &whole[start..start + n]);
        }
    }
}
