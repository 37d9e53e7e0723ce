//! GGUF files: whatever the bytes are, stfs never panics, a file that opens has no problem in its
//! header, its tensors lie inside it, and its `metadata.json` is valid JSON.
//!
//! In the repository's root, `cargo +nightly fuzz run gguf fuzz/corpus/gguf fuzz/seeds/gguf`; with a
//! stable compiler `RUSTC_BOOTSTRAP=1 cargo fuzz run -s none gguf …`. A reader of lengths is best fuzzed
//! with `-- -max_len=4096 -rss_limit_mb=512`: memory must stay within reach of the file's size.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use stfs::catalog::{Catalog, LocalFile, OpenOptions, check, check_gguf};

/// In memory, one for each process.
static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from(format!("/dev/shm/stfs-fuzz-{}.gguf", std::process::id())));

fuzz_target!(|input: &[u8]| {
    std::fs::write(&*FILE, input).unwrap();
    let file = LocalFile::open(&FILE).unwrap();
    let problems = check_gguf(&*file).unwrap();
    for allow_missing in [false, true] {
        let Ok(catalog) = Catalog::open(&FILE, OpenOptions { allow_missing }) else {
            continue;
        };
        assert!(allow_missing || problems.is_empty(), "{problems:?}");
        for (i, tensor) in (0..).zip(&catalog.tensors) {
            let end = catalog.extent(i).unwrap().offset + tensor.nbytes;
            assert!(tensor.nbytes == 0 || end <= input.len() as u64);
        }
        let make = catalog.metadata_json.as_ref().unwrap();
        let json: serde_json::Value = serde_json::from_slice(&make().unwrap()).unwrap();
        assert!(json.as_object().unwrap().len() >= catalog.metadata.len());
    }
    let _ = check(&FILE);
});
