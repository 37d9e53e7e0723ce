//! What stat, statfs and getfattr show.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use safetensors::Dtype;
use serde_json::json;

use crate::common::sys::{errno, getxattr, is_root, listxattr, statvfs};
use crate::common::{ModelDir, Mounted, tensor};
use crate::walk;

/// q, k in one shard, v in the other; the shards' permissions, owners and times differ.
fn two_shards() -> ModelDir {
    let part = |p: &str| tensor(&format!("l.{p}_proj.weight"), Dtype::F16, &[9, 8]);
    let dir = ModelDir::sharded(&[
        ("a.safetensors", &[part("q"), part("k")]),
        ("b.safetensors", &[part("v")]),
    ]);
    for (name, mode, uid, seconds) in [
        ("a.safetensors", 0o644, 1001, 1_500_000_000),
        ("b.safetensors", 0o640, 1002, 1_400_000_000),
        ("model.safetensors.index.json", 0o604, 1003, 1_300_000_000),
    ] {
        let path = dir.join(name);
        let time = UNIX_EPOCH + Duration::new(seconds, 123_456_789);
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(time)
            .unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        if is_root() {
            chown(&path, Some(uid), Some(uid)).unwrap();
        }
    }
    dir
}

#[test]
fn files_look_like_their_sources() {
    let dir = two_shards();
    let m = Mounted::new(dir.path());
    let is = |path: &str, source: &str| {
        let (got, want) = (
            m.join(path).metadata().unwrap(),
            dir.join(source).metadata().unwrap(),
        );
        assert_eq!(got.mode(), libc::S_IFREG | (want.mode() & 0o444), "{path}");
        assert_eq!((got.uid(), got.gid()), (want.uid(), want.gid()), "{path}");
        assert_eq!(
            (got.mtime(), got.mtime_nsec()),
            (want.mtime(), want.mtime_nsec()),
            "{path}"
        );
        assert_eq!(got.nlink(), 1);
    };
    for file in ["raw", "f32", "meta.json"] {
        is(&format!("tensors/l.q_proj.weight/{file}"), "a.safetensors");
        is(&format!("tensors/l.v_proj.weight/{file}"), "b.safetensors");
    }
    is("npy/l.v_proj.weight.npy", "b.safetensors");
    // Files for the whole model have the strictest attributes: only users that may read both
    // sources may read them.
    for path in [
        "tensors/l.qkv_proj.weight/raw",
        "npy/l.qkv_proj.weight.npy",
        "model.json",
    ] {
        let got = m.join(path).metadata().unwrap();
        assert_eq!(got.mtime(), 1_500_000_000, "{path}");
        let want = if is_root() { 0o000 } else { 0o440 };
        assert_eq!(got.mode() & 0o777, want, "{path}");
    }
    let (root, model) = (m.root().metadata().unwrap(), dir.path().metadata().unwrap());
    for path in [
        "",
        "tensors",
        "tensors/l.q_proj.weight",
        "npy",
        "tree/l",
        "export",
        "files",
    ] {
        let got = m.join(path).metadata().unwrap();
        assert_eq!(got.mode(), libc::S_IFDIR | 0o555, "{path}");
        assert_eq!((got.uid(), got.gid()), (model.uid(), model.gid()), "{path}");
        assert_eq!(got.mtime(), model.mtime(), "{path}");
    }
    assert_eq!(root.dev(), m.join("tensors").metadata().unwrap().dev());
}

#[test]
fn blocks_are_counted_and_large() {
    let dir = ModelDir::of(&[
        tensor("odd", Dtype::U8, &[70_001]),
        tensor("none", Dtype::U8, &[0]),
    ]);
    let m = Mounted::new(dir.path());
    for path in crate::files(m.root()) {
        let got = path.metadata().unwrap();
        assert_eq!(got.blocks(), got.len().div_ceil(512), "{path:?}");
        assert_eq!(got.blksize(), 1 << 20, "{path:?}");
    }
    assert_eq!(m.join("tensors/odd/raw").metadata().unwrap().blocks(), 137);
    for dir in ["", "tensors", "tensors/odd", "tree", "files"] {
        let got = m.join(dir).metadata().unwrap();
        assert_eq!(got.blksize(), 4096, "{dir:?}");
    }
}

#[test]
fn df_shows_the_models_size() {
    let dir = ModelDir::sharded(&[
        ("a.safetensors", &[tensor("a", Dtype::U8, &[70_001])]),
        ("b.safetensors", &[tensor("b", Dtype::U8, &[3_000_000])]),
    ]);
    let size = |f: &str| dir.join(f).metadata().unwrap().len();
    let total = size("a.safetensors") + size("b.safetensors");
    let m = Mounted::new(dir.path());
    let s = statvfs(m.root()).unwrap();
    assert_eq!(s.f_blocks, total.div_ceil(s.f_frsize));
    assert_eq!((s.f_bfree, s.f_bavail), (0, 0));
    assert!(s.f_namemax >= 255);
    assert_ne!(s.f_flag & libc::ST_RDONLY, 0);
    assert_ne!(s.f_flag & libc::ST_NOSUID, 0);
}

