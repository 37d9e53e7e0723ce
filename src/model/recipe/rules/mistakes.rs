//! The mistakes in a recipe, while the rules are applied: each once, and the same mistake of many tensors a few
//! times.

use std::collections::HashMap;

use super::super::mistake::{Mistake, Place};

/// How many mistakes at one place are listed.
const LISTED: usize = 3;

/// What is wrong so far.
#[derive(Default)]
pub(super) struct Mistakes {
    all: Vec<Mistake>,
    places: HashMap<(Place, bool), AtPlace>,
}

/// The mistakes at one place.
#[derive(Default)]
struct AtPlace {
    /// Indexes of those that are listed.
    listed: Vec<usize>,
    /// How many others there are.
    more: u64,
    /// Nothing that is found here later matters.
    is_closed: bool,
}

impl Mistakes {
    /// Adds a mistake that was found for one match. If its text is empty it follows from an earlier one and is
    /// not listed.
    pub fn add(&mut self, mistake: Mistake) {
        if mistake.what.is_empty() {
            return;
        }
        let at = self
            .places
            .entry((mistake.at, mistake.of_line))
            .or_default();
        let same = |&i: &usize| self.all.get(i).is_some_and(|m| m.what == mistake.what);
        if at.is_closed || at.listed.iter().any(same) {
            return;
        }
        if at.listed.len() == LISTED {
            at.more += 1;
            return;
        }
        at.listed.push(self.all.len());
        self.all.push(mistake);
    }

    /// Adds a mistake that is about the recipe alone, whatever the tensors. Others at this place are consequences.
    pub fn add_static(&mut self, mistake: Mistake) {
        let key = (mistake.at, mistake.of_line);
        self.add(mistake);
        self.places.entry(key).or_default().is_closed = true;
    }

    /// Whether a mistake at this place is listed as often as it will be.
    pub fn is_full(&self, at: Place) -> bool {
        let at = self.places.get(&(at, false));
        at.is_some_and(|at| at.is_closed || at.listed.len() >= LISTED)
    }

    /// All, in the order of the file.
    pub fn finish(mut self) -> Vec<Mistake> {
        for ((at, of_line), place) in self.places {
            if place.more > 0 {
                let what = format!("and {} more like these", place.more);
                self.all.push(Mistake { at, of_line, what });
            }
        }
        // Stable: those of one place stay in order, and the count comes after them.
        self.all.sort_by_key(|m| (m.at, !m.of_line));
        self.all
    }
}
