//! GGUF files that are wrong: the checks that all of their tests share.

use std::path::Path;

use stfs::catalog::{Catalog, OpenOptions, check};

use crate::common::{Dir, open, refused};
use crate::gguf_file::Gguf;

#[path = "gguf/damage.rs"]
mod damage;
#[path = "gguf/header.rs"]
mod header;
#[path = "gguf/places.rs"]
mod places;
#[path = "gguf/served.rs"]
mod served;
#[path = "gguf/splits.rs"]
mod splits;

const MISSING: OpenOptions = OpenOptions {
    allow_missing: true,
};

/// Bytes that must be refused by path and in a directory, naming the file.
#[track_caller]
fn refused_bytes(bytes: &[u8], parts: &[&str]) {
    let dir = Dir::of(&[("m.gguf", bytes)]);
    let parts = [&["m.gguf: "], parts].concat();
    refused(dir.path(), &parts);
    refused(&dir.join("m.gguf"), &parts);
    let problems = check(dir.path()).unwrap();
    let all: Vec<String> = problems.iter().map(|p| format!("{p:?}")).collect();
    assert!(!all.is_empty());
}

#[track_caller]
fn refused_gguf(file: &Gguf, parts: &[&str]) {
    refused_bytes(&file.bytes(), parts);
}

/// What opens, by its path.
#[track_caller]
fn opened(bytes: &[u8]) -> Catalog {
    let dir = Dir::of(&[("m.gguf", bytes)]);
    open(&dir.join("m.gguf"), OpenOptions::default()).unwrap()
}

/// What `stfs verify` reports: file, tensor, problem.
fn problems(model: &Path) -> Vec<(String, String, String)> {
    let found = check(model).unwrap().into_iter();
    let found = found.map(|p| (p.file, p.tensor.unwrap_or_default(), p.problem));
    found.collect()
}

/// What `stfs verify` reports about one file: tensor, problem.
fn problems_of(file: &Gguf) -> Vec<(String, String)> {
    let dir = Dir::of(&[("m.gguf", &file.bytes())]);
    let found = problems(dir.path()).into_iter();
    found
        .map(|(_, tensor, problem)| (tensor, problem))
        .collect()
}
