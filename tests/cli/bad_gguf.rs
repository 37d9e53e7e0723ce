//! GGUF files that are wrong: one line that names the file, and `verify` lists everything.
//! `tests/attacks/gguf.rs` has every way to be wrong.

use std::path::Path;

use crate::common::gguf::{F32, Gguf, V, counting, s, splits};
use crate::common::{ModelDir, stfs};

/// The same line by the directory, by the file, and when mounting; no mountpoint is left behind.
#[track_caller]
fn refused(file: &str, bytes: &[u8], words: &[&str]) {
    let dir = ModelDir::new();
    let path = dir.file(file, bytes);
    let line = stfs([Path::new("ls"), &path]).fails(words);
    let begins = format!("stfs: {}: ", path.display());
    assert!(
        line.starts_with(&begins) && line.trim_end().lines().count() == 1,
        "{line}"
    );
    let at = dir.join("mnt");
    assert_eq!(stfs([Path::new("mount"), &path, &at]).fails(words), line);
    assert!(!at.exists());
    if file.ends_with(".gguf") {
        assert_eq!(stfs([Path::new("ls"), dir.path()]).fails(words), line);
    }
}

#[test]
fn files_that_are_wrong() {
    let small = Gguf::small;
    refused("m.gguf", b"", &["is empty (0 bytes)"]);
    refused("m.gguf", b"lmgg\0\0\0\0", &["older GGML file", "not GGUF"]);
    let version = Gguf {
        version: 1,
        ..small()
    };
    refused(
        "m.gguf",
        &version.bytes(),
        &["version 1; stfs reads 2 and 3"],
    );
    let swapped = Gguf {
        version: 3 << 24,
        ..small()
    };
    refused("m.gguf", &swapped.bytes(), &["big-endian"]);
    let many = Gguf {
        tensor_count: Some(1 << 40),
        ..small()
    };
    refused(
        "blob",
        &many.bytes(),
        &["promises 1099511627776 tensors", "bytes are left"],
    );
    let odd = small().key("general.alignment", V::U32(48));
    refused("m.gguf", &odd.bytes(), &["general.alignment is 48"]);
    // A name that would control the terminal.
    let name = small().tensor("\u{1b}[2J\n", &[1], 5, [0; 4]);
    refused("m.gguf", &name.bytes(), &["\\u{1b}[2J\\n", "ggml type 5"]);
    let bytes = small().bytes();
    let header = small().header().len();
    refused(
        "sha256-00",
        &bytes[..header - 1],
        &["the offset of tensor 't' needs 8 bytes"],
    );
}

#[test]
fn verify_lists_everything() {
    let set = splits(
        "m",
        &[("general.architecture", s("llama"))],
        &[&[counting("a", 8, 0.0)], &[counting("b", 8, 0.0)]],
    );
    let dir = ModelDir::new();
    for (name, file) in &set {
        dir.file(name, file.bytes());
    }
    stfs([Path::new("verify"), dir.path()]).ok();
    let (first, second) = (&set[0], &set[1]);
    let hole = second.1.clone().tensor("c", &[1], F32, [0; 4]).at(4096);
    let hole = hole.tensor("d", &[1], 99, [0; 4]);
    dir.file(&second.0, hole.bytes());
    let bytes = first.1.bytes();
    dir.file(&first.0, &bytes[..bytes.len() - 1]);
    let ran = stfs([Path::new("verify"), dir.path()]);
    assert_eq!(ran.code, 1, "{ran:?}");
    for line in [
        "m-00001-of-00002.gguf: 'a': goes past the end of the file",
        "m-00002-of-00002.gguf: 'd': its ggml type 99 is unknown",
    ] {
        assert!(ran.out.contains(line), "{line}: {ran:?}");
    }
    // What is served all the same.
    let served = second.1.clone().tensor("c", &[1], F32, [0; 4]).at(4096);
    dir.file(&second.0, served.bytes());
    let ran = stfs([Path::new("verify"), &dir.join(&second.0)]);
    let line =
        "m-00002-of-00002.gguf: 'c': llama.cpp will not load this: tensor 'c' at 4096, expected 32";
    assert!(ran.out.contains(line), "{ran:?}");
}

/// What lies under a GGUF's name but is something else is found, by its own path as in a directory.
#[test]
fn verify_finds_what_is_not_gguf() {
    for (bytes, why) in [
        (&b""[..], "is empty"),
        (b"GG", "cut short"),
        (b"tjgg\x03\0\0\0", "older GGML file"),
        (b"<!doctype html><html>", "HTML page"),
        (
            b"version https://git-lfs.github.com/spec/v1\nsize 5\n",
            "Git LFS pointer",
        ),
    ] {
        let dir = ModelDir::new();
        let path = dir.file("m.gguf", bytes);
        for model in [dir.path(), &path] {
            let ran = stfs([Path::new("verify"), model, Path::new("--json")]);
            assert_eq!(ran.code, 1, "{why}: {ran:?}");
            let found = ran.json();
            let problem = found[0]["problem"].as_str().unwrap();
            assert!(problem.contains(why), "{why}: {problem}");
            assert_eq!(found[0]["file"], "m.gguf");
        }
    }
}
