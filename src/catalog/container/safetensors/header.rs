//! Finds everything that is wrong with a safetensors header. The library reports only the first
//! problem, without the tensor's name.

use std::sync::Arc;

use safetensors::tensor::TensorInfo;
use serde_json::Value;

use super::shard::{LENGTH_FIELD, METADATA};
use crate::catalog::HeaderProblem;
use crate::dtype::{Dtype, numel};
use crate::reason::{Reason, reason};

mod entries;

use entries::{Entries, Entry};

/// Every structural problem of a safetensors header (the JSON alone, without its length field) for
/// a file of `file_len` bytes in all. Empty for a valid file.
pub fn check_header(header: &[u8], file_len: u64) -> Vec<HeaderProblem> {
    examine(header, file_len).0
}

/// Returns the problems, and the names of all tensors in the header.
pub(super) fn examine(header: &[u8], file_len: u64) -> (Vec<HeaderProblem>, Vec<Arc<str>>) {
    let whole = |problem: String| {
        let tensor = None;
        (vec![HeaderProblem { tensor, problem }], Vec::new())
    };
    let text = match std::str::from_utf8(header) {
        Ok(text) => text,
        Err(e) => {
            return whole(format!(
                "header is not UTF-8 (byte {} of {})",
                e.valid_up_to(),
                header.len()
            ));
        }
    };
    let entries = match serde_json::from_str::<Entries>(text) {
        Ok(entries) => entries,
        Err(e) => return whole(format!("header is not a JSON object: {e}")),
    };
    let mut problems: Vec<_> = entries
        .earlier
        .into_iter()
        .filter_map(check_earlier)
        .collect();
    let mut spans = Vec::new();
    let mut names = Vec::new();
    for (name, entry) in entries.last {
        let repeated = entry.repeated().map(|key| reason!("has '{key}' twice"));
        let value = entry.into_value();
        if name == METADATA {
            let strings = value
                .as_object()
                .is_some_and(|m| m.values().all(Value::is_string));
            if !strings && !value.is_null() {
                problems.push(HeaderProblem {
                    tensor: None,
                    problem: format!("{METADATA} is not an object of strings"),
                });
            }
            continue;
        }
        names.push(name.as_str().into());
        match repeated.map_or_else(|| check_entry(&value), Err) {
            Ok((start, end)) => spans.push((start, end, name)),
            Err(problem) => problems.push(HeaderProblem {
                tensor: Some(name),
                problem: problem.into(),
            }),
        }
    }
    let data_len = file_len.saturating_sub((LENGTH_FIELD + header.len()) as u64);
    (check_layout(spans, data_len, problems), names)
}

/// Checks an entry whose name appears again later. It does not count, but the library still
/// requires it to be valid.
fn check_earlier((name, entry): (String, Entry)) -> Option<HeaderProblem> {
    if name == METADATA {
        let problem = format!("has '{METADATA}' twice");
        return Some(HeaderProblem {
            tensor: None,
            problem,
        });
    }
    let problem = match entry.repeated() {
        Some(key) => format!("has '{key}' twice"),
        None => {
            let value = entry.into_value();
            let is_object = value.is_object();
            let why = serde_json::from_value::<TensorInfo>(value).err()?;
            match is_object {
                true => format!("is not valid: {why}"),
                false => "is not an object".into(),
            }
        }
    };
    Some(HeaderProblem {
        problem: format!("appears twice, and the first entry {problem}"),
        tensor: Some(name),
    })
}

/// Checks one tensor by itself. Returns its span, or what is wrong.
fn check_entry(value: &Value) -> std::result::Result<(u64, u64), Reason> {
    let dtype = value.get("dtype").and_then(Value::as_str);
    let dtype = dtype.ok_or("has no dtype")?;
    let dtype = Dtype::from_name(dtype).ok_or_else(|| {
        reason!(
            "dtype '{dtype}' is not one that safetensors knows; the whole file is refused for it"
        )
    })?;
    let numbers = |key: &str| -> std::result::Result<Vec<u64>, Reason> {
        value
            .get(key)
            .and_then(Value::as_array)
            .and_then(|a| a.iter().map(Value::as_u64).collect())
            .ok_or_else(|| reason!("{key} is not an array of whole numbers from 0 up"))
    };
    let shape = numbers("shape")?;
    let offsets = numbers("data_offsets")?;
    let &[start, end] = offsets.as_slice() else {
        return Err(reason!(
            "data_offsets has {} numbers, needs 2",
            offsets.len()
        ));
    };
    if end < start {
        return Err(reason!("data_offsets run backwards: {start} to {end}"));
    }
    let n = numel(&shape)
        .filter(|n| n.checked_mul(u64::from(dtype.bits())).is_some())
        .ok_or_else(|| reason!("shape {shape:?} overflows 64 bits"))?;
    let needs = dtype.bytes(n).ok_or_else(|| {
        reason!(
            "{n} elements of {dtype} are not a whole number of bytes ({} bits)",
            n * u64::from(dtype.bits())
        )
    })?;
    if needs != end - start {
        return Err(reason!(
            "{dtype} {shape:?} needs {needs} bytes, data_offsets give {}",
            end - start
        ));
    }
    Ok((start, end))
}

/// Checks the tensors together: no holes, no overlaps, nothing past the end, and no bytes left
/// over.
fn check_layout(
    mut spans: Vec<(u64, u64, String)>,
    data_len: u64,
    mut problems: Vec<HeaderProblem>,
) -> Vec<HeaderProblem> {
    spans.sort();
    let broken = !problems.is_empty();
    let mut at = 0;
    for (start, end, name) in spans {
        let mut say = |problem: String| {
            problems.push(HeaderProblem {
                tensor: Some(name.clone()),
                problem,
            })
        };
        // A tensor with a problem of its own has no span here and would look like a hole, so holes
        // are reported only if there are no such tensors.
        if start > at && !broken {
            say(format!(
                "hole before it: data begins at {start}, the tensor before ends at {at}"
            ));
        } else if start < at {
            say(format!(
                "overlaps the tensor before, which ends at {at}; this one begins at {start}"
            ));
        }
        if end > data_len {
            say(format!(
                "goes past the end of the file: needs {end} bytes of data, has {data_len}; the file is cut short, download it again or mount with --allow-missing"
            ));
        }
        at = at.max(end);
    }
    if at < data_len && !broken {
        problems.push(HeaderProblem {
            tensor: None,
            problem: format!(
                "{} trailing bytes: the header accounts for {at} bytes of data, the file has {data_len}",
                data_len - at
            ),
        });
    }
    problems
}
