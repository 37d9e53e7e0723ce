//! What rules may take together: what is written in a few lines could go on for hours.

use std::cell::Cell;

/// Steps of expressions that any recipe may take; a step takes some 100 ns.
const STEPS: u64 = 1 << 24;

/// As many more for each tensor that a rule matches or makes.
const STEPS_OF_EACH: u64 = 256;

/// The most that there are for all of them: a million results, or several tensors in each of fewer.
const MAX_STEPS: u64 = 1 << 26;

/// Steps that a use of a tensor counts for: it is found by its name, and what is made of it takes some 200 bytes.
const STEPS_OF_TENSOR: u64 = 15;

/// As many more steps of conditions, which make nothing, for each name that is asked about.
const STEPS_OF_CONDITION: u64 = 32;

/// The most that there are for all of them: those of 500 rules on 100,000 tensors are within.
const MAX_STEPS_OF_CONDITIONS: u64 = 1 << 28;

/// Pieces and alternatives of patterns that may be compared with names, for every 64 bytes of a name; each takes a few
/// ns. 1,000 rules with ten pieces each on 100,000 tensors are within.
const MAX_COMPARISONS: u64 = 1 << 30;

/// What the rules have taken so far, of what they may take.
pub(super) struct Steps {
    of_results: Budget,
    of_conditions: Budget,
    comparisons: Budget,
}

/// What is counted, and how much there may be of it.
struct Budget {
    counted: Cell<u64>,
    most: Cell<u64>,
    /// However much is added.
    at_most: u64,
}

impl Budget {
    fn new(most: u64, at_most: u64) -> Budget {
        Budget {
            counted: Cell::new(0),
            most: Cell::new(most),
            at_most,
        }
    }

    /// Adds to it, unless it is spent: then it stays so.
    fn add(&self, more: u64) {
        if self.is_spent() {
            return;
        }
        let most = self.most.get().saturating_add(more);
        self.most.set(most.min(self.at_most));
    }

    /// Whether as much is left.
    fn take(&self, count: u64) -> bool {
        self.counted.set(self.counted.get().saturating_add(count));
        !self.is_spent()
    }

    fn is_spent(&self) -> bool {
        self.counted.get() > self.most.get()
    }
}

impl Default for Steps {
    fn default() -> Steps {
        Steps {
            of_results: Budget::new(STEPS, MAX_STEPS),
            of_conditions: Budget::new(STEPS, MAX_STEPS_OF_CONDITIONS),
            comparisons: Budget::new(MAX_COMPARISONS, MAX_COMPARISONS),
        }
    }
}

impl Steps {
    /// A rule matches or makes so many more tensors.
    pub fn more_tensors(&self, count: u64) {
        self.of_results.add(count.saturating_mul(STEPS_OF_EACH));
    }

    /// A condition is asked about one more name.
    pub fn more_conditions(&self) {
        self.of_conditions.add(STEPS_OF_CONDITION);
    }

    /// Counts a step of an expression.
    ///
    /// # Errors
    /// There have been too many.
    pub fn step(&self, in_condition: bool) -> Result<(), String> {
        match in_condition {
            true => of_expressions(&self.of_conditions, 1),
            false => of_expressions(&self.of_results, 1),
        }
    }

    /// Counts a use of a tensor.
    ///
    /// # Errors
    /// As [`Steps::step`].
    pub fn tensor(&self, in_condition: bool) -> Result<(), String> {
        match in_condition {
            true => of_expressions(&self.of_conditions, 1),
            false => of_expressions(&self.of_results, STEPS_OF_TENSOR),
        }
    }

    /// Counts pieces of patterns that are compared with names.
    ///
    /// # Errors
    /// There have been too many.
    pub fn compare(&self, count: u64) -> Result<(), String> {
        match self.comparisons.take(count) {
            true => Ok(()),
            false => Err(
                "the patterns of all rules have too many pieces and alternatives for so many names: fewer, or rules that drop names first"
                    .into(),
            ),
        }
    }

    /// Whether there have been too many.
    pub fn are_spent(&self) -> bool {
        let all = [&self.of_results, &self.of_conditions, &self.comparisons];
        all.into_iter().any(Budget::is_spent)
    }
}

fn of_expressions(budget: &Budget, count: u64) -> Result<(), String> {
    // It has been reported.
    if budget.is_spent() {
        return Err(String::new());
    }
    match budget.take(count) {
        true => Ok(()),
        false => Err(format!(
            "the expressions of all rules take more than {} steps: shorter ranges, or fewer of them within one another",
            budget.most.get()
        )),
    }
}
