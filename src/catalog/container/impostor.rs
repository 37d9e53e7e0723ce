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
/// The file is one of the known impostors, or belongs to another container.
pub(super) fn check(file: &dyn Object, expected: Option<&dyn Container>) -> Result<()> {
    let mut head = vec![0u8; file.len().min(HEAD) as usize];
    file.read_at(0, &mut head)?;
    let at = file.location();
    if head.is_empty() {
        return Err(Error::invalid(at, "is empty (0 bytes); download it again"));
    }
    if expected.is_some_and(|container| container.begins_so(&head)) {
        return Ok(());
    }
    check_head(at, &head, file.len())?;
    if let Some(expected) = expected
        && let Some(other) = CONTAINERS.iter().find(|c| c.begins_so(&head))
    {
        let (is, should) = (other.name(), expected.name());
        let problem = format!("is a {is} file, although a {should} file is expected here");
        return Err(Error::invalid(at, problem));
    }
    if is_pickle(&head) {
        return Err(pickle(at));
    }
    if let Some(magic) = older_ggml(&head) {
        return Err(Error::invalid(
            at,
            format!(
                "is an older GGML file ({magic}), not GGUF; get the model as GGUF, or convert it with llama.cpp's convert_llama_ggml_to_gguf.py"
            ),
        ));
    }
    Ok(())
}

/// The magic number of the formats before GGUF, as text. It was written as a number, so that its
/// letters are in reverse order on disk.
fn older_ggml(head: &[u8]) -> Option<&'static str> {
    let magic = head.first_chunk::<4>()?.map(|b| b.to_ascii_lowercase());
    let reversed = [magic[3], magic[2], magic[1], magic[0]];
    let known = ["ggml", "ggmf", "ggjt", "ggla"].into_iter();
    let mut found = known.filter(|m| m.as_bytes() == magic || m.as_bytes() == reversed);
    found.next()
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

/// How files of `torch.save` and `pickle.dump` begin: a ZIP archive, or the protocol and the first
/// opcode. Only these opcodes occur: PyTorch's magic number, a frame, a container, a class. A ZIP
/// archive of NumPy arrays (`.npz`) is not a pickle.
fn is_pickle(head: &[u8]) -> bool {
    match head {
        [0x80, 2..=5, opcode, ..] => b"\x8a\x95}](c".contains(opcode),
        _ => head.starts_with(b"PK\x03\x04") && !first_in_zip(head).ends_with(b".npy"),
    }
}

/// The name of the first file in a ZIP archive; empty if it is not in `head`.
fn first_in_zip(head: &[u8]) -> &[u8] {
    const LENGTH: usize = 26;
    const NAME: usize = 30;
    let len = head.get(LENGTH..).and_then(<[u8]>::first_chunk);
    let len = len.map_or(0, |len| usize::from(u16::from_le_bytes(*len)));
    head.get(NAME..NAME + len).unwrap_or_default()
}

/// The refusal of a PyTorch pickle.
pub(super) fn pickle(at: impl Into<Location>) -> Error {
    Error::invalid(
        at,
        "is a PyTorch pickle, which can run code when it is loaded; stfs never unpickles: convert it to safetensors first",
    )
}
