//! PyTorch checkpoints that are hostile or wrong: what all of their tests share.

use std::path::Path;

use safetensors::Dtype;
use serde_json::Value;

use crate::common::Dir;
use crate::program::pytorch::{Py, contiguous, dict, zip, zip_file};
use crate::program::{T, stfs, tensor};

#[path = "pytorch/damage.rs"]
mod damage;
#[path = "pytorch/payloads.rs"]
mod payloads;
#[path = "pytorch/pickles.rs"]
mod pickles;
#[path = "pytorch/served.rs"]
mod served;
#[path = "pytorch/tensors.rs"]
mod tensors;
#[path = "pytorch/zips.rs"]
mod zips;

/// A small tensor.
fn w() -> T {
    tensor("w", Dtype::F32, &[2, 3])
}

/// A file of these entries and the tensor `w`.
fn beside(entries: Vec<(&str, Py)>) -> Vec<u8> {
    let w = ("w", contiguous("0", &w()));
    zip_file(&dict(entries.into_iter().chain([w])))
}

/// A file with this pickle, and these storages.
fn archive(pickle: &[u8], storages: &[(&str, &[u8])]) -> Vec<u8> {
    let mut members = vec![
        ("archive/data.pkl".to_string(), pickle.to_vec()),
        ("archive/version".to_string(), b"3\n".to_vec()),
    ];
    let storage = |(key, data): &(&str, &[u8])| (format!("archive/data/{key}"), data.to_vec());
    members.extend(storages.iter().map(storage));
    zip(&members)
}

/// Text in a pickle.
fn text(text: &str) -> Vec<u8> {
    let mut out = b"X".to_vec();
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
    out
}

/// A pickle of protocol 2 of these pieces.
fn pickle(pieces: &[&[u8]]) -> Vec<u8> {
    [&b"\x80\x02"[..], &pieces.concat(), b"."].concat()
}

/// The opcodes of the tensor `w` in the storage "0" of `n` F32 elements.
fn rebuilt(n: i32, offset: &[u8], size: &[u8], stride: &[u8]) -> Vec<u8> {
    let mut out = b"ctorch._utils\n_rebuild_tensor_v2\n((".to_vec();
    out.extend(text("storage"));
    out.extend(b"ctorch\nFloatStorage\n");
    out.extend(text("0"));
    out.extend(text("cpu"));
    out.extend(b"J");
    out.extend(n.to_le_bytes());
    out.extend(b"tQ");
    out.extend([offset, size, stride].concat());
    out.extend(b"\x89ccollections\nOrderedDict\n)RtR");
    out
}

/// What opens, by its path: its tensors' names.
#[track_caller]
fn served(bytes: &[u8]) -> Vec<String> {
    let dir = Dir::of(&[("m.pt", bytes)]);
    names(&dir.join("m.pt"))
}

/// The names of a model's tensors.
#[track_caller]
fn names(model: &Path) -> Vec<String> {
    let ran = stfs([Path::new("ls"), "--json".as_ref(), model]).ok();
    let all = ran.json();
    let name = |t: &Value| t["name"].as_str().unwrap().to_string();
    all.as_array().unwrap().iter().map(name).collect()
}

/// Bytes that must be refused with one line that has the file's name and these words. Returns the line.
/// Verifying must find a problem, too.
#[track_caller]
fn refused(bytes: &[u8], words: &[&str]) -> String {
    let dir = Dir::of(&[("m.pt", bytes)]);
    let path = dir.join("m.pt");
    let line = stfs([Path::new("ls"), &path]).fails(&[&["m.pt"], words].concat());
    let found = verified(&path);
    assert!(!found.is_empty(), "verify finds nothing: {line}");
    let said = |word: &&str| found.iter().any(|(_, _, problem)| problem.contains(*word));
    // A tensor is named beside its problem.
    let about = |word: &&str| found.iter().any(|(_, t, _)| t == word.trim_matches('\''));
    let heard = |word: &&str| said(word) || about(word);
    for word in words {
        assert!(heard(word), "verify lacks {word:?}: {found:?}");
    }
    line
}

/// What `stfs verify` reports: file, tensor, problem.
#[track_caller]
fn verified(model: &Path) -> Vec<(String, String, String)> {
    let ran = stfs([Path::new("verify"), "--json".as_ref(), model]);
    assert_eq!(ran.err, "", "{ran:?}");
    let all = ran.json();
    let all = all.as_array().unwrap();
    assert_eq!(ran.code, i32::from(!all.is_empty()), "{ran:?}");
    let part = |p: &Value, key: &str| p[key].as_str().unwrap_or_default().to_string();
    all.iter()
        .map(|p| (part(p, "file"), part(p, "tensor"), part(p, "problem")))
        .collect()
}
