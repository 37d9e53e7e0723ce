//! Keys that can be part of a tensor's name.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};

use super::super::describe::short;
use super::super::pickle::{Pickle, Ref, Value};

/// The most bytes of a key that is not text. It is checked to be UTF-8 each time it is looked at.
const MAX_BYTES: usize = 4 << 10;

/// A key of a mapping, or a place in a list or tuple.
#[derive(Debug, Clone, Copy)]
pub(in super::super) enum Key<'p> {
    Text(&'p str),
    Bytes(&'p str),
    Int(i64),
    Bool(bool),
    None,
}

impl<'p> Key<'p> {
    /// The key that a value is; `None` if it has no place in a name.
    pub fn of(pickle: &'p Pickle, value: Ref) -> Option<Key<'p>> {
        Some(match pickle.get(value) {
            Value::Text(text) => Key::Text(text),
            Value::Bytes(bytes) if bytes.len() <= MAX_BYTES => {
                Key::Bytes(std::str::from_utf8(bytes).ok()?)
            }
            Value::Int(n) => Key::Int(n),
            Value::Bool(b) => Key::Bool(b),
            Value::None => Key::None,
            _ => return None,
        })
    }

    /// The place in a list or tuple.
    pub fn place(place: usize) -> Key<'static> {
        Key::Int(i64::try_from(place).unwrap_or(i64::MAX))
    }

    /// As part of a name.
    pub fn name(&self) -> Cow<'p, str> {
        match *self {
            Key::Text(text) | Key::Bytes(text) => text.into(),
            Key::Int(n) => n.to_string().into(),
            Key::Bool(true) => "True".into(),
            Key::Bool(false) => "False".into(),
            Key::None => "None".into(),
        }
    }

    /// The number that Python takes it for, if any: `True` and 1 are one key of a dict.
    fn number(&self) -> Option<i64> {
        match *self {
            Key::Int(n) => Some(n),
            Key::Bool(b) => Some(i64::from(b)),
            Key::Text(_) | Key::Bytes(_) | Key::None => None,
        }
    }
}

/// Keys are equal if they are one key of a Python dict.
impl PartialEq for Key<'_> {
    fn eq(&self, other: &Key<'_>) -> bool {
        match (self, other) {
            (Key::Text(a), Key::Text(b)) | (Key::Bytes(a), Key::Bytes(b)) => a == b,
            (Key::None, Key::None) => true,
            (a, b) => a.number().is_some() && a.number() == b.number(),
        }
    }
}

impl Eq for Key<'_> {}

impl Hash for Key<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        match self {
            Key::Text(text) | Key::Bytes(text) => text.hash(state),
            Key::Int(_) | Key::Bool(_) => self.number().hash(state),
            Key::None => 0u8.hash(state),
        }
    }
}

/// As Python would write the access: `['a.b']`, `[0]`.
impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Text(text) => write!(f, "['{}']", short(text)),
            Key::Bytes(text) => write!(f, "[b'{}']", short(text)),
            Key::Int(_) | Key::Bool(_) | Key::None => write!(f, "[{}]", self.name()),
        }
    }
}
