//! The functions that rebuild tensors. Each makes a record of its arguments, unchecked, or states why
//! the tensor is left out.
//!
//! Source: `torch/_utils.py` and `torch/_tensor.py` of PyTorch 2.

use super::arena::{Arena, Node, Run};
use super::machine::Machine;
use super::names::{self, Meaning, Tensor};
use super::{Ref, Strided, Wrong};
use crate::catalog::container::pytorch::describe::{SHOWN, cut, shown};
use crate::catalog::container::pytorch::dtype::TorchDtype;

/// In a record: no dtype, no class.
const NOTHING: u32 = u32::MAX;
/// The most metadata of a tensor that is looked through. Writers know two kinds.
const MAX_METADATA: usize = 64;

/// The tensor whose words are at a place.
pub(super) fn get(arena: &Arena, at: u32) -> Strided<'_> {
    let [storage, offset, size, stride, dtype, class] = arena.words(at);
    Strided {
        storage: Ref(storage),
        offset: Ref(offset),
        size: Ref(size),
        stride: Ref(stride),
        dtype: TorchDtype::at(dtype as usize),
        class: match class {
            NOTHING => None,
            class => arena.name_of(Ref(class)).map(cut),
        },
    }
}

impl Machine<'_, '_> {
    /// A tensor that is left out.
    fn left_out(&mut self, why: &str) -> Result<Ref, Wrong> {
        let why = self.arena.keep_text(why)?;
        Ok(self.arena.add(Node::LeftOut(why))?)
    }

    /// Whether an unknown name is by its form a function that rebuilds tensors: one of a later PyTorch.
    pub(super) fn rebuilds(&self, callable: Ref) -> bool {
        let name = self.arena.name_of(callable);
        name.is_some_and(|name| name.starts_with("torch._utils._rebuild_"))
    }

    /// The tensor that such a function would rebuild.
    pub(super) fn unknown_rebuild(&mut self, function: Ref) -> Result<Ref, Wrong> {
        let name = shown(self.arena.name_of(function).unwrap_or_default());
        self.left_out(&format!("is rebuilt by {name}, which stfs does not know"))
    }

    /// A tensor with wrong arguments.
    pub(super) fn malformed(&mut self, what: &str) -> Result<Ref, Wrong> {
        let what = self.arena.keep_text(what)?;
        Ok(self.arena.add(Node::Malformed(what))?)
    }

    /// The argument at a place.
    pub(super) fn argument(&self, arguments: Run, place: usize) -> Option<Ref> {
        self.arena.run(arguments).get(place).copied()
    }

