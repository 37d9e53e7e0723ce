//! The models that a recipe starts from, as one space of tensors.

use std::sync::Arc;

use super::super::{Array, Expr, Model, TensorId};
use super::tensor::Derived;
use crate::error::Result;

/// A model of a recipe.
pub struct SourceModel {
    /// `model`, or its name among `models`.
    pub name: Box<str>,
    /// The model.
    pub model: Arc<Model>,
    /// Whether the recipe starts with its float tensors.
    pub floats: bool,
    /// What is added to the ids of its tensors in expressions: [`Expr::Raw`] and [`Expr::Values`] of a recipe
    /// have ids over all models.
    pub first_id: u32,
    /// What is added to the indexes of its files in the derived catalog.
    pub first_file: u32,
}

/// All models of a recipe; the first is the one that the rules start with.
pub struct Sources {
    /// The models.
    pub models: Vec<SourceModel>,
}

impl Sources {
    /// A tensor of a model, by the model's index and the tensor's id there: its own bytes.
    pub fn leaf(&self, model: usize, id: TensorId) -> Option<Derived> {
        let _ = (model, id);
        None
    }

    /// The array that an expression over these models defines.
    ///
    /// # Errors
    /// As [`Model::raw`].
    pub fn array(&self, expr: &Expr) -> Result<Array> {
        let _ = expr;
        Err(crate::Error::NotFound(String::new()))
    }

    /// Indexes, in the derived catalog, of the files that the bytes come from.
    pub fn files_of(&self, expr: &Expr) -> Vec<u32> {
        let _ = expr;
        Vec::new()
    }

    /// The models' tensors that an expression is made of, each once, in order: index of the model, and the id
    /// there.
    pub fn parts(&self, expr: &Expr) -> Vec<(usize, TensorId)> {
        let _ = expr;
        Vec::new()
    }
}
