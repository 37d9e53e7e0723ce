//! A compact table of many names: one string, and a hash table that finds a name's number.

use hashbrown::{DefaultHashBuilder, HashTable};
use std::hash::BuildHasher;

/// Distinct names, numbered from 0 in the order in which they were added.
///
/// A name costs its own bytes and about 14 more. Hashes are seeded anew in every process.
#[derive(Clone, Default)]
pub struct NameTable {
    text: String,
    /// Where each name ends in `text`; it begins where the one before ends.
    ends: Vec<usize>,
    numbers: HashTable<u32>,
    hasher: DefaultHashBuilder,
}

impl NameTable {
    /// With room for `names` names of `bytes` bytes in all.
    pub fn with_capacity(names: usize, bytes: usize) -> NameTable {
        NameTable {
            text: String::with_capacity(bytes),
            ends: Vec::with_capacity(names),
            numbers: HashTable::with_capacity(names),
            hasher: DefaultHashBuilder::default(),
        }
    }

    /// How many names there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Adds a name and returns its number.
    ///
    /// # Errors
    /// The number of the name, if it was already added.
    pub fn add(&mut self, name: &str) -> Result<u32, u32> {
        let hash = self.hasher.hash_one(name);
        let (text, ends) = (&self.text, &self.ends);
        if let Some(&first) = self.numbers.find(hash, |&i| text_of(text, ends, i) == name) {
            return Err(first);
        }
        let number = self.ends.len() as u32;
        self.text.push_str(name);
        self.ends.push(self.text.len());
        let (text, ends, hasher) = (&self.text, &self.ends, &self.hasher);
        self.numbers
            .insert_unique(hash, number, |&i| hasher.hash_one(text_of(text, ends, i)));
        Ok(number)
    }

    /// The name with that number, which must be less than [`NameTable::len`].
    pub fn get(&self, number: u32) -> &str {
        text_of(&self.text, &self.ends, number)
    }

    /// The number of a name.
    pub fn find(&self, name: &str) -> Option<u32> {
        let hash = self.hasher.hash_one(name);
        self.numbers.find(hash, |&i| self.get(i) == name).copied()
    }

    /// The names, in the order of their numbers.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        (0..self.len() as u32).map(|i| self.get(i))
    }
}

fn text_of<'a>(text: &'a str, ends: &[usize], number: u32) -> &'a str {
    let i = number as usize;
    let start = i.checked_sub(1).map_or(0, |before| ends[before]);
    &text[start..ends[i]]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_numbered_and_found() {
        let mut table = NameTable::with_capacity(2, 3);
        let names = ["a", "", "model.layers.0", "\u{e9}"];
        for (i, name) in names.iter().enumerate() {
            assert_eq!(table.add(name), Ok(i as u32));
        }
        assert_eq!(table.add(""), Err(1));
        assert_eq!(table.len(), 4);
        assert!(table.iter().eq(names));
        for (i, name) in names.iter().enumerate() {
            assert_eq!(table.find(name), Some(i as u32));
        }
        assert_eq!(table.find("model"), None);
        for i in 0..10_000u32 {
            assert_eq!(table.add(&i.to_string()), Ok(i + 4));
        }
        assert_eq!(table.find("9999").map(|i| table.get(i)), Some("9999"));
    }
}
