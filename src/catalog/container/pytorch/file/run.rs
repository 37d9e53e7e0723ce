//! Runs pickles of a file.

use crate::catalog::Object;
use crate::catalog::container::cursor::Cursor;
use crate::catalog::container::pytorch::pickle::{self, Pickle, PickleProblem, Place};
use crate::error::Result;

/// How the problem of a hostile pickle begins.
const HOSTILE: &str = "is hostile";

/// What running a pickle gave.
#[derive(Default)]
pub(super) struct Outcome {
    /// Its values, if all of it could be run.
    pub pickle: Option<Pickle>,
    /// What it would have executed, as problems that come before any others of the file.
    pub hostile: Vec<String>,
    /// What else is wrong with it.
    pub damage: Vec<String>,
}

/// Runs the pickle at `cursor`.
///
/// # Errors
/// The file cannot be read.
pub(super) fn run(cursor: &mut Cursor<'_>, place: Place<'_>) -> Result<Outcome> {
    match pickle::read(cursor, place) {
        Ok(pickle) => Ok(Outcome {
            pickle: Some(pickle),
            ..Outcome::default()
        }),
        Err(PickleProblem::Failed(error)) => Err(error),
        Err(PickleProblem::Refused { problems, pickle }) => {
            let is_hostile = |problem: &String| problem.starts_with(HOSTILE);
            let (hostile, damage) = problems.into_iter().partition(is_hostile);
            Ok(Outcome {
                pickle,
                hostile,
                damage,
            })
        }
    }
}

/// What the pickle at `start` of `file` would have executed.
///
/// # Errors
/// The file cannot be read.
pub(super) fn hostile(file: &dyn Object, start: u64, of: Place<'_>) -> Result<Vec<String>> {
    Ok(run(&mut Cursor::new(file, start, file.len()), of)?.hostile)
}
