//! Models that are not on a disk: a second store, read by the same walk.

use std::sync::Arc;

use serde_json::json;

use crate::catalog::findings::Findings;
use crate::catalog::gguf_file::{Gguf, I8};
use crate::catalog::{Catalog, MemoryStore, OpenOptions, Problem, container};
use crate::error::Result;
use crate::view::{StoredBytes, View, read_all};

const INDEX: &str = "model.safetensors.index.json";

/// A safetensors file of one U8 tensor.
fn shard(name: &str, data: &[u8]) -> Vec<u8> {
    let entry = json!({"dtype": "U8", "shape": [data.len()], "data_offsets": [0, data.len()]});
    let header = json!({ name: entry }).to_string();
    [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        data,
    ]
    .concat()
}

fn open(store: &Arc<MemoryStore>, file: Option<&str>) -> Result<Catalog> {
    Catalog::read(&store.source(file), OpenOptions::default())
}

/// All problems, as `stfs verify` finds them.
fn problems(store: &Arc<MemoryStore>) -> Vec<Problem> {
    let mut findings = Findings::all();
    let claim = container::claim(&store.source(None)).unwrap();
    claim.read(&mut findings).unwrap();
    findings.into_problems()
}

/// The bytes of a stored tensor.
fn stored(catalog: &Catalog, name: &str) -> StoredBytes {
    let index = catalog.find(name).unwrap();
    StoredBytes(catalog.extent(index).unwrap())
}

#[test]
fn a_model_in_another_store_is_served_from_shared_bytes() {
    let map = json!({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}});
    let (a, b) = (shard("a", b"first"), shard("b", b"second"));
    let store = MemoryStore::new(&[
        (INDEX, map.to_string().as_bytes()),
        ("1.safetensors", &a),
        ("2.safetensors", &b),
        ("config.json", br#"{"tie_word_embeddings": true}"#),
    ]);
    let catalog = open(&store, None).unwrap();
    assert_eq!((catalog.format, catalog.tensors.len()), ("safetensors", 2));
    assert_eq!(catalog.model.to_string(), "memory");
    let tied = catalog.configs.root_or_text("tie_word_embeddings");
    assert_eq!(tied, Some(&json!(true)));
    let view = stored(&catalog, "b");
    assert_eq!(read_all(&view).unwrap(), b"second");
    let mut out = tempfile::tempfile().unwrap();
    view.piece(1, 3).unwrap().write_to(&out, "a file").unwrap();
    std::io::Seek::rewind(&mut out).unwrap();
    assert_eq!(std::io::read_to_string(out).unwrap(), "eco");
    // Shards are announced before the first is opened, so that their headers can be fetched
    // together.
    let prefetched = store.prefetched.lock().unwrap();
    assert!(prefetched.ends_with(&["1.safetensors".into(), "2.safetensors".into()]));
}

#[test]
fn every_container_reads_another_store() {
    let entry = json!({"offset": 1, "size": 4, "shape": [4], "dtype": "U8"});
    let json = json!({"tensors": {"t": entry}, "config": {"default_bits": 4}}).to_string();
    let files = [("w.bin", &b"-bytes-"[..]), ("w.json", json.as_bytes())];
    let lone = shard("t", b"byte");
    let lone = [("x.safetensors", &lone[..])];
    let gguf = Gguf::new().tensor("t", &[4], I8, b"byte").bytes();
    let gguf = [("x.gguf", &gguf[..])];
    for (files, file, format) in [
        (&files[..], None, "manifest"),
        (&files[..], Some("w.json"), "manifest"),
        (&files[..], Some("w.bin"), "manifest"),
        (&lone[..], None, "safetensors"),
        (&lone[..], Some("x.safetensors"), "safetensors"),
        (&gguf[..], None, "gguf"),
        (&gguf[..], Some("x.gguf"), "gguf"),
    ] {
        let store = MemoryStore::new(files);
        let catalog = open(&store, file).unwrap();
        assert_eq!(catalog.format, format);
        assert_eq!(read_all(&stored(&catalog, "t")).unwrap(), b"byte");
        assert_eq!(catalog.configs.manifest.is_some(), format == "manifest");
        assert_eq!(problems(&store), []);
    }
}

#[test]
fn problems_in_another_store_name_its_location() {
    let whole = shard("a", b"first");
    let store = MemoryStore::new(&[("model.safetensors", &whole[..whole.len() - 1])]);
    let error = open(&store, None).err().unwrap().to_string();
    assert!(
        error.starts_with("memory/model.safetensors: tensor 'a': goes past the end"),
        "{error}"
    );
    assert_eq!(problems(&store).len(), 1);
    let error = open(&MemoryStore::new(&[]), None)
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.ends_with("looked for model.safetensors, *.safetensors.index.json, *.safetensors, *.gguf, <stem>.bin with <stem>.json, pytorch_model.bin.index.json, pytorch_model.bin, and a PyTorch checkpoint (*.bin, *.pt, *.pth, *.ckpt, *.th, *.pth.tar)"),
        "{error}"
    );
    let other = MemoryStore::new(&[("notes.txt", b"hello")]);
    let error = open(&other, Some("notes.txt")).err().unwrap().to_string();
    assert!(
        error.ends_with(
            "give a directory, or a .safetensors, .index.json, .gguf, manifest .json, .bin, .pt, .pth or .ckpt file, or a recipe (.toml)"
        ),
        "{error}"
    );
}

/// Opening stops at the first problem; verifying finds all of them in the same walk.
#[test]
fn one_walk_finds_the_first_problem_or_all_of_them() {
    let map = json!({"weight_map": {
        "a": "1.safetensors", "b": "1.safetensors", "c": "../c", "d": "3.safetensors"}});
    let store = MemoryStore::new(&[
        (INDEX, map.to_string().as_bytes()),
        ("1.safetensors", &shard("a", b"x")),
    ]);
    let error = open(&store, None).err().unwrap().to_string();
    assert!(error.contains("tensor 'c'"), "{error}");
    let found = problems(&store);
    let found: Vec<_> = found
        .iter()
        .map(|p| (p.file.as_str(), p.tensor.as_deref()))
        .collect();
    let expected = [
        (INDEX, Some("c")),
        ("1.safetensors", Some("b")),
        ("3.safetensors", None),
    ];
    assert_eq!(found, expected);
}

/// The error about a file of another container names that container.
#[test]
fn a_bin_that_is_a_safetensors_file_is_called_so() {
    let entry = json!({"offset": 0, "size": 4096, "shape": [4096], "dtype": "U8"});
    let json = json!({"tensors": {"t": entry}}).to_string();
    let bin = shard("t", b"x");
    let store = MemoryStore::new(&[("w.json", json.as_bytes()), ("w.bin", &bin)]);
    let error = open(&store, None).err().unwrap().to_string();
    assert!(
        error.starts_with("memory/w.bin: is a safetensors file"),
        "{error}"
    );
}

/// Tensors are not blamed for a bad default.
#[test]
fn a_bad_default_of_a_manifest_is_one_problem() {
    let entry = json!({"offset": 0, "size": 4, "shape": [8], "dtype": "U32"});
    let json = json!({"tensors": {"t": entry}, "config": {"default_bits": -1}}).to_string();
    let store = MemoryStore::new(&[("w.json", json.as_bytes()), ("w.bin", &[0; 4])]);
    let found = problems(&store);
    let found: Vec<_> = found.iter().map(|p| p.problem.as_str()).collect();
    let expected = "config.default_bits is -1, not a whole number from 0 up";
    assert_eq!(found, [expected]);
}
