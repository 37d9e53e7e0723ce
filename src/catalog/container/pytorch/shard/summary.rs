//! The `checkpoint` object of `model.json`: what the file holds besides its model.

use serde_json::{Map, Value as Json, json};

use super::super::describe::short;
use super::super::pickle::{Ref, Value};
use super::super::selection::{Contents, Model};
use crate::text::elide;

/// The most entries of each part of the object.
const MAX_ENTRIES: usize = 1000;
/// The longest text of a value, in bytes.
const MAX_TEXT: usize = 64 << 10;
/// The longest path, in characters.
const MAX_PATH: usize = 1000;
/// The most text of all values together, in bytes.
const MAX_TEXTS: usize = 1 << 20;

/// The keys that a checkpoint adds to `model.json`.
pub(super) fn of(contents: &Contents<'_>, root: Ref, model: &Model) -> Map<String, Json> {
    let globals = contents.pickle.unknown_names().take(MAX_ENTRIES).map(short);
    let checkpoint = json!({
        "key": model.key,
        "values": values(contents, root),
        "left_out": left_out(model),
        "globals": globals.collect::<Vec<_>>(),
    });
    Map::from_iter([("checkpoint".to_string(), checkpoint)])
}

/// The root's own text, numbers, bools and None.
fn values(contents: &Contents<'_>, root: Ref) -> Map<String, Json> {
    let mut values = Map::new();
    let mut text = 0;
    if !contents.is_mapping(root) {
        return values;
    }
    for (_, key, value) in contents.named(root) {
        let value = match contents.pickle.get(value) {
            Value::None => Json::Null,
            Value::Bool(b) => b.into(),
            Value::Int(n) => n.into(),
            // JSON has no infinity and no NaN.
            Value::Float(x) if x.is_nan() => "nan".into(),
            Value::Float(x) if x.is_infinite() => if x > 0.0 { "inf" } else { "-inf" }.into(),
            Value::Float(x) => x.into(),
            Value::Text(value) if value.len() <= MAX_TEXT => {
                text += value.len();
                value.into()
            }
            _ => continue,
        };
        let key = key.name();
        text += key.len();
        if values.len() == MAX_ENTRIES || text > MAX_TEXTS {
            break;
        }
        values.insert(key.into_owned(), value);
    }
    values
}

/// The entries with tensors that are not part of the model.
fn left_out(model: &Model) -> Map<String, Json> {
    let entries = model.left_out.iter();
    entries
        .map(|entry| {
            let held = entry.held;
            let held = json!({"tensors": held.tensors, "bytes": held.bytes});
            (elide(&entry.path, MAX_PATH), held)
        })
        .collect()
}
