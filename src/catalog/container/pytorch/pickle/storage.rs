//! Persistent ids: references to storages, and to classes whose source an old file has.

use super::arena::{Arena, Node};
use super::machine::Machine;
use super::names::{self, Meaning};
use super::{Ref, Storage, Wrong};
use crate::catalog::container::pytorch::describe::{cut, shown};
use crate::catalog::container::pytorch::dtype::TorchDtype;

/// The most bytes of a key. torch's keys are numbers; a key is copied and compared for each tensor.
const MAX_KEY: u64 = 256;

/// The place of no dtype.
const UNTYPED: u32 = u32::MAX;

/// The storage whose words are at a place.
pub(super) fn get(arena: &Arena, at: u32) -> Storage<'_> {
    let [
        class,
        key,
        location,
        low,
        high,
        windowed,
        from_low,
        from_high,
        len_low,
        len_high,
    ] = arena.words(at);
    let from = join(from_low, from_high);
    Storage {
        dtype: TorchDtype::at(class as usize),
        key: match arena.node(Ref(key)) {
            Node::Text(span) => arena.text(span).as_bytes(),
            Node::Bytes(span) => arena.bytes(span),
            _ => &[],
        },
        location: match arena.node(Ref(location)) {
            Node::Text(span) => cut(arena.text(span)),
            _ => "unknown",
        },
        elements: join(low, high),
        window: (windowed != 0).then(|| (from, join(len_low, len_high))),
    }
}

fn join(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

fn split(n: u64) -> [u32; 2] {
    [n as u32, (n >> 32) as u32]
}

impl Machine<'_, '_> {
    /// What a persistent id stands for.
    pub(super) fn persistent(&mut self, id: Ref) -> Result<Ref, Wrong> {
        let not_one = |machine: &Machine<'_, '_>| {
            let what = machine.arena.describe(id);
            Wrong::Damaged(format!("has {what} as a persistent id, not a storage"))
        };
        let Node::Tuple(run) = self.arena.node(id) else {
            return Err(not_one(self));
        };
        let items = self.arena.run(run);
        let (kind, class) = match items {
            &[kind, class, ..] => (self.arena.node(kind), class),
            _ => return Err(not_one(self)),
        };
        let Node::Text(kind) = kind else {
            return Err(not_one(self));
        };
        match (self.arena.text(kind), items) {
            ("storage", &[_, class, key, location, elements]) => {
                self.storage(class, key, location, elements, None)
            }
            ("storage", &[_, class, key, location, elements, window]) => {
                self.storage(class, key, location, elements, Some(window))
            }
            ("module", _) if matches!(self.arena.node(class), Node::Name(..)) => Ok(class),
            ("storage" | "module", _) => Err(Wrong::Damaged(format!(
                "has a persistent id of {} parts that is not a storage",
                items.len()
            ))),
            (other, _) => Err(Wrong::Damaged(format!(
                "has a persistent id of the kind '{}', not a storage",
                shown(other)
            ))),
        }
    }

    fn storage(
        &mut self,
        class: Ref,
        key: Ref,
        location: Ref,
        elements: Ref,
        window: Option<Ref>,
    ) -> Result<Ref, Wrong> {
        let arena = &self.arena;
        let wrong = |part: &str, value: Ref| {
            let what = arena.describe(value);
            Wrong::Damaged(format!("refers to a storage whose {part} is {what}"))
        };
        let meaning = match arena.node(class) {
            Node::Name(place, _) => names::at(place).map(|known| known.meaning),
            _ => None,
        };
        let Some(Meaning::StorageClass(dtype)) = meaning else {
            let what = arena.describe(class);
            return Err(Wrong::Damaged(format!(
                "refers to a storage of the class {what}, which PyTorch does not have"
            )));
        };
        let length = match arena.node(key) {
            Node::Text(span) | Node::Bytes(span) => span.len() as u64,
            Node::Skipped(length, _) => length.into(),
            _ => return Err(wrong("key", key)),
        };
        if length > MAX_KEY {
            return Err(Wrong::Damaged(format!(
                "refers to a storage whose key has {length} bytes, at most {MAX_KEY} are read"
            )));
        }
        let number = |part: &str, value: Ref| match arena.node(value) {
            Node::Int(n) if n >= 0 => Ok(n as u64),
            _ => Err(wrong(part, value)),
        };
        let [low, high] = split(number("number of elements", elements)?);
        let window = match window.map(|window| (window, arena.node(window))) {
            None | Some((_, Node::None)) => None,
            Some((_, Node::Tuple(run))) if run.len() == 3 => match *arena.run(run) {
                [_, from, len] => Some((number("window", from)?, number("window", len)?)),
                _ => None,
            },
            Some((window, _)) => return Err(wrong("window", window)),
        };
        let (from, len) = window.unwrap_or_default();
        let ([from_low, from_high], [len_low, len_high]) = (split(from), split(len));
        Ok(self.arena.add_storage([
            dtype.map_or(UNTYPED, |dtype| dtype.place() as u32),
            key.0,
            location.0,
            low,
            high,
            window.is_some().into(),
            from_low,
            from_high,
            len_low,
            len_high,
        ])?)
    }
}
