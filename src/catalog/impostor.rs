//! Files that lie under a shard's name but are no shard: what a clone without LFS, a broken download
//! or a saved web page leaves behind. Recognised so that the error can say what to do.

use std::path::Path;

use super::SourceFile;
use crate::error::Error;

/// Looks at the first bytes of `file`; an error if it is one of the known impostors.
pub(super) fn check(file: &SourceFile) -> Result<(), Error> {
    let mut head = vec![0u8; file.len().min(1024) as usize];
    file.read_at(0, &mut head)?;
    if head.is_empty() {
        return Err(Error::invalid(
            &file.path,
            "is empty (0 bytes); download it again",
        ));
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
    if head.starts_with(b"PK\x03\x04") || head.starts_with(b"\x80\x02") {
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

/// The refusal of a PyTorch pickle.
pub(super) fn pickle(path: &Path) -> Error {
    Error::invalid(
        path,
        "is a PyTorch pickle, which can run code when it is loaded; stfs never unpickles: convert it to safetensors first",
    )
}
