//! Files of torch.save, the archive's directory above all: whatever the bytes are, stfs never panics,
//! the tensors of a file that opens lie inside it, and every error is one line.
//!
//! In the repository's root, `cargo +nightly fuzz run checkpoint fuzz/corpus/checkpoint
//! fuzz/seeds/checkpoint`; with a stable compiler `RUSTC_BOOTSTRAP=1 cargo fuzz run -s none checkpoint …`.
//! Best with `-- -max_len=4096 -rss_limit_mb=512`: memory must stay within reach of the file's size.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use stfs::catalog::{Catalog, OpenOptions, check};

/// In memory, one for each process.
static FILE: LazyLock<PathBuf> =
    LazyLock::new(|| PathBuf::from(format!("/dev/shm/stfs-fuzz-{}.pt", std::process::id())));

fuzz_target!(|input: &[u8]| {
    std::fs::write(&*FILE, input).unwrap();
    for allow_missing in [false, true] {
        match Catalog::open(&FILE, OpenOptions { allow_missing }) {
            Err(error) => assert!(!error.to_string().contains('\n'), "{error}"),
            Ok(catalog) => {
                for (i, tensor) in (0..).zip(&catalog.tensors) {
                    // A strided one has no extent.
                    if let Some(extent) = catalog.extent(i) {
                        let end = extent.offset + tensor.nbytes;
                        assert!(tensor.nbytes == 0 || end <= input.len() as u64);
                    }
                }
            }
        }
    }
    let _ = check(&FILE);
});
