//! Values as narrower floats: files that open although no listing has them, and the checkpoint that a quantized
//! model came from.

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};

use crate::common::sys::getxattr;
use crate::common::{DTYPES, ModelDir, Mounted, T, naive, tensor};

/// binary32 → two bytes, by the `half` crate; NaN as ml_dtypes and the processor write it.
fn narrowed(name: &str, f32s: &[u8]) -> Vec<u8> {
    let values = f32s
        .as_chunks::<4>()
        .0
        .iter()
        .map(|&b| f32::from_le_bytes(b));
    let code = |value: f32| match name {
        "bf16" => bf16::from_f32(value).to_bits(),
        _ => f16::from_f32(value).to_bits(),
    };
    values.flat_map(|value| code(value).to_le_bytes()).collect()
}

/// Whether the same values, all NaN alike.
fn same(name: &str, a: &[u8], b: &[u8]) -> bool {
    let infinity = if name == "bf16" { 0x7f80 } else { 0x7c00 };
    let codes = |bytes: &[u8]| -> Vec<u16> {
        let codes = bytes
            .as_chunks::<2>()
            .0
            .iter()
            .map(|&b| u16::from_le_bytes(b));
        codes
            .map(|code| {
                if code & 0x7fff > infinity {
                    0xffff
                } else {
                    code
                }
            })
            .collect()
    };
    a.len() == b.len() && codes(a) == codes(b)
}

/// Which types hold every value of another: by the bits of their mantissas and exponents.
fn is_exact(name: &str, dtype: Dtype) -> bool {
    let small = dtype.bitsize() <= 8;
    match name {
        "bf16" => small || dtype == Dtype::BF16,
        _ => small && dtype != Dtype::F8_E8M0 || dtype == Dtype::F16,
    }
}

#[test]
fn every_tensor_with_values_has_them_as_bf16_and_f16() {
    let mut all: Vec<T> = DTYPES
        .iter()
        .map(|&d| tensor(&format!("one.{d}"), d, &[3, 5, 8]))
        .collect();
    all.push(tensor("l.q_proj.weight", Dtype::BF16, &[301, 512]));
    all.push(tensor("l.k_proj.weight", Dtype::BF16, &[7, 512]));
    all.push(tensor("l.v_proj.weight", Dtype::BF16, &[70, 512]));
    all.push(tensor("large", Dtype::F32, &[70_001]));
    all.push(tensor("empty", Dtype::F16, &[0, 4]));
    all.push(tensor("scalar", Dtype::F64, &[]));
    let dir = ModelDir::of(&all);
    let m = Mounted::new(dir.path());
    for t in &all {
        let at = format!("tensors/{}", t.name);
        let meta = m.json(&format!("{at}/meta.json"));
        let listed = std::fs::read_dir(m.join(&at)).unwrap();
        let mut listed: Vec<String> = listed
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        listed.sort();
        let Some(f32s) = naive::f32_bytes(t.dtype, &t.data) else {
            assert_eq!(listed, ["meta.json", "raw"]);
            assert!(!m.join(&format!("{at}/bf16")).exists());
            assert_eq!(meta["views"].get("bf16"), None);
            continue;
        };
        assert_eq!(listed, ["f32", "meta.json", "raw"]);
        for (name, own) in [("bf16", Dtype::BF16), ("f16", Dtype::F16)] {
            let path = format!("{at}/{name}");
            let got = m.read(&path);
            match t.dtype == own {
                true => assert!(got == t.data, "{path} is raw itself"),
                false => assert!(same(name, &got, &narrowed(name, &f32s)), "{path}"),
            }
            assert_eq!(m.join(&path).metadata().unwrap().len(), got.len() as u64);
            let view = json!({"dtype": name.to_uppercase(), "shape": t.shape, "nbytes": got.len(), "exact": is_exact(name, t.dtype)});
            assert_eq!(meta["views"][name], view, "{path}");
            let attribute = |key: &str| getxattr(&m.join(&path), key).unwrap();
            assert_eq!(attribute("user.stfs.dtype"), name.to_uppercase().as_bytes());
            assert_eq!(attribute("user.stfs.name"), t.name.as_bytes());
            let shape: Vec<String> = t.shape.iter().map(ToString::to_string).collect();
            assert_eq!(attribute("user.stfs.shape"), shape.join(",").as_bytes());
            assert_eq!(attribute("user.stfs.origin"), b"stored");
        }
    }
    // A fused tensor of BF16 parts is BF16.
    let fused = "tensors/l.qkv_proj.weight";
    assert!(m.read(&format!("{fused}/bf16")) == m.read(&format!("{fused}/raw")));
    let f32s = m.read(&format!("{fused}/f32"));
    assert!(same(
        "f16",
        &m.read(&format!("{fused}/f16")),
        &narrowed("f16", &f32s)
    ));
}

