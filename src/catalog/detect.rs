//! What a MODEL argument is: the table of interface section 1, in its order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::{Catalog, Format, OpenOptions, Parts, SourceFile, StoredTensor};
use super::{impostor, manifest, natural, safetensors, small_file};
use crate::error::{Error, Result};

/// A MODEL argument, resolved to the files to read.
#[derive(Debug, PartialEq, Eq)]
pub enum Source {
    /// Safetensors shards; with an index, its `weight_map` decides.
    Shards {
        /// The model directory.
        dir: PathBuf,
        /// File names of the shards in `dir`.
        names: Vec<String>,
        /// File name of the index in `dir`.
        index: Option<String>,
        /// One shard, asked for by its own path.
        lone: bool,
    },
    /// A `.bin` and its manifest.
    Manifest {
        /// The model directory.
        dir: PathBuf,
        /// The manifest.
        json: PathBuf,
        /// The bytes.
        bin: PathBuf,
    },
}

pub(super) fn open(model: &Path, options: OpenOptions) -> Result<Catalog> {
    let absolute = absolute(model)?;
    match Source::find(&absolute)? {
        Source::Shards {
            dir,
            names,
            index,
            lone,
        } => {
            let parts = match &index {
                Some(index) => open_indexed(&dir, index, options)?,
                None => open_all(&dir, &names, lone, options)?,
            };
            Catalog::assemble(Parts {
                model: absolute,
                ..parts
            })
        }
        Source::Manifest { dir, json, bin } => {
            let parsed = manifest::parse(&json)?.ok_or_else(|| {
                Error::invalid(&json, "is not a manifest: it has no 'tensors' object")
            })?;
            let (parts, config) = manifest::open(&dir, &absolute, &json, &bin, parsed)?;
            let mut catalog = Catalog::assemble(parts)?;
            catalog.configs.manifest = Some(config);
            Ok(catalog)
        }
    }
}

/// Makes the path absolute without following a last symbolic link (a hub cache's shards are links
/// whose own names count).
pub(super) fn absolute(model: &Path) -> Result<PathBuf> {
    let meta = std::fs::metadata(model)
        .map_err(|e| Error::io(format!("open model {}", model.display()), e))?;
    let io = |e| Error::io(format!("resolve {}", model.display()), e);
    if meta.is_dir() {
        return std::fs::canonicalize(model).map_err(io);
    }
    let parent = match model.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let name = model
        .file_name()
        .ok_or_else(|| Error::invalid(model, "has no file name"))?;
    Ok(std::fs::canonicalize(parent).map_err(io)?.join(name))
}

impl Source {
    /// Decides what `model` (an existing, absolute path) is.
    ///
    /// # Errors
    /// It is none of the table's forms; the message lists what was looked for.
    pub fn find(model: &Path) -> Result<Source> {
        if model.is_dir() {
            find_in_dir(model)
        } else {
            find_file(model)
        }
    }
}

fn find_file(path: &Path) -> Result<Source> {
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let dir = path.parent().unwrap_or(Path::new("/")).to_path_buf();
    let shards = |index: Option<String>, names: Vec<String>, lone| Source::Shards {
        dir: dir.clone(),
        names,
        index,
        lone,
    };
    let pair = |json: PathBuf, bin: PathBuf| Source::Manifest {
        dir: dir.clone(),
        json,
        bin,
    };
    if name.ends_with(".incomplete") {
        return Err(incomplete(path));
    }
    if name.ends_with(".safetensors") {
        return Ok(shards(None, vec![name], true));
    }
    if name.ends_with(".index.json") {
        return Ok(shards(Some(name), Vec::new(), false));
    }
    if name.ends_with(".json") {
        let bin = path.with_extension("bin");
        if manifest::parse(path)?.is_none() {
            return Err(Error::invalid(
                path,
                "is neither a safetensors index (*.safetensors.index.json) nor a manifest (a JSON object with 'tensors')",
            ));
        }
        if !bin.is_file() {
            return Err(Error::invalid(
                path,
                format!("is a manifest, but its {} is missing", bin.display()),
            ));
        }
        return Ok(pair(path.to_path_buf(), bin));
    }
    if name.ends_with(".bin") {
        let json = path.with_extension("json");
        if json.is_file() && manifest::parse(&json)?.is_some() {
            return Ok(pair(json, path.to_path_buf()));
        }
        let file = SourceFile::open(path, &name)?;
        impostor::check(&file)?;
        return Err(match looks_like_pickle(&name) {
            true => impostor::pickle(path),
            false => Error::invalid(
                path,
                format!(
                    "has no manifest: {} is missing or has no 'tensors' object",
                    json.display()
                ),
            ),
        });
    }
    let file = SourceFile::open(path, &name)?;
    impostor::check(&file)?;
    Err(Error::invalid(
        path,
        "is not a model: give a directory, or a .safetensors, .index.json, manifest .json or .bin file",
    ))
}

