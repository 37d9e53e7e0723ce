//! Safetensors headers: whatever the bytes are, stfs finds problems in a header if and only if the
//! safetensors library refuses the file; and a file that the library takes is a model of those tensors.
#![no_main]

use libfuzzer_sys::fuzz_target;
use safetensors::SafeTensors;
use stfs::catalog::{Catalog, OpenOptions, check_header};

mod served;

// The input is a header and, in its last two bytes, how many bytes of data follow it: a length
// field and real data would only make the fuzzer guess.
fuzz_target!(|input: &[u8]| {
    let Some((header, data)) = input.split_last_chunk::<2>() else {
        return;
    };
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.resize(file.len() + usize::from(u16::from_le_bytes(*data)), 0);
    let read = SafeTensors::read_metadata(&file);
    let taken = read
        .as_ref()
        .is_ok_and(|(n, metadata)| 8 + n + metadata.data_len() == file.len());
    let problems = check_header(header, file.len() as u64);
    assert_eq!(problems.is_empty(), taken, "{problems:?}");

    // Of those that are refused, some are opened, too: opening stops at the first problem, and may serve
    // the part of a file that is there.
    if !taken && data[0] % 8 != 0 {
        return;
    }
    let path = served::file("model.safetensors", &file);
    if let (true, Ok((start, metadata))) = (taken, read) {
        let catalog = Catalog::open(&path, OpenOptions::default()).unwrap();
        let theirs = metadata.tensors();
        assert_eq!(catalog.tensors.len(), theirs.len());
        for (i, tensor) in (0..).zip(&catalog.tensors) {
            let info = theirs[tensor.name];
            let from = (8 + start + info.data_offsets.0) as u64;
            assert_eq!(catalog.extent(i).unwrap().offset, from);
            assert!(
                tensor.shape.iter().eq(info
                    .shape
                    .iter()
                    .map(|&n| n as u64)
                    .collect::<Vec<_>>()
                    .iter())
            );
            assert_eq!(tensor.dtype.name(), info.dtype.to_string());
        }
    }
    served::examine(&path, input.len());
});
