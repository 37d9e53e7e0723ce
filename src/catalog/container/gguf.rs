//! GGUF: one file, or a model split into numbered files. A file is known by its first four bytes,
//! whatever its name: ollama's blobs have none to speak of. Everything is in the file itself, so the
//! JSON files beside it count for nothing.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::sync::Arc;

use super::{Container, Listing, Verdict, refusal};
use crate::catalog::{Object, Store};
use crate::error::{Error, Result};

mod entry;
mod header;
mod key;
mod layout;
mod metadata_json;
mod split_keys;
mod splits;
mod strings;
#[cfg(test)]
mod tests;
mod value;
mod walk;

pub use header::check_gguf;
// For exports.
pub(crate) use header::{Entry, Header, MAGIC};
pub(crate) use key::Key;

use splits::SplitName;

/// The format's name in `model.json`.
pub(crate) const NAME: &str = "gguf";
/// The ending of the files' names.
const END: &str = ".gguf";

/// One file, or a set of splits.
pub(super) struct Gguf;

impl Container for Gguf {
    fn name(&self) -> &'static str {
        NAME
    }

    fn looks_for(&self) -> &'static [&'static str] {
        &["*.gguf"]
    }

    fn takes(&self) -> &'static [&'static str] {
        &[END]
    }

    fn claim_file(&self, store: &Arc<dyn Store>, name: &str) -> Result<Verdict> {
        // A file of that name that is something else is refused by the claim, which names what it is.
        if name.ends_with(END) {
            return Ok(claim(store, name));
        }
        // A file that cannot be opened is reported when no container claims it.
        let Ok(file) = store.open(OsStr::new(name)) else {
            return Ok(Verdict::No);
        };
        Ok(match has_magic(&*file)? {
            true => claim(store, name),
            false => Verdict::No,
        })
    }

    fn claim_listing(&self, listing: &Listing) -> Result<Verdict> {
        // The splits of one set are one model.
        let mut models: BTreeMap<(&str, u32), Vec<&str>> = BTreeMap::new();
        for name in listing.ending(END) {
            let model = match SplitName::parse(name) {
                Some(split) => (split.prefix, split.total),
                None => (name.as_str(), 0),
            };
            models.entry(model).or_default().push(name);
        }
        let firsts: Vec<&str> = models.values().filter_map(|n| n.first().copied()).collect();
        match firsts.as_slice() {
            [] => Ok(Verdict::No),
            [one] => Ok(claim(&listing.store, one)),
            several => {
                let models = refusal::list(several.iter().copied());
                let problem = format!("holds several GGUF models: {models}; give one by its path");
                Err(Error::invalid(listing.store.location(), problem))
            }
        }
    }

    fn is_named_so(&self, name: &str) -> bool {
        name.ends_with(END)
    }

    fn begins_so(&self, head: &[u8]) -> bool {
        head.starts_with(&MAGIC)
    }

    fn check_lookalike(&self, file: &dyn Object, head: &[u8]) -> Result<()> {
        let Some(magic) = older_ggml(head) else {
            return Ok(());
        };
        let problem = format!(
            "is an older GGML file ({magic}), not GGUF; get the model as GGUF, or convert it with llama.cpp's convert_llama_ggml_to_gguf.py"
        );
        Err(Error::invalid(file.location(), problem))
    }
}

/// The magic number of the formats before GGUF, as text. It was written as a number, so that its
/// letters are in reverse order on disk.
fn older_ggml(head: &[u8]) -> Option<&'static str> {
    let magic = head.first_chunk::<4>()?.map(|b| b.to_ascii_lowercase());
    let reversed = [magic[3], magic[2], magic[1], magic[0]];
    let known = ["ggml", "ggmf", "ggjt", "ggla"].into_iter();
    let mut found = known.filter(|m| m.as_bytes() == magic || m.as_bytes() == reversed);
    found.next()
}

/// A claim on a file and the other splits of its set.
fn claim(store: &Arc<dyn Store>, name: &str) -> Verdict {
    Verdict::Yes(Box::new(walk::Claimed {
        store: store.clone(),
        name: name.into(),
    }))
}

fn has_magic(file: &dyn Object) -> Result<bool> {
    let mut magic = [0; MAGIC.len()];
    if file.len() < magic.len() as u64 {
        return Ok(false);
    }
    file.read_at(0, &mut magic)?;
    Ok(magic == MAGIC)
}