#[test]
fn the_kernels_table_names_the_model() {
    let dir = ModelDir::of(&[tensor("a", Dtype::U8, &[1])]);
    let odd = dir.join("a b,c\\d\té\nf");
    std::fs::create_dir(&odd).unwrap();
    std::fs::rename(dir.join("model.safetensors"), odd.join("model.safetensors")).unwrap();
    let m = Mounted::new(&odd);
    assert_eq!(m.status()["model"], odd.to_str().unwrap());
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let line = table
        .lines()
        .find(|l| l.contains(m.root().to_str().unwrap()))
        .unwrap();
    let (mount, fs) = line.split_once(" - ").unwrap();
    let fields: Vec<&str> = fs.split(' ').collect();
    assert_eq!(fields[0], "fuse.stfs");
    for option in ["ro", "nosuid", "nodev", "noexec"] {
        assert!(
            mount.split([' ', ',']).any(|o| o == option),
            "{option}: {line}"
        );
    }
    assert!(fields[2].contains("default_permissions"), "{line}");
    assert!(!fields[2].contains("allow_other"), "{line}");
}

fn inodes(root: &Path) -> BTreeMap<String, (u64, u64)> {
    walk(root)
        .iter()
        .map(|p| {
            let m = p.symlink_metadata().unwrap();
            let name = p.strip_prefix(root).unwrap().to_str().unwrap().to_string();
            (name, (m.ino(), m.len()))
        })
        .collect()
}

#[test]
fn inode_numbers_are_unique_and_the_same_at_the_next_mount() {
    let dir = two_shards();
    dir.file("config.json", "{}");
    let first = inodes(Mounted::new(dir.path()).root());
    let unique: BTreeSet<u64> = first.values().map(|v| v.0).collect();
    assert_eq!(unique.len(), first.len());
    let m = Mounted::new(dir.path());
    // In another order: single lookups, from the last to the first.
    for name in first.keys().rev() {
        let got = m.join(name).symlink_metadata().unwrap();
        assert_eq!((got.ino(), got.len()), first[name], "{name}");
    }
    assert_eq!(inodes(m.root()), first);
}

#[test]
fn extended_attributes_are_about_the_file_they_hang_on() {
    let dir = ModelDir::of(&[
        tensor("b", Dtype::BF16, &[3, 4]),
        tensor("h", Dtype::F16, &[]),
        tensor("l.gate_proj.weight", Dtype::F32, &[2, 4]),
        tensor("l.up_proj.weight", Dtype::F32, &[3, 4]),
    ]);
    let m = Mounted::new(dir.path());
    let all = |path: &str| -> serde_json::Value {
        let path = m.join(path);
        let names = listxattr(&path).unwrap();
        let text = |n: &String| String::from_utf8(getxattr(&path, n).unwrap()).unwrap();
        names
            .iter()
            .map(|n| {
                (
                    n.trim_start_matches("user.stfs.").to_string(),
                    text(n).into(),
                )
            })
            .collect::<serde_json::Map<_, _>>()
            .into()
    };
    let is = |name: &str, dtype: &str, shape: &str, origin: &str| json!({"name": name, "dtype": dtype, "shape": shape, "origin": origin});
    assert_eq!(all("tensors/b/raw"), is("b", "BF16", "3,4", "stored"));
    assert_eq!(all("tensors/b/f32"), is("b", "F32", "3,4", "stored"));
    assert_eq!(all("npy/b.npy"), is("b", "F32", "3,4", "stored"));
    assert_eq!(all("npy/h.npy"), is("h", "F16", "", "stored"));
    let fused = "l.gate_up_proj.weight";
    assert_eq!(
        all(&format!("tensors/{fused}/raw")),
        is(fused, "F32", "5,4", "fused")
    );
    for none in [
        "tensors/b/meta.json",
        "tensors/b",
        "tensors",
        "model.json",
        "files",
    ] {
        assert_eq!(all(none), json!({}), "{none}");
    }
    let raw = m.join("tensors/b/raw");
    assert_eq!(errno(getxattr(&raw, "user.other")), libc::ENODATA);
    assert_eq!(
        errno(getxattr(&m.join("model.json"), "user.stfs.name")),
        libc::ENODATA
    );
    // The root's attribute describes the mount.
    let status: serde_json::Value =
        serde_json::from_slice(&getxattr(m.root(), "user.stfs.status").unwrap()).unwrap();
    assert_eq!(status["pid"], m.pid());
    assert_eq!(status["model"], dir.path().to_str().unwrap());
    assert_eq!(status["source_changed"], false);
}

#[test]
fn root_raises_the_read_ahead() {
    let dir = ModelDir::of(&[tensor("a", Dtype::U8, &[1])]);
    let m = Mounted::new(dir.path());
    let device = m.root().metadata().unwrap().dev();
    let (major, minor) = (libc::major(device), libc::minor(device));
    let path = format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb");
    let may = File::options().write(true).open(&path).is_ok();
    let want = if may { "1024" } else { "128" };
    assert_eq!(std::fs::read_to_string(&path).unwrap().trim(), want);
}
