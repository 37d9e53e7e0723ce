//! What is wrong with a checkpoint's tensors.

use super::Full;
use crate::catalog::HeaderProblem;

/// The most problems of one file that are listed.
pub(super) const MAX_PROBLEMS: usize = 1000;

/// The problems found so far.
pub(super) struct Problems {
    /// Whether all are wanted, not only the first.
    pub verifying: bool,
    pub list: Vec<HeaderProblem>,
}

impl Problems {
    pub fn new(verifying: bool) -> Problems {
        let list = Vec::new();
        Problems { verifying, list }
    }

    /// A problem with a tensor.
    ///
    /// # Errors
    /// No more are wanted.
    pub fn tensor(&mut self, tensor: &str, problem: &str) -> Result<(), Full> {
        self.list.push(HeaderProblem {
            tensor: Some(tensor.into()),
            problem: problem.into(),
        });
        if self.list.len() < MAX_PROBLEMS {
            return if self.verifying { Ok(()) } else { Err(Full) };
        }
        self.file(&format!(
            "has {MAX_PROBLEMS} problems or more; the rest is not listed"
        ))
    }

    /// A problem with the file as a whole, after which there is nothing to read.
    ///
    /// # Errors
    /// Always: no more are wanted.
    pub fn file(&mut self, problem: &str) -> Result<(), Full> {
        self.list.push(HeaderProblem {
            tensor: None,
            problem: problem.into(),
        });
        Err(Full)
    }
}
