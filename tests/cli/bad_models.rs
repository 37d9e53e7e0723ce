//! Directories and files that are not a model, or not a whole one.

use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::Dtype;
use serde_json::json;

use crate::common::sys::{is_root, mkfifo};
use crate::common::{ModelDir, Ran, T, stfs, tensor};
use crate::{PublicBin, small_model};

fn t(name: &str) -> T {
    tensor(name, Dtype::BF16, &[4, 2])
}

fn refused(model: &Path, words: &[&str]) -> String {
    stfs([Path::new("ls"), model]).fails(words)
}

const LFS: &str = "version https://git-lfs.github.com/spec/v1\n\
    oid sha256:4665465f5f1c4b1c2c3c8e7b7b0f0a1d8f0b0a0d0c0b0a090807060504030201\nsize 4976698672\n";

#[test]
fn nothing_that_is_a_model() {
    let dir = ModelDir::new();
    let looked_for = [
        "model.safetensors",
        ".safetensors.index.json",
        ".bin",
        "holds no model",
    ];
    refused(dir.path(), &looked_for);
    // The contents of a directory with a safetensors name are ignored.
    std::fs::create_dir(dir.join("x.safetensors")).unwrap();
    dir.json("config.json", &json!({}));
    refused(dir.path(), &looked_for);
    std::fs::create_dir(dir.join("unet")).unwrap();
    dir.shard("unet/model.safetensors", &[t("a")]);
    refused(dir.path(), &["subdirectories", "unet"]);
    refused(&dir.join("config.json"), &["config.json", "manifest"]);
    refused(&dir.join("nowhere"), &["nowhere", "No such file"]);
    refused(Path::new("/dev/null"), &["/dev/null", "regular"]);
    refused(Path::new("/dev/zero"), &["/dev/zero", "regular"]);
    refused(
        &dir.file("notes.txt", "hello"),
        &["notes.txt", "is not a model"],
    );
}

#[test]
fn files_under_a_shards_name_that_are_none() {
    for (content, words) in [
        (
            LFS.as_bytes(),
            &["Git LFS pointer", "4976698672 bytes", "git lfs pull"][..],
        ),
        (
            b"<!DOCTYPE html><html><body>401</body></html>",
            &["HTML page", "download it again"],
        ),
        (b"\n\n<html lang=\"en\">", &["HTML page"]),
        (
            b"\x80\x02}q\x00(X\x01\x00\x00\x00a",
            &["is a pickle, but not of torch.save"],
        ),
        (
            b"PK\x03\x04\x00\x00archive/data.pkl",
            &["is a PyTorch checkpoint (a pickle), although a safetensors file is expected"],
        ),
        (b"GGUF\x03\x00\x00\x00", &["is a gguf file"]),
    ] {
        let dir = ModelDir::new();
        let path = dir.file("model.safetensors", content);
        for model in [dir.path(), &path] {
            refused(model, &[words, &["model.safetensors"]].concat());
        }
        // As one of several shards; with `--allow-missing` it is left out, with a message.
        let dir = ModelDir::sharded(&[("1.safetensors", &[t("a")]), ("2.safetensors", &[t("b")])]);
        dir.file("2.safetensors", content);
        refused(dir.path(), &[words, &["2.safetensors"]].concat());
        let args = ["ls", "--why", "--allow-missing"].map(Path::new);
        let ran = stfs(args.into_iter().chain([dir.path()])).ok();
        assert!(ran.out.contains(words[0]), "{ran:?}");
    }
    let dir = ModelDir::new();
    dir.file("model.safetensors.index.json", LFS);
    refused(
        dir.path(),
        &[
            "model.safetensors.index.json",
            "Git LFS pointer",
            "git lfs pull",
        ],
    );
    let dir = ModelDir::new();
    dir.file("w.bin", LFS);
    let entry = json!({"offset": 0, "size": 4096, "shape": [1024], "dtype": "F32"});
    dir.json("w.json", &json!({"tensors": {"a": entry}}));
    refused(dir.path(), &["w.bin", "Git LFS pointer", "git lfs pull"]);
}

