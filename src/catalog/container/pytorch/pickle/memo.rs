//! The memo: values by number. Writers count up, so it is a list; a number far beyond its end is an
//! entry of a map, and costs no more than that.

use std::collections::HashMap;

use super::Ref;
use super::budget::Exceeds;

/// The most entries. Every writer has at most one for each value.
pub(super) const MAX_MEMO: usize = 1 << 24;

/// The longest list.
const MAX_LIST: usize = 1 << 25;
/// How many of its places the list may leave empty: so many, and fifteen of sixteen. Some tools take
/// away the entries that nothing gets.
const SLACK: usize = 1 << 16;
const SPARSE: usize = 16;
/// The most entries whose numbers are beyond the list.
const MAX_MAP: usize = 1 << 20;
/// In the list: nothing was put there.
const EMPTY: Ref = Ref(u32::MAX);

/// The memo of a machine.
#[derive(Default)]
pub(super) struct Memo {
    list: Vec<Ref>,
    /// How many entries of the list are not empty.
    listed: usize,
    map: HashMap<u32, Ref>,
}

impl Memo {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.listed + self.map.len()
    }

    /// The value under a number.
    #[inline]
    pub fn get(&self, number: u32) -> Option<Ref> {
        match self.list.get(number as usize) {
            Some(&value) if value != EMPTY => Some(value),
            _ if self.map.is_empty() => None,
            _ => self.map.get(&number).copied(),
        }
    }

    /// Puts a value under a number, in place of any other.
    #[inline]
    pub fn put(&mut self, number: u32, value: Ref) -> Result<(), Exceeds> {
        let place = number as usize;
        if let Some(entry) = self.list.get_mut(place)
            && *entry != EMPTY
        {
            *entry = value;
            return Ok(());
        }
        if !self.map.is_empty()
            && let Some(entry) = self.map.get_mut(&number)
        {
            *entry = value;
            return Ok(());
        }
        if self.len() >= MAX_MEMO {
            return Err(Exceeds {
                most: MAX_MEMO,
                of: "memo entries",
            });
        }
        if place < (self.listed * SPARSE + SLACK).min(MAX_LIST) {
            if place >= self.list.len() {
                self.list.resize(place + 1, EMPTY);
            }
            if let Some(entry) = self.list.get_mut(place) {
                *entry = value;
            }
            self.listed += 1;
        } else if self.map.len() >= MAX_MAP {
            return Err(Exceeds {
                most: MAX_MAP,
                of: "memo entries whose numbers are not in order",
            });
        } else {
            self.map.insert(number, value);
        }
        Ok(())
    }
}
