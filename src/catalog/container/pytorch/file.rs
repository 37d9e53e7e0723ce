//! A file of `torch.save`: where its pickle and its storages are. Since 1.6 it is a ZIP archive with a
//! member for each; before, pickles and storages one after another.

use std::collections::HashMap;
use std::ops::Range;

use self::detect::{Head, Other};
use super::PyTorch;
use super::pickle::{self, Pickle, Place, Storage};
use super::problems::Problems;
use crate::catalog::container::cursor::Cursor;
use crate::catalog::container::impostor;
use crate::catalog::container::shards::Broken;
use crate::catalog::{Findings, Object, OpenOptions};
use crate::error::Error;

pub(super) mod detect;
mod legacy;
mod pieces;
mod zip;

#[cfg(test)]
mod tests;

/// An open checkpoint.
pub(super) struct Checkpoint {
    /// What its pickle holds.
    pub pickle: Pickle,
    /// Where the bytes are.
    pub storages: Storages,
}

/// The storages of a file.
#[derive(Default)]
pub(super) struct Storages {
    /// Key → bytes, counted from the start of the file. Every storage that the pickle refers to is
    /// here and has the length that every reference to it needs, unless its problem is reported (while
    /// verifying), or it is lost.
    pub of: HashMap<Box<[u8]>, Range<u64>>,
    /// Keys of storages that are not completely in a file that is cut short.
    pub lost: Vec<Box<[u8]>>,
    /// Whether elements are stored with their most significant byte first.
    pub big_endian: bool,
}

impl Checkpoint {
    /// Opens a checkpoint and runs its pickle. While verifying, a checkpoint with problems is returned,
    /// too, if its pickle can be run.
    ///
    /// # Errors
    /// It is something else, is damaged, or is hostile.
    pub fn open(file: &dyn Object, findings: &Findings) -> Result<(Checkpoint, Problems), Broken> {
        let mut problems = Problems::new(findings);
        let read = match Head::of_file(file)? {
            Some(Head::Zip) => zip::read(file, &mut problems)?,
            Some(Head::Legacy) => legacy::read(file, findings.allow_missing(), &mut problems)?,
            Some(Head::Pickle) => {
                let place = Place {
                    start: 0,
                    of: "the file",
                };
                let mut cursor = Cursor::new(file, 0, file.len());
                problems.add_hostile(pickle::read(&mut cursor, place)?.hostile);
                problems.add(|| Other::Pickle.problem().into());
                None
            }
            Some(Head::Tar) => return Err(Other::Tar.refusal(file.location()).into()),
            Some(Head::Gzip) => return Err(Other::Gzip.refusal(file.location()).into()),
            None => {
                impostor::check(file, Some(&PyTorch))?;
                return Err(detect::unknown(file.location()).into());
            }
        };
        match read {
            Some((pickle, storages)) if !problems.enough() => {
                Ok((Checkpoint { pickle, storages }, problems))
            }
            _ => Err(problems.into_broken(file, Box::default())),
        }
    }
}

/// Checks that a file is not one of those that begin like a checkpoint but are not.
///
/// # Errors
/// What it is, and what to do, or that it is hostile. It cannot be read.
pub(super) fn check_lookalike(file: &dyn Object) -> Result<(), Error> {
    if detect::other(file)?.is_none() {
        return Ok(());
    }
    let findings = Findings::first(OpenOptions::default());
    match Checkpoint::open(file, &findings) {
        Ok(_) => Ok(()),
        Err(broken) => Err(broken.error),
    }
}

/// How many bytes a reference to a storage needs; `None` if they are beyond all numbers.
fn bytes_of(storage: &Storage<'_>) -> Option<u64> {
    storage.elements.checked_mul(element(storage))
}

/// Bytes of an element.
fn element(storage: &Storage<'_>) -> u64 {
    storage.dtype.map_or(1, |dtype| u64::from(dtype.bytes))
}

/// The same for a message.
fn needs(storage: &Storage<'_>) -> String {
    let bytes = u128::from(storage.elements) * u128::from(element(storage));
    match element(storage) {
        1 => format!("{bytes} bytes"),
        each => format!("{bytes} bytes ({} elements of {each})", storage.elements),
    }
}
