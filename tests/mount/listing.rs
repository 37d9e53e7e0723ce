//! Directories: complete, in order, and in agreement with stat.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};

use safetensors::Dtype;
use serde_json::json;

use crate::common::sys::errno;
use crate::common::{ModelDir, Mounted, T, tensor};
use crate::walk;

#[test]
fn five_thousand_tensors_are_listed_once_each_in_natural_order() {
    let names: Vec<String> = (0..2500)
        .flat_map(|i| ["a", "b"].map(|p| format!("layers.{i}.{p}")))
        .collect();
    let all: Vec<T> = names.iter().map(|n| tensor(n, Dtype::BF16, &[2])).collect();
    let dir = ModelDir::of(&all);
    let m = Mounted::new(dir.path());
    assert_eq!(m.list("tensors"), names);
    let npy: Vec<String> = names.iter().map(|n| format!("{n}.npy")).collect();
    assert_eq!(m.list("npy"), npy);
    let numbers: Vec<String> = (0..2500).map(|i| i.to_string()).collect();
    assert_eq!(m.list("tree/layers"), numbers);
    assert_eq!(m.list("tree/layers/1234"), ["a", "b"]);
    // Again, from the kernel's cache, and by another process at the same time.
    assert_eq!(m.list("tensors"), names);
    let index = m.json("index.json");
    let keys: Vec<&String> = index.as_object().unwrap().keys().collect();
    assert_eq!(keys, names.iter().collect::<Vec<_>>());
    assert_eq!(m.json("model.json")["tensors"], 5000);
    for (name, entry) in index.as_object().unwrap().iter().step_by(777) {
        let path = format!("tensors/{name}");
        let offset = &m.json(&format!("{path}/meta.json"))["origin"]["offset"];
        let want = json!({"dtype": "BF16", "shape": [2], "nbytes": 4, "origin": "stored",
            "path": path, "file": "model.safetensors", "offset": offset});
        assert_eq!(*entry, want);
    }
}

#[test]
fn listings_agree_with_stat() {
    let all: Vec<T> = (0..300)
        .map(|i| tensor(&format!("m.{i}.weight"), Dtype::F16, &[i]))
        .collect();
    let dir = ModelDir::of(&all);
    dir.file("config.json", "{}");
    let m = Mounted::new(dir.path());
    let mut seen = 0;
    for parent in walk(m.root()) {
        if !parent.symlink_metadata().unwrap().is_dir() {
            continue;
        }
        for entry in std::fs::read_dir(&parent).unwrap() {
            let entry = entry.unwrap();
            let stat = entry.path().symlink_metadata().unwrap();
            assert_eq!(entry.ino(), stat.ino(), "{entry:?}");
            assert_eq!(entry.file_type().unwrap(), stat.file_type(), "{entry:?}");
            seen += 1;
        }
    }
    assert!(seen > 1500);
}

#[test]
fn what_readdirplus_says_is_what_stat_says_elsewhere() {
    let all: Vec<T> = (0..40)
        .map(|i| tensor(&format!("m.{i}.weight"), Dtype::F16, &[i, 3]))
        .collect();
    let dir = ModelDir::of(&all);
    // In one mount attributes come with the listing, in the other they are looked up one by one.
    let listed = Mounted::new(dir.path());
    let single = Mounted::new(dir.path());
    for path in walk(listed.root()) {
        let below = path.strip_prefix(listed.root()).unwrap();
        let (a, b) = (
            path.symlink_metadata().unwrap(),
            single.root().join(below).symlink_metadata().unwrap(),
        );
        assert_eq!(
            (
                a.ino(),
                a.mode(),
                a.len(),
                a.blocks(),
                a.mtime(),
                a.uid(),
                a.nlink()
            ),
            (
                b.ino(),
                b.mode(),
                b.len(),
                b.blocks(),
                b.mtime(),
                b.uid(),
                b.nlink()
            ),
            "{below:?}"
        );
    }
}

