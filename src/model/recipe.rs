//! Recipes: a TOML file that makes the tensors of one model from those of one or more others. A recipe is a
//! MODEL: what its rules leave is a catalog like that of a file, and everything above the catalog sees
//! nothing special.
//!
//! ```text
//! NAME.toml ─ file ─▶ rules ─ rules, evaluate ─▶ results: name, dtype, shape, Expr ─ derived ─▶ Catalog ─▶ Model
//!                     └ language: expressions, patterns, templates      └ leaves: tensors of `Sources`
//! ```

#![allow(dead_code, missing_docs)] // Until all parts are there.

mod adapter;
mod evaluate;
mod file;
mod language;
mod mistake;
mod nearest;
mod ops;
mod rules;
mod sources;
mod tensor;
#[cfg(test)]
mod testing;

#[allow(unused_imports)]
pub use mistake::{Lines, Mistake, Place};
#[allow(unused_imports)]
pub use sources::Sources;
#[allow(unused_imports)]
pub use tensor::Derived;
