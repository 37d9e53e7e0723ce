//! A key: its name, and what its value is.

use std::ops::Range;

use serde_json::Value;

use super::header::Problems;
use super::strings::{skip_strings, string};
use super::value::{self, Kind, ValueType};
use crate::catalog::container::cursor::{Cursor, Reading, Stop};
use crate::text::elide;

/// The least that a key takes, in bytes: the length of its name, one character, its type, its value.
pub(super) const MIN: u64 = 8 + 1 + 4;
/// The most elements of an array that is kept. Longer ones are vocabularies.
const MAX_KEPT: u64 = 64;
/// The most characters of a name that a message shows: it may be as long as the file.
const MOST_SHOWN: usize = 100;

/// A key and its value.
pub(crate) struct Key {
    /// The key.
    pub name: String,
    /// The type of its value.
    pub kind: Kind,
    /// The bytes of the key, the type and the value in the file.
    pub span: Range<u64>,
    /// The value; `None` for an array of more than 64 elements.
    pub value: Option<Value>,
}

impl Key {
    /// First byte of the value, counted from the start of the file. The value of an array is its
    /// elements.
    pub(crate) fn value_start(&self) -> u64 {
        self.span.start + 8 + self.name.len() as u64 + self.kind.header_size()
    }

    /// Its value and type, as messages show them.
    pub(super) fn shown_value(&self) -> String {
        let kind = self.kind.value_type().name();
        match &self.value {
            Some(value) => format!("{} ({kind})", shown(&value.to_string())),
            None => format!("an {kind}"),
        }
    }
}

/// A key's name, as messages show it.
pub(super) fn shown(name: &str) -> String {
    elide(name, MOST_SHOWN)
}

/// Reads key `number` of `count`; `None` if its name is wrong.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    problems: &mut Problems,
    number: u64,
    count: u64,
) -> Reading<Option<Key>> {
    let start = cursor.position();
    let name = string(cursor, &|| format!("key {number} of {count}"))?;
    let is_text = std::str::from_utf8(name).is_ok();
    let name = String::from_utf8_lossy(name).into_owned();
    let shown = shown(&name);
    let (kind, value) = read_value(cursor, &shown)?;
    let span = start..cursor.position();
    if !is_text {
        let problem = format!("key {number} of {count} ('{shown}') is not valid UTF-8");
        problems.add(problem)?;
        return Ok(None);
    }
    if name.is_empty() {
        problems.add(format!("key {number} of {count} has no name"))?;
        return Ok(None);
    }
    Ok(Some(Key {
        name,
        kind,
        span,
        value,
    }))
}

/// Reads the type and the value of the key `name`.
fn read_value(cursor: &mut Cursor<'_>, name: &str) -> Reading<(Kind, Option<Value>)> {
    let unknown = |number, what| {
        Stop::Problem(format!(
            "key '{name}' has {what} of type {number}; GGUF has types 0 to 12"
        ))
    };
    let what = || format!("the value of key '{name}'");
    let number = cursor.u32(&|| format!("the type of key '{name}'"))?;
    let kind = ValueType::from_number(number).ok_or_else(|| unknown(number, "a value"))?;
    if kind != ValueType::Array {
        let value = value::read(cursor, kind, &what)?;
        return Ok((Kind::Single(kind), Some(value)));
    }
    let number = cursor.u32(&|| format!("the element type of key '{name}'"))?;
    let of = ValueType::from_number(number).ok_or_else(|| unknown(number, "an array"))?;
    if of == ValueType::Array {
        return Err(Stop::Problem(format!(
            "key '{name}' is an array of arrays (type 9 in type 9), which stfs and llama.cpp do not read"
        )));
    }
    let count = cursor.u64(&|| format!("the number of elements of key '{name}'"))?;
    let value = read_array(cursor, of, count, &what)?;
    Ok((Kind::Array { of, count }, value))
}

/// Reads the elements of an array that is short enough to keep, and passes over those of a longer one.
fn read_array(
    cursor: &mut Cursor<'_>,
    of: ValueType,
    count: u64,
    what: &dyn Fn() -> String,
) -> Reading<Option<Value>> {
    let (kind, size) = (of.name(), of.size());
    let bytes = count.saturating_mul(size);
    cursor.hold(bytes, &|| {
        let what = what();
        format!("{what} has {count} elements of at least {size} bytes each ({kind})")
    })?;
    if count <= MAX_KEPT {
        let elements = (0..count).map(|_| value::read(cursor, of, what));
        let elements: Reading<Vec<Value>> = elements.collect();
        return Ok(Some(elements?.into()));
    }
    match of {
        ValueType::String => skip_strings(cursor, count, what)?,
        _ => cursor.skip(bytes, what)?,
    }
    Ok(None)
}
