//! `metadata.json`: every key of a file in full, as JSON, one to a line.

use serde::Serialize;

use super::key::{Key, shown};
use super::strings::string;
use super::value::{Kind, ValueType};
use crate::catalog::Object;
use crate::catalog::container::cursor::{Cursor, Reading, Stop};
use crate::error::{Error, Result};
use crate::text::push_json;

/// A key's place in the file.
pub(super) struct Place {
    name: String,
    kind: Kind,
    /// First byte of the value.
    start: u64,
    /// Where it ends.
    end: u64,
}

impl Place {
    /// Where the value of a key lies.
    pub fn of(key: &Key) -> Place {
        Place {
            name: key.name.clone(),
            kind: key.kind,
            start: key.value_start(),
            end: key.span.end,
        }
    }
}

/// Reads the values again and writes all of them.
///
/// # Errors
/// The file cannot be read, or its values no longer are where they were.
pub(super) fn make(file: &dyn Object, keys: &[Place]) -> Result<Vec<u8>> {
    let mut out = b"{".to_vec();
    for (i, key) in keys.iter().enumerate() {
        out.extend_from_slice(if i == 0 { b"\n  " } else { b",\n  " });
        push_json(&mut out, &key.name);
        out.extend_from_slice(b": {\"type\": \"");
        out.extend_from_slice(key.kind.value_type().name().as_bytes());
        push_value(&mut out, file, key).map_err(|stop| match stop {
            Stop::Failed(error) => error,
            Stop::Problem(problem) => Error::invalid(file.location(), problem),
            Stop::Enough => changed(file, key),
        })?;
        out.push(b'}');
    }
    out.extend_from_slice(if keys.is_empty() { b"}\n" } else { b"\n}\n" });
    Ok(out)
}

/// Writes the rest of a key's object, from behind the name of its type.
fn push_value(out: &mut Vec<u8>, file: &dyn Object, key: &Place) -> Reading<()> {
    let mut values = Values {
        out,
        cursor: Cursor::new(file, key.start, key.end),
        what: &|| format!("the value of key '{}'", shown(&key.name)),
    };
    match key.kind {
        Kind::Single(kind) => {
            values.out.extend_from_slice(b"\", \"value\": ");
            values.push(kind, 1)?;
        }
        Kind::Array { of, count } => {
            values.out.extend_from_slice(b"\", \"of\": \"");
            values.out.extend_from_slice(of.name().as_bytes());
            values.out.extend_from_slice(b"\", \"value\": [");
            values.push(of, count)?;
            values.out.push(b']');
        }
    }
    match values.cursor.left() {
        0 => Ok(()),
        _ => Err(Stop::Enough),
    }
}

/// Writes values as JSON while it reads them. A vocabulary has a million of them, so that each kind of
/// value has a loop of its own.
struct Values<'a> {
    out: &'a mut Vec<u8>,
    cursor: Cursor<'a>,
    what: &'a dyn Fn() -> String,
}

/// The largest `metadata.json`, in bytes: twenty times that of the largest vocabularies.
const MAX_JSON: usize = 512 << 20;
/// How many values are taken at once.
const AT_ONCE: u64 = 4096;

impl Values<'_> {
    /// Writes `count` values with commas between them, exactly; NaN and infinities as null.
    fn push(&mut self, of: ValueType, count: u64) -> Reading<()> {
        match of {
            ValueType::U8 => self.numbers(count, u8::from_le_bytes),
            ValueType::I8 => self.numbers(count, i8::from_le_bytes),
            ValueType::U16 => self.numbers(count, u16::from_le_bytes),
            ValueType::I16 => self.numbers(count, i16::from_le_bytes),
            ValueType::U32 => self.numbers(count, u32::from_le_bytes),
            ValueType::I32 => self.numbers(count, i32::from_le_bytes),
            // As the binary64 of the same value, which is what readers of JSON have:
            // 9.999999747378752e-6 rather than 1e-5, so that nothing is rounded.
            ValueType::F32 => self.numbers(count, |x| f64::from(f32::from_le_bytes(x))),
            ValueType::Bool => self.numbers(count, |byte| byte != [0]),
            ValueType::U64 => self.numbers(count, u64::from_le_bytes),
            ValueType::I64 => self.numbers(count, i64::from_le_bytes),
            ValueType::F64 => self.numbers(count, f64::from_le_bytes),
            ValueType::String | ValueType::Array => self.strings(count),
        }
    }

    /// That the file does not become too large.
    fn check_size(&self) -> Reading<()> {
        match self.out.len() <= MAX_JSON {
            true => Ok(()),
            false => Err(Stop::Failed(Error::other(
                libc::EFBIG,
                format!("metadata.json would have more than {MAX_JSON} bytes"),
            ))),
        }
    }

    fn numbers<const N: usize, T: Serialize>(
        &mut self,
        count: u64,
        value: impl Fn([u8; N]) -> T,
    ) -> Reading<()> {
        let mut left = count;
        while left > 0 {
            let n = left.min(AT_ONCE);
            let (bytes, _) = self.cursor.take(n * N as u64, self.what)?.as_chunks();
            for (i, bytes) in bytes.iter().enumerate() {
                if left < count || i > 0 {
                    self.out.extend_from_slice(b", ");
                }
                push_json(self.out, &value(*bytes));
            }
            left -= n;
            self.check_size()?;
        }
        Ok(())
    }

    fn strings(&mut self, count: u64) -> Reading<()> {
        for i in 0..count {
            if i > 0 {
                self.out.extend_from_slice(b", ");
            }
            let bytes = string(&mut self.cursor, self.what)?;
            match std::str::from_utf8(bytes) {
                Ok(text) => push_json(self.out, text),
                Err(_) => push_json(self.out, &String::from_utf8_lossy(bytes)),
            }
            self.check_size()?;
        }
        Ok(())
    }
}

/// The error about a file that was written to after it was opened.
fn changed(file: &dyn Object, key: &Place) -> Error {
    let problem = format!(
        "changed since it was opened: the value of key '{}' is no longer there; mount the model again",
        shown(&key.name)
    );
    Error::invalid(file.location(), problem)
}
