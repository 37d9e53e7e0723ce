//! Containers: the formats that weights are stored in. A table; adding one is a folder below this
//! file and a row of [`CONTAINERS`].
//!
//! A container claims a file that was asked for, or a directory's listing. What it returns reads
//! itself, in one walk that serves [`Catalog::open`](super::Catalog::open) (which stops at the first
//! problem) and [`check`](super::check) (which keeps them all), as [`Findings`] decides.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::configuration::Configuration;
use super::findings::Findings;
use super::row::Row;
use super::store::{EntryKind, Object, Source, Store};
use crate::error::{Error, Result};

mod impostor;
mod manifest;
mod numbered;
mod refusal;
mod safetensors;
#[cfg(test)]
mod tests;

pub(super) use impostor::not_json;
pub use safetensors::{HeaderProblem, METADATA, check_header};

/// All containers, in the order of preference: of a directory that holds several, the first row that
/// claims it is served.
pub(super) static CONTAINERS: &[&dyn Container] = &[
    &safetensors::SingleFile,
    &safetensors::Indexed,
    &safetensors::AllShards,
    &manifest::BinAndManifest,
];

/// A format of weights.
pub(super) trait Container: Sync {
    /// The format's name in `model.json`.
    fn name(&self) -> &'static str;

    /// What it looks for in a directory, for the error that nothing was found.
    fn looks_for(&self) -> &'static str;

    /// The files that it takes by their own path, for the same error.
    fn takes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether `name`, which was asked for in `store`, is its file.
    ///
    /// # Errors
    /// The file is its own and cannot be used.
    fn claim_file(&self, store: &Arc<dyn Store>, name: &str) -> Result<Answer> {
        let _ = (store, name);
        Ok(Answer::No)
    }

    /// Whether a directory is its model.
    ///
    /// # Errors
    /// It is, but which of several models in it is meant cannot be decided.
    fn claim_listing(&self, listing: &Listing) -> Result<Answer>;

    /// Whether a file of that name holds its weights, or lists files that do.
    fn is_named_so(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// Whether a file that begins with `head` (at most 1 KiB) is its own.
    fn begins_so(&self, head: &[u8]) -> bool {
        let _ = head;
        false
    }
}

/// What a container says to a file or a listing.
pub(super) enum Answer {
    /// It is its own.
    Yes(Box<dyn Claim>),
    /// It is not its own.
    No,
    /// It would be its own but for this problem: the error if no other container claims it.
    Almost(Error),
}

/// A model that a container has claimed.
pub(super) trait Claim {
    /// Reads headers, index and manifest, and reports what is wrong to `findings`.
    ///
    /// # Errors
    /// What `findings` passed on, or something that leaves nothing to be read.
    fn read(self: Box<Self>, findings: &mut Findings) -> Result<Parts>;
}

/// The files of a directory that may be a model's.
pub(super) struct Listing {
    /// The directory.
    pub store: Arc<dyn Store>,
    /// The names of what is not a directory, in byte order.
    pub names: BTreeSet<String>,
}

/// What macOS puts before a file's name, on disks that are not its own, for what else it keeps of
/// the file: `._model.safetensors` holds no weights.
const RESOURCE_FORK: &str = "._";

impl Listing {
    fn new(store: &Arc<dyn Store>) -> Result<Listing> {
        let entries = store.list()?.into_iter();
        // A link to nowhere counts, too: opening it names it in the error.
        let files = entries.filter(|entry| entry.kind != EntryKind::Directory);
        let names = files.filter_map(|entry| entry.name.into_string().ok());
        Ok(Listing {
            store: store.clone(),
            names: names.filter(|n| !n.starts_with(RESOURCE_FORK)).collect(),
        })
    }

    /// The names with one of these endings.
    fn ending(&self, end: &str) -> impl Iterator<Item = &String> {
        self.names.iter().filter(move |n| n.ends_with(end))
    }
}

/// What a container hands over of a model.
pub(super) struct Parts {
    /// The directory.
    pub store: Arc<dyn Store>,
    /// The format's name.
    pub format: &'static str,
    /// The weight files, in natural order of their names.
    pub files: Vec<Arc<dyn Object>>,
    /// The tensors, in any order.
    pub tensors: Vec<Row>,
    /// Names of tensors that are promised and not at hand.
    pub absent: BTreeSet<Arc<str>>,
    /// For `model.json`.
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// The model's configuration.
    pub configs: Configuration,
    /// Names of weights, index and manifest.
    pub weight_files: Vec<String>,
    /// One shard was asked for by its own path.
    pub lone_file: bool,
    /// Shards are missing, and what they hold is not known.
    pub shards_missing: bool,
    /// Remarks for the log and `ls --why`.
    pub notes: Vec<String>,
}

impl Parts {
    /// Nothing yet of a model in `store`, whose configuration is in JSON files beside the weights.
    pub fn new(store: &Arc<dyn Store>, format: &'static str) -> Parts {
        Parts {
            store: store.clone(),
            format,
            files: Vec::new(),
            tensors: Vec::new(),
            absent: BTreeSet::new(),
            metadata: serde_json::Map::new(),
            configs: Configuration::beside(&**store),
            weight_files: Vec::new(),
            lone_file: false,
            shards_missing: false,
            notes: Vec::new(),
        }
    }
}

/// The container that has `source`.
///
/// # Errors
/// None has; the message lists what was looked for.
pub(super) fn claim(source: &Source) -> Result<Box<dyn Claim>> {
    let store = &source.store;
    match &source.file {
        Some(name) => first(
            |container| container.claim_file(store, name),
            |almost| refusal::of_file(store, name, almost),
        ),
        None => {
            let listing = Listing::new(store)?;
            first(
                |container| container.claim_listing(&listing),
                |almost| almost.unwrap_or_else(|| refusal::of_listing(&listing)),
            )
        }
    }
}

/// The first claim. If there is none, `refuse` makes the error, given the first "almost".
fn first(
    ask: impl Fn(&dyn Container) -> Result<Answer>,
    refuse: impl FnOnce(Option<Error>) -> Error,
) -> Result<Box<dyn Claim>> {
    let mut almost = None;
    for container in CONTAINERS {
        match ask(*container)? {
            Answer::Yes(claim) => return Ok(claim),
            Answer::No => {}
            Answer::Almost(error) => almost = almost.or(Some(error)),
        }
    }
    Err(refuse(almost))
}
