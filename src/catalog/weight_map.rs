//! An index's `weight_map`: which shard holds which tensor. Read as a stream, so that an index of
//! millions of tensors takes the memory of their names and no more.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;

use super::{impostor, natural, small_file};
use crate::error::{Error, Result};

/// A shard's name as the index gives it, or why it is refused.
type ShardName = std::result::Result<String, String>;

/// Tensor → shard.
#[derive(Default)]
pub(super) struct WeightMap {
    /// The shards that are named, each once, in natural order; refused names last.
    pub shards: Vec<ShardName>,
    /// Tensor → index into `shards`. Of a name that is there twice the last entry counts.
    pub tensors: BTreeMap<Arc<str>, u32>,
}

impl WeightMap {
    /// Reads the index at `path`.
    ///
    /// # Errors
    /// It cannot be read, is no JSON, or has no `weight_map`, or an empty one.
    pub fn read(path: &Path) -> Result<WeightMap> {
        #[derive(Deserialize)]
        struct Index {
            weight_map: WeightMap,
        }
        let bytes = small_file::read(path, small_file::MAX_INDEX)?;
        let problem = match serde_json::from_slice::<Index>(&bytes) {
            Ok(index) if index.weight_map.tensors.is_empty() => {
                "its 'weight_map' is empty: it names no tensor and no shard; download it again, or mount a shard by its path".into()
            }
            Ok(index) => return Ok(index.weight_map.in_order()),
            Err(e) if e.is_data() => format!("has no 'weight_map' object: {e}"),
            Err(e) => return Err(impostor::not_json(path, &bytes, &e)),
        };
        Err(Error::invalid(path, problem))
    }

    /// The file names of the shards; the index is at `path`.
    ///
    /// # Errors
    /// The first tensor whose shard's name is refused.
    pub fn plain_names(&self, path: &Path) -> Result<Vec<&str>> {
        for (tensor, &shard) in &self.tensors {
            if let Err(problem) = &self.shards[shard as usize] {
                let problem = format!("tensor '{tensor}': {problem}");
                return Err(Error::invalid(path, problem));
            }
        }
        let plain = self.shards.iter().flatten();
        Ok(plain.map(String::as_str).collect())
    }

    /// Sorts the shards.
    fn in_order(mut self) -> WeightMap {
        let mut shards: Vec<(usize, ShardName)> = self.shards.into_iter().enumerate().collect();
        shards.sort_by(|(_, a), (_, b)| match (a, b) {
            (Ok(a), Ok(b)) => natural(a, b),
            _ => a.is_err().cmp(&b.is_err()),
        });
        let mut rank = vec![0; shards.len()];
        for (new, (old, _)) in shards.iter().enumerate() {
            rank[*old] = new as u32;
        }
        for shard in self.tensors.values_mut() {
            *shard = rank[*shard as usize];
        }
        self.shards = shards.into_iter().map(|(_, name)| name).collect();
        self
    }
}

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(d: D) -> std::result::Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = WeightMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensor names and shard names")
            }
            fn visit_map<A: MapAccess<'de>>(
                self,
                mut entries: A,
            ) -> std::result::Result<WeightMap, A::Error> {
                let mut map = WeightMap::default();
                let mut place: HashMap<ShardName, u32> = HashMap::new();
                while let Some((tensor, shard)) = entries.next_entry::<String, Value>()? {
                    let next = map.shards.len() as u32;
                    let name = plain_name(shard);
                    let index = *place.entry(name).or_insert_with_key(|name| {
                        map.shards.push(name.clone());
                        next
                    });
                    map.tensors.insert(tensor.into(), index);
                }
                Ok(map)
            }
        }
        d.deserialize_map(Entries)
    }
}

/// A shard's name, which must be that of a file in the model's own directory.
fn plain_name(shard: Value) -> ShardName {
    let Value::String(name) = shard else {
        return Err(format!("its shard is {shard}, not a file name"));
    };
    if name.is_empty() || name.contains(['/', '\\', '\0']) || name == "." || name == ".." {
        return Err(format!(
            "shard name {name:?} is not a plain file name in the model directory; refused"
        ));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_are_in_natural_order_and_the_last_of_two_entries_counts() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("i.json");
        let text =
            r#"{"a": {}, "weight_map": {"t": "10", "u": "2", "v": "x/y", "t": "2", "w": "10"}}"#;
        std::fs::write(&path, text).unwrap();
        let map = WeightMap::read(&path).unwrap();
        let names: Vec<_> = map.shards.iter().flatten().collect();
        assert_eq!(names, ["2", "10"]);
        let of = |name: &str| map.tensors[name];
        assert_eq!(["t", "u", "w", "v"].map(of), [0, 0, 1, 2]);
        let said = map.plain_names(&path).unwrap_err().to_string();
        assert!(
            said.contains("tensor 'v'") && said.contains("\"x/y\""),
            "{said}"
        );
    }
}
