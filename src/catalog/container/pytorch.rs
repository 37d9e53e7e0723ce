//! PyTorch checkpoints (`torch.save`), read in place. A pickle is a program for a small stack machine;
//! `pickle` runs it over inert values, so nothing that the file names is ever looked up, imported,
//! constructed or called. `file` finds the pickle and the storages (a ZIP archive, or the older
//! format), `selection` finds the model in what the pickle holds, and `tensor` makes its rows.

use std::ffi::OsStr;
use std::sync::Arc;

use super::shards::{self, Broken, Shard, ShardFormat};
use super::{Container, Listing, Verdict};
use crate::catalog::{Findings, Object, Store};
use crate::error::Result;

mod describe;
mod dtype;
mod file;
mod pickle;
mod selection;
mod shard;
mod tensor;
#[cfg(test)]
mod testing;

/// The format's name in `model.json`.
const NAME: &str = "pytorch";

/// A checkpoint, several with an index, or a set of numbered ones.
pub(super) struct PyTorch;

impl Container for PyTorch {
    fn name(&self) -> &'static str {
        NAME
    }

    fn looks_for(&self) -> &'static [&'static str] {
        &[]
    }

    fn claim_file(&self, store: &Arc<dyn Store>, name: &str) -> Result<Verdict> {
        // A file that cannot be opened is reported when no container claims it.
        let Ok(file) = store.open(OsStr::new(name)) else {
            return Ok(Verdict::No);
        };
        let mut head = [0; 4];
        if file.len() < 4 {
            return Ok(Verdict::No);
        }
        file.read_at(0, &mut head)?;
        Ok(match head {
            [b'P', b'K', 3, 4] | [0x80, ..] => {
                shards::lone(store, Checkpoints { part: None }, name)
            }
            _ => Verdict::No,
        })
    }

    fn claim_listing(&self, listing: &Listing) -> Result<Verdict> {
        let _ = listing;
        Ok(Verdict::No)
    }
}

/// How each file of a model is read.
struct Checkpoints {
    /// The part of the file that was asked for (`FILE#PART`); `None` if stfs finds the model.
    part: Option<String>,
}

impl ShardFormat for Checkpoints {
    fn name(&self) -> &'static str {
        NAME
    }

    fn read(
        &self,
        file: &Arc<dyn Object>,
        index: u32,
        findings: &Findings,
    ) -> std::result::Result<Shard, Broken> {
        shard::read(file, index, self.part.as_deref(), findings)
    }
}
