//! Every structural problem of a model at once, for `stfs verify`: what [`Catalog::open`] would stop
//! at, and everything behind it.
//!
//! [`Catalog::open`]: super::Catalog::open

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use super::manifest::{self, Manifest};
use super::source::{self, Source, name_of};
use super::weight_map::WeightMap;
use super::{Configs, SourceFile, impostor, numbered, safetensors, shards};
use crate::error::{Error, Result};

/// Something wrong with a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file at fault, by its name in the model directory.
    pub file: String,
    /// The tensor at fault; `None` where it is the file as a whole.
    pub tensor: Option<String>,
    /// What is wrong, with both numbers and what to do.
    pub problem: String,
}

impl Problem {
    /// With a file as a whole.
    pub fn of_file(file: &str, problem: impl Into<String>) -> Problem {
        Problem {
            file: file.into(),
            tensor: None,
            problem: problem.into(),
        }
    }

    /// With a tensor.
    pub fn of_tensor(file: &str, tensor: &str, problem: impl Into<String>) -> Problem {
        Problem {
            tensor: Some(tensor.into()),
            ..Problem::of_file(file, problem)
        }
    }

    /// Why `model` cannot be opened.
    pub fn of_model(model: &Path, error: &Error) -> Problem {
        let file = match error {
            Error::Invalid { file, .. } => name_of(file),
            _ => model.display().to_string(),
        };
        Problem::from_error(&file, error)
    }

    /// From the error about a file, whose path then need not be said again.
    fn from_error(file: &str, error: &Error) -> Problem {
        Problem::of_file(file, error.about_its_file())
    }
}

/// Looks at every weight file, index, manifest and config of a model.
///
/// # Errors
/// There is no model to look at.
pub fn check(model: &Path) -> Result<Vec<Problem>> {
    let (dir, mut problems) = match Source::find(&source::absolute(model)?)? {
        Source::Shards { dir, names, lone } => {
            let mut problems = check_all(&dir, &names);
            if !lone {
                problems.extend(check_numbers(&names));
            }
            (dir, problems)
        }
        Source::Indexed { dir, index } => {
            let problems = check_indexed(&dir, &index);
            (dir, problems)
        }
        Source::Manifest(manifest) => {
            let problems = check_manifest(&manifest);
            (manifest.dir, problems)
        }
        Source::Unreadable { json, error } => {
            let problem = Problem::from_error(&name_of(&json), &error);
            let dir = json.parent().unwrap_or(Path::new("/"));
            (dir.to_path_buf(), vec![problem])
        }
    };
    problems.extend(check_configs(&dir));
    Ok(problems)
}

/// Config files that are there and cannot be used.
fn check_configs(dir: &Path) -> impl Iterator<Item = Problem> {
    let unused = Configs::new(dir).unused.into_iter();
    unused.map(|config| Problem::of_file(config.file, config.why))
}

/// One shard: its problems, and the names of the tensors in its header as far as it can be read.
fn check_shard(dir: &Path, name: &str) -> (Vec<Problem>, Vec<Arc<str>>) {
    let found = SourceFile::open(&dir.join(name), name).and_then(|f| safetensors::check(&f));
    let (problems, names) = match found {
        Ok(found) => found,
        Err(e) => return (vec![Problem::from_error(name, &e)], Vec::new()),
    };
    let problems = problems.into_iter().map(|p| Problem {
        file: name.into(),
        tensor: p.tensor,
        problem: p.problem,
    });
    (problems.collect(), names)
}

/// Shards without an index: each by itself, and no name in two of them.
fn check_all(dir: &Path, names: &[String]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut held: HashMap<Arc<str>, &str> = HashMap::new();
    for name in names {
        let (found, tensors) = check_shard(dir, name);
        problems.extend(found);
        for tensor in tensors {
            match held.get(&tensor) {
                Some(first) => problems.push(Problem::of_tensor(
                    name,
                    &tensor,
                    format!("is also in {first}, and no index says which counts; remove one"),
                )),
                None => {
                    held.insert(tensor, name);
                }
            }
        }
    }
    problems
}

