//! Opens files that a small writer made, checked against Python's zipfile, and files of torch 2.15.

use std::ffi::OsStr;
use std::sync::Arc;

use super::Checkpoint;
use crate::catalog::store::{MemoryStore, Store};
use crate::catalog::{Findings, Object, OpenOptions};

mod damage;
mod legacy;
mod others;
mod pickles;
mod storages;
mod writer;
mod zip;

/// `torch.save({'w': torch.zeros(2), 'n': 3}, F)`.
const TORCH: &[u8] = include_bytes!("tests/torch-2.15.pt");
/// The same with `'u': torch.zeros(3, dtype=torch.uint16)` in the format before 1.6.
const TORCH_LEGACY: &[u8] = include_bytes!("tests/torch-2.15-legacy.pt");

/// A file in memory.
fn object(bytes: &[u8]) -> Arc<dyn Object> {
    let store = MemoryStore::new(&[("m.pt", bytes)]);
    store.open(OsStr::new("m.pt")).unwrap()
}

fn open(bytes: &[u8]) -> Result<Checkpoint, String> {
    let findings = Findings::first(OpenOptions::default());
    let opened = Checkpoint::open(&*object(bytes), &findings);
    let checkpoint = opened.map(|(checkpoint, _)| checkpoint);
    checkpoint.map_err(|broken| broken.error.to_string())
}

/// Why a file cannot be opened: one line, which names the file.
fn refusal(bytes: &[u8]) -> String {
    let error = open(bytes).err().expect("should be refused");
    assert!(!error.contains('\n'), "{error}");
    let problem = error.strip_prefix("memory/m.pt: ");
    problem.unwrap_or_else(|| panic!("{error}")).to_string()
}

/// Everything that is wrong with a file.
fn problems(bytes: &[u8]) -> Vec<String> {
    let file = object(bytes);
    let found = match Checkpoint::open(&*file, &Findings::all()) {
        Ok((_, problems)) if problems.is_empty() => return Vec::new(),
        Ok((_, problems)) => problems.into_broken(&*file, Box::default()).problems,
        Err(broken) if broken.problems.is_empty() => return vec![broken.error.to_string()],
        Err(broken) => broken.problems,
    };
    found.into_iter().map(|found| found.problem).collect()
}

/// That `text` has all of these in it.
#[track_caller]
fn has(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "'{part}' is not in: {text}");
    }
}
