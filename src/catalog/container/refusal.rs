//! The errors if no container claims MODEL.

use std::ffi::OsStr;
use std::sync::Arc;

use super::super::natural;
use super::super::store::{EntryKind, INCOMPLETE, Store, incomplete};
use super::{CONTAINERS, Listing, Verdict, impostor};
use crate::error::{Error, Result};

/// The error for the file `name`, which no container claimed. `almost` is the error of a container
/// that came close.
pub(super) fn of_file(store: &Arc<dyn Store>, name: &str, almost: Option<Error>) -> Error {
    let at = store.location().join(name);
    let opened = store.open(OsStr::new(name));
    if let Err(error) = opened.and_then(|file| impostor::check(&*file, None)) {
        return error;
    }
    let takes = CONTAINERS.iter().flat_map(|c| c.takes()).copied();
    let takes: Vec<&str> = takes.collect();
    let (last, others) = takes.split_last().unwrap_or((&"", &[]));
    almost.unwrap_or_else(|| {
        let others = others.join(", ");
        let problem = format!(
            "is not a model: give a directory, or a {others} or {last} file, or a recipe (.toml)"
        );
        Error::invalid(at, problem)
    })
}

/// What to do about a shard that does not exist.
pub(super) fn missing(store: &dyn Store, name: &str) -> &'static str {
    if store.exists(&format!("{name}{INCOMPLETE}")) {
        "only its .incomplete download is there; let the download finish"
    } else if store.unfinished().is_some() {
        "the download is unfinished; let it finish ('hf download' resumes it), or mount the rest with --allow-missing"
    } else {
        "download it again, or mount the rest with --allow-missing"
    }
}

/// The most names that a message lists.
const MOST_LISTED: usize = 20;

/// Some of `names`, and how many more there are.
pub(super) fn list<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> String {
    let more = match names.len().saturating_sub(MOST_LISTED) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    let listed: Vec<&str> = names.take(MOST_LISTED).collect();
    listed.join(", ") + &more
}

/// The error for a directory that no container claimed.
pub(super) fn of_listing(listing: &Listing) -> Error {
    let store = &listing.store;
    let dir = store.location();
    if let Some(name) = listing.ending(INCOMPLETE).next() {
        return incomplete(dir.join(name));
    }
    if let Some(half) = store.unfinished() {
        return Error::invalid(
            dir,
            format!(
                "holds no weights yet: its download is unfinished ({half} is there); let it finish ('hf download' resumes it), then mount again"
            ),
        );
    }
    let looks_for = CONTAINERS.iter().flat_map(|c| c.looks_for()).copied();
    let looks_for: Vec<&str> = looks_for.collect();
    let (last, others) = looks_for.split_last().unwrap_or((&"", &[]));
    let others = others.join(", ");
    let hint = hint(listing).map_or_else(String::new, |hint| format!("; {hint}"));
    let problem = format!("holds no model: looked for {others}, and {last}{hint}");
    Error::invalid(dir, problem)
}

/// A guess at what was meant.
fn hint(listing: &Listing) -> Option<String> {
    let models = models_below(listing).unwrap_or_default();
    if !models.is_empty() {
        let models = models.join(", ");
        return Some(format!(
            "its subdirectories {models} hold models of their own: mount one by its path"
        ));
    }
    let bin = listing.ending(".bin").next()?;
    Some(format!(
        "{bin} has no manifest beside it and is not a PyTorch checkpoint"
    ))
}

/// Subdirectories that are models themselves (a diffusers folder's `unet`, `vae`, …).
fn models_below(listing: &Listing) -> Result<Vec<String>> {
    let is_model = |below: &Listing| {
        let mut verdicts = CONTAINERS.iter().map(|c| c.claim_listing(below));
        verdicts.any(|verdict| matches!(verdict, Ok(Verdict::Yes(_)) | Err(_)))
    };
    let mut models = Vec::new();
    for entry in listing.store.list()? {
        if entry.kind != EntryKind::Directory {
            continue;
        }
        let name = entry.name.to_string_lossy().into_owned();
        let below = listing.store.directory(&name);
        let below = below.and_then(|store| Listing::new(&store).ok());
        if below.is_some_and(|below| is_model(&below)) {
            models.push(name);
        }
    }
    models.sort_by(|a, b| natural(a, b));
    Ok(models)
}
