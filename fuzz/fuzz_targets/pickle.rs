//! Pickles: whatever the bytes are, stfs never panics; a file that opens has a pickle without problems,
//! and both ends of each of its tensors can be read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use stfs::catalog::{Catalog, LocalFile, OpenOptions, check_pickle};

mod served;

/// What a checkpoint of torch before 1.6 has in front of the object: its magic number, version, and the
/// sizes of C's types.
const FRONT: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.\x80\x02}(U\x10protocol_versionM\xe9\x03U\x0dlittle_endian\x88U\x0atype_sizes}u.";

/// How much of each end is read.
const END: usize = 512;

fuzz_target!(|input: &[u8]| {
    let pickle = served::file("pickle.pkl", input);
    let problems = check_pickle(&*LocalFile::open(&pickle).unwrap()).unwrap();
    let checkpoint = served::file("checkpoint.pt", &[FRONT, input].concat());
    for allow_missing in [false, true] {
        let Ok(catalog) = Catalog::open(&checkpoint, OpenOptions { allow_missing }) else {
            continue;
        };
        assert!(problems.is_empty(), "{problems:?}");
        for (i, tensor) in (0..).zip(&catalog.tensors) {
            // Strided ones, too: a tensor that is served has all of its elements in the file.
            let view = catalog.bytes(i);
            assert_eq!(view.len(), tensor.nbytes);
            let n = END.min(view.len() as usize);
            let mut end = vec![0; n];
            for from in [0, view.len() - n as u64] {
                view.read_at(from, &mut end)
                    .expect("its elements are in the file");
            }
        }
    }
    served::examine(&checkpoint, input.len());
});
