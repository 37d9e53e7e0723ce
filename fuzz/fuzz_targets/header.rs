//! Safetensors headers: whatever the bytes are, stfs finds problems in a header if and only if the
//! safetensors library refuses the file, and never panics.
//!
//! In the repository's root, `cargo +nightly fuzz run header fuzz/corpus/header fuzz/seeds/header`; with
//! a stable compiler `RUSTC_BOOTSTRAP=1 cargo fuzz run -s none header …`.
#![no_main]

use libfuzzer_sys::fuzz_target;
use safetensors::SafeTensors;
use stfs::catalog::check_header;

// The input is a header and, in its last two bytes, how many bytes of data follow it: a length
// field and real data would only make the fuzzer guess.
fuzz_target!(|input: &[u8]| {
    let Some((header, data)) = input.split_last_chunk::<2>() else {
        return;
    };
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.resize(file.len() + usize::from(u16::from_le_bytes(*data)), 0);
    let taken = SafeTensors::read_metadata(&file)
        .is_ok_and(|(n, metadata)| 8 + n + metadata.data_len() == file.len());
    let problems = check_header(header, file.len() as u64);
    assert_eq!(problems.is_empty(), taken, "{problems:?}");
});
