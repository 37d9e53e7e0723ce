//! bin + manifest: gaps, overlaps, bits, shapes, strange dtypes.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::{ModelDir, Mounted, Ran, naive, noise, stfs};

fn pair(tensors: Value, config: Value, bin: &[u8]) -> ModelDir {
    let dir = ModelDir::new();
    dir.file("model_weights.bin", bin);
    let manifest = json!({"tensors": tensors, "config": config, "model": "x"});
    dir.json("model_weights.json", &manifest);
    dir
}

fn entry(offset: u64, size: u64, shape: &[u64], dtype: &str) -> Value {
    json!({"offset": offset, "size": size, "shape": shape, "dtype": dtype})
}

#[test]
fn spans_may_leave_gaps_and_overlap() {
    let bin = noise(1, 1000);
    let dir = pair(
        json!({
            "a": entry(64, 16, &[2, 4], "BF16"),
            "b": entry(128, 12, &[3], "F32"),
            "inside.a": entry(66, 4, &[2], "F16"),
            "all": entry(0, 1000, &[1000], "U8"),
            "empty": entry(1000, 0, &[0, 7], "F32"),
            "strange": entry(3, 5, &[17], "Q5_K"),
            "half": entry(900, 3, &[2, 3], "F4"),
        }),
        json!({}),
        &bin,
    );
    let m = Mounted::new(dir.path());
    assert_eq!(m.read("tensors/a/raw"), bin[64..80]);
    assert_eq!(m.read("tensors/inside.a/raw"), bin[66..70]);
    assert_eq!(m.read("tensors/all/raw"), bin);
    assert_eq!(m.read("tensors/empty/raw"), b"");
    let f4 = naive::f32_bytes(safetensors::Dtype::F4, &bin[900..903]).unwrap();
    assert_eq!(m.read("tensors/half/f32"), f4);
    // An unknown dtype has its bytes, and no values.
    assert_eq!(m.read("tensors/strange/raw"), bin[3..8]);
    assert_eq!(m.list("tensors/strange"), ["raw", "meta.json"]);
    assert!(!m.join("npy/strange.npy").exists());
    let meta = m.json("tensors/strange/meta.json");
    assert_eq!(
        (&meta["dtype"], &meta["shape"]),
        (&json!("Q5_K"), &json!([17]))
    );
    let want = json!({"kind": "stored", "file": "model_weights.bin", "offset": 3});
    assert_eq!(meta["origin"], want);
    let model = m.json("model.json");
    assert_eq!(model["format"], "manifest");
    assert_eq!(
        model["files"],
        json!([{"name": "model_weights.bin", "bytes": 1000}])
    );
    assert_eq!(m.list("files"), Vec::<String>::new());
}

#[test]
fn u32_may_give_the_logical_shape() {
    let bin = noise(2, 4096);
    let with_bits = |bits: u64, e: Value| {
        let mut e = e;
        e["bits"] = bits.into();
        e
    };
    let dir = pair(
        json!({
            "packed": entry(0, 64, &[2, 8], "U32"),
            "logical": entry(0, 64, &[2, 64], "U32"),
            "eight": with_bits(8, entry(0, 64, &[2, 32], "U32")),
            "three": with_bits(3, entry(0, 24, &[2, 32], "U32")),
            "plain": with_bits(0, entry(0, 64, &[2, 8], "U32")),
        }),
        json!({"default_bits": 4, "default_group_size": 64}),
        &bin,
    );
    let m = Mounted::new(dir.path());
    for (name, shape) in [
        ("packed", [2, 8]),
        ("logical", [2, 8]),
        ("eight", [2, 8]),
        ("three", [2, 3]),
        ("plain", [2, 8]),
    ] {
        let meta = m.json(&format!("tensors/{name}/meta.json"));
        assert_eq!(meta["shape"], json!(shape), "{name}");
        assert_eq!(m.read(&format!("tensors/{name}/raw")), bin[..shape[1] * 8]);
    }
}

