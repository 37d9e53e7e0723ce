//! Files that have a weight file's name but hold something else: what a clone without LFS, a broken
//! download or a saved web page leaves behind. They are recognized so that the error can state what
//! to do.

use super::{CONTAINERS, Container};
use crate::catalog::Object;
use crate::error::{Error, Location, Result};

/// How many of a file's first bytes are looked at.
const HEAD: u64 = 1024;

/// Checks the first bytes of `file`. To be called only if `file` could not be read as what it
/// should be, because valid weights may begin with any bytes. `expected` is the container that it
/// should belong to.
///
/// # Errors
/// The file is one of the known impostors, is taken for a container's by mistake, or belongs to another container.
pub(super) fn check(file: &dyn Object, expected: Option<&dyn Container>) -> Result<()> {
    let mut head = vec![0u8; file.len().min(HEAD) as usize];
    file.read_at(0, &mut head)?;
    let at = file.location();
    if head.is_empty() {
        return Err(Error::invalid(at, "is empty (0 bytes); download it again"));
    }
    if let Some(expected) = expected
        && expected.begins_so(&head)
    {
        return expected.check_lookalike(file, &head);
    }
    check_head(at, &head, file.len())?;
    for container in CONTAINERS {
        container.check_lookalike(file, &head)?;
    }
    if let Some(expected) = expected
        && let Some(other) = CONTAINERS.iter().find(|c| c.begins_so(&head))
    {
        let (is, should) = (other.kind(), expected.kind());
        let problem = format!(
            "is a {is}, although a {should} is expected here; rename it to mount it as what it is"
        );
        return Err(Error::invalid(at, problem));
    }
    Ok(())
}

/// The error for `bytes`, read from `at`, which should be JSON but could not be parsed.
pub(in crate::catalog) fn not_json(at: &Location, bytes: &[u8], why: &serde_json::Error) -> Error {
    let head = &bytes[..bytes.len().min(HEAD as usize)];
    match check_head(at, head, bytes.len() as u64) {
        Err(better) => better,
        Ok(()) => Error::invalid(at, format!("is not JSON: {why}")),
    }
}

/// Recognizes what can replace a file of any kind.
fn check_head(at: &Location, head: &[u8], len: u64) -> Result<()> {
    let text = String::from_utf8_lossy(head);
    let start = text.trim_start_matches('\u{feff}').trim_start();
    let lower = start
        .get(..start.len().min(64))
        .unwrap_or(start)
        .to_ascii_lowercase();
    let problem = if text.starts_with("version https://git-lfs") {
        let size = text
            .lines()
            .find_map(|l| l.strip_prefix("size "))
            .and_then(|s| s.trim().parse::<u64>().ok());
        let stands_for = size.map_or_else(String::new, |n| format!(" for {n} bytes"));
        format!(
            "is a Git LFS pointer of {len} bytes{stands_for}, not the file itself; run 'git lfs pull' in the model directory"
        )
    } else if lower.starts_with("<!doctype html") || lower.starts_with("<html") {
        "is an HTML page, not the file itself: the download was answered with a web page (login or error); download it again".into()
    } else {
        return Ok(());
    };
    Err(Error::invalid(at, problem))
}
