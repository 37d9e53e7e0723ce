//! Where a model is found: among other files, and behind links.

use stfs::catalog::OpenOptions;

use super::splits::set;
use crate::common::{Dir, good, open, refused, refused_files};
use crate::gguf_file::Gguf;

#[test]
fn directories() {
    let file = Gguf::small().bytes();
    let of = |files: &[(&str, &[u8])]| Dir::of(files);
    // Whatever its name; the configuration beside it counts for nothing.
    let config = br#"{"quantization_config": {"quant_method": "gptq"}}"#;
    let dir = of(&[
        ("any.gguf", &file),
        ("config.json", config),
        ("._any.gguf", b"fork"),
    ]);
    let catalog = open(dir.path(), OpenOptions::default()).unwrap();
    assert_eq!(catalog.weight_files, ["any.gguf"]);
    assert_eq!(
        catalog.configs.config.as_ref().unwrap()["general.architecture"],
        "llama"
    );
    assert!(catalog.configs.quantize_config.is_none() && catalog.configs.unused.is_empty());
    for (names, says) in [
        (&["a.gguf", "b.gguf"][..], "a.gguf, b.gguf"),
        (&["mmproj-m.gguf", "m.gguf"], "m.gguf, mmproj-m.gguf"),
        (
            &["a-00001-of-00002.gguf", "b-00001-of-00002.gguf"],
            "b-00001-of-00002.gguf",
        ),
        (
            &["a-00001-of-00002.gguf", "a-00001-of-00003.gguf"],
            "a-00001-of-00003.gguf",
        ),
        (
            &["a.gguf", "a-00001-of-00002.gguf"],
            "a-00001-of-00002.gguf",
        ),
    ] {
        let dir = Dir::new();
        for name in names {
            std::fs::write(dir.join(name), &file).unwrap();
        }
        refused(
            dir.path(),
            &["several GGUF models", says, "give one by its path"],
        );
        if let Some(whole) = names.iter().find(|n| !n.contains("-of-")) {
            assert!(open(&dir.join(whole), OpenOptions::default()).is_ok());
        }
    }
    // Safetensors come before, bin + manifest after.
    let dir = of(&[("m.gguf", &file), ("model.safetensors", &good(&["a"]))]);
    assert_eq!(
        open(dir.path(), OpenOptions::default()).unwrap().format,
        "safetensors"
    );
    let manifest = br#"{"tensors": {"t": {"offset": 0, "size": 4, "shape": [1], "dtype": "F32"}}}"#;
    let dir = of(&[("m.gguf", &file), ("w.bin", &[0; 4]), ("w.json", manifest)]);
    assert_eq!(
        open(dir.path(), OpenOptions::default()).unwrap().format,
        "gguf"
    );
    // A name of another container keeps it.
    refused_files(
        &[("model.safetensors", &file)],
        &["is a gguf file, although a safetensors"],
    );
    // By path, the first four bytes decide: ollama's blobs, or any other name.
    for name in ["sha256-0123456789abcdef", "model.bin", "model"] {
        let dir = of(&[(name, &file)]);
        let catalog = open(&dir.join(name), OpenOptions::default()).unwrap();
        assert_eq!((catalog.format, catalog.tensors.len()), ("gguf", 1));
    }
}

/// As in a hub's cache: the names are links.
#[test]
fn links_to_blobs_are_followed() {
    let dir = Dir::new();
    std::fs::create_dir_all(dir.join("models--o--n/snapshots/abc")).unwrap();
    std::fs::create_dir_all(dir.join("models--o--n/blobs")).unwrap();
    std::fs::create_dir_all(dir.join("models--o--n/refs")).unwrap();
    std::fs::write(dir.join("models--o--n/refs/main"), "abc").unwrap();
    for (i, (name, file)) in set().into_iter().enumerate() {
        let blob = format!("models--o--n/blobs/{i}");
        std::fs::write(dir.join(&blob), file.bytes()).unwrap();
        let link = dir.join(&format!("models--o--n/snapshots/abc/{name}"));
        std::os::unix::fs::symlink(format!("../../blobs/{i}"), link).unwrap();
    }
    for model in [
        "models--o--n",
        "models--o--n/snapshots/abc/m-00002-of-00003.gguf",
    ] {
        let catalog = open(&dir.join(model), OpenOptions::default()).unwrap();
        assert_eq!(catalog.tensors.len(), 6, "{model}");
    }
}
