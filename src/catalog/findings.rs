//! Problems of a model. A container reports them while it reads. Opening stops at the first; `stfs
//! verify` collects them all.

use std::fmt;
use std::path::Path;

use super::store::Source;
use super::{Audience, OpenOptions, container};
use crate::error::{Error, Location, Position, Result};

/// Something wrong with a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The file at fault, by its name in the model directory.
    pub file: String,
    /// The tensor at fault; `None` if it is the file as a whole.
    pub tensor: Option<String>,
    /// What is wrong, with both numbers and what to do.
    pub problem: String,
    /// The line and the column of the file, both from 1, if it is a text; only the line if a longer piece of it
    /// is at fault.
    pub position: Option<Position>,
}

impl Problem {
    /// A problem with a file as a whole.
    pub fn of_file(file: &str, problem: impl Into<String>) -> Problem {
        Problem {
            file: file.into(),
            tensor: None,
            problem: problem.into(),
            position: None,
        }
    }

    /// A problem with a tensor.
    pub fn of_tensor(file: &str, tensor: &str, problem: impl Into<String>) -> Problem {
        Problem {
            tensor: Some(tensor.into()),
            ..Problem::of_file(file, problem)
        }
    }

    /// Why `model` cannot be opened.
    pub fn of_model(model: &Location, error: &Error) -> Problem {
        let file = match error {
            Error::Invalid { at, .. } => at.name(),
            _ => model.to_string(),
        };
        Problem::from_error(&file, error)
    }

    /// From an error about a file. The location is not repeated in the text.
    fn from_error(file: &str, error: &Error) -> Problem {
        Problem::of_file(file, error.without_location())
    }
}

/// Something wrong with the header of a weight file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderProblem {
    /// The tensor at fault; `None` if it is the header as a whole.
    pub tensor: Option<String>,
    /// What is wrong, with both numbers.
    pub problem: String,
}

impl HeaderProblem {
    /// As a problem of the file that has the header.
    pub(super) fn of(self, file: &str) -> Problem {
        Problem {
            tensor: self.tensor,
            ..Problem::of_file(file, self.problem)
        }
    }
}

impl fmt::Display for HeaderProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tensor {
            Some(t) => write!(f, "tensor '{t}': {}", self.problem),
            None => f.write_str(&self.problem),
        }
    }
}

/// Collects the problems that a container reports. While a model is opened, a report returns as the
/// error that ends it; while a model is verified, reports are kept and the container continues.
pub(super) struct Findings {
    options: OpenOptions,
    /// `None` while a model is opened.
    problems: Option<Vec<Problem>>,
}

impl Findings {
    /// For opening: the first problem is the error.
    pub fn first(options: OpenOptions) -> Findings {
        let problems = None;
        Findings { options, problems }
    }

    /// For verifying: everything counts, and nothing is tolerated.
    pub fn all() -> Findings {
        Findings {
            options: OpenOptions::default(),
            problems: Some(Vec::new()),
        }
    }

    /// An empty collection for the same purpose.
    pub fn same(&self) -> Findings {
        Findings {
            options: self.options,
            problems: self.problems.as_ref().map(|_| Vec::new()),
        }
    }

    /// Whether to serve the part of an incomplete download that has arrived.
    pub fn allow_missing(&self) -> bool {
        self.options.allow_missing
    }

    /// Whether all problems are wanted.
    pub fn verifying(&self) -> bool {
        self.problems.is_some()
    }

    /// Reports a problem. `error` makes the error that ends opening.
    ///
    /// # Errors
    /// The error, while a model is opened.
    pub fn report(&mut self, problem: Problem, error: impl FnOnce() -> Error) -> Result<()> {
        match &mut self.problems {
            Some(problems) => problems.push(problem),
            None => return Err(error()),
        }
        Ok(())
    }

    /// Reports an error about the file `name`.
    ///
    /// # Errors
    /// The error, while a model is opened.
    pub fn file(&mut self, name: &str, error: Error) -> Result<()> {
        self.report(Problem::from_error(name, &error), || error)
    }

    /// Reports a problem with a tensor that the file at `at` lists.
    ///
    /// # Errors
    /// The problem, while a model is opened.
    pub fn tensor(&mut self, at: &Location, tensor: &str, problem: &str) -> Result<()> {
        let kept = Problem::of_tensor(&at.name(), tensor, problem);
        self.report(kept, || {
            Error::invalid(at, format!("tensor '{tensor}': {problem}"))
        })
    }

    /// Adds a problem that only `verify` reports: opening tolerates it, or detects it elsewhere.
    pub fn flaw(&mut self, problem: Problem) {
        if let Some(problems) = &mut self.problems {
            problems.push(problem);
        }
    }

    /// All problems that were kept.
    pub fn into_problems(self) -> Vec<Problem> {
        self.problems.unwrap_or_default()
    }

    /// Adds the problems of another collection.
    pub fn append(&mut self, other: Findings) {
        if let Some(problems) = &mut self.problems {
            problems.extend(other.problems.into_iter().flatten());
        }
    }
}

/// As [`check_source`], of the model at a path.
///
/// # Errors
/// There is no model at this path.
pub fn check(model: &Path) -> Result<Vec<Problem>> {
    check_source(&Source::find(model, Audience::Caller)?)
}

/// Every structural problem of a model at once: what [`Catalog::read`](super::Catalog::read) would stop at,
/// and everything behind it, in weight files, index, manifest and configs.
///
/// # Errors
/// There is no model at this place.
pub fn check_source(source: &Source) -> Result<Vec<Problem>> {
    let claim = container::claim(source)?;
    let mut findings = Findings::all();
    let read = claim.read(&mut findings);
    let mut problems = findings.into_problems();
    match read {
        Ok(parts) => {
            let unused = parts.catalog.configs.unused.into_iter();
            problems.extend(unused.map(|config| Problem::of_file(config.file, config.why)));
        }
        Err(error) => problems.push(Problem::of_model(&source.model, &error)),
    }
    Ok(problems)
}
