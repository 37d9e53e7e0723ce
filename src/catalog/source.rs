//! What a MODEL argument is: the table of interface section 1, in its order.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::manifest::Manifest;
use super::{SourceFile, impostor, natural, regular_file, small_file};
use crate::error::{Error, Result};

/// A MODEL argument, resolved to the files to read.
pub(super) enum Source {
    /// Safetensors files, all of which count.
    Shards {
        /// The model directory.
        dir: PathBuf,
        /// Their file names in `dir`, in natural order.
        names: Vec<String>,
        /// One shard, asked for by its own path.
        lone: bool,
    },
    /// Safetensors shards whose index decides.
    Indexed {
        /// The model directory.
        dir: PathBuf,
        /// File name of the index in `dir`.
        index: String,
    },
    /// A `.bin` and its manifest.
    Manifest(Manifest),
    /// What should be a manifest and cannot be read as one.
    Unreadable {
        /// The manifest.
        json: PathBuf,
        /// Why not.
        error: Error,
    },
}

/// Makes the path absolute without following a last symbolic link (a hub cache's shards are links
/// whose own names count).
pub(super) fn absolute(model: &Path) -> Result<PathBuf> {
    let meta = std::fs::metadata(model).map_err(|e| {
        regular_file::not_opened(model, format!("open model {}", model.display()), e)
    })?;
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
    let name = name_of(path);
    let dir = path.parent().unwrap_or(Path::new("/")).to_path_buf();
    if name.ends_with(".incomplete") {
        return Err(incomplete(path));
    }
    if name.ends_with(".safetensors") {
        return Ok(Source::Shards {
            dir,
            names: vec![name],
            lone: true,
        });
    }
    if name.ends_with(".index.json") {
        return Ok(Source::Indexed { dir, index: name });
    }
    if name.ends_with(".json") {
        return find_by_json(dir, path);
    }
    if name.ends_with(".bin") {
        return find_by_bin(dir, path);
    }
    let file = SourceFile::open(path, &name)?;
    impostor::check(&file)?;
    Err(Error::invalid(
        path,
        "is not a model: give a directory, or a .safetensors, .index.json, manifest .json or .bin file",
    ))
}

/// A JSON file that should be a manifest.
fn find_by_json(dir: PathBuf, json: &Path) -> Result<Source> {
    let bin = json.with_extension("bin");
    let manifest = match Manifest::parse(&dir, json, &bin) {
        Ok(Some(manifest)) => manifest,
        Ok(None) => {
            return Err(Error::invalid(
                json,
                "is neither a safetensors index (*.safetensors.index.json) nor a manifest (a JSON object with 'tensors')",
            ));
        }
        Err(error) => return Ok(unreadable(json, error)),
    };
    match bin.is_file() {
        true => Ok(Source::Manifest(manifest)),
        false => Err(Error::invalid(
            json,
            format!("is a manifest, but its {} is missing", bin.display()),
        )),
    }
}

/// A `.bin` file that should have a manifest beside it.
fn find_by_bin(dir: PathBuf, bin: &Path) -> Result<Source> {
    let json = bin.with_extension("json");
    if json.is_file() {
        match Manifest::parse(&dir, &json, bin) {
            Ok(Some(manifest)) => return Ok(Source::Manifest(manifest)),
            Ok(None) => {}
            Err(error) => return Ok(unreadable(&json, error)),
        }
    }
    let name = name_of(bin);
    let file = SourceFile::open(bin, &name)?;
    impostor::check(&file)?;
    Err(match looks_like_pickle(&name) {
        true => impostor::pickle(bin),
        false => Error::invalid(
            bin,
            format!(
                "has no manifest: {} is missing or has no 'tensors' object",
                json.display()
            ),
        ),
    })
}

fn unreadable(json: &Path, error: Error) -> Source {
    let json = json.to_path_buf();
    Source::Unreadable { json, error }
}

