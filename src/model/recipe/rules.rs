//! The rules, from top to bottom: which names there are after each, and what they are.

use std::collections::HashMap;
use std::sync::Arc;

use super::evaluate::Value;
use super::file::RecipeFile;
use super::mistake::Mistake;
use super::sources::Sources;
use super::tensor::Derived;

/// A tensor that the rules left.
pub struct Outcome {
    /// Its name.
    pub name: Arc<str>,
    /// What it is.
    pub tensor: Derived,
}

/// What a rule did, for `ls --rules`.
pub struct Applied {
    /// The rule's number.
    pub rule: usize,
    /// How many matches.
    pub matches: u64,
    /// The first match, and its first result, if there is one.
    pub example: Option<(Arc<str>, Option<Outcome>)>,
}

/// All that the rules did.
pub struct Results {
    /// The tensors, in any order.
    pub tensors: Vec<Outcome>,
    /// By rule.
    pub applied: Vec<Applied>,
    /// What is wrong, in the order of the file.
    pub mistakes: Vec<Mistake>,
}

/// Applies all rules of a recipe.
pub fn apply(
    file: &RecipeFile,
    sources: &Sources,
    parameters: &HashMap<Box<str>, Value>,
) -> Results {
    let _ = (file, sources, parameters);
    Results {
        tensors: Vec::new(),
        applied: Vec::new(),
        mistakes: Vec::new(),
    }
}
