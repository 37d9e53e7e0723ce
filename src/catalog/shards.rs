//! Opening safetensors shards: all that are there, or those that an index's `weight_map` names.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Format, OpenOptions, Parts, SourceFile, StoredTensor};
use super::{natural, safetensors, small_file};
use crate::error::{Error, Result};

/// Shards without an index: all of them.
pub(super) fn open_all(
    dir: &Path,
    names: &[String],
    lone: bool,
    options: OpenOptions,
) -> Result<Parts> {
    let mut parts = Parts {
        lone_file: lone,
        ..Parts::new(dir, Format::Safetensors)
    };
    for (i, name) in names.iter().enumerate() {
        let file = SourceFile::open(&dir.join(name), name)?;
        let shard = match safetensors::read(&file, i as u32, options.allow_missing) {
            Ok(shard) => shard,
            // A shard whose very header is missing is part of an incomplete download, too.
            Err(e) if options.allow_missing && names.len() > 1 => {
                parts.notes.push(format!("left out: {e}"));
                parts.files.push(file);
                continue;
            }
            Err(e) => return Err(e),
        };
        parts.files.push(file);
        parts.absent.extend(shard.cut);
        merge_metadata(&mut parts.metadata, shard.metadata);
        parts.tensors.extend(shard.tensors);
        parts.weight_files.push(name.clone());
    }
    Ok(parts)
}

/// The first shard that has a key wins; within one shard keys are sorted, so that the order is the
/// same at every mount.
fn merge_metadata(into: &mut Map<String, Value>, from: Option<HashMap<String, String>>) {
    let sorted: BTreeMap<String, String> = from.into_iter().flatten().collect();
    for (k, v) in sorted {
        into.entry(k).or_insert(Value::String(v));
    }
}

/// The index's `weight_map`: tensor → shard, shard names checked.
fn read_weight_map(dir: &Path, index: &str) -> Result<Vec<(String, String)>> {
    let path = dir.join(index);
    weight_map(&path)?
        .into_iter()
        .map(|(tensor, shard)| match shard_name(&shard) {
            Ok(shard) => Ok((tensor, shard.to_string())),
            Err(problem) => Err(Error::invalid(
                &path,
                format!("tensor '{tensor}': {problem}"),
            )),
        })
        .collect()
}

/// The index's `weight_map` as it stands.
pub(super) fn weight_map(index: &Path) -> Result<Map<String, Value>> {
    let bytes = small_file::read(index, small_file::MAX_INDEX)?;
    let json: Value = serde_json::from_slice(&bytes).map_err(|e| {
        if bytes.starts_with(b"version https://git-lfs") {
            return Error::invalid(
                index,
                "is a Git LFS pointer; run 'git lfs pull' in the model directory",
            );
        }
        Error::invalid(index, format!("is not JSON: {e}"))
    })?;
    match json {
        Value::Object(mut all) => match all.remove("weight_map") {
            Some(Value::Object(map)) => Some(map),
            _ => None,
        },
        _ => None,
    }
    .ok_or_else(|| Error::invalid(index, "has no 'weight_map' object"))
}

/// A shard's name as the index gives it, or why it is refused.
pub(super) fn shard_name(shard: &Value) -> std::result::Result<&str, String> {
    let name = shard
        .as_str()
        .ok_or_else(|| format!("its shard is {shard}, not a file name"))?;
    if name.is_empty() || name.contains(['/', '\\', '\0']) || name == "." || name == ".." {
        return Err(format!(
            "shard name {name:?} is not a plain file name in the model directory; refused"
        ));
    }
    Ok(name)
}

