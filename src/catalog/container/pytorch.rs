//! PyTorch checkpoints (`torch.save`), read in place. A pickle is a program for a small stack machine;
//! `pickle` runs it over inert values, so nothing that the file names is ever looked up, imported,
//! constructed or called. `file` finds the pickle and the storages (a ZIP archive, or the older
//! format), `selection` finds the model in what the pickle holds, and `tensor` makes its rows.

use std::ffi::OsStr;
use std::sync::Arc;

use super::shards::{self, Broken, Shard, ShardFormat};
use super::{Container, Listing, Verdict};
use crate::catalog::{Findings, Object, Store};
use crate::error::{Error, Result};
use file::detect::Head;

mod describe;
mod dtype;
mod file;
mod listing;
mod pickle;
mod problems;
mod selection;
mod shard;
mod tensor;
#[cfg(test)]
mod testing;

pub use pickle::check_pickle;

/// The format's name in `model.json`.
const NAME: &str = "pytorch";

/// A checkpoint, several with an index, or a set of numbered ones.
pub(super) struct PyTorch;

impl Container for PyTorch {
    fn name(&self) -> &'static str {
        NAME
    }

    fn kind(&self) -> String {
        "PyTorch checkpoint (a pickle)".into()
    }

    fn looks_for(&self) -> &'static [&'static str] {
        &[
            "pytorch_model.bin.index.json",
            "pytorch_model.bin",
            "a PyTorch checkpoint (*.bin, *.pt, *.pth, *.ckpt, *.th, *.pth.tar)",
        ]
    }

    fn takes(&self) -> &'static [&'static str] {
        &[".pt", ".pth", ".ckpt"]
    }

    fn claim_file(&self, store: &Arc<dyn Store>, name: &str) -> Result<Verdict> {
        claim(store, name, None)
    }

    fn claim_part(&self, store: &Arc<dyn Store>, name: &str, part: &str) -> Result<Verdict> {
        if listing::is_index(name) {
            let problem =
                "is an index, which has no parts; give a shard that it names, as FILE#KEY.PATH";
            return Err(Error::invalid(store.location().join(name), problem));
        }
        claim(store, name, Some(part))
    }

    fn claim_listing(&self, listing: &Listing) -> Result<Verdict> {
        listing::claim(listing)
    }

    fn is_named_so(&self, name: &str) -> bool {
        listing::is_index(name)
    }

    fn begins_so(&self, head: &[u8]) -> bool {
        Head::of(head).is_some_and(Head::may_be_checkpoint)
    }

    fn check_lookalike(&self, file: &dyn Object, _: &[u8]) -> Result<()> {
        file::check_lookalike(file)
    }
}

/// A claim on a file, or a part of it.
fn claim(store: &Arc<dyn Store>, name: &str, part: Option<&str>) -> Result<Verdict> {
    let part = part.map(str::to_string);
    if listing::is_index(name) {
        return Ok(shards::index(store, Checkpoints { part }, name));
    }
    // A file that cannot be opened is reported when no container claims it.
    let Ok(file) = store.open(OsStr::new(name)) else {
        return Ok(Verdict::No);
    };
    if let Some(error) = listing::piece(store, name)? {
        return Err(error);
    }
    // What it is instead of a checkpoint is an error when it is read.
    let named_so = || listing::check_name(name, &*file).is_err();
    Ok(match Head::of_file(&*file)?.is_some() || named_so() {
        true => shards::lone(store, Checkpoints { part }, name),
        false => Verdict::No,
    })
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
