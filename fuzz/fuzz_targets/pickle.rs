//! Pickles: whatever the bytes are, stfs never panics; a file that opens has a pickle without problems,
//! and each of its tensors can be read.
//!
//! In the repository's root, `cargo +nightly fuzz run pickle fuzz/corpus/pickle fuzz/seeds/pickle`; with
//! a stable compiler `RUSTC_BOOTSTRAP=1 cargo fuzz run -s none pickle …`. Small inputs reach everything:
//! `-- -max_len=4096 -rss_limit_mb=512`.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use stfs::catalog::{Catalog, LocalFile, OpenOptions, check, check_pickle};

/// In memory, two for each process.
static FILES: LazyLock<[PathBuf; 2]> = LazyLock::new(|| {
    ["pkl", "pt"]
        .map(|end| PathBuf::from(format!("/dev/shm/stfs-fuzz-{}.{end}", std::process::id())))
});

/// What a checkpoint of torch before 1.6 has in front of the object: its magic number, version, and the
/// sizes of C's types.
const FRONT: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}(U\x10protocol_versionM\xe9\x03U\x0dlittle_endian\x88U\x0atype_sizes}u.";

fuzz_target!(|input: &[u8]| {
    let [pickle, checkpoint] = &*FILES;
    std::fs::write(pickle, input).unwrap();
    let problems = check_pickle(&*LocalFile::open(pickle).unwrap()).unwrap();
    std::fs::write(checkpoint, [FRONT, input].concat()).unwrap();
    for allow_missing in [false, true] {
        let Ok(catalog) = Catalog::open(checkpoint, OpenOptions { allow_missing }) else {
            continue;
        };
        assert!(problems.is_empty(), "{problems:?}");
        let length = (FRONT.len() + input.len()) as u64;
        for i in 0..catalog.tensors.len() {
            if let Some(extent) = catalog.extent(i as u32) {
                assert!(extent.offset <= length);
            }
        }
    }
    let _ = check(checkpoint);
});
