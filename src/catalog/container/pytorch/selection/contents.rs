//! Mappings, lists and tuples as one kind of container: entries with a key and a value.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::super::pickle::{Pairs, Pickle, Ref, Value};
use super::key::Key;
use super::walk::max_visits;

/// The containers of a pickle.
pub(in super::super) struct Contents<'p> {
    pub pickle: &'p Pickle,
    /// For each mapping in which a key comes more than once: the places of the pairs that a later one
    /// replaces, in ascending order.
    replaced: HashMap<Ref, Box<[u32]>>,
}

/// An entry of a container.
#[derive(Clone, Copy)]
pub(in super::super) struct Entry<'p> {
    /// The key, or the value that stands in its place and cannot be part of a name.
    pub key: Result<Key<'p>, Ref>,
    pub value: Ref,
}

impl<'p> Contents<'p> {
    /// Looks for keys that come more than once. Linear in the size of the pickle.
    pub fn new(pickle: &'p Pickle) -> Contents<'p> {
        let mut replaced = HashMap::new();
        let mut hashes = Vec::new();
        let mut hasher = KeyHasher::default();
        // The walk refuses a mapping with more pairs than it may follow, whatever its keys are.
        let most = max_visits(pickle);
        for value in (0..pickle.len()).filter_map(|place| u32::try_from(place).ok()) {
            let value = Ref(value);
            if let Value::Mapping(pairs) = pickle.get(value)
                && (2..=most).contains(&(pairs.len() as u64))
            {
                hashes.clear();
                let keys = pairs.into_iter().zip(0u32..);
                hashes.extend(
                    keys.filter_map(|((key, _), place)| Some((hasher.hash(pickle, key)?, place))),
                );
                let twice = replaced_pairs(pickle, pairs, &mut hashes);
                if !twice.is_empty() {
                    replaced.insert(value, twice.into());
                }
            }
        }
        Contents { pickle, replaced }
    }

    /// Whether the value is a mapping.
    pub fn is_mapping(&self, value: Ref) -> bool {
        matches!(self.pickle.get(value), Value::Mapping(_))
    }

    /// How many places for entries the container has; `None` if the value is not a container.
    pub fn places(&self, container: Ref) -> Option<u32> {
        let places = match self.pickle.get(container) {
            Value::Mapping(pairs) => pairs.len(),
            Value::List(items) | Value::Tuple(items) => items.len(),
            _ => return None,
        };
        Some(u32::try_from(places).unwrap_or(u32::MAX))
    }

    /// The entry at a place; `None` if there is none, or a later one replaces it.
    pub fn entry(&self, container: Ref, place: u32) -> Option<Entry<'p>> {
        let at = place as usize;
        match self.pickle.get(container) {
            Value::Mapping(pairs) => {
                if self.is_replaced(container, place) {
                    return None;
                }
                let (key, value) = pairs.get(at)?;
                let key = Key::of(self.pickle, key).ok_or(key);
                Some(Entry { key, value })
            }
            Value::List(items) | Value::Tuple(items) => Some(Entry {
                key: Ok(Key::place(at)),
                value: *items.get(at)?,
            }),
            _ => None,
        }
    }

    /// All entries, with their places.
    pub fn entries(&self, container: Ref) -> impl Iterator<Item = (u32, Entry<'p>)> {
        let places = self.places(container).unwrap_or(0);
        (0..places).filter_map(move |place| Some((place, self.entry(container, place)?)))
    }

    /// All entries whose key can be part of a name, with their places.
    pub fn named(&self, container: Ref) -> impl Iterator<Item = (u32, Key<'p>, Ref)> {
        let entries = self.entries(container);
        entries.filter_map(|(place, entry)| Some((place, entry.key.ok()?, entry.value)))
    }

    fn is_replaced(&self, mapping: Ref, place: u32) -> bool {
        !self.replaced.is_empty()
            && self
                .replaced
                .get(&mapping)
                .is_some_and(|places| places.binary_search(&place).is_ok())
    }
}

/// Hashes keys. A long one is hashed once, however many mappings have it.
#[derive(Default)]
struct KeyHasher {
    state: RandomState,
    long: HashMap<Ref, u64>,
}

/// Keys from this many bytes on are long.
const LONG_KEY: usize = 64;

impl KeyHasher {
    /// The hash of a key; `None` if it can have no place in a name.
    fn hash(&mut self, pickle: &Pickle, value: Ref) -> Option<u64> {
        if let Some(hash) = self.long.get(&value) {
            return Some(*hash);
        }
        let key = Key::of(pickle, value)?;
        let hash = self.state.hash_one(key);
        if let Key::Text(text) | Key::Bytes(text) = key
            && text.len() >= LONG_KEY
        {
            self.long.insert(value, hash);
        }
        Some(hash)
    }
}

/// The places of pairs whose key comes again later, given the hash and the place of each pair. Sorted
/// hashes find them in a quarter of a hash map's memory.
fn replaced_pairs(pickle: &Pickle, pairs: Pairs<'_>, hashes: &mut [(u64, u32)]) -> Vec<u32> {
    hashes.sort_unstable();
    let key = |place: u32| pairs.get(place as usize).map(|(key, _)| key);
    let equal = |a: Option<Ref>, b: Option<Ref>| match (a, b) {
        // The same text any number of times is not compared with itself.
        (Some(a), Some(b)) => a == b || Key::of(pickle, a) == Key::of(pickle, b),
        _ => false,
    };
    let mut replaced = Vec::new();
    for alike in hashes.chunk_by(|(a, _), (b, _)| a == b) {
        // Keys with one hash are one key, but for collisions.
        let mut last: Vec<u32> = Vec::new();
        for &(_, place) in alike.iter().rev() {
            match last.iter().any(|&later| equal(key(later), key(place))) {
                true => replaced.push(place),
                false => last.push(place),
            }
        }
    }
    replaced.sort_unstable();
    replaced
}
