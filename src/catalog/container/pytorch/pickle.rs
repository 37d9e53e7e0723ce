//! The pickle machine: runs a pickle's opcodes over inert values. No opcode looks up, imports,
//! constructs or calls anything; what Python would call is a name and its arguments, kept as data, and
//! a closed table (`names`) has the names that mean a tensor.
//!
//! Values live in one arena and refer to each other by place, so that nothing is ever copied: memory
//! and time are linear in the pickle's length, and a value may contain itself.

mod arena;
mod budget;
mod calls;
mod input;
mod machine;
mod memo;
mod names;
mod opcode;
mod payload;
mod rebuild;
mod scalars;
mod stack;
mod storage;
#[cfg(test)]
mod tests;
mod text;

use arena::{Arena, Node};
pub(super) use budget::Budget;
use budget::Exceeds;
use input::Input;
use machine::Machine;

use super::dtype::TorchDtype;
use crate::catalog;
use crate::catalog::container::cursor::Cursor;
use crate::error::{Error, Result};

/// The longest pickle that is read, in bytes.
pub(super) const MAX_PICKLE: u64 = 1 << 30;

/// A value, by its place in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Ref(pub u32);

/// What a pickle left behind.
#[derive(Default)]
pub(super) struct Pickle {
    root: Option<Ref>,
    arena: Arena,
}