#[test]
fn pickles_and_half_downloads() {
    for name in ["pytorch_model.bin", "consolidated.00.pth", "x.pt", "x.ckpt"] {
        let dir = ModelDir::new();
        let path = dir.file(name, b"\x80\x02}q\x00.");
        refused(dir.path(), &[name, "is a pickle, but not of torch.save"]);
        refused(&path, &[name, "is a pickle, but not of torch.save"]);
    }
    let dir = ModelDir::new();
    let path = dir.file("model.safetensors.incomplete", b"half");
    for model in [dir.path(), &path] {
        refused(
            model,
            &["model.safetensors.incomplete", "incomplete", "mount again"],
        );
    }
}

#[test]
fn an_index_and_its_shards_disagree() {
    let dir = ModelDir::sharded(&[("1.safetensors", &[t("a")]), ("2.safetensors", &[t("b")])]);
    dir.index(
        "model.safetensors.index.json",
        [("a", "1.safetensors"), ("b", "1.safetensors")],
    );
    refused(
        dir.path(),
        &["1.safetensors", "'b'", "model.safetensors.index.json"],
    );
    dir.index(
        "model.safetensors.index.json",
        [("a", "1.safetensors"), ("b", "3.safetensors")],
    );
    refused(dir.path(), &["3.safetensors", "missing", "--allow-missing"]);
    // No index, and one name in two files.
    let dir = ModelDir::new();
    dir.shard("1.safetensors", &[t("a"), t("same.name")]);
    dir.shard("2.safetensors", &[t("b"), t("same.name")]);
    refused(
        dir.path(),
        &[
            "'same.name'",
            "1.safetensors",
            "2.safetensors",
            "mount one file",
        ],
    );
    let dir = ModelDir::new();
    dir.index("a.safetensors.index.json", []);
    dir.index("b.safetensors.index.json", []);
    refused(
        dir.path(),
        &[
            "a.safetensors.index.json",
            "b.safetensors.index.json",
            "by its path",
        ],
    );
}

#[test]
fn shard_names_that_lead_elsewhere() {
    let dir = small_model();
    let shard = dir.join("model.safetensors");
    std::fs::rename(&shard, dir.join("1.safetensors")).unwrap();
    std::fs::create_dir(dir.join("sub")).unwrap();
    dir.shard("sub/2.safetensors", &[t("a.weight")]);
    let absolute = dir.join("1.safetensors");
    let name = "model.safetensors.index.json";
    for evil in [
        "../../etc/passwd",
        "../x.safetensors",
        "sub/2.safetensors",
        absolute.to_str().unwrap(),
        "..",
        ".",
        "",
        "1.safetensors\0",
    ] {
        dir.index(name, [("a.weight", evil)]);
        let line = refused(dir.path(), &[name, "'a.weight'", "plain file name"]);
        assert!(line.contains(evil.trim_end_matches('\0')), "{line}");
        let args = ["ls", "--allow-missing"].map(Path::new);
        stfs(args.into_iter().chain([dir.path()])).fails(&["plain file name"]);
    }
    for (index, words) in [
        (
            json!({"weight_map": {"a.weight": 7}}),
            &["'a.weight'", "7"][..],
        ),
        (json!({"weight_map": ["1.safetensors"]}), &["weight_map"]),
        (json!({"metadata": {}}), &["weight_map"]),
        (json!([]), &["weight_map"]),
    ] {
        dir.json(name, &index);
        refused(dir.path(), &[words, &[name]].concat());
    }
    dir.file(name, "{\"weight_map\": {");
    refused(dir.path(), &[name, "JSON"]);
}

