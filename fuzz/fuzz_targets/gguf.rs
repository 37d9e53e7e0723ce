//! GGUF files: whatever the bytes are, stfs never panics, a file that opens has no problem in its
//! header, its tensors lie inside it, and its `metadata.json` is valid JSON.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stfs::catalog::{Catalog, LocalFile, OpenOptions, check_gguf};

mod served;

fuzz_target!(|input: &[u8]| {
    let path = served::file("model.gguf", input);
    let problems = check_gguf(&*LocalFile::open(&path).unwrap()).unwrap();
    for allow_missing in [false, true] {
        let Ok(catalog) = Catalog::open(&path, OpenOptions { allow_missing }) else {
            continue;
        };
        assert!(allow_missing || problems.is_empty(), "{problems:?}");
        assert!((0..catalog.tensors.len()).all(|i| catalog.extent(i as u32).is_some()));
        let make = catalog.metadata_json.as_ref().unwrap();
        let json: serde_json::Value = serde_json::from_slice(&make().unwrap()).unwrap();
        assert!(json.as_object().unwrap().len() >= catalog.metadata.len());
    }
    served::examine(&path, input.len());
});
