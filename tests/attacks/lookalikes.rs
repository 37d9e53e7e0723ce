//! Valid files whose first bytes are another format's magic number, and damaged ones, for which the
//! damage must be reported rather than the lookalike.

use serde_json::{Value, json};
use stfs::catalog::{OpenOptions, check};

use crate::common::{Dir, good, open, refused, refused_files, shard};

/// 640, the length of a header, is `80 02` in little-endian: how a pickle begins.
const PICKLE_LENGTH: usize = 640;

/// A shard of one tensor with a header of 640 bytes.
fn pickle_like(end: u64) -> Vec<u8> {
    let entry = json!({"t": {"dtype": "F32", "shape": [1], "data_offsets": [0, end]}});
    shard(&format!("{:<PICKLE_LENGTH$}", entry.to_string()), 4)
}

/// What `stfs verify` reports about files, without the model's own path.
fn said(files: &[(&str, &[u8])]) -> Vec<String> {
    let dir = Dir::of(files);
    let problems = check(dir.path()).unwrap();
    problems.into_iter().map(|p| p.problem).collect()
}

#[test]
fn a_headers_length_is_no_magic_number() {
    let name = "model.safetensors";
    assert_eq!(said(&[(name, &pickle_like(4))]), [""; 0]);
    let wrong = pickle_like(5);
    let expected = "F32 [1] needs 4 bytes, data_offsets give 5";
    assert_eq!(said(&[(name, &wrong)]), [expected]);
    refused(Dir::of(&[(name, &wrong)]).path(), &[name, "'t'", expected]);
    // Cut short, it is still a damaged shard.
    let cut = &wrong[..100];
    refused(
        Dir::of(&[(name, cut)]).path(),
        &[name, "needs 648 bytes, has 100"],
    );
}

/// What a clone without LFS has in place of any file that its `.gitattributes` name.
#[test]
fn pointers_in_place_of_json_are_called_so() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123456\n";
    let words = ["is a Git LFS pointer", "for 123456 bytes", "git lfs pull"];
    let index = "model.safetensors.index.json";
    for files in [
        &[(index, &pointer[..])][..],
        &[("w.json", pointer), ("w.bin", &[0; 64])],
    ] {
        refused_files(files, &[&words[..], &[files[0].0]].concat());
        let problems = check(Dir::of(files).path()).unwrap();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].file, files[0].0);
        assert!(words.iter().all(|w| problems[0].problem.contains(w)));
    }
    // A config that is not JSON is ignored, and reported.
    let files = [
        ("model.safetensors", &good(&["a"])[..]),
        ("config.json", pointer),
    ];
    let problems = said(&files);
    assert!(
        words.iter().all(|w| problems[0].contains(w)),
        "{problems:?}"
    );
    let page: [(&str, &[u8]); 1] = [(index, b"<!DOCTYPE html><html></html>")];
    refused_files(&page, &[index, "HTML page", "download it again"]);
}

#[test]
fn weights_may_begin_with_any_bytes() {
    let of = |size: u64| json!({"offset": 0, "size": size, "shape": [4], "dtype": "F32"});
    let manifest = |tensors: Value| json!({"tensors": tensors}).to_string();
    for begin in [&b"GGUF"[..], b"\x80\x02}q", b"PK\x03\x04", b"<html"] {
        let mut bin = begin.to_vec();
        bin.resize(16, 0);
        let sound = manifest(json!({"t": of(16)}));
        let files = [("w.bin", &bin[..]), ("w.json", sound.as_bytes())];
        assert_eq!(said(&files), [""; 0]);
        let wrong = manifest(json!({"t": of(12)}));
        let files = [("w.bin", &bin[..]), ("w.json", wrong.as_bytes())];
        let expected = "F32 [4] needs 16 bytes, size is 12";
        assert_eq!(said(&files), [expected]);
        refused(Dir::of(&files).path(), &["w.json", "'t'", expected]);
    }
}

#[test]
fn what_really_is_a_pickle_is_called_one() {
    // As torch.save has begun a file since 1.6, and before; and pickle.dump of a dict.
    let zip = b"PK\x03\x04\x00\x00\x08\x08\x00\x00\x00\x00";
    let legacy = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.";
    let frame = b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00}";
    let checkpoint = "is a PyTorch checkpoint (a pickle), although a safetensors file is expected";
    let pickle = "is a pickle, but not of torch.save";
    for (bytes, what) in [
        (&zip[..], checkpoint),
        (legacy, checkpoint),
        (frame, pickle),
    ] {
        let problems = said(&[("model.safetensors", bytes)]);
        assert!(problems[0].contains(what), "{problems:?}");
        assert_eq!(problems.len(), 1);
    }
}

#[test]
fn every_problem_of_a_header_is_reported_with_its_names() {
    // One entry is wrong. The index lists it, one that exists, and one that does not.
    let header = json!({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [4, 8]}});
    let bad = shard(&header.to_string(), 4);
    let map = json!({"a": "1.safetensors", "b": "1.safetensors", "c": "1.safetensors",
        "d": "2.safetensors"});
    let index = json!({"weight_map": map}).to_string();
    let index = ("model.safetensors.index.json", index.as_bytes());
    let dir = Dir::of(&[
        index,
        ("1.safetensors", &bad),
        ("2.safetensors", &good(&["d"])),
    ]);
    let problems = check(dir.path()).unwrap();
    let tensors: Vec<_> = problems.iter().map(|p| p.tensor.as_deref()).collect();
    assert_eq!(tensors, [Some("c"), Some("b")], "{problems:?}");
    assert!(open(dir.path(), OpenOptions::default()).is_err());
}