    fn dtype_of(&self, name: Ref) -> Option<&'static TorchDtype> {
        match self.arena.node(name) {
            Node::Name(place, _) => match names::at(place)?.meaning {
                Meaning::Dtype(dtype) => Some(dtype),
                _ => None,
            },
            _ => None,
        }
    }

    /// `_rebuild_tensor`, `_rebuild_tensor_v2`, `_rebuild_tensor_v3`.
    pub(super) fn strided(&mut self, version: u8, arguments: Run) -> Result<Ref, Wrong> {
        let (suffix, numbers, needs) = match version {
            1 => ("", [4, 4], "4"),
            2 => ("_v2", [6, 7], "6 or 7"),
            _ => ("_v3", [7, 8], "7 or 8"),
        };
        let items = self.arena.run(arguments);
        let (n, metadata) = (items.len(), usize::from(version) + 4);
        let &[storage, offset, size, stride, ..] = items else {
            return self.wrong_number(suffix, n, needs);
        };
        if !numbers.contains(&n) {
            return self.wrong_number(suffix, n, needs);
        }
        if !matches!(self.arena.node(storage), Node::Storage(_)) {
            let what = self.arena.describe(storage);
            return self.malformed(&format!("is rebuilt from {what}, not from a storage"));
        }
        let mut dtype = NOTHING;
        if version == 3
            && let Some(&name) = items.get(6)
        {
            match self.dtype_of(name) {
                Some(known) => dtype = known.place() as u32,
                None => {
                    let what = self.arena.describe(name);
                    let named = matches!(self.arena.node(name), Node::Name(..));
                    return match named {
                        true => self
                            .left_out(&format!("has the dtype {what}, which stfs does not know")),
                        false => self.malformed(&format!("has {what} as its dtype")),
                    };
                }
            }
        }
        if version > 1
            && let Some(&metadata) = items.get(metadata)
        {
            match self.lazy(metadata) {
                Err(()) => {
                    return self
                        .malformed(&format!("has more than {MAX_METADATA} entries of metadata"));
                }
                Ok((false, false)) => {}
                Ok((true, false)) => return self.left_out("is lazily conjugated (metadata conj)"),
                Ok((false, true)) => return self.left_out("is lazily negated (metadata neg)"),
                Ok((true, true)) => {
                    return self.left_out("is lazily conjugated and negated (metadata conj, neg)");
                }
            }
        }
        let words = [storage.0, offset.0, size.0, stride.0, dtype, NOTHING];
        let at = self.arena.record(words)?;
        Ok(self.arena.add(Node::Tensor(at))?)
    }

    fn wrong_number(&mut self, suffix: &str, n: usize, needs: &str) -> Result<Ref, Wrong> {
        self.malformed(&format!(
            "is rebuilt by _rebuild_tensor{suffix} with {n} arguments, which takes {needs}"
        ))
    }

    /// Whether metadata sets the bits for lazy conjugation and negation.
    fn lazy(&self, metadata: Ref) -> Result<(bool, bool), ()> {
        let Node::Mapping(run) = self.arena.node(metadata) else {
            return Ok((false, false));
        };
        if run.len() > 2 * MAX_METADATA {
            return Err(());
        }
        let (mut conj, mut neg) = (false, false);
        let (pairs, _) = self.arena.run(run).as_chunks();
        for &[key, value] in pairs {
            let Node::Text(key) = self.arena.node(key) else {
                continue;
            };
            let set = match self.arena.node(value) {
                Node::Bool(set) => set,
                Node::Int(n) => n != 0,
                Node::None => false,
                _ => true,
            };
            match self.arena.text(key) {
                "conj" => conj = set,
                "neg" => neg = set,
                _ => {}
            }
        }
        Ok((conj, neg))
    }

    /// `_rebuild_from_type_v2(f, class, args, state)`.
    pub(super) fn typed(&mut self, arguments: Run) -> Result<Ref, Wrong> {
        let &[f, class, args, ..] = self.arena.run(arguments) else {
            let n = arguments.len();
            return self.malformed(&format!(
                "is rebuilt by _rebuild_from_type_v2 with {n} arguments, which takes 4"
            ));
        };
        let meaning = match self.arena.node(f) {
            Node::Name(place, _) => names::at(place).map(|known| known.meaning),
            _ => None,
        };
        let items = match self.arena.node(args) {
            Node::Tuple(run) | Node::List(run) => run,
            _ => Run::default(),
        };
        self.note_call(f, items);
        let made = match meaning {
            Some(Meaning::Tensor(kind)) => self.tensor(kind, items)?,
            _ if self.arena.name_of(class).is_some() => return self.object(class, args),
            _ => return self.malformed("is rebuilt by a function that stfs does not know"),
        };
        let (Node::Tensor(at), Some(name)) = (self.arena.node(made), self.arena.name_of(class))
        else {
            return Ok(made);
        };
        if names::TENSOR_CLASSES.contains(&name) {
            return Ok(made);
        }
        let [storage, offset, size, stride, dtype, _] = self.arena.words(at);
        let words = [storage, offset, size, stride, dtype, class.0];
        let at = self.arena.record(words)?;
        Ok(self.arena.add(Node::Tensor(at))?)
    }

    /// What a function of tensors other than `_rebuild_from_type_v2` makes.
    pub(super) fn tensor(&mut self, kind: Tensor, arguments: Run) -> Result<Ref, Wrong> {
        let first = self.argument(arguments, 0);
        match kind {
            Tensor::Strided(version) => self.strided(version, arguments),
            Tensor::First => match first {
                Some(first) => Ok(first),
                None => self.malformed("is a parameter without data"),
            },
            Tensor::Device => self.device(arguments),
            Tensor::Sparse => {
                let layout = first.and_then(|layout| self.layout(layout));
                self.left_out(&match layout {
                    Some(layout) => format!("is sparse ({layout})"),
                    None => "is sparse".into(),
                })
            }
            Tensor::Quantized => {
                let why = self.quantized(arguments);
                self.left_out(&why)
            }
            Tensor::Nested => self.left_out("is nested"),
            Tensor::Meta => self.left_out("is on the meta device: has no data"),
            Tensor::Wrapper => {
                let class = first.and_then(|class| self.arena.name_of(class));
                let class = shown(class.unwrap_or("unknown"));
                self.left_out(&format!("is an object of the wrapper subclass {class}"))
            }
            Tensor::Numpy => self.left_out("is a numpy array of another device's data"),
        }
    }

    /// `_rebuild_device_tensor_from_cpu_tensor(data, dtype, device, requires_grad)`.
    fn device(&mut self, arguments: Run) -> Result<Ref, Wrong> {
        let &[data, dtype, ..] = self.arena.run(arguments) else {
            return self.malformed("is a device's tensor without data and dtype");
        };
        let stored = match self.arena.node(data) {
            Node::Tensor(at) => {
                let tensor = get(&self.arena, at);
                let storage = match self.arena.node(tensor.storage) {
                    Node::Storage(at) => super::storage::get(&self.arena, at).dtype,
                    _ => None,
                };
                tensor.dtype.or(storage)
            }
            Node::LeftOut(_) | Node::Malformed(_) => return Ok(data),
            _ => {
                let what = self.arena.describe(data);
                return self.malformed(&format!("is rebuilt from {what}, not from a tensor"));
            }
        };
        match (stored, self.dtype_of(dtype)) {
            (Some(stored), Some(dtype)) if std::ptr::eq(stored, dtype) => Ok(data),
            (stored, _) => {
                let stored = stored.map_or("bytes", |stored| stored.name);
                let dtype = self.arena.describe(dtype);
                self.left_out(&format!(
                    "is stored as {stored}, but is {dtype} on its device"
                ))
            }
        }
    }

    /// `COO` of `torch.sparse_coo`.
    fn layout(&self, layout: Ref) -> Option<String> {
        let name = match self.arena.node(layout) {
            Node::Object(at) => match self.arena.node(self.arena.object(at).arguments) {
                Node::Tuple(run) => match self.arena.node(self.argument(run, 0)?) {
                    Node::Text(name) => self.arena.text(name),
                    _ => return None,
                },
                _ => return None,
            },
            _ => self.arena.name_of(layout)?,
        };
        // A longer name is none of torch's layouts. It may be looked at for every tensor.
        if name.len() > SHOWN {
            return None;
        }
        let layout = name.rsplit(['.', '_']).next()?;
        Some(shown(layout).to_uppercase())
    }

    /// Why a quantized tensor is left out, with its dtype and scheme.
    fn quantized(&self, arguments: Run) -> String {
        let storage = self.argument(arguments, 0).map(|s| self.arena.node(s));
        let dtype = match storage {
            Some(Node::Storage(at)) => super::storage::get(&self.arena, at).dtype,
            _ => None,
        };
        let quantizer = self.argument(arguments, 4).map(|q| self.arena.node(q));
        let scheme = match quantizer {
            Some(Node::Tuple(run)) => self.argument(run, 0),
            _ => None,
        };
        let scheme = scheme.and_then(|scheme| self.arena.name_of(scheme));
        match (dtype, scheme) {
            (Some(dtype), Some(scheme)) => {
                let scheme = shown(scheme.strip_prefix("torch.").unwrap_or(scheme));
                format!("is quantized (torch.{}, {scheme})", dtype.name)
            }
            (Some(dtype), None) => format!("is quantized (torch.{})", dtype.name),
            _ => "is quantized".into(),
        }
    }
}
