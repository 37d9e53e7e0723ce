//! Files that lie under a shard's name but are no shard: what a clone without LFS, a broken download
//! or a saved web page leaves behind. Recognised so that the error can say what to do.

use std::path::Path;

use super::SourceFile;
use super::safetensors::{LENGTH_FIELD, MAX_HEADER};
use crate::error::Error;

/// Looks at the first bytes of `file`; an error if it is one of the known impostors. To be asked
/// about a file that could not be read as what it should be: sound weights may begin with any bytes.
pub(super) fn check(file: &SourceFile) -> Result<(), Error> {
    let mut head = vec![0u8; file.len().min(1024) as usize];
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
    let text = String::from_utf8_lossy(&head);
    if text.starts_with("version https://git-lfs") {
        let size = text
            .lines()
            .find_map(|l| l.strip_prefix("size "))
            .and_then(|s| s.trim().parse::<u64>().ok());
        let stands_for = size.map_or_else(String::new, |n| format!(" for {n} bytes"));
        return Err(Error::invalid(
            &file.path,
            format!(
                "is a Git LFS pointer of {} bytes{stands_for}, not the file itself; run 'git lfs pull' in the model directory",
                file.len()
            ),
        ));
    }
    let start = text.trim_start_matches('\u{feff}').trim_start();
    let lower = start
        .get(..start.len().min(64))
        .unwrap_or(start)
        .to_ascii_lowercase();
    if lower.starts_with("<!doctype html") || lower.starts_with("<html") {
        return Err(Error::invalid(
            &file.path,
            "is an HTML page, not a weight file: the download was answered with a web page (login or error); download it again",
        ));
    }
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
