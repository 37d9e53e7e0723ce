//! Makes views from expressions. One evaluator serves a model and a recipe's sources: they differ in what
//! the leaves of an expression are.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use super::expr::{Computed, Operation};
use super::gather::Gather;
use super::{Expr, Join, Model, TensorId};
use crate::catalog::Extent;
use crate::error::{Error, Result};
use crate::patience;
use crate::reason::Missing;
use crate::view::{
    Cast, Concat, Gathered, Narrow, Negated, Operand, Parts, Product, Same, SharedView, Slice,
    StridedLayout, Swap, Zeros,
};

/// To make more views than this takes too long for a thread that others wait for.
const MANY: usize = 1000;

/// What the leaves of expressions are.
pub(super) trait Leaves {
    /// The bytes of [`Expr::Stored`], [`Expr::Layer`], [`Expr::Raw`] or [`Expr::Values`].
    fn leaf(&self, expr: &Expr) -> Result<SharedView>;
    /// Where the bytes of an expression are, if they are a stored tensor's own.
    fn extent(&self, expr: &Expr) -> Option<Extent>;
    /// Whether a file that the bytes come from was ever seen to change.
    fn was_changed(&self, expr: &Expr) -> bool;
}

/// The bytes that an expression defines; `name` is the tensor's, for errors.
pub(super) fn view(leaves: &dyn Leaves, expr: &Expr, name: &str) -> Result<SharedView> {
    let opening = Opening {
        leaves,
        name,
        made: RefCell::default(),
        count: Cell::new(0),
    };
    opening.view(expr)
}

/// The views of one expression while they are made.
struct Opening<'a> {
    leaves: &'a dyn Leaves,
    name: &'a str,
    /// What was made of a piece of the expression. One that occurs often (`it + it`) has one view: otherwise
    /// there would be as many as paths lead to it.
    made: RefCell<HashMap<Key, SharedView>>,
    /// Views that were made.
    count: Cell<usize>,
}

/// A piece of an expression.
#[derive(PartialEq, Eq, Hash)]
enum Key {
    Raw(TensorId),
    Values(TensorId),
    /// The address of what it is; the expression keeps it.
    At(usize),
}

impl Key {
    fn of(expr: &Expr) -> Option<Key> {
        Some(match expr {
            Expr::Raw(id) => Key::Raw(*id),
            Expr::Values(id) => Key::Values(*id),
            Expr::Join(join) => Key::At(Arc::as_ptr(join).addr()),
            Expr::Gather(gather) => Key::At(Arc::as_ptr(gather).addr()),
            Expr::Computed(computed) => Key::At(Arc::as_ptr(computed).addr()),
            Expr::Stored(_) | Expr::Layer(_) | Expr::Same(_) => return None,
            Expr::Zeros(_) | Expr::Number(_) => return None,
        })
    }
}

impl Opening<'_> {
    fn view(&self, expr: &Expr) -> Result<SharedView> {
        let key = Key::of(expr);
        if let Some(made) = key.as_ref().and_then(|key| self.made(key)) {
            return Ok(made);
        }
        let view = self.make(expr)?;
        if let Some(key) = key {
            self.made.borrow_mut().insert(key, view.clone());
        }
        Ok(view)
    }

    fn made(&self, key: &Key) -> Option<SharedView> {
        self.made.borrow().get(key).cloned()
    }

    fn make(&self, expr: &Expr) -> Result<SharedView> {
        self.count.set(self.count.get() + 1);
        if self.count.get() == MANY {
            patience::take_long()?;
        }
        match expr {
            Expr::Stored(_) | Expr::Layer(_) | Expr::Raw(_) | Expr::Values(_) => {
                self.leaves.leaf(expr)
            }
            Expr::Join(join) => self.joined(expr, join),
            Expr::Same(parts) => {
                let views = parts.iter().map(|part| self.view(part));
                let views = views.collect::<Result<_>>()?;
                Ok(Arc::new(Same::new(self.name.to_string(), views)))
            }
            Expr::Gather(gather) => gathered(self.view(&gather.of)?, gather, self.name),
            Expr::Zeros(len) => Ok(Zeros::view(*len)),
            Expr::Number(_) => Err(impossible(self.name)),
            Expr::Computed(computed) => self.computed(computed),
        }
    }

    /// Parts within each group, then the groups one after another.
    fn joined(&self, expr: &Expr, join: &Join) -> Result<SharedView> {
        let open = || {
            if join.parts.len() > MANY {
                patience::take_long()?;
            }
            self.open_parts(join).map(Arc::new)
        };
        let mut parts = join.open.get(open)?;
        // Those who had it open before a source changed may keep values that were computed then.
        if !parts.are_stored() && self.leaves.was_changed(expr) {
            parts = open()?;
        }
        let outer = if join.stacked { 1 } else { join.outer };
        Ok(Arc::new(Concat::of(parts, outer)))
    }

    /// The parts of a join, each by itself if they follow one another, else a group of a stack as one.
    fn open_parts(&self, join: &Join) -> Result<Parts> {
        let mut parts = Parts::default();
        for group in join.parts.chunks(join.group.max(1)) {
            if join.stacked && group.len() > 1 && join.outer > 1 {
                let all = group.iter().map(|part| self.view(part));
                let all = all.collect::<Result<Vec<_>>>()?;
                parts.push(Arc::new(Concat::new(all, join.outer)));
                continue;
            }
            for part in group {
                match self.leaves.extent(part) {
                    Some(extent) => parts.push_extent(extent),
                    None => parts.push(self.view(part)?),
                }
            }
        }
        parts.shrink();
        Ok(parts)
    }

    fn computed(&self, computed: &Computed) -> Result<SharedView> {
        let values = |expr: &Expr| self.view(expr);
        let operand = |expr: &Expr| match expr {
            Expr::Number(number) => Ok(Operand::Number(*number)),
            expr => values(expr).map(Operand::Values),
        };
        let view = match (&computed.operation, &*computed.operands) {
            (Operation::Widen(dtype), [of]) => Cast::view(values(of)?, dtype.clone()),
            (Operation::Narrow(dtype), [of]) => Narrow::view(values(of)?, *dtype),
            (Operation::Negate, [of]) => Some(Negated::view(values(of)?)),
            (Operation::Arithmetic(op), [a, b]) => op.view(operand(a)?, operand(b)?),
            (Operation::Product { m, k, n }, [a, b]) => {
                Product::view(values(a)?, values(b)?, *m, *k, *n)
            }
            _ => None,
        };
        view.ok_or_else(|| impossible(self.name))
    }
}