/// FP8 with a scale for each row, beside what every quantized model has.
fn quantized() -> ModelDir {
    let scales: Vec<u8> = (0..6)
        .flat_map(|i| (0.01 * i as f32 + 0.1).to_le_bytes())
        .collect();
    let mut scale = tensor("l.weight_scale", Dtype::F32, &[6, 1]);
    scale.data = scales;
    ModelDir::of(&[
        tensor("l.weight", Dtype::F8_E4M3, &[6, 40]),
        scale,
        tensor("plain", Dtype::F8_E5M2, &[9]),
        tensor("norm", Dtype::BF16, &[40]),
        tensor("half", Dtype::F16, &[40]),
        tensor("router.bias", Dtype::F32, &[5]),
        tensor("double", Dtype::F64, &[2]),
        tensor("ids", Dtype::I64, &[3]),
    ])
}

fn cat(dir: &ModelDir, tensor: &str, view: &str) -> Vec<u8> {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_stfs"));
    let out = command
        .arg("cat")
        .arg(dir.path())
        .args([tensor, "--view", view]);
    let out = out.output().unwrap();
    assert!(out.status.success(), "{out:?}");
    out.stdout
}

#[test]
fn a_dequantized_layer_is_cast_from_its_values() {
    let dir = quantized();
    let m = Mounted::new(dir.path());
    let f32s = m.read("tensors/l.weight/f32");
    let meta = m.json("tensors/l.weight/meta.json");
    for name in ["bf16", "f16"] {
        let got = m.read(&format!("tensors/l.weight/{name}"));
        assert!(same(name, &got, &narrowed(name, &f32s)), "{name}");
        assert!(cat(&dir, "l.weight", name) == got, "stfs cat --view {name}");
        let view =
            json!({"dtype": name.to_uppercase(), "shape": [6, 40], "nbytes": 480, "exact": false});
        assert_eq!(meta["views"][name], view);
    }
}

#[test]
fn the_bf16_checkpoint_has_decoded_weights_as_bf16_and_all_else_as_stored() {
    let dir = quantized();
    let m = Mounted::new(dir.path());
    let exports = std::fs::read_dir(m.join("export")).unwrap();
    let has = exports
        .map(|e| e.unwrap().file_name())
        .any(|n| n == "model-bf16.safetensors");
    assert!(has, "it is listed");
    let bytes = m.read("export/model-bf16.safetensors");
    assert_eq!(
        m.join("export/model-bf16.safetensors")
            .metadata()
            .unwrap()
            .len(),
        bytes.len() as u64
    );
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let names = |bytes: &[u8]| -> Vec<String> {
        let file = SafeTensors::deserialize(bytes).unwrap();
        let mut names: Vec<String> = file.names().into_iter().map(ToString::to_string).collect();
        names.sort();
        names
    };
    assert_eq!(
        names(&bytes),
        names(&m.read("export/model-f32.safetensors"))
    );
    for (name, dtype, view) in [
        ("l.weight", Dtype::BF16, "bf16"),
        ("plain", Dtype::BF16, "bf16"),
        ("norm", Dtype::BF16, "raw"),
        ("half", Dtype::F16, "raw"),
        ("router.bias", Dtype::F32, "raw"),
        ("double", Dtype::F64, "raw"),
        ("ids", Dtype::I64, "raw"),
    ] {
        let tensor = file.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), dtype, "{name}");
        assert!(
            tensor.data() == m.read(&format!("tensors/{name}/{view}")),
            "{name}"
        );
    }
    // So it is a model: its weight is what it was, to the last bit of BF16.
    let copy = ModelDir::new();
    copy.file("model.safetensors", &bytes);
    let again = Mounted::new(copy.path());
    assert!(again.read("tensors/l.weight/raw") == m.read("tensors/l.weight/bf16"));
}

#[test]
fn a_model_of_plain_floats_has_no_bf16_checkpoint() {
    let dir = ModelDir::of(&[
        tensor("a", Dtype::F32, &[4]),
        tensor("b", Dtype::BF16, &[4]),
        tensor("c", Dtype::I8, &[4]),
    ]);
    let m = Mounted::new(dir.path());
    assert!(!m.join("export/model-bf16.safetensors").exists());
    let listed = std::fs::read_dir(m.join("export")).unwrap();
    assert!(
        listed
            .map(|e| e.unwrap().file_name())
            .all(|n| n != "model-bf16.safetensors")
    );
    let why = std::process::Command::new(env!("CARGO_BIN_EXE_stfs"))
        .args(["ls", "--why"])
        .arg(dir.path())
        .output()
        .unwrap();
    assert_eq!(
        String::from_utf8(why.stdout).unwrap(),
        "",
        "that is no surprise"
    );
    let _: Value = m.json("model.json");
}
