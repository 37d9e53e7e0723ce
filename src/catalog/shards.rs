//! Opening safetensors shards: all that are there, or those that an index's `weight_map` names.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::safetensors::{self, Shard};
use super::weight_map::WeightMap;
use super::{Format, OpenOptions, Parts, SourceFile, StoredTensor, numbered, source};
use crate::error::{Error, Result};

/// Shards without an index: all of them.
pub(super) fn open_all(
    dir: &Path,
    names: &[String],
    lone: bool,
    options: OpenOptions,
) -> Result<Parts> {
    let mut opening = Opening {
        parts: Parts {
            lone_file: lone,
            ..Parts::new(dir, Format::Safetensors)
        },
        index: None,
        allow_cut: options.allow_missing,
        // Without its only shard nothing is there of a model.
        leave_out: options.allow_missing && names.len() > 1,
    };
    for name in names {
        match opening.shard(name)? {
            Some(shard) => {
                opening.parts.absent.extend(shard.cut);
                opening.parts.tensors.extend(shard.tensors);
            }
            None => opening.parts.shards_missing = true,
        }
    }
    let mut parts = opening.parts;
    if !lone {
        let missing = numbered::missing(names);
        if let Some(first) = missing.first() {
            parts.shards_missing = true;
            let more = match missing.len() {
                1 => String::new(),
                n => format!(" and {} more", n - 1),
            };
            parts.notes.push(format!(
                "{first}{more} missing: the names of the shards count more than are there, and no index says what they hold; what is there is served"
            ));
        }
    }
    Ok(parts)
}

/// Shards with an index: its `weight_map` decides which shard a tensor comes from.
pub(super) fn open_indexed(dir: &Path, index: &str, options: OpenOptions) -> Result<Parts> {
    let map = WeightMap::read(&dir.join(index))?;
    let names = map.plain_names(&dir.join(index))?;
    let mut opening = Opening {
        parts: Parts::new(dir, Format::Safetensors),
        index: Some(index),
        allow_cut: options.allow_missing,
        leave_out: options.allow_missing,
    };
    opening.parts.weight_files.push(index.to_string());
    let mut held = Held::new();
    let mut file_of = Vec::with_capacity(names.len());
    for name in &names {
        let file = opening.parts.files.len() as u32;
        let shard = opening.shard(name)?;
        file_of.push(shard.as_ref().map(|_| file));
        if let Some(shard) = shard {
            hold(&mut held, file, shard);
        }
    }
    let mut parts = opening.parts;
    for (tensor, &shard) in &map.tensors {
        let copies = held.remove(tensor).unwrap_or_default();
        let (name, file) = (names[shard as usize], file_of[shard as usize]);
        if !add_mapped(&mut parts, tensor, name, file, copies) {
            if !options.allow_missing {
                return Err(not_held(&dir.join(name), tensor, index));
            }
            parts.absent.insert(tensor.clone());
        }
    }
    add_unmapped(&mut parts, held, index);
    parts.notes.sort();
    Ok(parts)
}

/// Shards being opened, one after the other.
struct Opening<'a> {
    parts: Parts,
    /// The index that names them.
    index: Option<&'a str>,
    /// Whether a shard may lack its end.
    allow_cut: bool,
    /// Whether one that cannot be read is left out, and noted.
    leave_out: bool,
}

