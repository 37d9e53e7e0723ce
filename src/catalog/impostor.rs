//! Files that lie under a shard's name but are no shard: what a clone without LFS, a broken download
//! or a saved web page leaves behind. Recognized so that the error can say what to do.

use std::path::Path;

use super::SourceFile;
use super::safetensors::{LENGTH_FIELD, MAX_HEADER};
use crate::error::Error;

/// How many of a file's first bytes tell what it is.
const HEAD: u64 = 1024;

/// Looks at the first bytes of `file`; an error if it is one of the known impostors. To be asked
/// about a file that could not be read as what it should be: sound weights may begin with any bytes.
pub(super) fn check(file: &SourceFile) -> Result<(), Error> {
    let mut head = vec![0u8; file.len().min(HEAD) as usize];
    file.read_at(0, &mut head)?;
    if head.is_empty() {
        return Err(Error::invalid(
            &file.path,
            "is empty (0 bytes); download it again",
        ));
    }
    if begins_like_safetensors(&head) {
        return Ok(());
    }
    check_head(&file.path, &head, file.len())?;
    if is_pickle(&head) {
        return Err(pickle(&file.path));
    }
    if head.starts_with(b"GGUF") {
        return Err(Error::invalid(
            &file.path,
            "is a GGUF file; stfs reads safetensors and bin + manifest",
        ));
    }
    Ok(())
}

/// Why `path`, which holds `bytes` and should be JSON, is none.
pub(super) fn not_json(path: &Path, bytes: &[u8], why: &serde_json::Error) -> Error {
    let head = &bytes[..bytes.len().min(HEAD as usize)];
    match check_head(path, head, bytes.len() as u64) {
        Err(better) => better,
        Ok(()) => Error::invalid(path, format!("is not JSON: {why}")),
    }
}

/// What may lie under the name of any file, whatever it should hold.
fn check_head(path: &Path, head: &[u8], len: u64) -> Result<(), Error> {
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
    Err(Error::invalid(path, problem))
}

/// A length field and the `{` of a header: a damaged shard, whatever format the length's bytes
/// happen to be the magic number of.
fn begins_like_safetensors(head: &[u8]) -> bool {
    head.first_chunk::<LENGTH_FIELD>()
        .is_some_and(|n| u64::from_le_bytes(*n) <= MAX_HEADER)
        && head.get(LENGTH_FIELD) == Some(&b'{')
}

/// What `torch.save` and `pickle.dump` begin a file with: a ZIP archive, or the protocol and then
/// the first opcode, of which these few occur: PyTorch's magic number, a frame, a container, a class.
fn is_pickle(head: &[u8]) -> bool {
    match head {
        [0x80, 2..=5, opcode, ..] => b"\x8a\x95}](c".contains(opcode),
        _ => head.starts_with(b"PK\x03\x04"),
    }
}

/// The refusal of a PyTorch pickle.
pub(super) fn pickle(path: &Path) -> Error {
    Error::invalid(
        path,
        "is a PyTorch pickle, which can run code when it is loaded; stfs never unpickles: convert it to safetensors first",
    )
}
