//! Makes the views of a tensor from its expression.

use std::sync::Arc;

use super::expr::JoinHead;
use super::{Expr, Join, Model, TensorId};
use crate::catalog::Extent;
use crate::dtype::{Dtype, ElementType};
use crate::error::{Error, Result};
use crate::patience;
use crate::reason::Missing;
use crate::view::{Cast, Concat, Parts, Same, SharedView};

/// To open more parts than this takes too long for a thread that others wait for.
const MANY: usize = 1000;

/// Lazy bytes with a dtype and a shape.
#[derive(Clone)]
pub struct Array {
    /// The elements, little-endian, C order.
    pub bytes: SharedView,
    /// Their type.
    pub dtype: ElementType,
    /// Sizes, outermost first; `[]` is a scalar.
    pub shape: Box<[u64]>,
}

impl Model {
    /// The bytes of a tensor's `raw`: the stored ones, or those that its expression makes.
    ///
    /// # Errors
    /// There is no such tensor, or a layer's kernel cannot be set up.
    pub fn raw(&self, id: TensorId) -> Result<SharedView> {
        Ok(self.raw_array(id)?.bytes)
    }

    /// The values as binary32, if the tensor has any.
    ///
    /// # Errors
    /// As [`Model::raw`].
    pub fn f32(&self, id: TensorId) -> Result<Option<SharedView>> {
        Ok(self.values_array(id)?.map(|values| values.bytes))
    }

    /// `raw`, with its dtype and shape.
    ///
    /// # Errors
    /// As [`Model::raw`].
    pub fn raw_array(&self, id: TensorId) -> Result<Array> {
        let tensor = self.described(id)?;
        self.array(&tensor.raw, self.name(id))
    }

    /// `f32`, with its shape, if the tensor has values.
    ///
    /// # Errors
    /// As [`Model::raw`].
    pub fn values_array(&self, id: TensorId) -> Result<Option<Array>> {
        let tensor = self.described(id)?;
        match (&tensor.values, tensor.decoded()) {
            (None, _) => Ok(None),
            (Some(_), Some(decoded)) => self.array(decoded, self.name(id)).map(Some),
            (Some(_), None) => Ok(widened(self.array(&tensor.raw, self.name(id))?)),
        }
    }

    /// The array that an expression defines; `name` is the tensor's, for errors.
    fn array(&self, expr: &Expr, name: &str) -> Result<Array> {
        match expr {
            Expr::Stored(index) => {
                let stored = self.catalog.tensors.get(*index);
                Ok(Array {
                    bytes: self.catalog.bytes(*index),
                    dtype: stored.dtype.clone(),
                    shape: stored.shape.into(),
                })
            }
            Expr::Layer(layer) => self.layer_array(*layer),
            Expr::Raw(id) => self.raw_array(*id),
            Expr::Values(id) => self
                .values_array(*id)?
                .ok_or_else(|| Error::NotFound(format!("'{}' has no values", self.name(*id)))),
            Expr::Join(join) => self.joined(expr, join, name),
            Expr::Same(parts) => self.same(parts, name),
        }
    }

    fn layer_array(&self, index: u32) -> Result<Array> {
        let layer = self.settled_layer(index).map_err(|why| match why {
            Missing::Reason(why) => Error::NotFound(why.into()),
            Missing::Unread(why) => Error::other(libc::EIO, why),
        })?;
        let parts = self.recognized(index).raw_parts(&self.catalog);
        Ok(Array {
            bytes: layer.kernel.view(&parts)?,
            dtype: Dtype::F32.into(),
            shape: layer.shape.clone(),
        })
    }

    /// Parts within each group, then the groups one after another.
    fn joined(&self, expr: &Expr, join: &Join, name: &str) -> Result<Array> {
        let open = || {
            if join.parts.len() > MANY {
                patience::take_long()?;
            }
            self.open_parts(join, name).map(Arc::new)
        };
        let mut parts = join.open.get(open)?;
        // Those who had it open before a source changed may keep values that were computed then.
        if !parts.are_stored() && self.was_changed(expr) {
            parts = open()?;
        }
        let head = join.head.get();
        let head = head.ok_or_else(|| Error::NotFound(format!("'{name}' has no parts")))?;
        Ok(Array {
            bytes: Arc::new(Concat::of(parts, head.outer)),
            dtype: head.dtype.clone(),
            shape: head.shape.clone(),
        })
    }

