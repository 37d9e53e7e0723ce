//! What is wrong with a file: the first problem if it is opened, all of them if it is verified.

use crate::catalog::container::shards::Broken;
use crate::catalog::{Findings, HeaderProblem, Object};
use crate::error::Error;
use crate::text::{elide, printable};

/// How many are looked for at most. A file of millions of members can be wrong in each.
const MOST: usize = 1000;

/// How much of a name from the file is shown, in characters.
const SHOWN: usize = 80;

/// The problems of one file.
pub(super) struct Problems {
    /// Whether all are wanted.
    all: bool,
    list: Vec<String>,
    /// Whether the file is hostile.
    hostile: bool,
}

impl Problems {
    /// None yet, for the purpose of `findings`.
    pub fn new(findings: &Findings) -> Problems {
        Problems {
            all: findings.verifying(),
            list: Vec::new(),
            hostile: false,
        }
    }

    /// Adds one, if more are wanted.
    pub fn add(&mut self, problem: impl FnOnce() -> String) {
        if !self.enough() {
            self.list.push(problem());
        }
    }

    /// Adds what would be executed, which comes before all others.
    pub fn add_hostile(&mut self, problems: Vec<String>) {
        self.hostile |= !problems.is_empty();
        self.list.splice(..0, problems);
    }

    /// Whether all are wanted.
    pub fn all(&self) -> bool {
        self.all
    }

    /// Whether nothing more needs to be looked for.
    pub fn enough(&self) -> bool {
        let most = if self.all { MOST } else { 1 };
        self.list.len() >= most
    }

    /// As problems of the file's header.
    pub fn into_flaws(self) -> Vec<HeaderProblem> {
        let more =
            (self.list.len() >= MOST).then(|| format!("no more is examined after {MOST} problems"));
        let flaw = |problem| HeaderProblem {
            tensor: None,
            problem,
        };
        self.list.into_iter().chain(more).map(flaw).collect()
    }

    /// As the reason why `file` cannot be read.
    pub fn into_broken(self, file: &dyn Object) -> Broken {
        let hostile = self.hostile;
        let problems = self.into_flaws();
        let first = problems.first().map(ToString::to_string);
        Broken {
            error: Error::invalid(file.location(), first.unwrap_or_default()),
            problems,
            names: Box::default(),
            hostile,
        }
    }
}

/// A name from the file for a message: short, and on one line.
pub(super) fn shown(name: &[u8]) -> String {
    // A character takes at most four bytes; a hostile name may have any number.
    let (start, end) = match name.len() > 8 * SHOWN {
        false => (name, &[][..]),
        true => (
            name.get(..4 * SHOWN).unwrap_or_default(),
            name.get(name.len() - 4 * SHOWN..).unwrap_or_default(),
        ),
    };
    let text = elide(&String::from_utf8_lossy(&[start, end].concat()), SHOWN);
    printable(&text).into_owned()
}
