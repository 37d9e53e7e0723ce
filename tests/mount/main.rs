//! Real mounts of the real program, tested through the kernel.

#[path = "../common/mod.rs"]
mod common;

mod access;
mod attributes;
mod casts;
mod changes;
mod checkpoints;
mod damage;
mod facts;
mod freed;
mod gguf;
mod incomplete;
mod links;
mod listing;
mod manifest;
mod memory;
mod memory_limit;
mod names;
mod readonly;
mod reads;
mod sources;
mod stalled;
mod synthetic;
mod tied;
mod times;

use std::path::{Path, PathBuf};

/// Every path below a directory, links not followed, parents first.
fn walk(root: &Path) -> Vec<PathBuf> {
    let mut all = vec![root.to_path_buf()];
    let mut at = 0;
    while at < all.len() {
        if all[at].symlink_metadata().expect("stat").is_dir() {
            let entries = std::fs::read_dir(&all[at]).expect("list");
            all.extend(entries.map(|e| e.expect("an entry").path()));
        }
        at += 1;
    }
    all.split_off(1)
}

/// The regular files below a directory.
fn files(root: &Path) -> Vec<PathBuf> {
    let mut all = walk(root);
    all.retain(|p| p.symlink_metadata().expect("stat").is_file());
    all
}