#[test]
fn the_default_is_four_bits() {
    let bin = noise(3, 64);
    let dir = pair(json!({"w": entry(0, 64, &[2, 64], "U32")}), json!({}), &bin);
    let m = Mounted::new(&dir.join("model_weights.bin"));
    assert_eq!(m.json("tensors/w/meta.json")["shape"], json!([2, 8]));
    let dir = pair(
        json!({"w": entry(0, 64, &[2, 32], "U32")}),
        json!({"default_bits": 8}),
        &bin,
    );
    let m = Mounted::new(&dir.join("model_weights.json"));
    assert_eq!(m.json("tensors/w/meta.json")["shape"], json!([2, 8]));
}

#[test]
fn what_does_not_fit_is_refused_by_tensor_and_numbers() {
    let ls = |t: Value| -> Ran {
        let dir = pair(
            json!({"a": entry(0, 4, &[1], "F32"), "bad.one": t}),
            json!({}),
            &[0; 100],
        );
        stfs([Path::new("ls"), dir.path()])
    };
    let without = |key: &str| {
        let mut e = entry(0, 4, &[1], "F32");
        e.as_object_mut().unwrap().remove(key);
        e
    };
    for (t, words) in [
        (entry(97, 4, &[1], "F32"), &["101", "100"][..]),
        (
            entry(u64::MAX, 4, &[1], "F32"),
            &["18446744073709551615", "overflow"],
        ),
        (entry(0, 8, &[3], "F32"), &["12", "8"]),
        (entry(0, 64, &[2, 65], "U32"), &["520", "64"]),
        (entry(0, 8, &[u64::MAX, 2], "F32"), &["overflow"]),
        (
            entry(0, 8, &[1 << 62], "F32"),
            &["F32", "4611686018427387904"],
        ),
        (entry(0, 1, &[3], "F4"), &["whole number of bytes"]),
        (
            json!({"offset": -1, "size": 4, "shape": [1], "dtype": "F32"}),
            &["offset", "-1"],
        ),
        (
            json!({"offset": 0, "size": 4.5, "shape": [1], "dtype": "F32"}),
            &["size", "4.5"],
        ),
        (
            json!({"offset": 0, "size": 4, "shape": "x", "dtype": "F32"}),
            &["shape"],
        ),
        (
            json!({"offset": 0, "size": 4, "shape": [-1], "dtype": "F32"}),
            &["shape"],
        ),
        (
            json!({"offset": 0, "size": 4, "shape": [1], "dtype": 7}),
            &["dtype"],
        ),
        (json!([1, 2]), &["offset"]),
        (without("offset"), &["no offset"]),
        (without("size"), &["no size"]),
        (without("shape"), &["shape"]),
        (without("dtype"), &["no dtype"]),
    ] {
        let line = ls(t).fails(words);
        assert!(
            line.contains("model_weights.json") && line.contains("bad.one"),
            "{line}"
        );
    }
}

#[test]
fn a_pair_that_is_none_is_refused_by_name() {
    let dir = ModelDir::new();
    dir.file("x.bin", [0; 8]);
    stfs([Path::new("ls"), dir.path()]).fails(&["x.bin", "no manifest"]);
    stfs([Path::new("ls"), &dir.join("x.bin")]).fails(&["x.bin", "x.json"]);
    dir.json("x.json", &json!({"weights": {}}));
    stfs([Path::new("ls"), &dir.join("x.json")]).fails(&["x.json", "tensors"]);
    dir.json("y.json", &json!({"tensors": {}}));
    stfs([Path::new("ls"), &dir.join("y.json")]).fails(&["y.json", "y.bin", "missing"]);
    dir.json("x.json", &json!({"tensors": {}}));
    dir.file("z.bin", [0; 8]);
    dir.json("z.json", &json!({"tensors": {}}));
    stfs([Path::new("ls"), dir.path()]).fails(&["x.json", "z.json", "by its path"]);
    stfs([Path::new("ls"), &dir.join("x.json")]).ok();
}
