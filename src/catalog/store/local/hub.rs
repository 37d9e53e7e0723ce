//! The folders that the hub's programs create: a model's folder in their cache, and what an
//! interrupted download leaves behind.

use std::path::{Path, PathBuf};

use super::small_file;
use crate::error::{Error, Result};

/// Largest `refs/main` that is read, in bytes. It holds the 40 digits of a commit.
const MAX_REFERENCE: u64 = 4096;

/// `models--org--name` → the snapshot that `refs/main` names; `None` if `dir` is not such a folder.
pub(super) fn snapshot(dir: &Path) -> Result<Option<PathBuf>> {
    let is_cache = dir
        .file_name()
        .is_some_and(|n| n.to_string_lossy().starts_with("models--"))
        && dir.join("snapshots").is_dir();
    if !is_cache {
        return Ok(None);
    }
    let reference = dir.join("refs/main");
    let rev = small_file::read(&reference, MAX_REFERENCE).map_err(|e| {
        Error::invalid(
            dir,
            format!(
                "is a hub cache folder, but {} cannot be read ({e}); mount one of its snapshots/<revision> by path",
                reference.display()
            ),
        )
    })?;
    let rev = String::from_utf8_lossy(&rev);
    let rev = rev.trim();
    let plain = !rev.is_empty() && !rev.contains(['/', '\0']) && rev != "." && rev != "..";
    if !plain {
        return Err(Error::invalid(&reference, "does not name a revision"));
    }
    let snapshot = dir.join("snapshots").join(rev);
    if !snapshot.is_dir() {
        let what_to_do = match unfinished(dir) {
            Some(_) => "its download is unfinished: let it finish ('hf download' resumes it)",
            None => "download the model again",
        };
        return Err(Error::invalid(
            dir,
            format!("refs/main names revision {rev}, but snapshots/{rev} is missing; {what_to_do}"),
        ));
    }
    Ok(Some(snapshot))
}

/// A file of a download into `dir` that was interrupted or is still running. The hub's programs
/// keep such files beside the blobs that a snapshot links to, or under `.cache` of the target
/// directory.
pub(super) fn unfinished(dir: &Path) -> Option<PathBuf> {
    let snapshots = dir.parent().filter(|p| p.ends_with("snapshots"));
    let places = [
        snapshots.map(|s| s.with_file_name("blobs")),
        Some(dir.join("blobs")),
        Some(dir.join(".cache/huggingface/download")),
    ];
    let entries = places.into_iter().flatten().map(std::fs::read_dir);
    let mut paths = entries.flatten().flatten().flatten().map(|e| e.path());
    paths.find(|p| p.extension().is_some_and(|e| e == "incomplete"))
}
