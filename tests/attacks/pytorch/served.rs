//! What is unusual but served, through real mounts; and files that change under them.

use std::fs::File;
use std::io;
use std::path::Path;

use safetensors::Dtype;

use super::beside;
use crate::common::Dir;
use crate::program::mount::Mounted;
use crate::program::pytorch::{Py, Strided, call, contiguous, dict, legacy_file, zip_file};
use crate::program::sys::{errno, pread_all};
use crate::program::{T, naive, noise, stfs, tensor};

/// How many rows and columns the transposed tensor has.
const N: usize = 600;

/// A large contiguous tensor `a`, and a transposed one `t`, of F32: the file, and the tensors' bytes.
fn model(legacy: bool) -> (Vec<u8>, Vec<u8>, Vec<u8>) {
    let a = T {
        name: "a".into(),
        dtype: Dtype::F32,
        shape: vec![N, N],
        data: noise(1, N * N * 4),
    };
    let stored = noise(2, N * N * 4);
    let t = Strided {
        key: "1".into(),
        data: stored.clone(),
        class: "FloatStorage",
        element: 4,
        offset: 0,
        shape: vec![N as i64, N as i64],
        strides: vec![1, N as i64],
    };
    let root = dict([("a", contiguous("0", &a)), ("t", Py::Tensor(t))]);
    let mut transposed = Vec::new();
    for i in 0..N {
        for j in 0..N {
            transposed.extend(&stored[4 * (j * N + i)..][..4]);
        }
    }
    let file = if legacy {
        legacy_file(&root)
    } else {
        zip_file(&root)
    };
    (file, a.data, transposed)
}

fn range(m: &Mounted, file: &str, from: u64, len: usize) -> io::Result<Vec<u8>> {
    pread_all(&File::open(m.join(file))?, from, len, 70_000)
}

#[test]
fn strided_tensors_are_whole_files() {
    for legacy in [false, true] {
        let (bytes, a, t) = model(legacy);
        let dir = Dir::of(&[("m.pt", &bytes)]);
        let m = Mounted::new(&dir.join("m.pt"));
        assert!(m.read("tensors/a/raw") == a);
        assert!(m.read("tensors/t/raw") == t);
        assert!(m.read("tensors/t/f32") == t);
        let npy = [naive::npy_header("<f4", &[N, N]), t.clone()].concat();
        assert!(m.read("npy/t.npy") == npy);
        // Anywhere, backwards, and in small pieces.
        for from in (0..t.len())
            .step_by(99_991)
            .collect::<Vec<_>>()
            .into_iter()
            .rev()
        {
            let len = 4099.min(t.len() - from);
            assert!(
                range(&m, "tensors/t/raw", from as u64, len).unwrap() == t[from..from + len],
                "{from}"
            );
        }
        let png = m.read("preview/t.png");
        assert!(png.starts_with(b"\x89PNG"));
        assert!(m.join("tensors/t/raw").metadata().unwrap().len() == t.len() as u64);
        let origin = &m.json("tensors/t/meta.json")["origin"];
        assert_eq!(origin["kind"], "strided");
        assert_eq!(origin["strides"], serde_json::json!([1, N]));
        drop(m);
        // By commands that need no mount.
        let cat = |view: &str| {
            let mut command = crate::program::mount::command(["cat", "--view", view]);
            let path = dir.join("m.pt");
            command.arg(&path).arg("t").output().unwrap().stdout
        };
        assert!(cat("raw") == t && cat("npy") == npy);
    }
}

/// EIO for what is gone, and everything else is served.
#[test]
fn reads_past_a_truncated_end_are_eio() {
    for legacy in [false, true] {
        let (bytes, a, t) = model(legacy);
        let dir = Dir::of(&[("m.pt", &bytes)]);
        let m = Mounted::new(&dir.join("m.pt"));
        let place = |name: &str| {
            let origin = &m.json(&format!("tensors/{name}/meta.json"))["origin"];
            origin["offset"].as_u64().unwrap()
        };
        let (first, second) = (place("a"), place("t"));
        assert!(first < second);
        // Half of the strided tensor's storage is left: of every row of `t`, the first half.
        let left = second + (N * N * 2) as u64;
        let file = File::options().write(true).open(dir.join("m.pt")).unwrap();
        file.set_len(left).unwrap();
        assert!(m.read("tensors/a/raw") == a);
        assert!(m.read("tensors/a/f32") == a);
        for file in ["tensors/t/raw", "tensors/t/f32", "npy/t.npy"] {
            assert_eq!(errno(std::fs::read(m.join(file))), libc::EIO, "{file}");
            let end = m.join(file).metadata().unwrap().len();
            assert_eq!(errno(range(&m, file, end - 1, 1)), libc::EIO, "{file}");
        }
        // Nothing is made up: what comes back of `t` is right.
        if let Ok(start) = range(&m, "tensors/t/raw", 0, 1000) {
            assert!(start == t[..1000]);
        }
        // Then nearly nothing is left.
        file.set_len(first + 100).unwrap();
        for file in ["tensors/t/raw", "tensors/a/f32"] {
            assert_eq!(errno(std::fs::read(m.join(file))), libc::EIO, "{file}");
        }
        assert_eq!(m.list("tensors"), ["a", "t"]);
        assert_eq!(m.status()["source_changed"], true);
        file.set_len(bytes.len() as u64).unwrap();
        assert!(m.json("index.json").is_object());
    }
}

