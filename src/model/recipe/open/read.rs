//! Reads a recipe's file, once.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::mistake::{Lines, Mistake, Place};
use crate::catalog::{Object, Source};
use crate::error::{Error, Location, Position, Result};

/// The largest recipe, in bytes.
const MAX_BYTES: u64 = 1 << 20;

/// A recipe's file, read.
pub struct Read {
    /// Its text.
    pub text: String,
    /// The file.
    pub object: Arc<dyn Object>,
    /// As messages name it.
    pub shown: PathBuf,
    /// The directory that relative paths begin at.
    pub directory: PathBuf,
}

/// Line and column of a mistake; only the line if it is about a whole rule.
pub fn position(text: &str, mistake: &Mistake) -> Position {
    let (line, column) = Lines::new(text).position(mistake.at);
    Position::new(line, (!mistake.of_line).then_some(column))
}

/// Reads a recipe, once.
pub fn read(source: &Source, shown: &Path) -> Result<Read> {
    let name = source.file.as_deref().unwrap_or_default();
    if let Some(part) = &source.part {
        let problem = format!(
            "is a recipe, which has no parts: leave out '{}{part}' (only PyTorch checkpoints have parts)",
            crate::error::PART
        );
        return Err(Error::invalid(shown, problem));
    }
    let object = source.store.open(name.as_ref())?;
    if object.len() > MAX_BYTES {
        let problem = format!(
            "has {} bytes; a recipe has at most 1 MiB ({MAX_BYTES} bytes)",
            object.len()
        );
        return Err(Error::invalid(shown, problem));
    }
    let mut bytes = vec![0; object.len() as usize];
    object.read_at(0, &mut bytes)?;
    let text = String::from_utf8(bytes).map_err(|e| not_text(shown, &e))?;
    let directory = source.store.location().path().unwrap_or(Path::new("."));
    Ok(Read {
        text,
        object,
        shown: shown.to_path_buf(),
        directory: directory.to_path_buf(),
    })
}

/// The error about bytes that are not text, with their place.
fn not_text(shown: &Path, error: &std::string::FromUtf8Error) -> Error {
    let valid = error.utf8_error().valid_up_to();
    let before = error.as_bytes().get(..valid).unwrap_or_default();
    let before = String::from_utf8_lossy(before);
    let at = Place(u32::try_from(valid).unwrap_or(u32::MAX));
    let (line, column) = Lines::new(&before).position(at);
    let at = Location::from(shown).at(Position::new(line, Some(column)));
    Error::invalid(at, "is not valid UTF-8; a recipe is TOML")
}