/// The last component of a path.
pub(super) fn name_of(path: &Path) -> String {
    path.file_name()
        .map_or_else(String::new, |n| n.to_string_lossy().into_owned())
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
    let shards = |names| {
        Ok(Source::Shards {
            dir: dir.to_path_buf(),
            names,
            lone: false,
        })
    };
    if names.contains("model.safetensors") {
        return shards(vec!["model.safetensors".into()]);
    }
    if let Some(index) = find_index(dir, &names)? {
        return Ok(Source::Indexed {
            dir: dir.to_path_buf(),
            index,
        });
    }
    let mut all: Vec<String> = names
        .iter()
        .filter(|n| n.ends_with(".safetensors"))
        .cloned()
        .collect();
    if !all.is_empty() {
        all.sort_by(|a, b| natural(a, b));
        return shards(all);
    }
    find_manifest(dir, &names)?.ok_or_else(|| nothing_found(dir, &names))
}

/// The index that counts, if there is one.
fn find_index(dir: &Path, names: &BTreeSet<String>) -> Result<Option<String>> {
    let preferred = "model.safetensors.index.json";
    if names.contains(preferred) {
        return Ok(Some(preferred.into()));
    }
    let all: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .filter(|n| n.ends_with(".safetensors.index.json"))
        .collect();
    match all.as_slice() {
        [] => Ok(None),
        [one] => Ok(Some((*one).into())),
        several => Err(Error::invalid(
            dir,
            format!(
                "has several indexes and none is {preferred}: {}; mount one by its path",
                several.join(", ")
            ),
        )),
    }
}

/// What macOS puts before a file's name, on disks that are not its own, for what else it keeps of
/// the file: `._model.safetensors` holds no weights.
const RESOURCE_FORK: &str = "._";

/// Names of the regular files (links followed) of a directory that may be a model's.
fn listing(dir: &Path) -> Result<BTreeSet<String>> {
    let io = |e| Error::io(format!("read directory {}", dir.display()), e);
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let entry = entry.map_err(io)?;
        // A link to nowhere still counts: opening it names it in the error.
        if !entry.path().is_dir()
            && let Ok(name) = entry.file_name().into_string()
            && !name.starts_with(RESOURCE_FORK)
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
                "refs/main names revision {rev}, but snapshots/{rev} is missing; {}",
                match unfinished(dir) {
                    Some(_) =>
                        "its download is unfinished: let it finish ('hf download' resumes it)",
                    None => "download the model again",
                }
            ),
        ));
    }
    Ok(Some(snapshot))
}

fn find_manifest(dir: &Path, names: &BTreeSet<String>) -> Result<Option<Source>> {
    let mut found = Vec::new();
    for bin in names.iter().filter(|n| n.ends_with(".bin")) {
        let json = format!("{}.json", &bin[..bin.len() - 4]);
        if names.contains(&json) {
            let json = dir.join(&json);
            match Manifest::parse(dir, &json, &dir.join(bin)) {
                Ok(manifest) => found.extend(manifest),
                Err(error) => return Ok(Some(unreadable(&json, error))),
            }
        }
    }
    if found.len() > 1 {
        let list: Vec<String> = found.iter().map(|m| name_of(&m.json)).collect();
        return Err(Error::invalid(
            dir,
            format!(
                "has several manifests: {}; mount one by its path",
                list.join(", ")
            ),
        ));
    }
    Ok(found.pop().map(Source::Manifest))
}

/// A file of a hub download that was interrupted, or still goes on: the hub's programs keep them
/// beside the blobs that a snapshot links to, or under `.cache` of a directory that they fill.
pub(super) fn unfinished(dir: &Path) -> Option<PathBuf> {
    let snapshots = dir.parent().filter(|p| p.ends_with("snapshots"));
    let places = [
        snapshots.map(|s| s.with_file_name("blobs")),
        Some(dir.join("blobs")),
        Some(dir.join(".cache/huggingface/download")),
    ];
    let entries = places.into_iter().flatten().map(std::fs::read_dir);
    let mut paths = entries.flatten().flatten().flatten().map(|e| e.path());
    paths.find(|p| p.extension().is_some_and(|e| e == "incomplete"))
}

fn nothing_found(dir: &Path, names: &BTreeSet<String>) -> Error {
    if let Some(n) = names.iter().find(|n| n.ends_with(".incomplete")) {
        return incomplete(&dir.join(n));
    }
    if let Some(half) = unfinished(dir) {
        return Error::invalid(
            dir,
            format!(
                "holds no weights yet: its download is unfinished ({} is there); let it finish ('hf download' resumes it), then mount again",
                half.display()
            ),
        );
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
