//! The errors if no container claims MODEL.

use std::ffi::OsStr;
use std::sync::Arc;

use super::super::natural;
use super::super::store::{EntryKind, INCOMPLETE, Store, incomplete};
use super::{CONTAINERS, Listing, impostor};
use crate::error::{Error, Result};

/// The error for the file `name`, which no container claimed. `almost` is the error of a container
/// that came close.
pub(super) fn of_file(store: &Arc<dyn Store>, name: &str, almost: Option<Error>) -> Error {
    let at = store.location().join(name);
    let opened = store.open(OsStr::new(name));
    if let Err(error) = opened.and_then(|file| impostor::check(&*file, None)) {
        return error;
    }
    if name.ends_with(".bin") && is_pickle_stem(name) {
        return impostor::pickle(at);
    }
    let takes = CONTAINERS.iter().flat_map(|c| c.takes()).copied();
    let takes: Vec<&str> = takes.collect();
    let (last, others) = takes.split_last().unwrap_or((&"", &[]));
    almost.unwrap_or_else(|| {
        let others = others.join(", ");
        let problem = format!("is not a model: give a directory, or a {others} or {last} file");
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

/// PyTorch's customary names for pickles.
fn is_pickle_stem(name: &str) -> bool {
    name.starts_with("pytorch_model")
        || name.starts_with("adapter_model")
        || name == "training_args.bin"
        || name.starts_with("diffusion_pytorch_model")
        || name.starts_with("optimizer")
        || name.starts_with("consolidated")
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
    let is_pickle = |n: &&String| {
        (n.ends_with(".bin") && is_pickle_stem(n))
            || [".pt", ".pth", ".ckpt"].iter().any(|e| n.ends_with(e))
    };
    if let Some(name) = listing.names.iter().find(is_pickle) {
        return impostor::pickle(dir.join(name));
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
    Some(format!("{bin} has no manifest beside it"))
}

/// Subdirectories that are models themselves (a diffusers folder's `unet`, `vae`, …).
fn models_below(listing: &Listing) -> Result<Vec<String>> {
    let is_weights = |name: &String| CONTAINERS.iter().any(|c| c.is_named_so(name));
    let mut models = Vec::new();
    for entry in listing.store.list()? {
        if entry.kind != EntryKind::Directory {
            continue;
        }
        let name = entry.name.to_string_lossy().into_owned();
        let below = listing.store.directory(&name);
        let below = below.and_then(|store| Listing::new(&store).ok());
        if below.is_some_and(|below| below.names.iter().any(is_weights)) {
            models.push(name);
        }
    }
    models.sort_by(|a, b| natural(a, b));
    Ok(models)
}