/// Objects beside tensors, one of which is on a list of dangerous names nowhere.
#[test]
fn beside_objects_that_are_not_called() {
    let dir = Dir::new();
    let canary = dir.join("canary");
    let code = format!("open({:?}, 'w').close()", canary.to_str().unwrap());
    let runstring = call(
        "numpy.testing._private.utils",
        "runstring",
        vec![Py::Text(code), dict([])],
    );
    let bytes = beside(vec![("extra", runstring)]);
    std::fs::write(dir.join("m.pt"), bytes).unwrap();
    std::fs::write(dir.join("config.json"), "{}").unwrap();
    let m = Mounted::new(dir.path());
    assert_eq!(m.read("tensors/w/raw"), super::w().data);
    assert_eq!(
        m.json("model.json")["checkpoint"]["globals"],
        serde_json::json!(["numpy.testing._private.utils.runstring"])
    );
    assert_eq!(m.list("files"), ["config.json"]);
    assert!(!canary.exists());
}

/// A stride of 0 makes terabytes of four bytes: sizes are told, bytes are made when they are read.
#[test]
fn expanded_to_terabytes() {
    let t = |shape: Vec<i64>| {
        let strides = vec![0; shape.len()];
        let t = Strided {
            key: "0".into(),
            data: vec![1, 2, 3, 4],
            class: "FloatStorage",
            element: 4,
            offset: 0,
            shape,
            strides,
        };
        zip_file(&dict([("t", Py::Tensor(t))]))
    };
    let dir = Dir::of(&[("m.pt", &t(vec![1 << 20, 1 << 20]))]);
    let m = Mounted::new(&dir.join("m.pt"));
    assert_eq!(m.join("tensors/t/raw").metadata().unwrap().len(), 1 << 42);
    let at = (1 << 41) + 2;
    assert_eq!(
        range(&m, "tensors/t/raw", at, 6).unwrap(),
        [3, 4, 1, 2, 3, 4]
    );
    drop(m);
    // More than any model may have.
    let dir = Dir::of(&[("m.pt", &t(vec![1 << 30, 1 << 30]))]);
    stfs([Path::new("ls"), &dir.join("m.pt")]).fails(&["m.pt", "'t'"]);
}

/// Commands on parts of a file, and on models that are the same in another format.
#[test]
fn a_checkpoint_is_the_same_model_as_its_conversion() {
    let parts =
        ["q", "k", "v"].map(|p| tensor(&format!("l.{p}_proj.weight"), Dtype::BF16, &[6, 4]));
    let model = crate::program::pytorch::state_dict("", &parts);
    let file = zip_file(&dict([
        ("state_dict", model.clone()),
        ("epoch", Py::Int(1)),
    ]));
    let dir = crate::program::ModelDir::of(&parts);
    dir.file("old.bin", file);
    dir.file("older.bin", legacy_file(&model));
    let new = dir.join("model.safetensors");
    for old in ["old.bin", "older.bin", "old.bin#state_dict"] {
        let old = dir.join(old);
        for pair in [[&old, &new], [&new, &old]] {
            let ran = stfs(["diff".as_ref(), pair[0].as_os_str(), pair[1].as_os_str()]).ok();
            assert!(!ran.out.contains("l."), "{ran:?}");
        }
        let m = Mounted::new(&old);
        let joined: Vec<u8> = parts.iter().flat_map(|t| t.data.clone()).collect();
        assert_eq!(m.read("tensors/l.qkv_proj.weight/raw"), joined);
        let export = m.read("export/model.safetensors");
        let export = safetensors::SafeTensors::deserialize(&export).unwrap();
        for t in &parts {
            assert_eq!(export.tensor(&t.name).unwrap().data(), t.data);
        }
    }
}
