//! Rules with `on`: results of each match, and what becomes of the tensors that were matched.

use std::ops::Range;
use std::sync::Arc;

use super::super::evaluate::{self, Value};
use super::super::file::{Make, Rule, RuleResult};
use super::super::language::{Node, Pattern};
use super::super::mistake::{Mistake, Place, quoted};
use super::super::tensor::Derived;
use super::gather::Match;
use super::scope::MatchScope;
use super::staged::Staged;
use super::state::What;
use super::{Applied, MAX_RANGE, MAX_RESULTS, Run};

/// The most bytes that the name of a result may have. Templates can double a name, and rules can do so again.
const MAX_NAME: usize = 4096;

/// The most bytes that the names of all results may have together.
const MAX_NAME_BYTES: u64 = 1 << 28;

/// A rule with `on`.
#[derive(Clone, Copy)]
struct Making<'r> {
    rule: &'r Rule,
    make: &'r Make,
    /// The first pattern.
    pattern: &'r Pattern,
}

impl Run<'_> {
    pub(super) fn make(&mut self, number: usize, rule: &Rule, make: &Make) {
        let Some((pattern, further)) = make.on.split_first() else {
            return;
        };
        let making = Making {
            rule,
            make,
            pattern,
        };
        self.check_gathering(pattern, make, rule.at);
        let found = self.matching(rule, std::slice::from_ref(pattern));
        let is_empty = found.is_empty();
        let matches = self.matches(pattern, found);
        if is_empty {
            self.matches_nothing(rule, std::slice::from_ref(pattern));
        }
        let mut staged = Staged::new(number, make.takes);
        for one in &matches {
            let is_whole = self.take(&mut staged, making, one, further);
            self.results(&mut staged, making, one, is_whole);
            if self.is_stopped {
                return;
            }
        }
        self.applied.push(Applied {
            rule: number,
            matches: matches.len() as u64,
            example: matches.first().map(|first| {
                let name = self.state.slot(first.first.slot).name.clone();
                (name, staged.example())
            }),
        });
        self.commit(rule, staged);
    }

    /// Takes what was matched, and what the further patterns name. Whether all of it is there.
    fn take(
        &mut self,
        staged: &mut Staged,
        making: Making,
        one: &Match,
        further: &[Pattern],
    ) -> bool {
        let by = one.first.slot;
        for found in one.all() {
            self.take_one(staged, found.slot, by, making.pattern.at);
        }
        let mut is_whole = true;
        for pattern in further {
            let mut last = None;
            for found in one.all() {
                let name = &self.state.slot(found.slot).name;
                let value = |hole: &str| found.bindings.text(name, making.pattern.hole(hole)?);
                let filled = pattern.filled(value);
                // Without the gathering hole it is one name for all numbers.
                if filled.is_some() && filled == last {
                    continue;
                }
                let Some(wanted) = filled else {
                    let what = "a further pattern has holes of the first one alone, and no '*'";
                    self.mistakes.add_static(Mistake::at(pattern.at, what));
                    return false;
                };
                match self.state.find(&wanted) {
                    Some(slot) => self.take_one(staged, slot, by, pattern.at),
                    None => {
                        is_whole = false;
                        self.not_there(pattern.at, &wanted);
                    }
                }
                last = Some(wanted);
            }
        }
        is_whole
    }

    /// Reports a name that is not there. What was meant is looked for only if it will be shown.
    pub(super) fn not_there(&mut self, at: Place, name: &str) {
        let what = match self.mistakes.is_full(at) {
            true => format!("{} is not there", quoted(name)),
            false => self.world.not_there(&self.state, name),
        };
        self.mistakes.add(Mistake::at(at, what));
    }

    /// Takes a tensor for the match whose first tensor is `by`.
    fn take_one(&mut self, staged: &mut Staged, slot: u32, by: u32, at: Place) {
        let Some(other) = staged.take(slot, by) else {
            return;
        };
        let name = |slot| self.quoted_slot(slot);
        let what = format!(
            "{} is taken by two matches, {} and {}",
            name(slot),
            name(other),
            name(by)
        );
        self.mistakes.add(Mistake::at(at, what));
    }

    /// All results of one match.
    fn results(&mut self, staged: &mut Staged, making: Making, one: &Match, is_whole: bool) {
        let variable = making.make.each.as_ref().map(|each| &*each.variable);
        let range = match self.range(making, one) {
            Ok(range) => range,
            Err(mistake) => {
                staged.is_unsure = true;
                return self.mistakes.add(mistake);
            }
        };
        for number in range {
            let each = variable.map(|variable| (variable, number));
            for (index, result) in making.make.results.iter().enumerate() {
                self.result(staged, making, one, each, (index, result), is_whole);
                if self.is_stopped {
                    return;
                }
            }
        }
    }

    fn scope<'s>(
        &'s self,
        making: Making<'s>,
        one: &'s Match,
        each: Option<(&'s str, i64)>,
    ) -> MatchScope<'s> {
        MatchScope {
            world: self.world,
            state: &self.state,
            found: Some((making.pattern, &one.first)),
            gathered: one.gathered.as_ref(),
            each,
            in_condition: false,
        }
    }

    /// The numbers of `for`; without it, one that nothing refers to.
    fn range(&self, making: Making, one: &Match) -> Result<Range<i64>, Mistake> {
        let Some(each) = &making.make.each else {
            return Ok(0..1);
        };
        let scope = self.scope(making, one, None);
        let whole = |node: &Node| {
            let value = evaluate::expression(node, &scope)?;
            whole_number(&value).ok_or_else(|| {
                let what = format!("'for' needs whole numbers, and this is {}", kind(&value));
                Mistake::at(node.at, what)
            })
        };
        let range = match each.range.as_deref() {
            Some([first, end]) => whole(first)?..whole(end)?,
            None => match evaluate::Scope::gathered(&scope, &each.variable) {
                Some(count) => 0..count as i64,
                None => {
                    let what = format!("'for' needs a range: {} in 0..4", each.variable);
                    return Err(Mistake::at(each.at, what));
                }
            },
        };
        let len = range.end.saturating_sub(range.start);
        if len > MAX_RANGE as i64 {
            let what = format!("'for' goes over {len} numbers, at most {MAX_RANGE} are possible");
            return Err(Mistake::at(each.at, what));
        }
        Ok(range)
    }

    fn result(
        &mut self,
        staged: &mut Staged,
        making: Making,
        one: &Match,
        each: Option<(&str, i64)>,
        (index, result): (usize, &RuleResult),
        is_whole: bool,
    ) {
        let scope = self.scope(making, one, each);
        let name: Result<Arc<str>, Mistake> = match &result.name {
            Some(name) => evaluate::template(name, &scope)
                .and_then(|text| checked_name(name.at, text))
                .map(Arc::from),
            None => Ok(self.state.slot(one.first.slot).name.clone()),
        };
        let what = match (is_whole, &result.is) {
            (false, _) => Ok(What::Unknown),
            (true, Some(is)) => evaluate::expression(is, &scope)
                .and_then(|value| tensor(is, value))
                .map(|made| self.finished(staged, made, index)),
            (true, None) => Ok(
                match self.state.tensor(one.first.slot, self.world.sources) {
                    Some(tensor) => self.finished(staged, tensor, index),
                    None => What::Unknown,
                },
            ),
        };
        let what = what.unwrap_or_else(|mistake| {
            self.mistakes.add(mistake);
            What::Unknown
        });
        match name {
            Ok(name) => self.stage(staged, making.rule, name, what, one.first.slot),
            Err(mistake) => {
                staged.is_unsure = true;
                self.mistakes.add(mistake);
            }
        }
    }

    /// A tensor as it is kept: made by this rule, too, and without the name that it had.
    pub(super) fn finished(&self, staged: &Staged, made: Derived, result: usize) -> What {
        What::Made(Derived {
            rules: staged.made_by(&made.rules, result),
            label: self.no_label.clone(),
            ..made
        })
    }

    /// Keeps a result until the rule has been applied to all matches, within the limits.
    pub(super) fn stage(
        &mut self,
        staged: &mut Staged,
        rule: &Rule,
        name: Arc<str>,
        what: What,
        from: u32,
    ) {
        self.made += 1;
        self.name_bytes = self.name_bytes.saturating_add(name.len() as u64);
        let limit = if self.made > MAX_RESULTS {
            format!("the rules make more than {MAX_RESULTS} tensors")
        } else if self.name_bytes > MAX_NAME_BYTES {
            format!("the names of all results have more than {MAX_NAME_BYTES} bytes")
        } else {
            return staged.add(name, what, from);
        };
        self.mistakes.add(Mistake::of_line(rule.at, limit));
        self.is_stopped = true;
    }

    /// What the rule took goes, and what it made comes.
    pub(super) fn commit(&mut self, rule: &Rule, staged: Staged) {
        let number = staged.rule;
        self.state
            .remove(&staged.removed, super::Gone::Taken(number));
        self.state.is_unsure |= staged.is_unsure;
        for (name, what, from) in staged.added {
            if let Err(there) = self.state.add(name, what, number, from) {
                let what = self.conflict(number, there, from);
                self.mistakes.add(Mistake::of_line(rule.at, what));
            }
        }
    }

    /// That a name is there already.
    fn conflict(&self, rule: usize, there: u32, from: u32) -> String {
        let slot = self.state.slot(there);
        let name = quoted(&slot.name);
        let Some((by, first)) = slot.made_by else {
            return format!(
                "makes {name}, which the model has already; drop it above, or take it, too"
            );
        };
        let line = self.world.line(by);
        let twice = match (by == rule, first == from) {
            (false, _) => String::new(),
            (true, true) => format!(", from {} both times", self.quoted_slot(from)),
            (true, false) => {
                let [first, from] = [first, from].map(|slot| self.quoted_slot(slot));
                format!(", from {first} and now from {from}")
            }
        };
        format!("makes {name}, which line {line} made already{twice}")
    }

    fn quoted_slot(&self, slot: u32) -> String {
        quoted(&self.state.slot(slot).name)
    }
}