/// Shards that are missing by the names of the others.
fn check_numbers(names: &[String]) -> impl Iterator<Item = Problem> {
    let problem = "is missing: the names of the other shards count it, and no index says what it holds; download it again";
    let missing = numbered::missing(names).into_iter();
    missing.map(move |name| Problem::of_file(&name, problem))
}

/// Shards with an index: each that it names, and that each tensor is where it says.
fn check_indexed(dir: &Path, index: &str) -> Vec<Problem> {
    let map = match WeightMap::read(&dir.join(index)) {
        Ok(map) => map,
        Err(e) => return vec![Problem::from_error(index, &e)],
    };
    let mut problems = Vec::new();
    let mut promised: Vec<Vec<&Arc<str>>> = vec![Vec::new(); map.shards.len()];
    for (tensor, &shard) in &map.tensors {
        match &map.shards[shard as usize] {
            Ok(_) => promised[shard as usize].push(tensor),
            Err(problem) => problems.push(Problem::of_tensor(index, tensor, problem)),
        }
    }
    let mut unmapped: BTreeMap<Arc<str>, Vec<&str>> = BTreeMap::new();
    for (shard, promised) in map.shards.iter().zip(promised) {
        let Ok(shard) = shard else { continue };
        if !dir.join(shard).exists() {
            let missing = shards::missing_shard(dir, shard, index);
            problems.push(Problem::from_error(shard, &missing));
            continue;
        }
        let (found, held) = check_shard(dir, shard);
        // Of a header that cannot be read at all, its absent tensors are no further news.
        if !held.is_empty() || found.is_empty() {
            problems.extend(check_promised(shard, index, &promised, &held));
        }
        problems.extend(found);
        for tensor in held {
            if !map.tensors.contains_key(&tensor) {
                unmapped.entry(tensor).or_default().push(shard);
            }
        }
    }
    for (tensor, shards) in unmapped.into_iter().filter(|(_, s)| s.len() > 1) {
        let problem = format!(
            "is in {}, and the index does not say which counts: it is left out",
            shards.join(" and ")
        );
        problems.push(Problem::of_tensor(index, &tensor, problem));
    }
    problems
}

/// What the index says is in a shard, and its header does not.
fn check_promised(
    shard: &str,
    index: &str,
    promised: &[&Arc<str>],
    held: &[Arc<str>],
) -> Vec<Problem> {
    let held: HashSet<&Arc<str>> = held.iter().collect();
    let missing = promised.iter().filter(|t| !held.contains(*t));
    let problem = format!(
        "is not in this file, though {index} says so; the index and the shards are of different versions"
    );
    missing
        .map(|t| Problem::of_tensor(shard, t, &problem))
        .collect()
}

/// A manifest: every entry by itself.
fn check_manifest(manifest: &Manifest) -> Vec<Problem> {
    let (json, bin) = (name_of(&manifest.json), name_of(&manifest.bin));
    let file = match SourceFile::open(&manifest.bin, &bin) {
        Ok(file) => file,
        Err(e) => return vec![Problem::from_error(&bin, &e)],
    };
    let mut problems = Vec::new();
    let default_bits = manifest::default_bits(&manifest.config()).unwrap_or_else(|e| {
        problems.push(Problem::of_file(&json, e));
        0
    });
    for (name, entry) in manifest.entries() {
        let tensor = match manifest::tensor(name, entry, default_bits) {
            Ok(tensor) => tensor,
            Err(problem) => {
                problems.push(Problem::of_tensor(&json, name, problem));
                continue;
            }
        };
        if let Err(problem) = manifest::check_end(&tensor, &file) {
            // Of a file that is something else, its tensors are no further news.
            if let Err(better) = impostor::check(&file) {
                return vec![Problem::from_error(&bin, &better)];
            }
            problems.push(Problem::of_tensor(&json, name, problem));
        }
    }
    problems
}
