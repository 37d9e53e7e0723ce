//! What is unusual but allowed, and what it must not be taken for.

use stfs::catalog::OpenOptions;
use stfs::model::{Model, ModelOptions};

use super::{opened, problems_of};
use crate::common::{Dir, open};
use crate::gguf_file::{F32, Gguf, I8, Q4_0, Q4_K, Q8_0, Tensor, V, counting, s};

#[test]
fn a_sound_file_opens_and_has_no_problems() {
    let file = Gguf::small()
        .key("general.name", s("Tiny"))
        .tensor("q", &[64, 3, 2], Q4_0, vec![1; 6 * 36])
        .tensor("k", &[256], Q4_K, vec![2; 144])
        .tensor("scalar", &[], F32, vec![3; 4])
        .tensor("none", &[32, 0], Q8_0, vec![]);
    for version in [2, 3] {
        let file = Gguf {
            version,
            ..file.clone()
        };
        assert_eq!(problems_of(&file), []);
        let catalog = opened(&file.bytes());
        assert_eq!(catalog.format, "gguf");
        let q = catalog.find("q").unwrap();
        let tensor = catalog.tensors.get(q);
        assert_eq!((tensor.shape, tensor.nbytes), (&[2, 3, 64][..], 216));
        assert_eq!(tensor.dtype.name(), "Q4_0");
        let extent = catalog.extent(q).unwrap();
        assert_eq!(extent.offset, file.data_start() + 128);
        let scalar = catalog.tensors.get(catalog.find("scalar").unwrap());
        assert!(scalar.shape.is_empty());
        let none = catalog.tensors.get(catalog.find("none").unwrap());
        assert_eq!((none.shape, none.nbytes), (&[0, 32][..], 0));
        assert_eq!(catalog.metadata["general.name"], "Tiny");
    }
}

/// What the format allows, although llama.cpp does not.
#[test]
fn holes_and_any_order_are_served() {
    let t = |name, n, at| Tensor {
        offset: Some(at),
        ..counting(name, n, 1.0)
    };
    let mut file = Gguf::new();
    file.tensors = vec![t("a", 8, 2048), t("b", 8, 0), t("c", 8, 32), t("d", 8, 128)];
    assert_eq!(opened(&file.bytes()).tensors.len(), 4);
    let says = |name: &str, at: u64, expected: u64| {
        let why = format!("tensor '{name}' at {at}, expected {expected}");
        (
            name.to_string(),
            format!("llama.cpp will not load this: {why}"),
        )
    };
    let expected = [says("a", 2048, 0), says("b", 0, 2080), says("d", 128, 64)];
    assert_eq!(problems_of(&file), expected);
    for empty in [Gguf::new(), Gguf::new().key("a", V::U8(1))] {
        assert_eq!(problems_of(&empty), []);
        assert_eq!(opened(&empty.header()).tensors.len(), 0);
    }
    // The header's own padding may be missing if nothing follows it.
    let nothing = Gguf::small().tensor("none", &[0], F32, []);
    let nothing = Gguf {
        tensors: nothing.tensors[1..].to_vec(),
        ..nothing
    };
    for end in [nothing.header(), nothing.bytes()] {
        assert_eq!(opened(&end).tensors.len(), 1);
    }
    let no_keys = Gguf {
        keys: vec![],
        ..Gguf::small()
    };
    assert_eq!(opened(&no_keys.bytes()).tensors.len(), 1);
}

#[test]
fn types_tell_what_values_are() {
    // Names that other formats give to the parts of quantized layers.
    let file = Gguf::new()
        .tensor("x.weight", &[32, 4], I8, [3; 128])
        .tensor("x.weight_scale", &[1, 4], F32, 2f32.to_le_bytes().repeat(4))
        .tensor("y", &[32], Q8_0, [1; 34]);
    let dir = Dir::of(&[("m.gguf", &file.bytes())]);
    let model = Model::new(
        open(dir.path(), OpenOptions::default()).unwrap(),
        ModelOptions::default(),
    );
    assert_eq!(model.layer_count(), 0);
    let (id, x) = model.find("x.weight").unwrap();
    assert!(!x.is_dequantized());
    assert_eq!(model.parameters(id), 128);
    let json: serde_json::Value = serde_json::from_slice(&stfs::meta::model_json(&model)).unwrap();
    assert_eq!(json["parameters"], 128 + 4 + 32);
    assert_eq!(json["quantization"]["method"], "gguf");
}
