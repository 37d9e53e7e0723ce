//! The pickle machine: runs a pickle's opcodes over inert values. No opcode looks up, imports,
//! constructs or calls anything; what Python would call is a name and its arguments, kept as data, and
//! a closed table (`names`) tells which names mean a tensor.
//!
//! Values live in one arena and refer to each other by place, so that nothing is ever copied: memory
//! and time are linear in the pickle's length, and a value may contain itself.

use std::sync::Arc;

use super::dtype::TorchDtype;
use crate::reason::Reason;

/// A value, by its place in the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Ref(pub u32);

/// What a pickle left behind.
#[derive(Default)]
pub(super) struct Pickle {
    root: Option<Ref>,
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
    /// Text or bytes over the limit, skipped: their length.
    Skipped(u64),
    Tuple(&'p [Ref]),
    List(&'p [Ref]),
    Set(&'p [Ref]),
    /// A dict, an OrderedDict: pairs in the order of the pickle. A key may come twice; the last counts.
    Mapping(&'p [(Ref, Ref)]),
    /// `module.name`, as a class or a function is stored.
    Name(&'p str),
    /// What a call of an unknown name would have made.
    Object(&'p Object),
    Storage(&'p Storage),
    Tensor(&'p Rebuilt),
    /// Data of a kind that nothing here uses (a complex number): its type.
    Other(&'static str),
}

/// An inert object.
pub(super) struct Object {
    /// The class or function that would have been called.
    pub name: Arc<str>,
    /// Its arguments (a tuple, usually).
    pub arguments: Ref,
    /// What was appended, added or set.
    pub contents: Vec<Ref>,
    /// The state that BUILD would have given it.
    pub state: Option<Ref>,
}

/// A reference to a storage: a persistent id.
pub(super) struct Storage {
    /// The dtype of the reference; `None` for untyped storages, whose elements are bytes.
    pub dtype: Option<&'static TorchDtype>,
    /// Its key.
    pub key: Box<[u8]>,
    /// The device that it was on.
    pub location: Arc<str>,
    /// How many elements it has.
    pub elements: u64,
    /// A window of it, in elements: offset and length. Only older files have such references.
    pub window: Option<(u64, u64)>,
}

/// What a function of the closed table made of its arguments.
pub(super) enum Rebuilt {
    /// A tensor in a storage.
    Strided(Strided),
    /// A tensor that is left out, and why.
    LeftOut(Reason),
    /// A call with arguments that no writer makes.
    Malformed(Reason),
}

/// A strided tensor as the pickle has it, unchecked.
pub(super) struct Strided {
    /// A [`Value::Storage`].
    pub storage: Ref,
    /// In elements of `dtype`, or of the storage's own.
    pub offset: Ref,
    pub size: Ref,
    pub stride: Ref,
    /// The dtype argument of `_rebuild_tensor_v3`, which counts instead of the storage's.
    pub dtype: Option<&'static TorchDtype>,
    /// A class other than Tensor, Parameter and Buffer.
    pub class: Option<Arc<str>>,
}

impl Pickle {
    /// The value that the pickle stands for.
    pub fn root(&self) -> Option<Ref> {
        self.root
    }

    /// A value.
    pub fn get(&self, value: Ref) -> Value<'_> {
        let _ = value;
        Value::None
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        0
    }

    /// All references to storages.
    pub fn storages(&self) -> impl Iterator<Item = &Storage> {
        std::iter::empty()
    }

    /// Names that were met and mean nothing here, sorted, each once.
    pub fn unknown_names(&self) -> impl Iterator<Item = &str> {
        std::iter::empty()
    }
}
