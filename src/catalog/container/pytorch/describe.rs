//! What the values of a pickle are, in words for messages.

use std::borrow::Cow;

use super::pickle::{Object, Pickle, Ref, Value};

/// The most characters of a text from a file that a message repeats.
const SHOWN: usize = 80;

/// Text from a file, cut to a length that a message can hold.
pub(super) fn short(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(SHOWN) {
        None => text.into(),
        Some((end, _)) => {
            let start = text.get(..end).unwrap_or_default();
            format!("{start}…").into()
        }
    }
}

/// What a value is: `a list`, `an object of the class models.yolo.Model`.
pub(super) fn kind(pickle: &Pickle, value: Ref) -> Cow<'static, str> {
    match pickle.get(value) {
        Value::None => "None".into(),
        Value::Bool(_) => "a bool".into(),
        Value::Int(_) | Value::BigInt => "an int".into(),
        Value::Float(_) => "a float".into(),
        Value::Text(_) => "text".into(),
        Value::Skipped(length) => format!("a string of {length} bytes").into(),
        Value::Bytes(_) => "bytes".into(),
        Value::Tuple(_) => "a tuple".into(),
        Value::List(_) => "a list".into(),
        Value::Set(_) => "a set".into(),
        Value::Mapping(_) => "a dict".into(),
        Value::Name(name) => format!("the name {}", short(name)).into(),
        Value::Object(object) => format!("an object of {}", class(pickle, &object)).into(),
        Value::Storage(_) => "a storage".into(),
        Value::Tensor(_) => "a tensor".into(),
        Value::Other(what) => what.into(),
    }
}

/// A number as a message shows it; any other value by its kind.
pub(super) fn number(pickle: &Pickle, value: Ref) -> Cow<'static, str> {
    match pickle.get(value) {
        Value::Int(n) => n.to_string().into(),
        Value::BigInt => "over 64 bits".into(),
        Value::Float(x) => format!("the float {x}").into(),
        _ => kind(pickle, value),
    }
}

/// `the class models.yolo.Model`: what an inert object would have been.
pub(super) fn class(pickle: &Pickle, object: &Object<'_>) -> String {
    // Protocols 0 and 1 have no opcode for a new object; they call this with the class.
    if object.name == "copyreg._reconstructor"
        && let Value::Tuple([first, ..]) = pickle.get(object.arguments)
        && let Value::Name(name) = pickle.get(*first)
    {
        return format!("the class {}", short(name));
    }
    format!("the class {}", short(object.name))
}
