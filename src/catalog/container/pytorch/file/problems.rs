//! What is wrong with a file: the first problem if it is opened, all of them if it is verified.

use crate::catalog::container::shards::Broken;
use crate::catalog::{Findings, HeaderProblem, Object};
use crate::error::Error;
use crate::text::elide;

/// How many are kept. A file of millions of members can be wrong in each.
const MOST: usize = 10_000;

/// How much of a name from the file is shown, in characters.
const SHOWN: usize = 80;

/// The problems of one file.
pub(super) struct Problems {
    /// Whether all are wanted.
    all: bool,
    list: Vec<String>,
    /// How many more there were.
    more: u64,
}

impl Problems {
    /// None yet, for the purpose of `findings`.
    pub fn new(findings: &Findings) -> Problems {
        Problems {
            all: findings.verifying(),
            list: Vec::new(),
            more: 0,
        }
    }

    /// Adds one, if more are wanted.
    pub fn add(&mut self, problem: impl FnOnce() -> String) {
        if self.list.len() < MOST {
            if !self.enough() {
                self.list.push(problem());
            }
        } else {
            self.more += 1;
        }
    }

    /// Adds some that come before all others.
    pub fn add_first(&mut self, problems: Vec<String>) {
        self.list.splice(..0, problems);
    }

    /// Whether all are wanted.
    pub fn all(&self) -> bool {
        self.all
    }

    /// Whether nothing more needs to be looked for.
    pub fn enough(&self) -> bool {
        !self.all && !self.list.is_empty()
    }

    /// As problems of the file's header.
    pub fn into_flaws(self) -> Vec<HeaderProblem> {
        let more = (self.more > 0).then(|| format!("and {} more problems like these", self.more));
        let flaw = |problem| HeaderProblem {
            tensor: None,
            problem,
        };
        self.list.into_iter().chain(more).map(flaw).collect()
    }

    /// As the reason why `file` cannot be read.
    pub fn into_broken(self, file: &dyn Object) -> Broken {
        let problems = self.into_flaws();
        let first = problems.first().map(ToString::to_string);
        Broken {
            error: Error::invalid(file.location(), first.unwrap_or_default()),
            problems,
            names: Vec::new(),
        }
    }
}

/// A name from the file, short enough for a message.
pub(super) fn shown(name: &[u8]) -> String {
    // A character takes at most four bytes; a hostile name may have any number.
    let (start, end) = match name.len() > 8 * SHOWN {
        false => (name, &[][..]),
        true => (
            name.get(..4 * SHOWN).unwrap_or_default(),
            name.get(name.len() - 4 * SHOWN..).unwrap_or_default(),
        ),
    };
    elide(&String::from_utf8_lossy(&[start, end].concat()), SHOWN)
}
