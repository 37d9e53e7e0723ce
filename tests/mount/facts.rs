//! Shapes that are stored in tensor data (bitsandbytes' state, compressed-tensors' `weight_shape`).

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use safetensors::SafeTensors;

use crate::common::sys::errno;
use crate::common::{ModelDir, Mounted};

/// A golden model of each format that keeps a shape in tensor data.
const CASES: [&str; 2] = ["bnb-nf4", "ct-pack-4bit-group"];

/// A copy of a golden model, and each decoded tensor's name and bytes of `f32`.
fn model(case: &str) -> (ModelDir, Vec<(String, u64)>) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(case);
    let dir = ModelDir::new();
    for entry in std::fs::read_dir(golden.join("model")).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.join(path.file_name().unwrap().to_str().unwrap())).unwrap();
    }
    let expected = std::fs::read(golden.join("expected.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&expected).unwrap();
    let sizes = expected
        .iter()
        .map(|(name, view)| (name.to_string(), 4 * view.shape().iter().product::<usize>()))
        .map(|(name, bytes)| (name, bytes as u64))
        .collect();
    (dir, sizes)
}

/// Mounts, and after `time` makes the data unreadable. Returns whether every size is known
/// nevertheless, because it was fetched without a request.
fn fetched_within(case: &str, time: Duration) -> bool {
    let (dir, sizes) = model(case);
    let m = Mounted::new(dir.path());
    std::thread::sleep(time);
    let shard = dir.join("model.safetensors");
    let header = std::fs::read(&shard).unwrap();
    let header = u64::from_le_bytes(header[..8].try_into().unwrap()) + 8;
    let shard = File::options().write(true).open(shard).unwrap();
    shard.set_len(header).unwrap();
    let known = sizes.iter().all(|(name, bytes)| {
        let f32 = m.join(&format!("tensors/{name}/f32"));
        f32.metadata().is_ok_and(|m| m.len() == *bytes) && errno(std::fs::read(&f32)) == libc::EIO
    });
    known && {
        let index = m.json("index.json");
        sizes.iter().all(|(name, _)| index.get(name).is_some())
    }
}

#[test]
fn shapes_in_tensor_data_are_fetched_without_being_asked_for() {
    for case in CASES {
        // A busy machine may need longer; without a request, nothing else would ever fetch them.
        let times = [100, 1000, 10_000].map(Duration::from_millis);
        assert!(times.into_iter().any(|t| fetched_within(case, t)), "{case}");
    }
}

#[test]
fn a_request_gets_the_final_shape_from_the_start() {
    for case in CASES {
        let (dir, sizes) = model(case);
        let m = Mounted::new(dir.path());
        let look = || -> Vec<u64> {
            let len = |name: &String| {
                let f32 = m.join(&format!("tensors/{name}/f32"));
                f32.metadata().unwrap().len()
            };
            sizes.iter().map(|(name, _)| len(name)).collect()
        };
        let first = look();
        let want: Vec<u64> = sizes.iter().map(|(_, bytes)| *bytes).collect();
        assert_eq!(first, want, "{case}");
        std::thread::sleep(Duration::from_millis(100));
        assert_eq!(look(), want, "{case}");
    }
}
