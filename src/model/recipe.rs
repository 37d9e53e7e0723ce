//! Recipes: a TOML file that makes the tensors of one model from those of one or more others. A recipe is a
//! MODEL: what its rules leave is a catalog like that of a file, and everything above the catalog sees
//! nothing special.
//!
//! ```text
//! NAME.toml ─ file ─▶ rules ─ rules, evaluate ─▶ results: name, dtype, shape, Expr ─ derived ─▶ Catalog ─▶ Model
//!                     └ language: expressions, patterns, templates      └ leaves: tensors of `Sources`
//! ```

use std::path::Path;

use crate::catalog::Source;

mod adapter;
mod derived;
mod evaluate;
mod file;
mod language;
mod mistake;
mod nearest;
mod open;
mod ops;
mod rules;
mod scope;
mod sources;
mod summary;
mod tensor;
#[cfg(test)]
pub(super) mod testing;

pub use open::{Opening, Stop};
pub use rules::Given;
pub use summary::{Made, RuleSummary};

/// What the name of a recipe ends in.
const ENDING: &str = ".toml";

/// Whether a MODEL is a recipe.
pub fn is_recipe(source: &Source) -> bool {
    let name = source.file.as_deref();
    name.is_some_and(|name| name.ends_with(ENDING))
}

/// `; did you mean 'NEAREST'?`, or nothing.
pub fn did_you_mean<'a>(name: &str, among: impl IntoIterator<Item = &'a str>) -> String {
    nearest::did_you_mean(nearest::word(name, among))
}

/// Whether a path would be that of a recipe.
pub fn is_named_so(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| name.ends_with(ENDING))
}
