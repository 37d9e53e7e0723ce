//! What a rule does, until it has been applied to all its matches: a rule sees only what those above it left.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use super::Outcome;
use super::state::What;

/// Rules that made a tensor: numbers of the rule, and of the result in it.
type MadeBy = Arc<[(u16, u16)]>;

/// What a rule takes and makes.
pub(super) struct Staged {
    /// Its number.
    pub rule: usize,
    takes: bool,
    /// What is taken, by the first tensor of the match that takes it.
    taken: HashMap<u32, u32>,
    /// What is taken, each once.
    pub removed: Vec<u32>,
    /// Results: name, what it is, and the first tensor of the match.
    pub added: Vec<(Arc<str>, What, u32)>,
    /// Some result's name could not be told.
    pub is_unsure: bool,
    /// The rules that made what a result is made of, and those with this one; of the last result. Most results
    /// of a rule are made of tensors with the same history.
    last: RefCell<Option<(MadeBy, usize, MadeBy)>>,
}

impl Staged {
    pub fn new(rule: usize, takes: bool) -> Staged {
        Staged {
            rule,
            takes,
            taken: HashMap::new(),
            removed: Vec::new(),
            added: Vec::new(),
            is_unsure: false,
            last: RefCell::new(None),
        }
    }

    /// Takes a tensor for the match whose first tensor is `by`. The match that has it already, if another has.
    pub fn take(&mut self, slot: u32, by: u32) -> Option<u32> {
        if !self.takes {
            return None;
        }
        match self.taken.insert(slot, by) {
            Some(other) if other != by => Some(other),
            Some(_) => None,
            None => {
                self.removed.push(slot);
                None
            }
        }
    }

    pub fn add(&mut self, name: Arc<str>, what: What, from: u32) {
        self.added.push((name, what, from));
    }

    /// The first result.
    pub fn example(&self) -> Option<Outcome> {
        let (name, what, _) = self.added.first()?;
        let What::Made(tensor) = what else {
            return None;
        };
        Some(Outcome {
            name: name.clone(),
            tensor: tensor.clone(),
        })
    }

    /// The rules that made a result, made of tensors that `before` made.
    pub fn made_by(&self, before: &MadeBy, result: usize) -> MadeBy {
        let mut last = self.last.borrow_mut();
        match &*last {
            Some((of, number, made)) if *number == result && of == before => made.clone(),
            _ => {
                let this = (number(self.rule), number(result));
                let made: MadeBy = before.iter().copied().chain([this]).collect();
                *last = Some((before.clone(), result, made.clone()));
                made
            }
        }
    }
}

/// There are at most 1,000 rules, and results in a recipe of 1 MiB.
fn number(index: usize) -> u16 {
    u16::try_from(index).unwrap_or(u16::MAX)
}
