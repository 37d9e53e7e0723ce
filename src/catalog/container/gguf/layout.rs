//! Where the tensors of a file lie: inside it, aligned, and apart.

use super::entry::Unplaced;
use super::header::{Beyond, Entry, Examined, MAX_PROBLEMS, Problems};
use crate::catalog::HeaderProblem;
use crate::catalog::container::cursor::Reading;

/// The longest name that llama.cpp takes, in bytes.
const LLAMA_NAME: usize = 63;

/// What the place of tensors depends on.
pub(super) struct Place {
    /// Where the header ends.
    pub header_end: u64,
    /// What offsets must be a multiple of; `None` if the file's alignment is not valid, so that nothing
    /// can be said of any place.
    pub alignment: Option<u64>,
    pub file_len: u64,
}

/// Gives each tensor its place in the file. `entries` are in the file's order.
pub(super) fn place(
    entries: Vec<Unplaced>,
    place: &Place,
    examined: &mut Examined,
    problems: &mut Problems,
) -> Reading<()> {
    let Some(alignment) = place.alignment else {
        return Ok(());
    };
    // Both are far below 64 bits: a header's length and a u32.
    let data = place.header_end.next_multiple_of(alignment);
    if problems.all() {
        examined.flaws = flaws(&entries, alignment, problems.is_empty());
    }
    let file_end = place.file_len.saturating_add(alignment - 1) / alignment * alignment;
    for entry in entries {
        let start = u128::from(entry.offset);
        if entry.offset % alignment != 0 {
            let problem =
                format!("its offset {start} is not a multiple of the alignment {alignment}");
            problems.tensor(&entry.name, problem)?;
            continue;
        }
        let end = u128::from(data) + start + entry.nbytes;
        // A tensor without elements may stand where the padding of the header would end.
        let empty = entry.nbytes == 0 && end <= file_end.into();
        if end > place.file_len.into() && !empty {
            let name = entry.name;
            examined.beyond.push(Beyond { name, end });
            continue;
        }
        // Both fit, because the end does.
        examined.header.tensors.push(Entry {
            name: entry.name,
            dtype: entry.dtype,
            shape: entry.shape,
            offset: data + entry.offset,
            nbytes: entry.nbytes as u64,
        });
    }
    check_apart(&examined.header.tensors, problems)
}

/// What llama.cpp refuses: long names, and tensors that are not one behind the other in the order of
/// their entries. Where it expects them is not known unless the entries are `all_there`.
fn flaws(entries: &[Unplaced], alignment: u64, all_there: bool) -> Vec<HeaderProblem> {
    let mut flaws = Vec::new();
    let mut flaw = |name: &str, problem: String| {
        if flaws.len() < MAX_PROBLEMS {
            flaws.push(HeaderProblem {
                tensor: Some(name.to_string()),
                problem: format!("llama.cpp will not load this: {problem}"),
            });
        }
    };
    let mut expected = 0;
    for entry in entries {
        let (name, start) = (&*entry.name, u128::from(entry.offset));
        if name.len() > LLAMA_NAME {
            let bytes = name.len();
            flaw(
                name,
                format!("its name has {bytes} bytes, at most {LLAMA_NAME} are read"),
            );
        }
        if all_there && start != expected {
            flaw(
                name,
                format!("tensor '{name}' at {start}, expected {expected}"),
            );
        }
        expected = (start + entry.nbytes).next_multiple_of(alignment.into());
    }
    flaws
}

/// That no two tensors share bytes.
fn check_apart(tensors: &[Entry], problems: &mut Problems) -> Reading<()> {
    let mut order: Vec<&Entry> = tensors.iter().filter(|t| t.nbytes > 0).collect();
    order.sort_by_key(|t| t.offset);
    let mut before: Option<&Entry> = None;
    for tensor in order {
        let end = tensor.offset + tensor.nbytes;
        if let Some(before) = before {
            let before_end = before.offset + before.nbytes;
            if tensor.offset < before_end {
                problems.tensor(
                    &tensor.name,
                    format!(
                        "shares bytes with '{}': that one is bytes {} to {before_end} of the file, this one {} to {end}",
                        before.name, before.offset, tensor.offset
                    ),
                )?;
                if before_end >= end {
                    continue;
                }
            }
        }
        before = Some(tensor);
    }
    Ok(())
}