    /// Whether a file that the bytes come from was ever seen to change.
    fn was_changed(&self, expr: &Expr) -> bool {
        let files = &self.catalog.files;
        // Which files they are takes longer to find out.
        files.iter().any(|file| file.was_changed())
            && self.files_of(expr).into_iter().any(|index| {
                let file = files.get(index as usize);
                file.is_some_and(|file| file.was_changed())
            })
    }

    /// The parts of a join, each by itself if they follow one another, else a group of a stack as one.
    fn open_parts(&self, join: &Join, name: &str) -> Result<Parts> {
        let group = join.group.max(1);
        let first = join.parts.iter().take(group);
        let first = first.map(|part| self.array(part, name));
        let first = SideBySide::of(&first.collect::<Result<Vec<_>>>()?, join.axis);
        let count = (join.parts.len() / group) as u64;
        let outer = first.outer;
        join.head
            .get_or_init(|| first.head(join.stacked.then_some(count)));
        let mut parts = Parts::default();
        for group in join.parts.chunks(group) {
            if join.stacked && group.len() > 1 && outer > 1 {
                let all = group.iter().map(|part| Ok(self.array(part, name)?.bytes));
                let all = all.collect::<Result<Vec<_>>>()?;
                parts.push(Arc::new(Concat::new(all, outer)));
                continue;
            }
            for part in group {
                match self.extent_of(part) {
                    Some(extent) => parts.push_extent(extent),
                    None => parts.push(self.array(part, name)?.bytes),
                }
            }
        }
        parts.shrink();
        Ok(parts)
    }

    /// Where the bytes of a part are, if they are a stored tensor's own.
    fn extent_of(&self, part: &Expr) -> Option<Extent> {
        match part {
            Expr::Raw(id) if self.is_stored(*id) => self.catalog.extent(*id),
            _ => None,
        }
    }

    fn same(&self, parts: &[Expr], name: &str) -> Result<Array> {
        let parts = parts.iter().map(|part| self.array(part, name));
        let parts: Vec<Array> = parts.collect::<Result<_>>()?;
        let first = parts.first().cloned();
        let first = first.ok_or_else(|| Error::NotFound(format!("'{name}' has no parts")))?;
        let views = parts.into_iter().map(|part| part.bytes).collect();
        Ok(Array {
            bytes: Arc::new(Same::new(name.to_string(), views)),
            ..first
        })
    }
}

/// The elements as binary32; `None` if the dtype has no such values.
fn widened(array: Array) -> Option<Array> {
    Some(Array {
        bytes: Cast::view(array.bytes, array.dtype)?,
        dtype: Dtype::F32.into(),
        shape: array.shape,
    })
}

/// What parts that are joined along an axis make.
struct SideBySide {
    dtype: ElementType,
    shape: Box<[u64]>,
    outer: u64,
}

impl SideBySide {
    /// The other dimensions of the parts are the same.
    fn of(parts: &[Array], axis: usize) -> SideBySide {
        let first = parts.first();
        let mut shape = first.map(|f| f.shape.clone()).unwrap_or_default();
        let outer = shape.iter().take(axis).product();
        if let Some(size) = shape.get_mut(axis) {
            *size = parts.iter().map(|p| p.shape[axis]).sum();
        }
        SideBySide {
            dtype: first.map_or(Dtype::U8.into(), |f| f.dtype.clone()),
            shape,
            outer,
        }
    }

    /// The whole join: of so many groups if it is a stack, else of one.
    fn head(self, stacked: Option<u64>) -> JoinHead {
        let SideBySide {
            dtype,
            shape,
            outer,
        } = self;
        match stacked {
            Some(count) => JoinHead {
                dtype,
                shape: [&[count], &*shape].concat().into(),
                outer: 1,
            },
            None => JoinHead {
                dtype,
                shape,
                outer,
            },
        }
    }
}
