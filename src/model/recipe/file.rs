//! A recipe's file: keys, rules, and where everything stands in it. Nothing is known about models here.

mod config;
mod exports;
mod models;
mod names;
mod parameters;
mod reader;
mod results;
mod rule;

use std::path::PathBuf;

use serde_json::Value;

use super::language::{Each, Located, Node, Pattern, Template};
use super::mistake::{Mistake, Place};

use names::Names;
use reader::{Reader, Table};

/// No more mistakes are listed one by one.
const MAX_MISTAKES: usize = 1000;

/// A recipe as its file has it.
#[derive(Debug, Clone, PartialEq)]
pub struct RecipeFile {
    /// The model whose tensors the rules start with.
    pub model: ModelEntry,
    /// Further models, by name, in the order of the file.
    pub models: Vec<(Box<str>, ModelEntry)>,
    /// Parameters, in the order of the file.
    pub set: Vec<Parameter>,
    /// The rules, from top to bottom.
    pub rules: Vec<Rule>,
    /// Changes to `config.json`.
    pub config: ConfigChanges,
    /// Further files of `export/`.
    pub exports: Vec<ExportRule>,
}

/// `model` or `models.NAME`.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelEntry {
    /// Where it is named.
    pub at: Place,
    /// As it is written: relative paths count from the recipe's directory.
    pub path: PathBuf,
    /// `as = "floats"`
    pub floats: bool,
    /// Parameters of a recipe.
    pub set: Vec<Parameter>,
}

/// `set.NAME`
#[derive(Debug, Clone, PartialEq)]
pub struct Parameter {
    /// Where its value stands.
    pub at: Place,
    /// Its name.
    pub name: Box<str>,
    /// A number is an expression, too.
    pub value: Node,
    /// Its value as it is written.
    pub text: Box<str>,
}

/// One rule.
#[derive(Debug, Clone, PartialEq)]
pub struct Rule {
    /// Where it begins.
    pub at: Place,
    /// What it does.
    pub action: Action,
    /// Only matches for which this holds.
    pub condition: Option<Node>,
    /// Whether it may match nothing.
    pub optional: bool,
}

/// What a rule does.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Drops what matches no pattern.
    Keep(Vec<Pattern>),
    /// Drops what matches one.
    Drop(Vec<Pattern>),
    /// Makes results of each match of the first pattern.
    Make(Make),
    /// Adds an adapter.
    Lora {
        /// Where it is named.
        at: Place,
        /// Its name among the models.
        adapter: Box<str>,
        /// What multiplies it.
        scale: Option<Node>,
    },
}

/// A rule with `on`.
#[derive(Debug, Clone, PartialEq)]
pub struct Make {
    /// The patterns, of which the first one matches.
    pub on: Vec<Pattern>,
    /// Whether what was matched goes: with `to` and in place, not with `add`.
    pub takes: bool,
    /// What is made.
    pub results: Vec<RuleResult>,
    /// Makes the results once for each number.
    pub each: Option<Each>,
}

/// One result of a rule.
#[derive(Debug, Clone, PartialEq)]
pub struct RuleResult {
    /// Where its name or, without one, the rule stands.
    pub at: Place,
    /// Its name; `None`: in place, under the name that was matched.
    pub name: Option<Template>,
    /// What it is; `None`: what was matched.
    pub is: Option<Node>,
    /// `is` as it is written; `it` if it is left out.
    pub text: Box<str>,
}

/// `config`
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ConfigChanges {
    /// Keys, split at their dots, and their new values.
    pub set: Vec<(Place, Vec<String>, Value)>,
    /// Keys that go.
    pub remove: Vec<(Place, Vec<String>)>,
}

/// An entry of `exports`.
#[derive(Debug, Clone, PartialEq)]
pub struct ExportRule {
    /// Where it begins.
    pub at: Place,
    /// The file's name.
    pub file: Template,
    /// The tensors in it.
    pub on: Vec<Pattern>,
    /// Their names there; `None`: their own.
    pub to: Option<Template>,
}

/// Why a file is not a recipe.
#[derive(Debug, Clone, PartialEq)]
pub struct Broken {
    /// All mistakes, in the order of their places; at least one.
    pub mistakes: Vec<Mistake>,
    /// What can be checked all the same: the rules above the first one of which nothing is known. An
    /// expression that could not be understood is [`Kind::Mistaken`](super::language::Kind::Mistaken). It
    /// must not be mounted.
    pub rest: Option<Box<RecipeFile>>,
}

/// Parses a recipe.
///
/// # Errors
/// All mistakes that can be seen without a model: TOML, keys, types, the language in strings, names that are not
/// bound.
pub fn parse(text: &str) -> Result<RecipeFile, Broken> {
    let mut reader = Reader::new(text);
    let rest = reader.root().and_then(|root| recipe(&mut reader, &root));
    let mut mistakes = reader.mistakes;
    mistakes.sort_by_key(|mistake| mistake.at);
    if let Some(mistake) = mistakes.get(MAX_MISTAKES) {
        let more = crate::text::thousands((mistakes.len() - MAX_MISTAKES) as u64);
        let more = Mistake::of_line(mistake.at, format!("{more} more mistakes from here on"));
        mistakes.truncate(MAX_MISTAKES);
        mistakes.push(more);
    }
    match rest {
        Some(file) if mistakes.is_empty() => Ok(file),
        rest => {
            let rest = rest.map(Box::new);
            Err(Broken { mistakes, rest })
        }
    }
}

/// What the file has; `None`: not even the model.
fn recipe<'t>(reader: &mut Reader<'t>, root: &Table<'t>) -> Option<RecipeFile> {
    let keys = ["model", "models", "set", "rules", "config", "exports"];
    let are_known = reader.check_keys(root, &keys, "a recipe");
    let model = root.get("model").map(|value| models::entry(reader, value));
    // It may be the key that is not known.
    if model.is_none() && are_known {
        let what = "model is missing: the path of the model that the rules start with";
        reader.mistake(Place(0), what);
    }
    let mut names = Names::default();
    let models = models::further(reader, root, &mut names);
    let set = parameters::all(reader, root, &mut names);
    let rules = rule::all(reader, root, &names);
    let config = config::changes(reader, root);
    let exports = exports::all(reader, root, &names);
    Some(RecipeFile {
        model: model??,
        models,
        set,
        rules,
        config,
        exports,
    })
}

/// Parses the value of `--set NAME=VALUE`: a number or an expression over `config.` and parameters. Places count
/// from the beginning of `value`.
///
/// # Errors
/// What is wrong with it.
pub fn parse_parameter(name: &str, value: &str) -> Result<Parameter, Mistake> {
    let value = Located::plain(value, 0);
    parameters::overriding(name, &value)
}

#[cfg(test)]
mod tests;
