//! Manifests of a `.bin`: whatever the bytes are, stfs never panics, and each tensor is the span that the
//! manifest gives it.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use stfs::catalog::{Catalog, OpenOptions};

mod served;

/// The length of the `.bin`. Its bytes tell their place.
const LENGTH: usize = 4096;

static DATA: LazyLock<Vec<u8>> =
    LazyLock::new(|| (0..LENGTH).map(|i| (i * 31 + i / 256) as u8).collect());

static MODEL: LazyLock<PathBuf> = LazyLock::new(|| {
    served::file("model_weights.bin", &DATA);
    served::DIRECTORY.join("model_weights.json")
});

fuzz_target!(|input: &[u8]| {
    std::fs::write(&*MODEL, input).unwrap();
    if let Ok(catalog) = Catalog::open(&MODEL, OpenOptions::default()) {
        // Of a key that comes twice the last value counts, for both.
        let json: Value = match serde_json::from_slice(input) {
            Ok(json) => json,
            // What stfs skips may hold bytes that are no UTF-8.
            Err(_) if std::str::from_utf8(input).is_err() => return,
            Err(e) => panic!("a manifest that is served is JSON: {e}"),
        };
        for (i, tensor) in (0..).zip(&catalog.tensors) {
            let entry = &json["tensors"][tensor.name];
            let offset = entry["offset"].as_u64().unwrap();
            assert_eq!(entry["size"].as_u64(), Some(tensor.nbytes));
            assert_eq!(catalog.extent(i).unwrap().offset, offset);
            let bytes = stfs::view::read_all(&*catalog.bytes(i)).unwrap();
            assert!(bytes == DATA[offset as usize..][..tensor.nbytes as usize]);
        }
    }
    served::examine(&MODEL, input.len());
});
