//! Makes the views of a tensor from its expression.

use std::sync::Arc;

use super::{Expr, Join, Model, TensorId};
use crate::dtype::{Dtype, ElementType};
use crate::error::{Error, Result};
use crate::reason::Missing;
use crate::view::{Cast, Concat, Same, SharedView};

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
            Expr::Join(join) => self.joined(join, name),
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
    fn joined(&self, join: &Join, name: &str) -> Result<Array> {
        let mut groups = Vec::with_capacity(join.parts.len() / join.group.max(1));
        for parts in join.parts.chunks(join.group.max(1)) {
            let parts = parts.iter().map(|part| self.array(part, name));
            groups.push(side_by_side(parts.collect::<Result<_>>()?, join.axis));
        }
        let shape = groups.first().map(|g| g.shape.clone()).unwrap_or_default();
        let dtype = groups.first().map(|g| g.dtype.clone());
        let count = groups.len() as u64;
        Ok(Array {
            bytes: in_a_row(groups, 1),
            dtype: dtype.unwrap_or(Dtype::U8.into()),
            shape: match join.stacked {
                true => [&[count], &*shape].concat().into(),
                false => shape,
            },
        })
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

/// Parts joined along `axis`: their other dimensions are the same.
fn side_by_side(parts: Vec<Array>, axis: usize) -> Array {
    let Some(first) = parts.first() else {
        return Array {
            bytes: in_a_row(Vec::new(), 1),
            dtype: Dtype::U8.into(),
            shape: Box::default(),
        };
    };
    let (dtype, mut shape) = (first.dtype.clone(), first.shape.clone());
    let outer = shape.iter().take(axis).product();
    if let Some(size) = shape.get_mut(axis) {
        *size = parts.iter().map(|p| p.shape[axis]).sum();
    }
    Array {
        bytes: in_a_row(parts, outer),
        dtype,
        shape,
    }
}

fn in_a_row(parts: Vec<Array>, outer: u64) -> SharedView {
    let mut views: Vec<SharedView> = parts.into_iter().map(|part| part.bytes).collect();
    match views.len() {
        1 => views.remove(0),
        _ => Arc::new(Concat::new(views, outer)),
    }
}
