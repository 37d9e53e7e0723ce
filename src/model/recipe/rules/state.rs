//! The names that there are after some of the rules, and what each is.

use std::collections::HashMap;
use std::sync::Arc;

use super::super::super::TensorId;
use super::super::ops;
use super::super::sources::Sources;
use super::super::tensor::Derived;
use super::Outcome;
use crate::catalog::natural;

/// What a name is.
pub(super) enum What {
    /// A tensor of the model that the rules start with; as F32 if `values`.
    Untouched { id: TensorId, values: bool },
    /// A rule made it. Its label is left empty: it follows from the name.
    Made(Derived),
    /// What it is cannot be told because of a mistake that is reported already.
    Unknown,
}

/// What became of a name: it is there, or a rule took or dropped it.
pub(super) struct Slot {
    pub name: Arc<str>,
    pub what: What,
    /// The rule that made it, if the model did not have it, and the first tensor of the match.
    pub made_by: Option<(usize, u32)>,
    /// The rule that took or dropped it.
    pub gone: Option<Gone>,
}

/// How a name ceased to be there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gone {
    /// A rule with `to` took it.
    Taken(usize),
    /// `drop` or `keep` of that rule.
    Dropped(usize),
}

/// All names, at some point between the rules.
pub(super) struct State {
    slots: Vec<Slot>,
    /// The last slot of each name.
    by_name: HashMap<Arc<str>, u32>,
    /// Slots of the names that are there, in the order in which they came.
    live: Vec<u32>,
    /// Whether there may be names besides these, because a mistake kept a rule from saying which.
    pub is_unsure: bool,
}

impl State {
    /// The names that the rules start with: tensors of the first model, each with whether its values are meant.
    pub fn new<'n>(start: impl Iterator<Item = (&'n str, TensorId, bool)>) -> State {
        let slot = |(name, id, values): (&str, TensorId, bool)| Slot {
            name: name.into(),
            what: What::Untouched { id, values },
            made_by: None,
            gone: None,
        };
        let slots: Vec<Slot> = start.map(slot).collect();
        let names = slots.iter().map(|slot| slot.name.clone());
        State {
            by_name: names.zip(0..).collect(),
            live: (0..).take(slots.len()).collect(),
            slots,
            is_unsure: false,
        }
    }

    /// The names that are there, in no order.
    pub fn live(&self) -> impl Iterator<Item = (u32, &Slot)> + Clone {
        let slot = |&index: &u32| Some((index, self.slots.get(index as usize)?));
        self.live.iter().filter_map(slot)
    }

    /// The slot of a name that is there.
    pub fn find(&self, name: &str) -> Option<u32> {
        let index = *self.by_name.get(name)?;
        self.slot(index).gone.is_none().then_some(index)
    }

    /// What became of a name that is no longer there.
    pub fn gone(&self, name: &str) -> Option<Gone> {
        self.slot(*self.by_name.get(name)?).gone
    }

    /// A slot by its index, which this state gave.
    pub fn slot(&self, index: u32) -> &Slot {
        &self.slots[index as usize]
    }

    /// The tensor of a slot; `None` if a mistake, which is reported already, keeps it from being known.
    pub fn tensor(&self, index: u32, sources: &Sources) -> Option<Derived> {
        let slot = self.slot(index);
        match &slot.what {
            What::Untouched { id, values } => untouched(sources, *id, *values),
            What::Made(tensor) => Some(Derived {
                label: format!("'{}'", slot.name).into(),
                ..tensor.clone()
            }),
            What::Unknown => None,
        }
    }

    /// What the rules left. Moved, because it may be a million tensors.
    pub fn finish(self, sources: &Sources) -> Vec<Outcome> {
        drop(self.by_name);
        let mut outcomes = Vec::with_capacity(self.live.len());
        outcomes.extend(self.slots.into_iter().filter_map(|slot| {
            let tensor = match slot.what {
                What::Untouched { id, values } => untouched(sources, id, values)?,
                What::Made(tensor) => tensor,
                What::Unknown => return None,
            };
            let name = slot.name;
            Some(Outcome { name, tensor })
        }));
        outcomes
    }

    /// Takes names away. Their slots remember it.
    pub fn remove(&mut self, indexes: &[u32], how: Gone) {
        if indexes.is_empty() {
            return;
        }
        for &index in indexes {
            let slot = &mut self.slots[index as usize];
            slot.gone = Some(how);
            slot.what = What::Unknown;
        }
        let slots = &self.slots;
        self.live.retain(|&i| slots[i as usize].gone.is_none());
    }

    /// Forgets what names are: a mistake that is reported keeps us from knowing.
    pub fn doubt(&mut self, indexes: &[u32]) {
        for &index in indexes {
            self.slots[index as usize].what = What::Unknown;
            self.is_unsure = true;
        }
    }

    /// Adds a name.
    ///
    /// # Errors
    /// The slot that has this name.
    pub fn add(&mut self, name: Arc<str>, what: What, rule: usize, from: u32) -> Result<(), u32> {
        if let Some(there) = self.find(&name) {
            return Err(there);
        }
        let index = self.slots.len() as u32;
        self.by_name.insert(name.clone(), index);
        self.live.push(index);
        self.slots.push(Slot {
            name,
            what,
            made_by: Some((rule, from)),
            gone: None,
        });
        Ok(())
    }

    /// Sorts by the names of slots, in natural order. Names mostly come so, and the sort makes use of that.
    pub fn sort<T>(&self, items: &mut [T], slot: impl Fn(&T) -> u32) {
        items.sort_by(|a, b| natural(&self.slot(slot(a)).name, &self.slot(slot(b)).name));
    }
}

/// A tensor of the model that the rules start with.
fn untouched(sources: &Sources, id: TensorId, values: bool) -> Option<Derived> {
    let leaf = sources.leaf(0, id)?;
    let tensor = match values {
        true => ops::values(&leaf).ok()?,
        false => return Some(leaf),
    };
    let label = leaf.label;
    Some(Derived { label, ..tensor })
}
