//! `metadata.json`: every key of a file in full, as JSON, one to a line.

use super::cursor::{Cursor, Reading, Stop};
use super::key::Key;
use super::value::{self, Kind, Scalar, ValueType};
use crate::catalog::Object;
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
    let what = || format!("the value of key '{}'", key.name);
    let mut cursor = Cursor::new(file, key.start, key.end);
    match key.kind {
        Kind::Single(kind) => {
            out.extend_from_slice(b"\", \"value\": ");
            value::read(&mut cursor, kind, &what)?.push(out);
        }
        Kind::Array { of, count } => {
            out.extend_from_slice(b"\", \"of\": \"");
            out.extend_from_slice(of.name().as_bytes());
            out.extend_from_slice(b"\", \"value\": [");
            out.try_reserve(usize::try_from(key.end - key.start).unwrap_or(usize::MAX))
                .map_err(|_| Error::other(libc::ENOMEM, "metadata.json: not enough memory"))?;
            push_elements(out, &mut cursor, of, count, &what)?;
            out.push(b']');
        }
    }
    match cursor.left() {
        0 => Ok(()),
        _ => Err(changed(file, key).into()),
    }
}

fn push_elements(
    out: &mut Vec<u8>,
    cursor: &mut Cursor<'_>,
    of: ValueType,
    count: u64,
    what: &dyn Fn() -> String,
) -> Reading<()> {
    for i in 0..count {
        if i > 0 {
            out.extend_from_slice(b", ");
        }
        value::read(cursor, of, what)?.push(out);
    }
    Ok(())
}

/// The error about a file that was written to after it was opened.
fn changed(file: &dyn Object, key: &Place) -> Error {
    let problem = format!(
        "changed since it was opened: the value of key '{}' is no longer there; mount the model again",
        key.name
    );
    Error::invalid(file.location(), problem)
}

impl Scalar<'_> {
    /// Writes the value as JSON. A binary32 is written as the binary64 of the same value, which is what
    /// readers of JSON have: 9.999999747378752e-6 rather than 1e-5, so that nothing is rounded.
    fn push(&self, out: &mut Vec<u8>) {
        match *self {
            Scalar::Unsigned(n) => push_json(out, &n),
            Scalar::Signed(n) => push_json(out, &n),
            // NaN and infinities are written as null.
            Scalar::F32(x) => push_json(out, &f64::from(x)),
            Scalar::F64(x) => push_json(out, &x),
            Scalar::Bool(b) => push_json(out, &b),
            Scalar::String(bytes) => push_json(out, &String::from_utf8_lossy(bytes)),
        }
    }
}
