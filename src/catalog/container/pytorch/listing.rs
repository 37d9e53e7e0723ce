//! Which checkpoint a directory holds.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;

use super::file::detect;
use super::{Checkpoints, PyTorch};
use crate::catalog::container::numbered::{self, Set};
use crate::catalog::container::shards;
use crate::catalog::container::{Container, Listing, Verdict, impostor, refusal};
use crate::catalog::{Object, Store, natural};
use crate::error::{Error, Result};

/// The index that counts if a directory has several.
const INDEX: &str = "pytorch_model.bin.index.json";
/// The endings of indexes' names.
const INDEX_ENDS: [&str; 2] = [".bin.index.json", ".pt.index.json"];
/// The only file of a small model.
const SINGLE: &str = "pytorch_model.bin";
/// The endings of checkpoints' names.
const ENDS: [&str; 6] = [".bin", ".pt", ".pth", ".ckpt", ".th", ".pth.tar"];

/// Whether a file of that name is an index of checkpoints.
pub(super) fn is_index(name: &str) -> bool {
    INDEX_ENDS.iter().any(|end| name.ends_with(end))
}

/// Whether a file of that name stands beside a model and is none: what training leaves there.
fn is_companion(name: &str) -> bool {
    const BEGINNINGS: [&str; 5] = [
        "optimizer",
        "scheduler",
        "scaler",
        "rng_state",
        "random_states",
    ];
    name == "training_args.bin"
        || name.ends_with("_optim_states.pt")
        || BEGINNINGS.iter().any(|b| name.starts_with(b))
}

/// The claim on the checkpoint of a directory.
///
/// # Errors
/// It holds several.
pub(super) fn claim(listing: &Listing) -> Result<Verdict> {
    let store = &listing.store;
    let index = |name| Ok(shards::index(store, Checkpoints { part: None }, name));
    if listing.names.contains(INDEX) {
        return index(INDEX);
    }
    let names = listing.names.iter().map(String::as_str);
    let names = names.filter(|name| !is_companion(name));
    let indexes: Vec<&str> = names.clone().filter(|name| is_index(name)).collect();
    match indexes.as_slice() {
        [] => {}
        [one] => return index(one),
        several => {
            let several = refusal::list(several.iter().copied());
            let problem = format!(
                "has several indexes and none is {INDEX}: {several}; mount one by its path"
            );
            return Err(Error::invalid(store.location(), problem));
        }
    }
    let all = |names: Vec<String>, end| {
        let format = Checkpoints { part: None };
        Ok(shards::set(store, format, names, end))
    };
    if listing.names.contains(SINGLE) {
        return all(vec![SINGLE.into()], ".bin");
    }
    let found = Found::among(names, listing);
    let (whole, partial): (Vec<_>, Vec<_>) = found.sets.iter().partition(|set| set.is_whole());
    match (
        whole.as_slice(),
        partial.as_slice(),
        found.single.as_slice(),
    ) {
        ([set], ..) | ([], [set], []) => all(set.names.clone(), set.end),
        ([], [], [one]) => all(vec![(*one).into()], ""),
        ([], [], []) => {
            let refusal = pieces(listing).or(found.almost);
            Ok(refusal.map_or(Verdict::No, Verdict::Almost))
        }
        _ => {
            let sets = found.sets.iter().filter_map(|set| set.names.first());
            let sets = sets.map(String::as_str);
            let several: Vec<&str> = sets.chain(found.single.iter().copied()).collect();
            let several = refusal::list(several.iter().copied());
            let problem =
                format!("holds several PyTorch checkpoints: {several}; mount one by its path");
            Err(Error::invalid(store.location(), problem))
        }
    }
}

/// The error for a directory that is a checkpoint in pieces.
fn pieces(listing: &Listing) -> Option<Error> {
    let names = listing.names.iter().map(String::as_str);
    detect::of_directory(listing.store.location(), names)
}

/// The error for a file that is one of the pieces of a checkpoint.
///
/// # Errors
/// The directory cannot be listed.
pub(super) fn piece(store: &Arc<dyn Store>, name: &str) -> Result<Option<Error>> {
    if name != ".metadata" && !name.ends_with(".distcp") {
        return Ok(None);
    }
    Ok(pieces(&Listing::new(store)?))
}

/// The checkpoints of a directory without an index, companions left out.
#[derive(Default)]
struct Found<'a> {
    /// Numbered sets.
    sets: Vec<FoundSet>,
    /// All others.
    single: Vec<&'a str>,
    /// What is wrong with the first file that is not a checkpoint, although it has the name of one.
    almost: Option<Error>,
}

/// A numbered set.
struct FoundSet {
    /// The files that are there, in natural order.
    names: Vec<String>,
    end: &'static str,
}

impl FoundSet {
    fn is_whole(&self) -> bool {
        numbered::missing(&self.names, self.end).is_empty()
    }
}

impl<'a> Found<'a> {
    /// By the names' endings and the files' first bytes.
    fn among(names: impl Iterator<Item = &'a str>, listing: &Listing) -> Found<'a> {
        let mut found = Found::default();
        let mut sets: BTreeMap<(Set<'a>, &'static str), Vec<String>> = BTreeMap::new();
        for name in names {
            let Some(end) = ENDS.into_iter().find(|end| name.ends_with(end)) else {
                continue;
            };
            if let Some(set) = numbered::set_of(name, end) {
                sets.entry((set, end)).or_default().push(name.into());
            } else {
                match is_checkpoint(name, listing) {
                    Ok(true) => found.single.push(name),
                    Ok(false) => {}
                    Err(error) => found.almost = found.almost.or(Some(error)),
                }
            }
        }
        for ((_, end), mut names) in sets {
            names.sort_by(|a, b| natural(a, b));
            // One file stands for all of them: if it is something else, reading it reports that.
            if names
                .first()
                .is_some_and(|n| !matches!(is_checkpoint(n, listing), Ok(false)))
            {
                found.sets.push(FoundSet { names, end });
            }
        }
        found.single.sort_by(|a, b| natural(a, b));
        found
    }
}

/// Whether the file is a checkpoint by its first bytes.
///
/// # Errors
/// It should be one, by its name or by what it resembles. It cannot be read.
fn is_checkpoint(name: &str, listing: &Listing) -> Result<bool> {
    let file = listing.store.open(OsStr::new(name))?;
    if detect::is_checkpoint(&*file)? {
        return Ok(true);
    }
    check_name(name, &*file)?;
    Ok(false)
}

/// Checks that the name of a file that is not a checkpoint does not suggest that it is one.
///
/// # Errors
/// What it is instead, and what to do.
pub(super) fn check_name(name: &str, file: &dyn Object) -> Result<()> {
    let ends = |end| name.ends_with(end);
    if !ENDS.into_iter().any(ends) {
        return Ok(());
    }
    // `.bin` is the name of many things.
    let named_so = !ends(".bin");
    impostor::check(file, named_so.then_some(&PyTorch as &dyn Container))?;
    match named_so {
        true => Err(detect::unknown(file.location())),
        false => Ok(()),
    }
}
