//! The values of keys: their types, and small ones as JSON.

use serde_json::Value;

use super::strings::string;
use crate::catalog::container::cursor::{Cursor, Reading};

/// The type of a key's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub(crate) enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

/// The types by their numbers, with their names and sizes in bytes. A string's size is the least that
/// it takes.
#[rustfmt::skip]
const TYPES: [(ValueType, &str, u64); 13] = [
    (ValueType::U8,     "uint8",   1),
    (ValueType::I8,     "int8",    1),
    (ValueType::U16,    "uint16",  2),
    (ValueType::I16,    "int16",   2),
    (ValueType::U32,    "uint32",  4),
    (ValueType::I32,    "int32",   4),
    (ValueType::F32,    "float32", 4),
    (ValueType::Bool,   "bool",    1),
    (ValueType::String, "string",  8),
    (ValueType::Array,  "array",  12),
    (ValueType::U64,    "uint64",  8),
    (ValueType::I64,    "int64",   8),
    (ValueType::F64,    "float64", 8),
];

impl ValueType {
    /// The type of that number.
    pub(crate) fn from_number(number: u32) -> Option<ValueType> {
        let row = TYPES.get(usize::try_from(number).ok()?)?;
        Some(row.0)
    }

    /// The name in `metadata.json`.
    pub(crate) fn name(self) -> &'static str {
        TYPES[self as usize].1
    }

    /// The least that a value takes, in bytes: its size, if all values have the same.
    pub(crate) fn size(self) -> u64 {
        TYPES[self as usize].2
    }
}

/// What a key's value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// One value, which is not an array.
    Single(ValueType),
    /// This many values of one type, which is not an array either.
    Array {
        /// The type of the elements.
        of: ValueType,
        /// How many there are.
        count: u64,
    },
}

impl Kind {
    /// The type of the value itself.
    pub(crate) fn value_type(self) -> ValueType {
        match self {
            Kind::Single(kind) => kind,
            Kind::Array { .. } => ValueType::Array,
        }
    }

    /// The bytes between a key's name and its value: the type's number, and for an array that of its
    /// elements and their count.
    pub(crate) fn header_size(self) -> u64 {
        match self {
            Kind::Single(_) => 4,
            Kind::Array { .. } => 4 + 4 + 8,
        }
    }
}

/// Reads a value of that type, which must not be an array, as JSON: NaN and infinities as null, U+FFFD
/// in place of bytes that are not UTF-8.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    kind: ValueType,
    what: &dyn Fn() -> String,
) -> Reading<Value> {
    Ok(match kind {
        ValueType::U8 => u8::from_le_bytes(cursor.array(what)?).into(),
        ValueType::I8 => i8::from_le_bytes(cursor.array(what)?).into(),
        ValueType::U16 => u16::from_le_bytes(cursor.array(what)?).into(),
        ValueType::I16 => i16::from_le_bytes(cursor.array(what)?).into(),
        ValueType::U32 => cursor.u32(what)?.into(),
        ValueType::I32 => i32::from_le_bytes(cursor.array(what)?).into(),
        ValueType::F32 => f64::from(f32::from_le_bytes(cursor.array(what)?)).into(),
        ValueType::Bool => (cursor.array(what)? != [0]).into(),
        ValueType::String | ValueType::Array => {
            String::from_utf8_lossy(string(cursor, what)?).into()
        }
        ValueType::U64 => cursor.u64(what)?.into(),
        ValueType::I64 => i64::from_le_bytes(cursor.array(what)?).into(),
        ValueType::F64 => f64::from_le_bytes(cursor.array(what)?).into(),
    })
}
