//! A file of `torch.save`: where its pickle and its storages are. Since 1.6 it is a ZIP archive with a
//! member for each; before, pickles and storages one after another.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::pickle::Pickle;
use crate::catalog::container::shards::Broken;
use crate::catalog::{Findings, HeaderProblem, Object};
use crate::error::Error;

pub(in crate::catalog::container) mod detect;
mod zip;

/// An open checkpoint.
pub(super) struct Checkpoint {
    /// What its pickle holds.
    pub pickle: Pickle,
    /// Where the bytes are.
    pub storages: Storages,
    /// Problems for `verify` that do not keep the model from being served.
    pub flaws: Vec<HeaderProblem>,
}

/// The storages of a file.
#[derive(Default)]
pub(super) struct Storages {
    /// Key → bytes, counted from the start of the file. Every storage that the pickle refers to is
    /// here and has the length that every reference to it needs, unless its problem is reported (while
    /// verifying), or it is lost.
    pub of: HashMap<Box<[u8]>, Range<u64>>,
    /// Keys of storages that are not completely in a file that is cut short, if that is allowed.
    pub lost: Vec<Box<[u8]>>,
    /// Whether elements are stored with their most significant byte first.
    pub big_endian: bool,
}

impl Checkpoint {
    /// Opens a checkpoint and runs its pickle.
    ///
    /// # Errors
    /// It is something else, is damaged, or is hostile.
    pub fn open(file: &Arc<dyn Object>, findings: &Findings) -> Result<Checkpoint, Broken> {
        let _ = findings;
        Err(Error::invalid(file.location(), "cannot be read yet").into())
    }
}