/// An expression that is not of such operands: it was checked when it was made.
fn impossible(name: &str) -> Error {
    let why = format!("'{name}' is defined by an expression that has no bytes");
    Error::other(libc::EIO, why)
}

/// Bytes in another order: a range of them as it is, anything else strip by strip.
fn gathered(of: SharedView, gather: &Gather, name: &str) -> Result<SharedView> {
    let strided = &gather.strided;
    if of.len() != strided.whole {
        let (needed, there) = (strided.whole, of.len());
        let why = format!("'{name}' is made of {needed} bytes, and there are {there}");
        return Err(Error::other(libc::EIO, why));
    }
    if let Some(range) = strided.range() {
        return Ok(Arc::new(Slice::new(
            of,
            range.start,
            range.end - range.start,
        )));
    }
    // A block may have any number of bytes; what is moved has 16 at the most.
    let element = 1 << strided.unit.trailing_zeros().min(4);
    let bytes = u64::from(element);
    let axes = strided.axes.iter();
    let inner = (strided.run / bytes, 1);
    let axes = axes.map(|axis| (axis.size, axis.stride / bytes));
    let (shape, strides): (Vec<u64>, Vec<u64>) = axes.chain([inner]).unzip();
    let layout = StridedLayout {
        element,
        shape: shape.into(),
        strides: strides.into(),
        swap: Swap::Nothing,
    };
    let source = Slice::new(of, strided.first, strided.whole - strided.first);
    Ok(Arc::new(Gathered::new(Arc::new(source), layout)))
}

impl Leaves for Model {
    fn leaf(&self, expr: &Expr) -> Result<SharedView> {
        match expr {
            Expr::Stored(index) => Ok(self.catalog.bytes(*index)),
            Expr::Layer(layer) => self.layer_view(*layer),
            Expr::Raw(id) => self.raw(*id),
            Expr::Values(id) => self
                .f32(*id)?
                .ok_or_else(|| Error::NotFound(format!("'{}' has no values", self.name(*id)))),
            _ => Err(impossible("")),
        }
    }

    fn extent(&self, expr: &Expr) -> Option<Extent> {
        match expr {
            Expr::Raw(id) if self.is_stored(*id) => self.catalog.extent(*id),
            _ => None,
        }
    }

    fn was_changed(&self, expr: &Expr) -> bool {
        let files = &self.catalog.files;
        // Which files they are takes longer to find out.
        files.iter().any(|file| file.was_changed())
            && self.files_of(expr).into_iter().any(|index| {
                let file = files.get(index as usize);
                file.is_some_and(|file| file.was_changed())
            })
    }
}

impl Model {
    /// The bytes of a tensor's `raw`: the stored ones, or those that its expression makes.
    ///
    /// # Errors
    /// There is no such tensor, or a layer's kernel cannot be set up.
    pub fn raw(&self, id: TensorId) -> Result<SharedView> {
        view(self, &self.described(id)?.raw, self.name(id))
    }

    /// The values as binary32, if the tensor has any.
    ///
    /// # Errors
    /// As [`Model::raw`].
    pub fn f32(&self, id: TensorId) -> Result<Option<SharedView>> {
        let tensor = self.described(id)?;
        match (&tensor.values, tensor.decoded()) {
            (None, _) => Ok(None),
            (Some(_), Some(decoded)) => view(self, decoded, self.name(id)).map(Some),
            (Some(_), None) => {
                let raw = view(self, &tensor.raw, self.name(id))?;
                Ok(Cast::view(raw, tensor.dtype.clone()))
            }
        }
    }

    fn layer_view(&self, index: u32) -> Result<SharedView> {
        let layer = self.settled_layer(index).map_err(|why| match why {
            Missing::Reason(why) => Error::NotFound(why.into()),
            Missing::Unread(why) => Error::other(libc::EIO, why),
        })?;
        let parts = self.recognized(index).raw_parts(&self.catalog);
        layer.kernel.view(&parts)
    }
}