impl Opening<'_> {
    /// Opens the next shard and adds it to the files; `None` where it is left out.
    fn shard(&mut self, name: &str) -> Result<Option<Shard>> {
        let parts = &mut self.parts;
        parts.weight_files.push(name.to_string());
        let path = parts.dir.join(name);
        let opened = match self.index {
            Some(index) if !path.exists() => Err(missing_shard(&parts.dir, name, index)),
            _ => SourceFile::open(&path, name).and_then(|file| {
                let shard = safetensors::read(&file, parts.files.len() as u32, self.allow_cut)?;
                Ok((file, shard))
            }),
        };
        match opened {
            Ok((file, mut shard)) => {
                parts.files.push(file);
                merge_metadata(&mut parts.metadata, shard.metadata.take());
                Ok(Some(shard))
            }
            Err(e) if self.leave_out => {
                parts.notes.push(format!("left out: {e}"));
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }
}

/// The first shard that has a key wins; within one shard keys are sorted, so that the order is the
/// same at every mount.
fn merge_metadata(into: &mut Map<String, Value>, from: Option<HashMap<String, String>>) {
    let sorted: BTreeMap<String, String> = from.into_iter().flatten().collect();
    for (k, v) in sorted {
        into.entry(k).or_insert(Value::String(v));
    }
}

/// A tensor as one of the shards has it.
struct HeldCopy {
    /// Which file.
    file: u32,
    /// `None` where the file, cut short, lacks its end.
    tensor: Option<StoredTensor>,
}

/// Every name in the shards' headers, with all that have it.
type Held = HashMap<Arc<str>, Vec<HeldCopy>>;

fn hold(held: &mut Held, file: u32, shard: Shard) {
    for t in shard.tensors {
        let copies = held.entry(t.name.clone()).or_default();
        copies.push(HeldCopy {
            file,
            tensor: Some(t),
        });
    }
    for name in shard.cut {
        held.entry(name)
            .or_default()
            .push(HeldCopy { file, tensor: None });
    }
}

/// Serves a tensor from the shard `name` that the index says holds it; whether that can be done.
fn add_mapped(
    parts: &mut Parts,
    tensor: &str,
    name: &str,
    file: Option<u32>,
    mut copies: Vec<HeldCopy>,
) -> bool {
    let here = copies.iter().position(|c| Some(c.file) == file);
    let Some(t) = here.and_then(|i| copies.swap_remove(i).tensor) else {
        return false;
    };
    for stale in copies {
        parts.notes.push(format!(
            "'{tensor}': the copy in {} is stale, the index names {name}",
            parts.files[stale.file as usize].name
        ));
    }
    parts.tensors.push(t);
    true
}

/// Tensors that a named shard holds but the map leaves out: served if just one shard has them.
fn add_unmapped(parts: &mut Parts, held: Held, index: &str) {
    for (name, copies) in held {
        let files: Vec<&str> = copies
            .iter()
            .map(|c| parts.files[c.file as usize].name.as_str())
            .collect();
        let files = files.join(", ");
        let note = match <[HeldCopy; 1]>::try_from(copies) {
            Ok(
                [
                    HeldCopy {
                        tensor: Some(t), ..
                    },
                ],
            ) => {
                parts.tensors.push(t);
                format!("'{name}' is not in {index}; served from {files}")
            }
            Ok([HeldCopy { tensor: None, .. }]) => {
                parts.absent.insert(name.clone());
                format!("'{name}' is not in {index}, and {files}, which holds it, is cut short")
            }
            Err(_) => {
                format!("'{name}' is not in {index} and in several shards ({files}); left out")
            }
        };
        parts.notes.push(note);
    }
}

/// The error about a tensor that is not where the index says.
fn not_held(shard: &Path, tensor: &str, index: &str) -> Error {
    Error::invalid(
        shard,
        format!(
            "does not hold tensor '{tensor}', which {index} says is in it; the index and the shards are of different versions, or the file is cut short (--allow-missing serves the rest)"
        ),
    )
}

/// The error about a shard that an index names and that is not there.
pub(super) fn missing_shard(dir: &Path, name: &str, index: &str) -> Error {
    let why = if dir.join(format!("{name}.incomplete")).exists() {
        "only its .incomplete download is there; let the download finish"
    } else if source::unfinished(dir).is_some() {
        "the download is unfinished; let it finish ('hf download' resumes it), or mount what is there with --allow-missing"
    } else {
        "download it again, or mount what is there with --allow-missing"
    };
    Error::invalid(
        dir.join(name),
        format!("is missing, though {index} names it: {why}"),
    )
}