/// The result of an expression, which must be a tensor.
fn tensor(node: &Node, value: Value) -> Result<Derived, Mistake> {
    match value {
        Value::Tensor(tensor) => Ok(tensor),
        other => {
            let what = format!("a result is a tensor, and this is {}", kind(&other));
            Err(Mistake::at(node.at, what))
        }
    }
}

fn checked_name(at: Place, name: String) -> Result<String, Mistake> {
    match name.len() <= MAX_NAME {
        true => Ok(name),
        false => {
            let (len, name) = (name.len(), quoted(&name));
            let what = format!("the name {name} has {len} bytes, at most {MAX_NAME} are possible");
            Err(Mistake::at(at, what))
        }
    }
}

/// A whole number, or a hole's text that is one.
pub(super) fn whole_number(value: &Value) -> Option<i64> {
    match value {
        Value::Integer(number) => Some(*number),
        Value::Text(text) => text.parse().ok(),
        Value::Real(_) | Value::Bool(_) | Value::Tensor(_) => None,
    }
}

/// A value, for messages about one of the wrong kind.
pub(super) fn kind(value: &Value) -> String {
    match value {
        Value::Integer(number) => format!("the number {number}"),
        Value::Real(number) => format!("the number {number}"),
        Value::Text(text) => format!("the text {}", quoted(text)),
        Value::Bool(truth) => format!("{truth}"),
        Value::Tensor(tensor) => format!("the tensor {}", tensor.label),
    }
}
