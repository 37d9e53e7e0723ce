//! Safetensors: one file, shards with an index, or all the files of a directory.

use std::sync::Arc;

use super::shards::{self, Broken, Shard, ShardFormat};
use super::{Container, Listing, Verdict};
use crate::catalog::{Findings, Object, Store, natural};
use crate::error::{Error, Result};

mod header;
mod shard;

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
            shards::lone(store, Safetensors, name)
        } else if name.ends_with(".index.json") {
            index(store, name)
        } else {
            Verdict::No
        })
    }

    fn claim_listing(&self, listing: &Listing) -> Result<Verdict> {
        let store = &listing.store;
        if listing.names.contains(SINGLE) {
            return Ok(all(store, vec![SINGLE.into()]));
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
        Ok(all(store, names))
    }

    fn is_named_so(&self, name: &str) -> bool {
        name.ends_with(END) || name.ends_with(INDEX_END)
    }

    fn begins_so(&self, head: &[u8]) -> bool {
        shard::begins_so(head)
    }
}

impl ShardFormat for Safetensors {
    fn name(&self) -> &'static str {
        NAME
    }

    fn read(
        &self,
        file: &Arc<dyn Object>,
        index: u32,
        findings: &Findings,
    ) -> std::result::Result<Shard, Broken> {
        shard::read(&**file, index, findings.allow_missing())
    }
}

/// A claim on files without an index.
fn all(store: &Arc<dyn Store>, names: Vec<String>) -> Verdict {
    shards::all(store, Safetensors, names, END)
}

/// A claim on an index and its shards.
fn index(store: &Arc<dyn Store>, name: &str) -> Verdict {
    shards::index(store, Safetensors, name)
}
