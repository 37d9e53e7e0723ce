//! Containers: the formats that weights are stored in. To add one, add a folder below this file and
//! a row in [`CONTAINERS`].
//!
//! A container claims a file that was asked for, or a directory's listing. The claim then reads the
//! model, in one walk that serves [`Catalog::open`](super::Catalog::open) (which stops at the first
//! problem) and [`check`](super::check) (which keeps them all), as [`Findings`] decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::configuration::Configuration;
use super::findings::Findings;
use super::row::Row;
use super::store::{EntryKind, Object, Source, Store};
use super::{Catalog, Tensors};
use crate::error::{Error, PART, Result};

mod cursor;
pub(crate) mod gguf;
mod impostor;
mod manifest;
mod numbered;
mod preferred;
mod pytorch;
mod refusal;
mod safetensors;
mod shards;
#[cfg(test)]
mod tests;

pub use gguf::check_gguf;
pub(super) use impostor::not_json;
pub use pytorch::check_pickle;
pub use safetensors::{METADATA, check_header};

/// All containers, in order of preference: if a directory holds several, the first row that claims
/// it is served.
pub(super) static CONTAINERS: &[&dyn Container] = &[
    &safetensors::Safetensors,
    &gguf::Gguf,
    &manifest::BinAndManifest,
    &pytorch::PyTorch,
];

/// A format of weights.
pub(super) trait Container: Sync {
    /// The format's name in `model.json`.
    fn name(&self) -> &'static str;

    /// What a file in it is called in messages.
    fn kind(&self) -> String {
        format!("{} file", self.name())
    }

    /// What it looks for in a directory, for the error message if nothing is found.
    fn looks_for(&self) -> &'static [&'static str];

    /// The kinds of files that it accepts by their own path, for the same message.
    fn takes(&self) -> &'static [&'static str] {
        &[]
    }

    /// Whether the file `name` in `store` belongs to this container.
    ///
    /// # Errors
    /// The file belongs to this container but cannot be used.
    fn claim_file(&self, store: &Arc<dyn Store>, name: &str) -> Result<Verdict> {
        let _ = (store, name);
        Ok(Verdict::No)
    }

    /// As [`Container::claim_file`], for `FILE#PART`. Only formats whose files have parts need it.
    ///
    /// # Errors
    /// The file belongs to this container but has no parts, or cannot be used.
    fn claim_part(&self, store: &Arc<dyn Store>, name: &str, part: &str) -> Result<Verdict> {
        match self.claim_file(store, name)? {
            Verdict::Yes(_) => {
                let (at, kind) = (store.location().join(name), self.name());
                let problem = format!(
                    "is a {kind} model, which has no parts: leave out '{PART}{part}' (only PyTorch checkpoints have parts)"
                );
                Err(Error::invalid(at, problem))
            }
            other => Ok(other),
        }
    }

    /// Whether a directory holds a model of this container.
    ///
    /// # Errors
    /// It holds several such models, and nothing decides which one is meant.
    fn claim_listing(&self, listing: &Listing) -> Result<Verdict>;

    /// Whether a file's name alone shows that it is in this format, or lists files that are. Such a
    /// container is asked before the others.
    fn is_named_so(&self, name: &str) -> bool {
        let _ = name;
        false
    }

    /// Whether a file that begins with `head` (at most 1 KiB) is in this format.
    fn begins_so(&self, head: &[u8]) -> bool {
        let _ = head;
        false
    }

    /// What a file is that is not in this format but is taken for it: an older version, or something
    /// with the same beginning. `head` is its first bytes (at most 1 KiB).
    ///
    /// # Errors
    /// What it is, and what to do. The file cannot be read.
    fn check_lookalike(&self, file: &dyn Object, head: &[u8]) -> Result<()> {
        let _ = (file, head);
        Ok(())
    }
}

/// A container's verdict on a file or a listing.
pub(super) enum Verdict {
    /// It belongs to this container.
    Yes(Box<dyn Claim>),
    /// It does not.
    No,
    /// It would belong to this container but for this problem, which is the error if no other
    /// container claims it.
    Almost(Error),
}

/// A model that a container has claimed.
pub(super) trait Claim {
    /// The file that stands for the model: the only one, the first of several, the index, the manifest.
    fn file(&self) -> &str;

    /// Reads headers, index and manifest, and reports what is wrong to `findings`.
    ///
    /// # Errors
    /// An error that `findings` returned, or one that leaves nothing to read.
    fn read(self: Box<Self>, findings: &mut Findings) -> Result<Parts>;
}

/// The files in a directory that may belong to a model.
pub(super) struct Listing {
    /// The directory.
    pub store: Arc<dyn Store>,
    /// The names of everything that is not a directory, in byte order.
    pub names: BTreeSet<String>,
}

/// The prefix of the files in which macOS keeps resource forks on foreign disks:
/// `._model.safetensors` contains no weights.
const RESOURCE_FORK: &str = "._";

impl Listing {
    fn new(store: &Arc<dyn Store>) -> Result<Listing> {
        let entries = store.list()?.into_iter();
        // A dangling link counts, too: the error from opening it names it.
        let files = entries.filter(|entry| entry.kind != EntryKind::Directory);
        let names = files.filter_map(|entry| entry.name.into_string().ok());
        Ok(Listing {
            store: store.clone(),
            names: names.filter(|n| !n.starts_with(RESOURCE_FORK)).collect(),
        })
    }

    /// The names with this ending.
    fn ending(&self, end: &str) -> impl Iterator<Item = &String> {
        self.names.iter().filter(move |n| n.ends_with(end))
    }
}

/// What a container returns about a model.
pub(super) struct Parts {
    /// Everything but the tensors.
    pub catalog: Catalog,
    /// The tensors, in any order.
    pub rows: Vec<Row>,
}

impl Parts {
    /// An empty model in `store`. Its configuration is what the container reads it from: the JSON files
    /// beside the weights, or the weights themselves.
    pub fn new(store: &Arc<dyn Store>, format: &'static str, configs: Configuration) -> Parts {
        let catalog = Catalog {
            store: store.clone(),
            model: store.location().clone(),
            format,
            files: Vec::new(),
            tensors: Tensors::default(),
            absent: BTreeSet::new(),
            left_out: BTreeMap::new(),
            metadata: serde_json::Map::new(),
            metadata_json: None,
            summary: serde_json::Map::new(),
            configs,
            weight_files: Vec::new(),
            lone_file: false,
            shards_missing: false,
            notes: Vec::new(),
            derivation: None,
        };
        let rows = Vec::new();
        Parts { catalog, rows }
    }
}

/// The first container that claims `source`.
///
/// # Errors
/// No container claims it; the message lists what was looked for.
pub(super) fn claim(source: &Source) -> Result<Box<dyn Claim>> {
    let store = &source.store;
    let Some(name) = &source.file else {
        let listing = Listing::new(store)?;
        return preferred::claim(&listing);
    };
    let ask = |container: &dyn Container| match &source.part {
        Some(part) => container.claim_part(store, name, part),
        None => container.claim_file(store, name),
    };
    let mut containers = CONTAINERS.to_vec();
    containers.sort_by_key(|container| !container.is_named_so(name));
    let mut almost = None;
    for container in containers {
        match ask(container)? {
            Verdict::Yes(claim) => return Ok(claim),
            Verdict::No => {}
            Verdict::Almost(error) => almost = almost.or(Some(error)),
        }
    }
    Err(refusal::of_file(store, name, almost))
}
