//! The rules, from top to bottom: which names there are after each, and what they are.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::evaluate::Value;
use super::file::{Action, RecipeFile, Rule};
use super::language::Pattern;
use super::mistake::{Lines, Mistake, Place};
use super::sources::Sources;
use super::tensor::{Derived, Label};

mod configured;
mod gather;
mod lora;
mod make;
mod matching;
mod mistakes;
mod parameters;
mod scope;
mod staged;
mod state;
mod steps;
#[cfg(test)]
mod tests;
mod world;

pub use configured::configured;
pub use parameters::{Given, known_parameters, parameters, unknown_parameter};

use mistakes::Mistakes;
use state::{Gone, State};
use world::World;

/// The most tensors that all rules together may make.
pub const MAX_RESULTS: u64 = 1_000_000;

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
    /// How many matches: with `on` and `drop` what was matched, with `keep` what was kept, with `lora` the tensors
    /// that the adapter changes.
    pub matches: u64,
    /// The first match in natural order, and its first result, if there is one.
    pub example: Option<(Arc<str>, Option<Outcome>)>,
}

/// All that the rules did.
pub struct Results {
    /// The tensors, in any order; none if there are mistakes.
    pub tensors: Vec<Outcome>,
    /// By rule.
    pub applied: Vec<Applied>,
    /// What is wrong, in the order of the file.
    pub mistakes: Vec<Mistake>,
}

/// Applies all rules of a recipe. `lines` are those of its text, for messages that name a second line.
pub fn apply(
    file: &RecipeFile,
    lines: &Lines,
    sources: &Sources,
    parameters: &HashMap<Box<str>, Value>,
) -> Results {
    let world = World::new(file, lines, sources, parameters);
    let mut run = Run {
        state: world.start(),
        world: &world,
        mistakes: Mistakes::default(),
        applied: Vec::new(),
        made: 0,
        name_bytes: 0,
        doubtful: Vec::new(),
        no_label: Label::from(""),
        is_stopped: false,
    };
    for (number, rule) in file.rules.iter().enumerate() {
        if !run.is_stopped {
            run.rule(number, rule);
            let doubtful = std::mem::take(&mut run.doubtful);
            run.state.doubt(&doubtful);
            run.is_stopped |= world.steps.are_spent();
        }
    }
    run.finish()
}

/// The rules so far.
struct Run<'a> {
    world: &'a World<'a>,
    state: State,
    mistakes: Mistakes,
    applied: Vec<Applied>,
    /// Tensors that all rules have made.
    made: u64,
    /// Bytes of their names.
    name_bytes: u64,
    /// Names of which nothing is known after this rule, because of a mistake that is reported.
    doubtful: Vec<u32>,
    /// The label of tensors that are kept.
    no_label: Label,
    /// A limit is reached, and no further rule is looked at.
    is_stopped: bool,
}

impl Run<'_> {
    fn rule(&mut self, number: usize, rule: &Rule) {
        self.world.next_rule();
        match &rule.action {
            Action::Keep(patterns) => self.keep(number, rule, patterns),
            Action::Drop(patterns) => self.drop(number, rule, patterns),
            Action::Make(make) => self.make(number, rule, make),
            Action::Lora { at, adapter, scale } => {
                self.lora(number, rule, *at, adapter, scale.as_ref());
            }
        }
    }

    fn keep(&mut self, number: usize, rule: &Rule, patterns: &[Pattern]) {
        let kept = self.matching(rule, patterns);
        self.note(number, kept.iter().map(|found| found.slot), true);
        if kept.is_empty() {
            self.matches_nothing(rule, patterns);
            if !rule.optional {
                return;
            }
        }
        let kept: HashSet<u32> = kept.iter().map(|found| found.slot).collect();
        let live = self.state.live().map(|(index, _)| index);
        let rest: Vec<u32> = live.filter(|index| !kept.contains(index)).collect();
        self.state.remove(&rest, Gone::Dropped(number));
    }

    fn drop(&mut self, number: usize, rule: &Rule, patterns: &[Pattern]) {
        let found = self.matching(rule, patterns);
        let dropped: Vec<u32> = found.iter().map(|found| found.slot).collect();
        self.note(number, dropped.iter().copied(), false);
        if dropped.is_empty() {
            return self.matches_nothing(rule, patterns);
        }
        self.state.remove(&dropped, Gone::Dropped(number));
    }

    /// Notes what `keep` or `drop` matched, for `ls --rules`.
    fn note(&mut self, rule: usize, found: impl ExactSizeIterator<Item = u32>, kept: bool) {
        let matches = found.len() as u64;
        let first = found.take(1).next();
        let example = first.map(|slot| {
            let name = self.state.slot(slot).name.clone();
            let tensor = kept.then(|| self.state.tensor(slot, self.world.sources));
            let outcome = tensor.flatten().map(|tensor| Outcome {
                name: name.clone(),
                tensor,
            });
            (name, outcome)
        });
        self.applied.push(Applied {
            rule,
            matches,
            example,
        });
    }

    /// Reports a rule that matches nothing, unless it may, or follows from an earlier mistake.
    fn matches_nothing(&mut self, rule: &Rule, patterns: &[Pattern]) {
        let is_consequence = self.is_stopped || self.state.is_unsure || !self.doubtful.is_empty();
        if !rule.optional && !is_consequence {
            let what = self.world.matches_nothing(&self.state, rule, patterns);
            self.mistakes.add(Mistake::of_line(rule.at, what));
        }
    }

    fn finish(self) -> Results {
        let mistakes = self.mistakes.finish();
        let tensors = match mistakes.is_empty() {
            true => self.state.finish(self.world.sources),
            false => Vec::new(),
        };
        Results {
            tensors,
            applied: self.applied,
            mistakes,
        }
    }
}
