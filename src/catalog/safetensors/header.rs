//! Everything that is wrong with a safetensors header, where the library says the first thing and not
//! of which tensor.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use safetensors::tensor::TensorInfo;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::{LENGTH_FIELD, METADATA};
use crate::dtype::{Dtype, numel};

/// One thing wrong with a safetensors header.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderProblem {
    /// The tensor at fault; `None` where it is the header as a whole.
    pub tensor: Option<String>,
    /// What is wrong, with both numbers.
    pub problem: String,
}

impl fmt::Display for HeaderProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.tensor {
            Some(t) => write!(f, "tensor '{t}': {}", self.problem),
            None => f.write_str(&self.problem),
        }
    }
}

/// A header's entries in file order. Of a key that is there twice the last one counts, as in the
/// safetensors library, which yet refuses a file where any of the others is no entry.
#[derive(Default)]
struct Entries {
    last: Vec<(String, Entry)>,
    earlier: Vec<(String, Entry)>,
}

/// What stands under a key of a header.
#[derive(Deserialize)]
#[serde(untagged)]
enum Entry {
    Object(Fields),
    Other(Value),
}

impl Entry {
    fn into_value(self) -> Value {
        match self {
            Entry::Object(fields) => Value::Object(fields.last),
            Entry::Other(value) => value,
        }
    }

    /// One of a tensor's fields that is there twice, for which the library refuses the file.
    fn repeated(&self) -> Option<&str> {
        let Entry::Object(fields) = self else {
            return None;
        };
        let known = |k: &&String| matches!(&***k, "dtype" | "shape" | "data_offsets");
        fields.repeated.iter().find(known).map(String::as_str)
    }
}

/// An object's fields, the last of each name, and the names that are there more than once.
struct Fields {
    last: Map<String, Value>,
    repeated: Vec<String>,
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Fields;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Fields, A::Error> {
                let (mut last, mut repeated) = (Map::new(), Vec::new());
                while let Some((k, v)) = map.next_entry::<String, Value>()? {
                    if last.insert(k.clone(), v).is_some() {
                        repeated.push(k);
                    }
                }
                Ok(Fields { last, repeated })
            }
        }
        d.deserialize_map(Visitor)
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Entries, A::Error> {
                let mut all = Entries::default();
                let mut place: HashMap<String, usize> = HashMap::new();
                while let Some((k, v)) = map.next_entry::<String, Entry>()? {
                    match place.get(&k) {
                        Some(&i) => {
                            let earlier = std::mem::replace(&mut all.last[i].1, v);
                            all.earlier.push((k, earlier));
                        }
                        None => {
                            place.insert(k.clone(), all.last.len());
                            all.last.push((k, v));
                        }
                    }
                }
                Ok(all)
            }
        }
        d.deserialize_map(Visitor)
    }
}

/// Every structural problem of a safetensors header (the JSON alone, without its length field) for
/// a file of `file_len` bytes in all. Empty for a valid file.
pub fn check_header(header: &[u8], file_len: u64) -> Vec<HeaderProblem> {
    examine(header, file_len).0
}

/// The problems, and the names of all tensors that the header tells of.
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
        let repeated = entry.repeated().map(|key| format!("has '{key}' twice"));
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
                problem,
            }),
        }
    }
    let data_len = file_len.saturating_sub((LENGTH_FIELD + header.len()) as u64);
    (check_layout(spans, data_len, problems), names)
}

/// An entry whose name comes again further on: it counts for nothing, but must be an entry.
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
        None => serde_json::from_value::<TensorInfo>(entry.into_value())
            .err()?
            .to_string(),
    };
    Some(HeaderProblem {
        problem: format!("is there twice, and the first entry is none: {problem}"),
        tensor: Some(name),
    })
}

/// One tensor by itself: its span, or what is wrong.
fn check_entry(value: &Value) -> std::result::Result<(u64, u64), String> {
    let dtype = value.get("dtype").and_then(Value::as_str);
    let dtype = dtype.ok_or("has no dtype")?;
    let dtype = Dtype::from_name(dtype).ok_or_else(|| {
        format!(
            "dtype '{dtype}' is not one that safetensors knows; the whole file is refused for it"
        )
    })?;
    let numbers = |key: &str| -> std::result::Result<Vec<u64>, String> {
        value
            .get(key)
            .and_then(Value::as_array)
            .and_then(|a| a.iter().map(Value::as_u64).collect())
            .ok_or_else(|| format!("{key} is not an array of whole numbers from 0 up"))
    };
    let shape = numbers("shape")?;
    let offsets = numbers("data_offsets")?;
    let &[start, end] = offsets.as_slice() else {
        return Err(format!(
            "data_offsets has {} numbers, needs 2",
            offsets.len()
        ));
    };
    if end < start {
        return Err(format!("data_offsets run backwards: {start} to {end}"));
    }
    let n = numel(&shape)
        .filter(|n| n.checked_mul(u64::from(dtype.bits())).is_some())
        .ok_or_else(|| format!("shape {shape:?} overflows 64 bits"))?;
    let needs = dtype.bytes(n).ok_or_else(|| {
        format!(
            "{n} elements of {dtype} are no whole number of bytes ({} bits)",
            n * u64::from(dtype.bits())
        )
    })?;
    if needs != end - start {
        return Err(format!(
            "{dtype} {shape:?} needs {needs} bytes, data_offsets give {}",
            end - start
        ));
    }
    Ok((start, end))
}

/// The tensors together: no holes, no overlaps, nothing before, after or past the end.
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
        // A tensor that could not be measured leaves what looks like a hole; that is no news.
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
