//! Safetensors: one file, shards with an index, or all the files of a directory.

use std::sync::Arc;

use super::{Container, Listing, Verdict};
use crate::catalog::{Store, natural};
use crate::error::{Error, Result};

mod all_shards;
mod header;
mod indexed;
mod object;
mod reader;
mod shard;
mod weight_map;

pub use header::check_header;
pub use shard::METADATA;

/// The format's name in `model.json`.
const NAME: &str = "safetensors";
/// The ending of the files' names.
const END: &str = ".safetensors";
/// The ending of their indexes' names.
const INDEX_END: &str = ".safetensors.index.json";
/// The name of the only file of a small model.
const SINGLE: &str = "model.safetensors";
/// The index that counts if a directory has several.
const INDEX: &str = "model.safetensors.index.json";

/// One file, shards and an index that decides which of them a tensor comes from, or all the files
/// of a directory.
pub(super) struct Safetensors;

impl Container for Safetensors {
    fn name(&self) -> &'static str {
        NAME
    }

    fn looks_for(&self) -> &'static [&'static str] {
        &[SINGLE, "*.safetensors.index.json", "*.safetensors"]
    }

    fn takes(&self) -> &'static [&'static str] {
        &[END, ".index.json"]
    }

    fn claim_file(&self, store: &Arc<dyn Store>, name: &str) -> Result<Verdict> {
        Ok(if name.ends_with(END) {
            shards(store, vec![name.into()], true)
        } else if name.ends_with(".index.json") {
            index(store, name)
        } else {
            Verdict::No
        })
    }

    fn claim_listing(&self, listing: &Listing) -> Result<Verdict> {
        let store = &listing.store;
        if listing.names.contains(SINGLE) {
            return Ok(shards(store, vec![SINGLE.into()], false));
        }
        if listing.names.contains(INDEX) {
            return Ok(index(store, INDEX));
        }
        let indexes: Vec<&str> = listing.ending(INDEX_END).map(String::as_str).collect();
        match indexes.as_slice() {
            [] => {}
            [one] => return Ok(index(store, one)),
            several => {
                let problem = format!(
                    "has several indexes and none is {INDEX}: {}; mount one by its path",
                    several.join(", ")
                );
                return Err(Error::invalid(store.location(), problem));
            }
        }
        let mut names: Vec<String> = listing.ending(END).cloned().collect();
        if names.is_empty() {
            return Ok(Verdict::No);
        }
        names.sort_by(|a, b| natural(a, b));
        Ok(shards(store, names, false))
    }

    fn is_named_so(&self, name: &str) -> bool {
        name.ends_with(END) || name.ends_with(INDEX_END)
    }

    fn begins_so(&self, head: &[u8]) -> bool {
        shard::begins_so(head)
    }
}

/// A claim on files without an index.
fn shards(store: &Arc<dyn Store>, names: Vec<String>, lone: bool) -> Verdict {
    Verdict::Yes(Box::new(all_shards::Shards {
        store: store.clone(),
        names,
        lone,
    }))
}

/// A claim on an index and its shards.
fn index(store: &Arc<dyn Store>, name: &str) -> Verdict {
    Verdict::Yes(Box::new(indexed::Index {
        store: store.clone(),
        name: name.into(),
    }))
}
