//! Reads shards one after another.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsStr;
use std::sync::Arc;

use serde_json::map::Entry;
use serde_json::{Map, Value};

use super::{Broken, Shard, ShardFormat};
use crate::catalog::container::{Parts, refusal};
use crate::catalog::{Findings, Store};
use crate::error::{Error, Result};

/// Reads shards into the parts of a model.
pub(super) struct Reader<'a> {
    pub parts: Parts,
    pub format: &'a dyn ShardFormat,
    /// The index that names the shards.
    pub index: Option<&'a str>,
    /// Whether to leave out (and note) a shard that cannot be read.
    pub leave_out: bool,
}

impl Reader<'_> {
    /// Reads the next shard and adds it to the files; `None` if it is left out, or none of it can
    /// be read.
    ///
    /// # Errors
    /// What is wrong with the shard, if the model is being opened.
    pub fn shard(&mut self, name: &str, findings: &mut Findings) -> Result<Option<Shard>> {
        let catalog = &mut self.parts.catalog;
        catalog.weight_files.push(name.to_string());
        let file = match self.index {
            Some(index) if !catalog.store.exists(name) => {
                Err(missing_shard(&*catalog.store, name, index))
            }
            _ => catalog.store.open(OsStr::new(name)),
        };
        let read = file.map_err(Broken::from).and_then(|file| {
            let index = catalog.files.len() as u32;
            let read = self.format.read(&file, index, findings);
            // While verifying, a damaged shard also takes its place among the files, because
            // reports refer to it by index.
            if read.is_ok() || findings.verifying() {
                catalog.files.push(file);
            }
            read
        });
        match read {
            Ok(mut shard) => {
                merge_metadata(&mut catalog.metadata, shard.metadata.take());
                merge_summary(&mut catalog.summary, std::mem::take(&mut shard.summary));
                catalog.left_out.extend(shard.left_out.drain(..));
                catalog.notes.append(&mut shard.notes);
                Ok(Some(shard))
            }
            Err(broken) if self.leave_out && !broken.hostile => {
                catalog.notes.push(format!("left out: {}", broken.error));
                Ok(None)
            }
            Err(broken) => broken.report(name, findings),
        }
    }
}

/// The first shard that has a key wins. Keys of one shard are sorted, so that their order is the
/// same at every mount.
fn merge_metadata(into: &mut Map<String, Value>, from: Option<HashMap<String, String>>) {
    let sorted: BTreeMap<String, String> = from.into_iter().flatten().collect();
    for (k, v) in sorted {
        into.entry(k).or_insert(Value::String(v));
    }
}

/// Objects get the keys that they lack, and lists the values; otherwise the first shard wins.
fn merge_summary(into: &mut Map<String, Value>, from: Map<String, Value>) {
    for (key, value) in from {
        match (into.entry(key), value) {
            (Entry::Vacant(place), value) => drop(place.insert(value)),
            (Entry::Occupied(place), value) => match (place.into_mut(), value) {
                (Value::Object(into), Value::Object(from)) => merge_summary(into, from),
                (Value::Array(into), Value::Array(from)) => {
                    for value in from {
                        if !into.contains(&value) {
                            into.push(value);
                        }
                    }
                }
                _ => {}
            },
        }
    }
}

/// The error about a shard that an index names but that does not exist.
fn missing_shard(store: &dyn Store, name: &str, index: &str) -> Error {
    let why = refusal::missing(store, name);
    Error::invalid(
        store.location().join(name),
        format!("is missing, though {index} names it: {why}"),
    )
}

/// Announces to the store which shards are about to be read.
pub(super) fn announce(store: &Arc<dyn Store>, names: &[impl AsRef<str>]) {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    store.prefetch(&names);
}
