//! A header's JSON, including the keys that appear twice, which a plain map would lose.

use std::collections::HashMap;

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::catalog::container::shards::each_entry;

/// A header's entries. If a key appears twice, the last one counts, as in the safetensors library.
/// The library still refuses the file if an earlier one is not a valid entry.
#[derive(Default)]
pub(super) struct Entries {
    /// The entries that count, in file order.
    pub last: Vec<(String, Entry)>,
    /// Earlier entries of the same names, which do not count.
    pub earlier: Vec<(String, Entry)>,
}

/// The value of a key of a header.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum Entry {
    Object(Fields),
    Other(Value),
}

impl Entry {
    /// Converts to plain JSON, with the last of several fields of the same name.
    pub fn into_value(self) -> Value {
        match self {
            Entry::Object(fields) => Value::Object(fields.last),
            Entry::Other(value) => value,
        }
    }

    /// One of a tensor's fields that appears twice, for which the library refuses the file.
    pub fn repeated(&self) -> Option<&str> {
        let Entry::Object(fields) = self else {
            return None;
        };
        let known = |k: &&String| matches!(&***k, "dtype" | "shape" | "data_offsets");
        fields.repeated.iter().find(known).map(String::as_str)
    }
}

/// An object's fields, the last of each name, and the names that appear more than once.
pub(super) struct Fields {
    last: Map<String, Value>,
    repeated: Vec<String>,
}

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let (mut last, mut repeated) = (Map::new(), Vec::new());
        each_entry(d, "a JSON object", |key: String, value: Value| {
            if last.insert(key.clone(), value).is_some() {
                repeated.push(key);
            }
        })?;
        Ok(Fields { last, repeated })
    }
}

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        let mut all = Entries::default();
        let mut place: HashMap<String, usize> = HashMap::new();
        each_entry(d, "a JSON object", |key, entry| match place.get(&key) {
            Some(&i) => {
                let earlier = std::mem::replace(&mut all.last[i].1, entry);
                all.earlier.push((key, earlier));
            }
            None => {
                place.insert(key.clone(), all.last.len());
                all.last.push((key, entry));
            }
        })?;
        Ok(all)
    }
}
