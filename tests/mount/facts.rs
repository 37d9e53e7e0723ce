//! Shapes that are stored in tensor data (bitsandbytes' state, compressed-tensors' `weight_shape`).

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

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

/// Waits for the end of the thread that fetches shapes in the background.
fn wait_for_facts(m: &Mounted) {
    let tasks = format!("/proc/{}/task", m.pid());
    let main = m.pid().to_string();
    let running = || {
        std::fs::read_dir(&tasks).unwrap().any(|task| {
            let task = task.unwrap();
            let name = std::fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            // A thread has its parent's name until it runs for the first time.
            let unnamed = name.trim_end() == "stfs" && task.file_name() != *main;
            name.trim_end() == "stfs-facts" || unnamed
        })
    };
    let until = Instant::now() + Duration::from_secs(20);
    while running() {
        assert!(Instant::now() < until, "{}", m.log());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn shapes_in_tensor_data_are_fetched_without_being_asked_for() {
    for case in CASES {
        let (dir, sizes) = model(case);
        let m = Mounted::new(dir.path());
        wait_for_facts(&m);
        // From now on the data cannot be read: what is known has been fetched before.
        let shard = dir.join("model.safetensors");
        let header = std::fs::read(&shard).unwrap();
        let header = u64::from_le_bytes(header[..8].try_into().unwrap()) + 8;
        let shard = File::options().write(true).open(shard).unwrap();
        shard.set_len(header).unwrap();
        for (name, bytes) in &sizes {
            let f32 = m.join(&format!("tensors/{name}/f32"));
            assert_eq!(f32.metadata().unwrap().len(), *bytes, "{case}: {name}");
            assert_eq!(errno(std::fs::read(&f32)), libc::EIO, "{case}: {name}");
        }
        let index = m.json("index.json");
        assert!(sizes.iter().all(|(name, _)| index.get(name).is_some()));
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
        wait_for_facts(&m);
        assert_eq!(look(), want, "{case}");
    }
}
