//! An index's `weight_map`: which shard holds which tensor. It is parsed as a stream, so that an
//! index of millions of tensors takes no more memory than their names.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::object::each_entry;
use crate::catalog::container::not_json;
use crate::catalog::store::MAX_INDEX;
use crate::catalog::{Findings, Store, natural};
use crate::error::{Error, Location, Result};
use crate::reason::{Reason, reason};

/// A shard's name from the index, or why it is refused.
type ShardName = std::result::Result<String, Reason>;

/// Tensor → shard.
#[derive(Default)]
pub(super) struct WeightMap {
    /// The shards that are named, each once, in natural order; refused names last.
    pub shards: Vec<ShardName>,
    /// Tensor → index into `shards`. If a name appears twice, the last entry counts.
    pub tensors: BTreeMap<Arc<str>, u32>,
}

impl WeightMap {
    /// Reads the index of that name.
    ///
    /// # Errors
    /// It cannot be read, is not JSON, or has no `weight_map`, or an empty one.
    pub fn read(store: &dyn Store, name: &str) -> Result<WeightMap> {
        #[derive(Deserialize)]
        struct Index {
            weight_map: WeightMap,
        }
        let bytes = store.read_small(name, MAX_INDEX)?;
        let at = store.location().join(name);
        let problem = match serde_json::from_slice::<Index>(&bytes) {
            Ok(index) if index.weight_map.tensors.is_empty() => {
                "its 'weight_map' is empty: it names no tensor and no shard; download it again, or mount a shard by its path".into()
            }
            Ok(index) => return Ok(index.weight_map.in_order()),
            Err(e) if e.is_data() => format!("has no 'weight_map' object: {e}"),
            Err(e) => return Err(not_json(&at, &bytes, &e)),
        };
        Err(Error::invalid(at, problem))
    }

    /// Reports the tensors whose shard's name is refused; the index is at `at`.
    ///
    /// # Errors
    /// The first of them, while a model is opened.
    pub fn check_names(&self, at: &Location, findings: &mut Findings) -> Result<()> {
        for (tensor, &shard) in &self.tensors {
            if let Err(problem) = &self.shards[shard as usize] {
                findings.tensor(at, tensor, problem)?;
            }
        }
        Ok(())
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
        let mut map = WeightMap::default();
        let mut place: HashMap<ShardName, u32> = HashMap::new();
        let expected = "an object of tensor names and shard names";
        each_entry(d, expected, |tensor: String, shard: Value| {
            let next = map.shards.len() as u32;
            let index = *place.entry(plain_name(shard)).or_insert_with_key(|name| {
                map.shards.push(name.clone());
                next
            });
            map.tensors.insert(tensor.into(), index);
        })?;
        Ok(map)
    }
}

/// A shard's name, which must be that of a file in the model's own directory.
fn plain_name(shard: Value) -> ShardName {
    let Value::String(name) = shard else {
        return Err(reason!("its shard is {shard}, not a file name"));
    };
    if name.is_empty() || name.contains(['/', '\\', '\0']) || name == "." || name == ".." {
        return Err(reason!(
            "shard name {name:?} is not a plain file name in the model directory; refused"
        ));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{MemoryStore, OpenOptions};

    #[test]
    fn shards_are_in_natural_order_and_the_last_of_two_entries_counts() {
        let text =
            r#"{"a": {}, "weight_map": {"t": "10", "u": "2", "v": "x/y", "t": "2", "w": "10"}}"#;
        let store = MemoryStore::new(&[("i.json", text.as_bytes())]);
        let map = WeightMap::read(&*store, "i.json").unwrap();
        let names: Vec<_> = map.shards.iter().flatten().collect();
        assert_eq!(names, ["2", "10"]);
        let of = |name: &str| map.tensors[name];
        assert_eq!(["t", "u", "w", "v"].map(of), [0, 0, 1, 2]);
        let at = store.location().join("i.json");
        let mut first = Findings::first(OpenOptions::default());
        let error = map.check_names(&at, &mut first).unwrap_err().to_string();
        assert!(
            error.contains("tensor 'v'") && error.contains("\"x/y\""),
            "{error}"
        );
        assert!(map.check_names(&at, &mut Findings::all()).is_ok());
    }
}
