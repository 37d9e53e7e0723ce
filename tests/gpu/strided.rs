//! Tensors of PyTorch checkpoints in device memory: contiguous, whatever their strides in the file are.

use std::path::Path;

use stfs::ioctl;

use crate::mounted::*;
use crate::support::*;

/// A mount of one checkpoint of `tests/golden`.
fn checkpoint(name: &str) -> Mounted {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/pytorch/strided/model");
    Mounted::with(&[], &[], |model| {
        std::fs::remove_dir_all(model).unwrap();
        std::fs::create_dir(model).unwrap();
        std::fs::copy(golden.join(name), model.join("pytorch_model.bin")).unwrap();
    })
}

#[test]
fn strided_tensors_are_uploaded_as_they_are_read() {
    // The ABI's number of F32, and 0 for a type that is not safetensors'.
    for (file, dtype, views) in [
        ("float32.pt", 18, &["raw", "f32"][..]),
        ("complex128.pt", 0, &["raw"]),
    ] {
        let mut mount = checkpoint(file);
        let mut tensors = 0;
        for entry in std::fs::read_dir(mount.path("tensors")).unwrap() {
            let name = entry.unwrap().file_name().into_string().unwrap();
            for view in views {
                let path = format!("tensors/{name}/{view}");
                let shown = std::fs::read(mount.path(&path)).unwrap();
                if shown.is_empty() {
                    continue;
                }
                let io = upload(&mount.open(&path)).unwrap();
                assert_eq!((io.state, io.dtype), (ioctl::RESIDENT, dtype), "{path}");
                assert!(seen_by_another_process(&io) == shown, "{path}");
                tensors += 1;
            }
        }
        assert!(tensors > 5, "{file}: {tensors}");
        assert!(mount.end().is_empty());
    }
}
