//! What `ls --why` shows of a checkpoint: what was left out, and the names that mean nothing here.

use super::super::describe::short;
use super::super::pickle::Pickle;
use super::super::selection::{Model, Walk};
use crate::text::{elide, thousands};

/// The most lines of one kind.
const MAX_LINES: usize = 1000;
/// The longest path that a line repeats whole, in characters.
const MAX_PATH: usize = 1000;
/// The most names in the line about them.
const MAX_NAMES: usize = 50;

/// Lines for `ls --why`.
pub(super) struct Remarks {
    lines: Vec<String>,
    /// Tensors that were left out and got a line.
    tensors: usize,
    /// How many more there are.
    more_tensors: u64,
}

impl Remarks {
    /// Remarks that begin with the entries of the checkpoint that are not part of its model.
    pub fn new(model: &Model, file: &str) -> Remarks {
        let mut lines: Vec<String> = model
            .left_out
            .iter()
            .map(|entry| {
                let held = entry.held.text();
                let path = &entry.path;
                format!(
                    "{}: {held}, not the model; mount {file}#{}",
                    short(path),
                    elide(path, MAX_PATH)
                )
            })
            .collect();
        if model.more_left_out > 0 {
            let more = thousands(model.more_left_out);
            lines.push(format!("{more} more entries have tensors, not the model"));
        }
        Remarks {
            lines,
            tensors: 0,
            more_tensors: 0,
        }
    }

    /// A tensor of the model that cannot be served. Returns whether there was room for it.
    pub fn left_out(&mut self, tensor: &str, why: &str) -> bool {
        if self.tensors == MAX_LINES {
            self.more_tensors += 1;
            return false;
        }
        self.tensors += 1;
        self.lines.push(format!("'{tensor}' is left out: {why}"));
        true
    }

    /// What the walk skipped.
    pub fn skipped(&mut self, walk: &mut Walk<'_, '_>) {
        if self.more_tensors > 0 {
            let more = thousands(self.more_tensors);
            self.lines.push(format!("{more} more tensors are left out"));
        }
        self.lines.append(&mut walk.remarks);
        if walk.more_remarks > 0 {
            let more = thousands(walk.more_remarks);
            self.lines.push(format!("{more} more entries are skipped"));
        }
    }

    /// The names that were met.
    pub fn names(&mut self, pickle: &Pickle) {
        let mut names = pickle.unknown_names();
        let first: Vec<_> = names.by_ref().take(MAX_NAMES).map(short).collect();
        if first.is_empty() {
            return;
        }
        let more = match names.count() {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        let first = first.join(", ");
        self.lines
            .push(format!("{first}{more}: kept as names, nothing was called"));
    }

    pub fn lines(self) -> Vec<String> {
        self.lines
    }
}
