//! Safetensors: one file, shards with an index, or all the files of a directory.

use std::sync::Arc;

use super::{Claim, Container, Listing, Verdict};
use crate::catalog::{Store, natural};
use crate::error::{Error, Result};

mod all_shards;
mod header;
mod indexed;
mod object;
mod reader;
mod shard;
mod weight_map;

pub use header::{HeaderProblem, check_header};
pub use shard::METADATA;

/// The format's name in `model.json`.
const NAME: &str = "safetensors";
/// The ending of the files' names.
const END: &str = ".safetensors";
/// The ending of their indexes' names.
const INDEX_END: &str = ".safetensors.index.json";

/// `model.safetensors`, or any safetensors file by its own path.
pub(super) struct SingleFile;

/// Shards, and an index that decides which of them a tensor comes from.
pub(super) struct Indexed;

/// All safetensors files in the directory.
pub(super) struct AllShards;

/// A claim on files without an index.
fn claim(store: &Arc<dyn Store>, names: Vec<String>, lone: bool) -> Verdict {
    Verdict::Yes(Box::new(all_shards::Shards {
        store: store.clone(),
        names,
        lone,
    }))
}

impl Container for SingleFile {
    fn name(&self) -> &'static str {
        NAME
    }

    fn looks_for(&self) -> &'static str {
        "model.safetensors"
    }

    fn takes(&self) -> &'static [&'static str] {
        &[END]
    }

    fn claim_file(&self, store: &Arc<dyn Store>, name: &str) -> Result<Verdict> {
        Ok(match name.ends_with(END) {
            true => claim(store, vec![name.into()], true),
            false => Verdict::No,
        })
    }

    fn claim_listing(&self, listing: &Listing) -> Result<Verdict> {
        let name = self.looks_for();
        Ok(match listing.names.contains(name) {
            true => claim(&listing.store, vec![name.into()], false),
            false => Verdict::No,
        })
    }

    fn is_named_so(&self, name: &str) -> bool {
        name.ends_with(END)
    }

    fn begins_so(&self, head: &[u8]) -> bool {
        shard::begins_so(head)
    }
}

impl Container for Indexed {
    fn name(&self) -> &'static str {
        NAME
    }

    fn looks_for(&self) -> &'static str {
        "*.safetensors.index.json"
    }

    fn takes(&self) -> &'static [&'static str] {
        &[".index.json"]
    }

    fn claim_file(&self, store: &Arc<dyn Store>, name: &str) -> Result<Verdict> {
        Ok(match name.ends_with(".index.json") {
            true => self.claim(store, name),
            false => Verdict::No,
        })
    }

    fn claim_listing(&self, listing: &Listing) -> Result<Verdict> {
        let preferred = "model.safetensors.index.json";
        if listing.names.contains(preferred) {
            return Ok(self.claim(&listing.store, preferred));
        }
        let all: Vec<&str> = listing.ending(INDEX_END).map(String::as_str).collect();
        match all.as_slice() {
            [] => Ok(Verdict::No),
            [one] => Ok(self.claim(&listing.store, one)),
            several => Err(Error::invalid(
                listing.store.location(),
                format!(
                    "has several indexes and none is {preferred}: {}; mount one by its path",
                    several.join(", ")
                ),
            )),
        }
    }

    fn is_named_so(&self, name: &str) -> bool {
        name.ends_with(INDEX_END)
    }
}

impl Indexed {
    fn claim(&self, store: &Arc<dyn Store>, index: &str) -> Verdict {
        let claim: Box<dyn Claim> = Box::new(indexed::Index {
            store: store.clone(),
            name: index.into(),
        });
        Verdict::Yes(claim)
    }
}

impl Container for AllShards {
    fn name(&self) -> &'static str {
        NAME
    }

    fn looks_for(&self) -> &'static str {
        "*.safetensors"
    }

    fn claim_listing(&self, listing: &Listing) -> Result<Verdict> {
        let mut names: Vec<String> = listing.ending(END).cloned().collect();
        if names.is_empty() {
            return Ok(Verdict::No);
        }
        names.sort_by(|a, b| natural(a, b));
        Ok(claim(&listing.store, names, false))
    }
}
