//! A header's JSON, including the keys that appear twice, which a plain map would lose.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde_json::{Map, Value};

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
