//! Which names a rule is about.

use super::super::evaluate;
use super::super::file::Rule;
use super::super::language::{Bindings, Pattern, PatternPiece};
use super::super::mistake::Mistake;
use super::Run;
use super::scope::MatchScope;

/// A name that a pattern matches.
pub(super) struct Found {
    /// The name's slot.
    pub slot: u32,
    /// What the holes took of it.
    pub bindings: Bindings,
}

impl Run<'_> {
    /// The names that one of the patterns matches and for which the condition holds, in natural order.
    pub(super) fn matching(&mut self, rule: &Rule, patterns: &[Pattern]) -> Vec<Found> {
        let mut all = Vec::new();
        for slot in self.candidates(patterns) {
            for pattern in patterns {
                match self.is_match(rule, pattern, slot) {
                    Some(Ok(found)) => all.push(found),
                    Some(Err(mistake)) => {
                        self.doubtful.push(slot);
                        self.mistakes.add(mistake);
                    }
                    None => continue,
                }
                break;
            }
        }
        self.state.sort(&mut all, |found| found.slot);
        all
    }

    /// Whether the pattern matches a name, and the condition holds.
    fn is_match(
        &self,
        rule: &Rule,
        pattern: &Pattern,
        slot: u32,
    ) -> Option<Result<Found, Mistake>> {
        let bindings = pattern.matches(&self.state.slot(slot).name)?;
        let found = Found { slot, bindings };
        let Some(condition) = &rule.condition else {
            return Some(Ok(found));
        };
        let scope = MatchScope {
            world: self.world,
            state: &self.state,
            found: Some((pattern, &found)),
            gathered: None,
            each: None,
            in_condition: true,
        };
        match evaluate::condition(condition, &scope) {
            Ok(holds) => holds.then_some(Ok(found)),
            Err(mistake) => Some(Err(mistake)),
        }
    }

    /// The names that the patterns may match: all, or those that they spell out.
    fn candidates(&self, patterns: &[Pattern]) -> Vec<u32> {
        let literal = |pattern: &Pattern| match &*pattern.pieces {
            [] => Some(self.state.find("")),
            [PatternPiece::Text(text)] => Some(self.state.find(text)),
            _ => None,
        };
        match patterns.iter().map(literal).collect::<Option<Vec<_>>>() {
            Some(found) => {
                let mut found: Vec<u32> = found.into_iter().flatten().collect();
                found.sort_unstable();
                found.dedup();
                found
            }
            None => self.state.live().map(|(index, _)| index).collect(),
        }
    }
}
