//! Finds the modules that the lists of a compressed-tensors config name.
//!
//! Matching follows the library (`compressed_tensors.utils.match`): a target is an exact module
//! path, `re:` and an expression that must match from the start of the path (Python's `re.match`),
//! or the name of a PyTorch class. Headers do not contain classes, so class names are interpreted
//! by the weights that such classes usually have.

use std::collections::{BTreeMap, HashMap};

use crate::regex::{Effort, Expression};

/// The most expressions used from each list, because every one is tried on every quantized module.
/// Published models have a few dozen.
const MAX_EXPRESSIONS: usize = 1000;

/// A list of targets, sorted by kind; each belongs to the group of that index.
#[derive(Default)]
pub(super) struct Targets {
    exact: HashMap<String, usize>,
    pub(super) classes: Classes,
    /// Sorted by text: if several match, the library takes the first in this order.
    expressions: BTreeMap<String, (usize, Expression)>,
    /// The number of expressions beyond [`MAX_EXPRESSIONS`].
    left_out: usize,
}

impl Targets {
    /// Adds a target of `group`. If several groups name the same target, the last one has it.
    pub(super) fn add(&mut self, target: &str, group: usize, effort: &Effort) {
        let Some(text) = target.strip_prefix("re:") else {
            self.exact.insert(target.to_string(), group);
            self.classes.add(target, group);
            return;
        };
        let full = self.expressions.len() >= MAX_EXPRESSIONS;
        match self.expressions.get_mut(text) {
            Some((of, _)) => *of = group,
            None if full => self.left_out += 1,
            None => {
                let expression = Expression::new(text, effort);
                self.expressions
                    .insert(text.to_string(), (group, expression));
            }
        }
    }

    /// Notes that expressions of the config's `list` are left out, if any are.
    pub(super) fn note_left_out(&self, list: &str, effort: &Effort) {
        if self.left_out > 0 {
            effort.note(format!(
                "of {} 're:' entries in {list} only the first {MAX_EXPRESSIONS} are used; name the modules instead",
                MAX_EXPRESSIONS + self.left_out
            ));
        }
    }

    /// The group of the exact path, else of the first expression that matches it.
    pub(super) fn find(&self, path: &str, effort: &Effort) -> Option<usize> {
        if let Some(group) = self.exact.get(path) {
            return Some(*group);
        }
        let mut all = self.expressions.values();
        let first = all.find(|(_, expression)| expression.matches(path, effort));
        first.map(|(group, _)| *group)
    }
}

/// Targets that may be class names. Headers show only whether a matrix is an embedding, so only one
/// class name of each kind counts: the first in alphabetical order.
#[derive(Default)]
pub(super) struct Classes {
    embedding: Option<(String, usize)>,
    linear: Option<(String, usize)>,
    other: Option<(String, usize)>,
}

impl Classes {
    fn add(&mut self, target: &str, group: usize) {
        if !target.starts_with(|c: char| c.is_ascii_uppercase()) || target.contains('.') {
            return;
        }
        let kind = match () {
            () if target.contains("Embedding") => &mut self.embedding,
            () if target.contains("Linear") => &mut self.linear,
            () => &mut self.other,
        };
        if kind
            .as_ref()
            .is_none_or(|(name, _)| target <= name.as_str())
        {
            *kind = Some((target.to_string(), group));
        }
    }

    /// The group of the class name that fits a matrix at `path` best. Embeddings are recognized by
    /// their names. With `any`, a class that is neither `…Linear` nor an embedding counts as well,
    /// although headers cannot confirm it.
    pub(super) fn find(&self, path: &str, any: bool) -> Option<usize> {
        let last = path.rsplit('.').next().unwrap_or(path);
        let is_embedding = last.contains("emb") || matches!(last, "wte" | "wpe");
        let embedding = self.embedding.as_ref().filter(|_| is_embedding);
        let other = self.other.as_ref().filter(|_| any);
        let best = embedding.or(self.linear.as_ref()).or(other);
        best.map(|(_, group)| *group)
    }
}