/// A value.
pub(super) enum Value<'p> {
    None,
    Bool(bool),
    Int(i64),
    /// An integer beyond 64 bits.
    BigInt,
    Float(f64),
    Text(&'p str),
    Bytes(&'p [u8]),
    /// Text or bytes over the limit, skipped.
    Skipped,
    Tuple(&'p [Ref]),
    List(&'p [Ref]),
    Set(&'p [Ref]),
    /// A dict, an OrderedDict: pairs in the order of the pickle. A key may come twice; the last counts.
    Mapping(Pairs<'p>),
    /// `module.name`, as a class or a function is stored.
    Name,
    /// What a call of an unknown name would have made.
    Object(Object<'p>),
    Storage(Storage<'p>),
    Tensor(Rebuilt<'p>),
    /// Data of a kind that nothing here uses.
    Other,
}

/// The pairs of a mapping.
#[derive(Clone, Copy)]
pub(super) struct Pairs<'p>(&'p [Ref]);

impl Pairs<'_> {
    /// How many there are.
    pub fn len(self) -> usize {
        self.0.len() / 2
    }

    /// The pair at a place, at once.
    pub fn get(self, place: usize) -> Option<(Ref, Ref)> {
        let (pairs, _) = self.0.as_chunks();
        pairs.get(place).map(|&[key, value]| (key, value))
    }
}

impl<'p> IntoIterator for Pairs<'p> {
    type Item = (Ref, Ref);
    type IntoIter = std::iter::Map<std::slice::Iter<'p, [Ref; 2]>, fn(&[Ref; 2]) -> (Ref, Ref)>;

    fn into_iter(self) -> Self::IntoIter {
        let (pairs, _) = self.0.as_chunks();
        pairs.iter().map(|[key, value]| (*key, *value))
    }
}

/// An inert object.
#[derive(Clone, Copy)]
pub(super) struct Object<'p> {
    /// The class or function that would have been called.
    pub name: &'p str,
    /// Its arguments (a tuple, usually).
    pub arguments: Ref,
    /// What was appended, added or set.
    pub contents: &'p [Ref],
    /// The state that BUILD would have given it.
    pub state: Option<Ref>,
}

/// A reference to a storage: a persistent id.
#[derive(Clone, Copy)]
pub(super) struct Storage<'p> {
    /// The dtype of the reference; `None` for untyped storages, whose elements are bytes.
    pub dtype: Option<&'static TorchDtype>,
    /// Its key.
    pub key: &'p [u8],
    /// The device that it was on.
    pub location: &'p str,
    /// How many elements it has.
    pub elements: u64,
    /// A window of it, in elements: offset and length. Only older files have such references.
    pub window: Option<(u64, u64)>,
}

/// What a function of the closed table made of its arguments.
#[derive(Clone, Copy)]
pub(super) enum Rebuilt<'p> {
    /// A tensor in a storage.
    Strided(Strided<'p>),
    /// A tensor that is left out, and why.
    LeftOut(&'p str),
    /// A call with arguments that no writer makes: what is wrong with them.
    Malformed(&'p str),
}

/// A strided tensor as the pickle has it, unchecked.
#[derive(Clone, Copy)]
pub(super) struct Strided<'p> {
    /// A [`Value::Storage`].
    pub storage: Ref,
    /// In elements of `dtype`, or of the storage's own.
    pub offset: Ref,
    pub size: Ref,
    pub stride: Ref,
    /// The dtype argument of `_rebuild_tensor_v3`, which counts instead of the storage's.
    pub dtype: Option<&'static TorchDtype>,
    /// A class other than Tensor, Parameter and Buffer.
    pub class: Option<&'p str>,
}

/// How messages count the bytes of a pickle.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    /// Byte 0, counted from the start of the file.
    pub start: u64,
    /// What it is the first byte of: `data.pkl`, `the file`.
    pub of: &'a str,
}

/// What running a pickle gave. No problem names the file.
#[derive(Default)]
pub(super) struct Outcome {
    /// Its values, if all of it could be run, even if it is hostile.
    pub pickle: Option<Pickle>,
    /// What it would have executed, as problems that come before any others of the file.
    pub hostile: Vec<String>,
    /// What else is wrong with it.
    pub damage: Vec<String>,
}

/// What is wrong with the opcode that is being run.
enum Wrong {
    /// No writer makes this: what follows the opcode's name and byte.
    Damaged(String),
    /// stfs does not run this opcode: why.
    Refused(String),
    /// A limit.
    Exceeds(Exceeds),
    /// There is no opcode.
    NoStop,
    /// The bytes cannot be had: a sentence about the file.
    Unavailable(String),
    /// The file cannot be read.
    Failed(Error),
}

impl From<Exceeds> for Wrong {
    fn from(limit: Exceeds) -> Wrong {
        Wrong::Exceeds(limit)
    }
}

/// Runs the only pickle of a file. See [`read_within`].
///
/// # Errors
/// The file cannot be read, and nothing hostile was found before.
pub(super) fn read(cursor: &mut Cursor<'_>, place: Place<'_>) -> Result<Outcome> {
    read_within(cursor, place, &mut Budget::default())
}

/// Runs the pickle at the cursor, which ends up behind its STOP, and takes what it keeps from the budget
/// of the file.
///
/// # Errors
/// The file cannot be read, and nothing hostile was found before.
pub(super) fn read_within(
    cursor: &mut Cursor<'_>,
    place: Place<'_>,
    budget: &mut Budget,
) -> Result<Outcome> {
    cursor.limit(MAX_PICKLE, "its pickle");
    let mut machine = Machine::new(Input::new(cursor, place.start), *budget);
    let root = machine.run();
    *budget = machine.arena.left();
    let mut outcome = Outcome {
        hostile: machine.payloads.problems(place.of),
        ..Outcome::default()
    };
    match root {
        Ok(root) => {
            outcome.pickle = Some(Pickle {
                root: Some(root),
                arena: machine.arena,
            });
        }
        Err(Wrong::Failed(error)) if outcome.hostile.is_empty() => return Err(error),
        Err(wrong) => outcome.damage.push(machine.explain(wrong, place.of)),
    }
    Ok(outcome)
}

/// Every problem of the pickle that a file begins with, and of nothing else in the file. Each of its
/// values is looked at once. Empty if there are none.
///
/// # Errors
/// The file cannot be read.
pub fn check_pickle(file: &dyn catalog::Object) -> Result<Vec<String>> {
    let mut cursor = Cursor::new(file, 0, file.len());
    let place = Place {
        start: 0,
        of: "the file",
    };
    let outcome = read(&mut cursor, place)?;
    if let Some(pickle) = &outcome.pickle {
        let values = 0..u32::try_from(pickle.len()).unwrap_or(u32::MAX);
        for value in values.map(Ref) {
            let _ = pickle.get(value);
        }
        pickle.storages().for_each(drop);
        pickle.unknown_names().for_each(drop);
    }
    Ok([outcome.hostile, outcome.damage].concat())
}

impl Pickle {
    /// The value that the pickle stands for.
    pub fn root(&self) -> Option<Ref> {
        self.root
    }

    /// A value.
    pub fn get(&self, value: Ref) -> Value<'_> {
        let arena = &self.arena;
        match arena.node(value) {
            Node::None => Value::None,
            Node::Bool(is) => Value::Bool(is),
            Node::Int(n) => Value::Int(n),
            Node::BigInt => Value::BigInt,
            Node::Float(v) => Value::Float(v),
            Node::Text(span) => Value::Text(arena.text(span)),
            Node::Bytes(span) => Value::Bytes(arena.bytes(span)),
            Node::Skipped(..) => Value::Skipped,
            Node::Tuple(run) => Value::Tuple(arena.run(run)),
            Node::List(run) => Value::List(arena.run(run)),
            Node::Set(run) => Value::Set(arena.run(run)),
            Node::Mapping(run) => Value::Mapping(Pairs(arena.run(run))),
            Node::Name(..) => Value::Name,
            Node::Object(at) => Value::Object(arena.object(at)),
            Node::Storage(at) => Value::Storage(storage::get(arena, at)),
            Node::Tensor(at) => Value::Tensor(Rebuilt::Strided(rebuild::get(arena, at))),
            Node::LeftOut(why) => Value::Tensor(Rebuilt::LeftOut(arena.text(why))),
            Node::Malformed(why) => Value::Tensor(Rebuilt::Malformed(arena.text(why))),
            Node::Complex | Node::Encoded => Value::Other,
        }
    }

    /// A value, for a message: a number itself, the beginning of a text, otherwise what it is.
    pub fn describe(&self, value: Ref) -> String {
        self.arena.describe(value)
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.arena.nodes().len()
    }

    /// All references to storages, in the order of the pickle.
    pub fn storages(&self) -> impl Iterator<Item = Storage<'_>> {
        self.arena.nodes().filter_map(|node| match node {
            Node::Storage(at) => Some(storage::get(&self.arena, at)),
            _ => None,
        })
    }

    /// Names that were met and mean nothing here, sorted, each once.
    pub fn unknown_names(&self) -> impl Iterator<Item = &str> {
        let names = self.arena.nodes().filter_map(|node| match node {
            Node::Name(names::UNKNOWN, span) => Some(self.arena.text(span)),
            _ => None,
        });
        let mut names: Vec<&str> = names.collect();
        names.sort_unstable();
        names.dedup();
        names.into_iter()
    }
}