#[test]
fn what_is_not_there_is_enoent() {
    let dir = ModelDir::of(&[
        tensor("a.b", Dtype::BF16, &[2, 2]),
        tensor("c", Dtype::C64, &[2]),
        tensor("l.q_proj.weight", Dtype::BF16, &[2, 2]),
    ]);
    let m = Mounted::new(dir.path());
    for round in 0..2 {
        for name in [
            "x",
            "tensors/x",
            "tensors/a",
            "tensors/A.B",
            "tensors/a.b/x",
            "tensors/a.b/RAW",
            "tensors/a%2Eb",
            "tensors/%zz",
            "tensors/%",
            "tensors/...",
            "tensors/c/f32",
            "tensors/l.qkv_proj.weight",
            "npy/a.b",
            "npy/a.b.npy.npy",
            "npy/.npy",
            "tree/b",
            "tree/a/@",
            "tree/@",
            "files/model.safetensors",
            "files/x",
            "export/x",
        ] {
            assert_eq!(
                errno(m.join(name).symlink_metadata()),
                libc::ENOENT,
                "{name} {round}"
            );
        }
        let odd = OsStr::from_bytes(b"\xFF\xFE");
        assert_eq!(errno(m.join("tensors").join(odd).metadata()), libc::ENOENT);
        let long = m.join("tensors").join("y".repeat(255));
        assert_eq!(errno(long.metadata()), libc::ENOENT);
        // Longer than any name here; how much longer it may be depends on the kernel.
        let longer = m.join("tensors").join("y".repeat(2000));
        assert!([libc::ENOENT, libc::ENAMETOOLONG].contains(&errno(longer.metadata())));
    }
    // Looking up a missing name must not make it appear in the listing.
    assert_eq!(m.list("tensors"), ["a.b", "c", "l.q_proj.weight"]);
}

#[test]
fn the_root_holds_what_it_should() {
    let dir = ModelDir::of(&[tensor("a", Dtype::BF16, &[2])]);
    let m = Mounted::new(dir.path());
    let root: BTreeSet<String> = m.list("").into_iter().collect();
    for name in [
        "model.json",
        "index.json",
        "tensors",
        "npy",
        "tree",
        "export",
        "files",
    ] {
        assert!(root.contains(name), "{name}");
    }
    assert_eq!(m.list("tensors/a"), ["raw", "f32", "meta.json"]);
    // `.` and `..` are where they should be.
    let ino = |p: &str| m.join(p).metadata().unwrap().ino();
    assert_eq!(ino("tensors/a/."), ino("tensors/a"));
    assert_eq!(ino("tensors/a/.."), ino("tensors"));
    assert_eq!(ino("tensors/a/../.."), ino(""));
}

#[test]
fn generated_json_has_the_size_that_stat_says() {
    let mut all: Vec<T> = (0..50)
        .map(|i| tensor(&format!("é.\"{i}\\.\u{1}"), Dtype::F8_E4M3, &[i]))
        .collect();
    all.push(tensor("l.gate_proj.weight", Dtype::I64, &[2, 3]));
    all.push(tensor("l.up_proj.weight", Dtype::I64, &[2, 3]));
    let dir = ModelDir::of(&all);
    let m = Mounted::new(dir.path());
    let mut seen = 0;
    for path in crate::files(m.root()) {
        if path.extension() == Some(OsStr::new("json")) {
            let size = path.metadata().unwrap().len();
            let bytes = std::fs::read(&path).unwrap();
            assert_eq!(bytes.len() as u64, size, "{path:?}");
            let value: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            assert!(value.is_object(), "{path:?}");
            seen += 1;
        }
    }
    assert!(seen >= 55, "{seen}");
    let model = m.json("model.json");
    assert_eq!(model["format"], "safetensors");
    assert_eq!(model["tensors"], 52);
    assert_eq!(model["parameters"], 49 * 50 / 2 + 12);
    assert_eq!(model["bytes"], 49 * 50 / 2 + 12 * 8);
    assert_eq!(model["dtypes"]["I64"], json!({"tensors": 2, "bytes": 96}));
    assert_eq!(model["quantization"], json!(null));
    assert_eq!(model["metadata"], json!({"format": "pt"}));
    let size = dir.join("model.safetensors").metadata().unwrap().len();
    assert_eq!(
        model["files"],
        json!([{"name": "model.safetensors", "bytes": size}])
    );
}
