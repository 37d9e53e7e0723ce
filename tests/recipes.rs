//! Recipes through the program: what is wrong with them, hostile ones, what changes under a mount, and the results that
//! peft and mergekit get.

#[path = "common/mod.rs"]
mod common;

#[path = "recipes/adapters.rs"]
mod adapters;
#[path = "recipes/changes.rs"]
mod changes;
#[path = "recipes/door.rs"]
mod door;
#[path = "recipes/errors.rs"]
mod errors;
#[path = "recipes/files.rs"]
mod files;
#[path = "recipes/golden.rs"]
mod golden;
#[path = "recipes/hostile.rs"]
mod hostile;
#[path = "recipes/syntax.rs"]
mod syntax;

use std::path::{Path, PathBuf};

use common::{ModelDir, Ran, T, stfs, tensor};
use safetensors::Dtype;
use serde_json::json;

/// Marks the place of a mistake in the text of a recipe, and is not part of it.
const MARK: char = '⟦';

/// A directory for recipes with two models in it, `m` and `tuned`.
fn models() -> ModelDir {
    let dir = ModelDir::new();
    let mut tensors = vec![
        tensor("a.weight", Dtype::F32, &[4, 6]),
        tensor("b.weight", Dtype::F32, &[4, 6]),
        tensor("h.weight", Dtype::F16, &[4, 6]),
        tensor("cube", Dtype::F32, &[2, 3, 4]),
        tensor("complex", Dtype::C64, &[4, 6]),
        tensor("ids", Dtype::I64, &[5]),
        tensor("one", Dtype::F32, &[1]),
        tensor("fp4", Dtype::F4, &[4, 6]),
        tensor("wide", Dtype::F32, &[2, 1025]),
    ];
    for n in 0..2 {
        let layer = |name: &str, rows| {
            tensor(
                &format!("model.layers.{n}.{name}.weight"),
                Dtype::BF16,
                &[rows, 4],
            )
        };
        tensors.extend(["q", "k", "v"].map(|x| layer(&format!("self_attn.{x}_proj"), 8)));
        tensors.push(layer("mlp.gate_proj", 10));
    }
    tensors.extend([0, 1, 3].map(|e| tensor(&format!("gap.{e}.w"), Dtype::F32, &[2, 2])));
    tensors.extend([0, 1, 2].map(|e| tensor(&format!("experts.{e}.w"), Dtype::F32, &[2, 2])));
    model(&dir, "m", &tensors);
    dir.json(
        "m/config.json",
        &json!({"heads": 4, "kind": "llama", "text_config": {"layers": 2}, "list": [1]}),
    );
    let tuned = [
        tensor("a.weight", Dtype::F32, &[4, 7]),
        tensor("b.weight", Dtype::F32, &[4, 6]),
    ];
    model(&dir, "tuned", &tuned);
    dir
}

/// A model in a directory inside another.
fn model(dir: &ModelDir, name: &str, tensors: &[T]) -> PathBuf {
    std::fs::create_dir_all(dir.join(name)).unwrap();
    dir.shard(&format!("{name}/model.safetensors"), tensors);
    dir.join(name)
}

/// The names, dtypes and shapes that a recipe leaves, sorted by name.
#[track_caller]
fn ls(recipe: &Path) -> Vec<(String, String, Vec<u64>)> {
    let all = stfs(["ls", "--json", "--no-synthetic", recipe.to_str().unwrap()]);
    let all = all.ok().json();
    let entry = |t: &serde_json::Value| {
        let shape = t["shape"].as_array().unwrap().iter();
        (
            t["name"].as_str().unwrap().to_string(),
            t["dtype"].as_str().unwrap().to_string(),
            shape.map(|n| n.as_u64().unwrap()).collect(),
        )
    };
    let mut all: Vec<_> = all.as_array().unwrap().iter().map(entry).collect();
    all.sort();
    all
}

/// A recipe with the first lines that all of these have, and these rules.
fn with_rules(rules: &str) -> String {
    format!("model = \"m\"\nmodels = {{ tuned = \"tuned\" }}\nrules = [\n{rules}\n]\n")
}

/// Line and column of the mark.
fn place(text: &str) -> (usize, usize) {
    let at = text
        .find(MARK)
        .unwrap_or_else(|| panic!("no mark in {text}"));
    let before = &text[..at];
    let line_start = before.rfind('\n').map_or(0, |i| i + 1);
    (
        before.matches('\n').count() + 1,
        before[line_start..].chars().count() + 1,
    )
}

/// What a run must print: about the marked place, or about the marked line.
struct Expected<'a> {
    text: &'a str,
    of_line: bool,
    words: &'a [&'a str],
}

impl Expected<'_> {
    /// What differs, if anything does.
    fn check(&self, dir: &ModelDir) -> Result<(), String> {
        let path = dir.file("recipe.toml", self.text.replace(MARK, ""));
        let path = path.to_str().unwrap();
        let (line, column) = place(self.text);
        let at = match self.of_line {
            true => format!("stfs: {path}:{line}: "),
            false => format!("stfs: {path}:{line}:{column}: "),
        };
        let ran = stfs(["ls", path]);
        let first = ran.err.lines().next().unwrap_or_default();
        let problem = |what: String| Err(format!("{}\n  {what}\n  {ran:?}", self.text.trim()));
        if ran.code != 1 || !ran.out.is_empty() || ran.err.lines().count() != 1 {
            return problem("exit code 1 and one line on standard error are expected".into());
        }
        let Some(what) = first.strip_prefix(&at) else {
            return problem(format!("'{at}…' is expected"));
        };
        match self.words.iter().find(|word| !what.contains(**word)) {
            Some(word) => problem(format!("lacks '{word}'")),
            None => Ok(()),
        }
    }
}

/// Runs many, and reports all that differ.
#[track_caller]
fn check_all<'a>(dir: &ModelDir, all: impl IntoIterator<Item = Expected<'a>>) {
    let checked: Vec<_> = all.into_iter().map(|e| e.check(dir)).collect();
    let wrong: Vec<_> = checked.iter().filter_map(|r| r.as_ref().err()).collect();
    let list: Vec<&str> = wrong.iter().map(|w| w.as_str()).collect();
    assert!(
        wrong.is_empty(),
        "{} of {} differ:\n{}",
        wrong.len(),
        checked.len(),
        list.join("\n")
    );
}

/// The one line of a run that must fail quickly.
#[track_caller]
fn refused(recipe: &Path, words: &[&str]) -> String {
    stfs([Path::new("ls"), recipe]).fails(words)
}

/// As [`refused`], of all that `verify` finds.
#[track_caller]
fn verified(recipe: &Path) -> Ran {
    stfs([Path::new("verify"), recipe])
}