/// Things that would block a program that opens or reads them like files.
#[test]
fn fifos_and_devices_do_not_hang() {
    let fifo = |dir: &ModelDir, name: &str| -> PathBuf {
        let _ = std::fs::remove_file(dir.join(name));
        mkfifo(&dir.join(name)).unwrap();
        dir.join(name)
    };
    let endless = |dir: &ModelDir, name: &str| -> PathBuf {
        let _ = std::fs::remove_file(dir.join(name));
        symlink("/dev/zero", dir.join(name)).unwrap();
        dir.join(name)
    };
    for make in [fifo, endless] {
        let dir = ModelDir::new();
        let path = make(&dir, "model.safetensors");
        refused(dir.path(), &["model.safetensors", "regular file"]);
        refused(&path, &["model.safetensors", "regular file"]);
        let at = dir.join("mnt");
        stfs([Path::new("mount"), dir.path(), &at]).fails(&["regular file"]);
        let dir = ModelDir::new();
        let path = make(&dir, "model.safetensors.index.json");
        refused(dir.path(), &["index.json", "regular file"]);
        refused(&path, &["index.json", "regular file"]);
        let dir = ModelDir::new();
        dir.file("w.bin", "1234");
        let path = make(&dir, "w.json");
        refused(dir.path(), &["w.json", "regular file"]);
        refused(&path, &["w.json", "regular file"]);
        let dir = ModelDir::new();
        dir.json("w.json", &json!({"tensors": {}}));
        make(&dir, "w.bin");
        refused(dir.path(), &["w.bin", "regular file"]);
        // A config that is not a regular file is ignored, with a message.
        let dir = small_model();
        make(&dir, "config.json");
        let args = ["ls", "--why"].map(Path::new);
        let ran = stfs(args.into_iter().chain([dir.path()])).ok();
        assert!(ran.out.contains("config.json"), "{ran:?}");
        let parent = ModelDir::new();
        let repo = parent.join("models--o--n");
        std::fs::create_dir_all(repo.join("snapshots")).unwrap();
        std::fs::create_dir_all(repo.join("refs")).unwrap();
        make(&parent, "models--o--n/refs/main");
        refused(&repo, &["refs/main"]);
    }
}

#[test]
fn links_to_nowhere_and_in_circles() {
    let dir = ModelDir::new();
    symlink("/nonexistent/blob", dir.join("model.safetensors")).unwrap();
    refused(dir.path(), &["model.safetensors", "No such file"]);
    let dir = ModelDir::new();
    symlink("model.safetensors", dir.join("model.safetensors")).unwrap();
    refused(dir.path(), &["model.safetensors"]);
    refused(&dir.join("model.safetensors"), &["model.safetensors"]);
    let dir = ModelDir::sharded(&[("1.safetensors", &[t("a")])]);
    std::fs::remove_file(dir.join("1.safetensors")).unwrap();
    symlink("../blobs/gone", dir.join("1.safetensors")).unwrap();
    refused(dir.path(), &["1.safetensors", "missing"]);
}

/// Runs the program as an ordinary user.
fn ordinary(args: &[&Path]) -> Ran {
    let bin = PublicBin::new();
    let mut command = Command::new(bin.path());
    if is_root() {
        command.uid(65534).gid(65534);
    }
    Ran::of(command.args(args).output().unwrap())
}

#[test]
fn what_may_not_be_read() {
    use std::os::unix::fs::PermissionsExt;
    let close = |p: &Path| std::fs::set_permissions(p, PermissionsExt::from_mode(0o000)).unwrap();
    let dir = small_model();
    let file = dir.join("model.safetensors");
    close(&file);
    for model in [dir.path(), &file] {
        ordinary(&[Path::new("ls"), model]).fails(&["model.safetensors", "Permission denied"]);
    }
    close(dir.path());
    let shown = dir.path().to_str().unwrap();
    let run = |model: &Path| ordinary(&[Path::new("ls"), model]);
    run(dir.path()).fails(&[shown, "Permission denied"]);
    run(&file).fails(&["model.safetensors", "Permission denied"]);
    crate::common::model::open_to_all(dir.path());
}
