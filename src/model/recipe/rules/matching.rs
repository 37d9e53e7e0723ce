//! Which names a rule is about.

use super::super::evaluate;
use super::super::file::Rule;
use super::super::language::{Bindings, Hole, Pattern, PatternPiece};
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
        let candidates = self.candidates(patterns);
        self.count_comparisons(rule, self.comparisons(patterns, &candidates));
        if self.is_stopped {
            return all;
        }
        for slot in candidates {
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

    /// What it takes to compare patterns with names.
    fn comparisons(&self, patterns: &[Pattern], slots: &[u32]) -> u64 {
        let of_patterns = patterns.iter().map(pieces).sum::<u64>();
        let name_len = |&slot: &u32| self.state.slot(slot).name.len() as u64;
        let of_names = slots.iter().map(|slot| 1 + name_len(slot) / 64);
        of_patterns.saturating_mul(of_names.sum())
    }

    /// Counts comparisons. If there are too many, this rule is reported and the last one.
    pub(super) fn count_comparisons(&mut self, rule: &Rule, count: u64) {
        if let Err(what) = self.world.steps.compare(count) {
            self.mistakes.add(Mistake::of_line(rule.at, what));
            self.is_stopped = true;
        }
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
        self.world.steps.more_conditions();
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

/// How many texts, holes and alternatives a name is compared with.
fn pieces(pattern: &Pattern) -> u64 {
    let of_piece = |piece: &PatternPiece| match piece {
        PatternPiece::Hole(_, Hole::OneOf(all)) => all.len() as u64,
        _ => 1,
    };
    pattern.pieces.iter().map(of_piece).sum::<u64>().max(1)
}
