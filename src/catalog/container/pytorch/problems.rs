//! What is wrong with a checkpoint: the first problem if it is opened, all of them if it is verified.

use std::sync::Arc;

use crate::catalog::container::shards::Broken;
use crate::catalog::{Findings, HeaderProblem, Object};
use crate::error::Error;

/// How many are looked for at most. A file of millions of members can be wrong in each.
pub(super) const MOST: usize = 1000;

/// The problems of one file.
pub(super) struct Problems {
    /// Whether all are wanted.
    all: bool,
    list: Vec<HeaderProblem>,
    /// Whether the file is hostile.
    hostile: bool,
}

/// No more problems are wanted.
pub(super) struct Full;

impl Problems {
    /// None yet, for the purpose of `findings`.
    pub fn new(findings: &Findings) -> Problems {
        Problems {
            all: findings.verifying(),
            list: Vec::new(),
            hostile: false,
        }
    }

    /// Adds one of the file as a whole, if more are wanted.
    pub fn add(&mut self, problem: impl FnOnce() -> String) {
        if !self.enough() {
            self.list.push(of_file(problem()));
        }
    }

    /// Adds one after which there is nothing to read.
    ///
    /// # Errors
    /// Always: no more are wanted.
    pub fn end(&mut self, problem: String) -> Result<(), Full> {
        self.add(|| problem);
        Err(Full)
    }

    /// Adds one of a tensor.
    ///
    /// # Errors
    /// No more are wanted.
    pub fn tensor(&mut self, tensor: &str, problem: &str) -> Result<(), Full> {
        if !self.enough() {
            self.list.push(HeaderProblem {
                tensor: Some(tensor.into()),
                problem: problem.into(),
            });
        }
        match self.enough() {
            true => Err(Full),
            false => Ok(()),
        }
    }

    /// Adds what would be executed, which comes before all others.
    pub fn add_hostile(&mut self, problems: Vec<String>) {
        self.hostile |= !problems.is_empty();
        self.list.splice(..0, problems.into_iter().map(of_file));
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

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// As the reason why `file`, which has tensors of these names, is not read.
    pub fn into_broken(mut self, file: &dyn Object, names: Box<[Arc<str>]>) -> Broken {
        if self.list.len() >= MOST {
            let more = format!("no more is examined after {MOST} problems");
            self.list.push(of_file(more));
        }
        let first = self.list.first().map(ToString::to_string);
        Broken {
            error: Error::invalid(file.location(), first.unwrap_or_default()),
            problems: self.list,
            names,
            hostile: self.hostile,
        }
    }
}

fn of_file(problem: String) -> HeaderProblem {
    let tensor = None;
    HeaderProblem { tensor, problem }
}