/// Shards with an index: its `weight_map` decides which shard a tensor comes from.
pub(super) fn open_indexed(dir: &Path, index: &str, options: OpenOptions) -> Result<Parts> {
    let weight_map = read_weight_map(dir, index)?;
    let mut shard_names: Vec<String> = weight_map
        .iter()
        .map(|(_, s)| s.clone())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    shard_names.sort_by(|a, b| natural(a, b));
    let mut parts = Parts::new(dir, Format::Safetensors);
    parts.weight_files.push(index.to_string());
    parts.weight_files.extend(shard_names.iter().cloned());
    let mut held: HashMap<Arc<str>, Vec<(usize, StoredTensor)>> = HashMap::new();
    let mut cut: BTreeSet<Arc<str>> = BTreeSet::new();
    let mut file_of: HashMap<&str, usize> = HashMap::new();
    for name in &shard_names {
        let (file, shard) = match open_shard(dir, name, index, parts.files.len(), options) {
            Ok(pair) => pair,
            Err(e) if options.allow_missing => {
                parts.notes.push(format!("left out: {e}"));
                continue;
            }
            Err(e) => return Err(e),
        };
        file_of.insert(name, parts.files.len());
        merge_metadata(&mut parts.metadata, shard.metadata);
        cut.extend(shard.cut);
        for t in shard.tensors {
            held.entry(t.name.clone())
                .or_default()
                .push((parts.files.len(), t));
        }
        parts.files.push(file);
    }
    for (tensor, shard) in &weight_map {
        let here = file_of.get(shard.as_str()).and_then(|&f| {
            let all = held.get_mut(tensor.as_str())?;
            let i = all.iter().position(|(file, _)| *file == f)?;
            Some(all.swap_remove(i).1)
        });
        match here {
            Some(t) => {
                // Copies in other shards are stale.
                for (f, _) in held.remove(tensor.as_str()).unwrap_or_default() {
                    parts.notes.push(format!(
                        "'{tensor}': the copy in {} is stale, the index names {shard}",
                        parts.files[f].name
                    ));
                }
                parts.tensors.push(t);
            }
            None if options.allow_missing => {
                held.remove(tensor.as_str());
                parts.absent.push(tensor.as_str().into());
            }
            None => {
                return Err(Error::invalid(
                    dir.join(shard),
                    format!(
                        "does not hold tensor '{tensor}', which {index} says is in it; the index and the shards are of different versions, or the file is cut short (--allow-missing serves the rest)"
                    ),
                ));
            }
        }
    }
    add_unmapped(&mut parts, held, index)?;
    Ok(parts)
}

/// Tensors that a named shard holds but the map leaves out: served if just one shard has them.
fn add_unmapped(
    parts: &mut Parts,
    held: HashMap<Arc<str>, Vec<(usize, StoredTensor)>>,
    index: &str,
) -> Result<()> {
    for (name, all) in held {
        match <[_; 1]>::try_from(all) {
            Ok([(_, t)]) => {
                parts.notes.push(format!(
                    "'{name}' is not in {index}; served from {}",
                    parts.files[t.file as usize].name
                ));
                parts.tensors.push(t);
            }
            Err(several) if !several.is_empty() => {
                let files: Vec<&str> = several
                    .iter()
                    .map(|(f, _)| parts.files[*f].name.as_str())
                    .collect();
                parts.notes.push(format!(
                    "'{name}' is not in {index} and in several shards ({}); left out",
                    files.join(", ")
                ));
            }
            Err(_) => {}
        }
    }
    parts.notes.sort();
    Ok(())
}

fn open_shard(
    dir: &Path,
    name: &str,
    index: &str,
    file_index: usize,
    options: OpenOptions,
) -> Result<(Arc<SourceFile>, safetensors::Shard)> {
    let path = dir.join(name);
    if !path.exists() {
        return Err(missing_shard(dir, name, index));
    }
    let file = SourceFile::open(&path, name)?;
    let shard = safetensors::read(&file, file_index as u32, options.allow_missing)?;
    Ok((file, shard))
}

/// The error about a shard that an index names and that is not there.
pub(super) fn missing_shard(dir: &Path, name: &str, index: &str) -> Error {
    let why = match dir.join(format!("{name}.incomplete")).exists() {
        true => "only its .incomplete download is there; let the download finish",
        false => "download it again, or mount what is there with --allow-missing",
    };
    Error::invalid(
        dir.join(name),
        format!("is missing, though {index} names it: {why}"),
    )
}