fn incomplete(path: &Path) -> Error {
    Error::invalid(
        path,
        "is an incomplete download; let it finish ('hf download' resumes it), then mount again",
    )
}

/// PyTorch's customary names for pickles.
fn looks_like_pickle(name: &str) -> bool {
    name.starts_with("pytorch_model")
        || name.starts_with("adapter_model")
        || name == "training_args.bin"
        || name.starts_with("diffusion_pytorch_model")
        || name.starts_with("optimizer")
        || name.starts_with("consolidated")
}

fn find_in_dir(dir: &Path) -> Result<Source> {
    if let Some(snapshot) = hub_snapshot(dir)? {
        return find_in_dir(&snapshot);
    }
    let names = listing(dir)?;
    let shards = |names: Vec<String>, index| {
        Ok(Source::Shards {
            dir: dir.to_path_buf(),
            names,
            index,
            lone: false,
        })
    };
    if names.contains("model.safetensors") {
        return shards(vec!["model.safetensors".into()], None);
    }
    let indexes: Vec<&String> = names
        .iter()
        .filter(|n| n.ends_with(".safetensors.index.json"))
        .collect();
    match indexes.as_slice() {
        [] => {}
        [one] => return shards(Vec::new(), Some((*one).clone())),
        several => {
            let preferred = "model.safetensors.index.json";
            if names.contains(preferred) {
                return shards(Vec::new(), Some(preferred.into()));
            }
            let list: Vec<&str> = several.iter().map(|s| s.as_str()).collect();
            return Err(Error::invalid(
                dir,
                format!(
                    "has several indexes and none is {preferred}: {}; mount one by its path",
                    list.join(", ")
                ),
            ));
        }
    }
    let mut tensors_files: Vec<String> = names
        .iter()
        .filter(|n| n.ends_with(".safetensors"))
        .cloned()
        .collect();
    if !tensors_files.is_empty() {
        tensors_files.sort_by(|a, b| natural(a, b));
        return shards(tensors_files, None);
    }
    if let Some(source) = find_manifest(dir, &names)? {
        return Ok(source);
    }
    Err(nothing_found(dir, &names))
}

/// Names of the regular files (links followed) of a directory.
fn listing(dir: &Path) -> Result<BTreeSet<String>> {
    let io = |e| Error::io(format!("read directory {}", dir.display()), e);
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let entry = entry.map_err(io)?;
        // A link to nowhere still counts: opening it names it in the error.
        if !entry.path().is_dir()
            && let Ok(name) = entry.file_name().into_string()
        {
            names.insert(name);
        }
    }
    Ok(names)
}

/// `models--org--name` → the snapshot that `refs/main` names.
fn hub_snapshot(dir: &Path) -> Result<Option<PathBuf>> {
    let is_cache = dir
        .file_name()
        .is_some_and(|n| n.to_string_lossy().starts_with("models--"))
        && dir.join("snapshots").is_dir();
    if !is_cache {
        return Ok(None);
    }
    let reference = dir.join("refs/main");
    let rev = small_file::read(&reference, 4096).map_err(|e| {
        Error::invalid(
            dir,
            format!(
                "is a hub cache folder, but {} cannot be read ({e}); mount one of its snapshots/<revision> by path",
                reference.display()
            ),
        )
    })?;
    let rev = String::from_utf8_lossy(&rev);
    let rev = rev.trim();
    let plain = !rev.is_empty() && !rev.contains(['/', '\0']) && rev != "." && rev != "..";
    if !plain {
        return Err(Error::invalid(&reference, "does not name a revision"));
    }
    let snapshot = dir.join("snapshots").join(rev);
    if !snapshot.is_dir() {
        return Err(Error::invalid(
            dir,
            format!(
                "refs/main names revision {rev}, but snapshots/{rev} is missing; download the model again"
            ),
        ));
    }
    Ok(Some(snapshot))
}

fn find_manifest(dir: &Path, names: &BTreeSet<String>) -> Result<Option<Source>> {
    let mut found = Vec::new();
    for bin in names.iter().filter(|n| n.ends_with(".bin")) {
        let json = format!("{}.json", &bin[..bin.len() - 4]);
        if names.contains(&json) && manifest::parse(&dir.join(&json))?.is_some() {
            found.push((json, bin.clone()));
        }
    }
    match found.as_slice() {
        [] => Ok(None),
        [(json, bin)] => Ok(Some(Source::Manifest {
            dir: dir.to_path_buf(),
            json: dir.join(json),
            bin: dir.join(bin),
        })),
        several => {
            let list: Vec<&str> = several.iter().map(|(j, _)| j.as_str()).collect();
            Err(Error::invalid(
                dir,
                format!(
                    "has several manifests: {}; mount one by its path",
                    list.join(", ")
                ),
            ))
        }
    }
}

fn nothing_found(dir: &Path, names: &BTreeSet<String>) -> Error {
    if let Some(n) = names.iter().find(|n| n.ends_with(".incomplete")) {
        return incomplete(&dir.join(n));
    }
    let pickle = names.iter().find(|n| {
        (n.ends_with(".bin") && looks_like_pickle(n))
            || [".pt", ".pth", ".ckpt"].iter().any(|e| n.ends_with(e))
    });
    if let Some(n) = pickle {
        return impostor::pickle(&dir.join(n));
    }
    let mut hint = String::new();
    if let Some(n) = names.iter().find(|n| n.ends_with(".gguf")) {
        hint = format!("; {n} is GGUF, which stfs does not read");
    } else {
        let subs = model_subdirectories(dir);
        if !subs.is_empty() {
            hint = format!(
                "; its subdirectories {} hold models of their own: mount one by its path",
                subs.join(", ")
            );
        } else if let Some(n) = names.iter().find(|n| n.ends_with(".bin")) {
            hint = format!("; {n} has no manifest beside it");
        }
    }
    Error::invalid(
        dir,
        format!(
            "holds no model: looked for model.safetensors, *.safetensors.index.json, *.safetensors, and <stem>.bin with <stem>.json{hint}"
        ),
    )
}

/// Subdirectories that are models themselves (a diffusers folder's `unet`, `vae`, …).
fn model_subdirectories(dir: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return Vec::new();
    };
    let mut subs: Vec<String> = entries
        .flatten()
        .filter(|e| e.path().is_dir())
        .filter(|e| {
            listing(&e.path()).is_ok_and(|names| {
                names
                    .iter()
                    .any(|n| n.ends_with(".safetensors") || n.ends_with(".safetensors.index.json"))
            })
        })
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .collect();
    subs.sort_by(|a, b| natural(a, b));
    subs
}

/// Shards without an index: all of them.
fn open_all(dir: &Path, names: &[String], lone: bool, options: OpenOptions) -> Result<Parts> {
    let mut parts = empty_parts(dir, lone);
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

fn empty_parts(dir: &Path, lone_file: bool) -> Parts {
    Parts {
        dir: dir.to_path_buf(),
        model: PathBuf::new(),
        format: Format::Safetensors,
        files: Vec::new(),
        tensors: Vec::new(),
        absent: Vec::new(),
        metadata: Map::new(),
        weight_files: Vec::new(),
        lone_file,
        notes: Vec::new(),
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
fn open_indexed(dir: &Path, index: &str, options: OpenOptions) -> Result<Parts> {
    let weight_map = read_weight_map(dir, index)?;
    let mut shard_names: Vec<String> = weight_map
        .iter()
        .map(|(_, s)| s.clone())
        .collect::<BTreeSet<_>>()
        .into_iter()
        .collect();
    shard_names.sort_by(|a, b| natural(a, b));
    let mut parts = empty_parts(dir, false);
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
