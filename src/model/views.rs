//! From what a tensor is to the views that show it.

use std::sync::Arc;

use super::same::Same;
use super::{Join, JoinOf, Model, Origin, Part, Tensor, TensorId};
use crate::catalog::TensorRef;
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::quant::{self, Target};
use crate::reason::Missing;
use crate::view::{Cast, Concat, Npy, SharedView, npy_header};

/// A tensor's `.npy`: NumPy's dtype and shape, and whether the array is `raw` or `f32`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NpyKind {
    /// NumPy's `descr`, such as `<f4`.
    pub descr: &'static str,
    /// Shape of the array.
    pub shape: Box<[u64]>,
    /// Whether it holds the values rather than the stored bytes.
    pub of_values: bool,
}

impl NpyKind {
    /// Length of the file in bytes, for an array of `body` bytes.
    pub fn len(&self, body: u64) -> u64 {
        npy_header(self.descr, &self.shape).len() as u64 + body
    }

    /// Never: a header alone is 64 bytes.
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl Model {
    /// Whether a tensor's values come from a quantized layer, under the stored tensor's own name.
    fn decoded_layer(&self, tensor: &Tensor) -> Option<u32> {
        match tensor.origin {
            Origin::Stored { layer: Some(l) } if self.recognized(l).target == Target::Anchor => {
                Some(l)
            }
            _ => None,
        }
    }

    /// Whether the `f32` of a tensor is made of dequantized values rather than of its own bytes.
    pub fn is_dequantized(&self, id: TensorId) -> bool {
        let Ok(tensor) = self.tensor(id) else {
            return false;
        };
        match &tensor.origin {
            Origin::Stored { .. } => self.decoded_layer(tensor).is_some(),
            Origin::Dequantized { .. } => true,
            Origin::Fused(j) | Origin::Stacked(j) => {
                j.of == JoinOf::Values
                    || j.groups
                        .iter()
                        .flatten()
                        .next()
                        .is_some_and(|p| self.is_dequantized(p.id))
            }
            Origin::Tied(of) => self.is_dequantized(*of),
        }
    }

    /// What the tensor's `.npy` is, if it has one: NumPy's own dtype where it has it, else (and for
    /// quantized weights) binary32 values.
    pub fn npy_kind(&self, id: TensorId) -> Option<NpyKind> {
        let tensor = self.tensor(id).ok()?;
        let native = tensor.dtype.known().and_then(|d| d.npy_descr());
        match (&tensor.values, native) {
            (Some(v), _) if self.is_dequantized(id) => Some(values_kind(&v.shape)),
            (_, Some(descr)) => Some(NpyKind {
                descr,
                shape: tensor.shape.clone(),
                of_values: false,
            }),
            (Some(v), None) => Some(values_kind(&v.shape)),
            (None, None) => None,
        }
    }

    /// The stored bytes, or what stands for them (synthetic tensors).
    ///
    /// # Errors
    /// There is no such tensor, or a layer's kernel cannot be set up.
    pub fn raw(&self, id: TensorId) -> Result<SharedView> {
        let tensor = self.described(id)?;
        match &tensor.origin {
            Origin::Stored { .. } => Ok(self.catalog.bytes(id)),
            Origin::Dequantized { layer } => self.layer_values(*layer),
            Origin::Fused(join) | Origin::Stacked(join) => self.joined(id, join, join.of),
            Origin::Tied(of) => self.raw(*of),
        }
    }

    /// The values as binary32, if the tensor has any.
    ///
    /// # Errors
    /// As [`Model::raw`].
    pub fn f32(&self, id: TensorId) -> Result<Option<SharedView>> {
        let tensor = self.described(id)?;
        if tensor.values.is_none() {
            return Ok(None);
        }
        match &tensor.origin {
            Origin::Stored { .. } if let Some(layer) = self.decoded_layer(tensor) => {
                return self.layer_values(layer).map(Some);
            }
            Origin::Fused(join) | Origin::Stacked(join)
                if join.of == JoinOf::Raw && self.is_dequantized(id) =>
            {
                return self.joined(id, join, JoinOf::Values).map(Some);
            }
            Origin::Tied(of) => return self.f32(*of),
            _ => {}
        }
        let raw = self.raw(id)?;
        Ok(tensor.dtype.known().and_then(|d| Cast::view(raw, d)))
    }

    /// The `.npy` file, if the tensor has one.
    ///
    /// # Errors
    /// As [`Model::raw`].
    pub fn npy(&self, id: TensorId) -> Result<Option<SharedView>> {
        let Some(kind) = self.npy_kind(id) else {
            return Ok(None);
        };
        let body = match kind.of_values {
            true => self.f32(id)?,
            false => Some(self.raw(id)?),
        };
        Ok(body.map(|b| Arc::new(Npy::new(kind.descr, &kind.shape, b)) as SharedView))
    }

    fn layer_values(&self, layer: u32) -> Result<SharedView> {
        let recognized = self.recognized(layer);
        let layer = self.settled_layer(layer).map_err(|why| match why {
            Missing::Reason(why) => Error::NotFound(why.into()),
            Missing::Unread(why) => Error::other(libc::EIO, why),
        })?;
        layer.kernel.view(&recognized.raw_parts(&self.catalog))
    }

    /// The bytes of a join: parts within each group, then the groups one after another.
    fn joined(&self, id: TensorId, join: &Join, of: JoinOf) -> Result<SharedView> {
        let mut groups = Vec::with_capacity(join.groups.len());
        for parts in &join.groups {
            let mut views = Vec::with_capacity(parts.len());
            for part in parts {
                views.push(match of {
                    JoinOf::Values => self.part_values(part)?,
                    JoinOf::Raw | JoinOf::Same => self.raw(part.id)?,
                });
            }
            groups.push(self.group(id, join, of, parts, views)?);
        }
        Ok(match groups.len() {
            1 => groups.remove(0),
            _ => Arc::new(Concat::new(groups, 1)),
        })
    }

    fn group(
        &self,
        id: TensorId,
        join: &Join,
        of: JoinOf,
        parts: &[Part],
        mut views: Vec<SharedView>,
    ) -> Result<SharedView> {
        if of == JoinOf::Same {
            return Ok(Arc::new(Same::new(self.name(id).to_string(), views)));
        }
        if views.len() == 1 {
            return Ok(views.remove(0));
        }
        // All parts have the same dimensions before the axis; the first part's tell how many.
        let outer = match parts.first() {
            Some(p) => {
                let t = self.described(p.id)?;
                let shape = match (of, &t.values) {
                    (JoinOf::Values, Some(v)) => &v.shape,
                    _ => &t.shape,
                };
                shape.iter().take(join.axis).product()
            }
            None => 1,
        };
        Ok(Arc::new(Concat::new(views, outer)))
    }

    fn part_values(&self, part: &Part) -> Result<SharedView> {
        self.f32(part.id)?
            .ok_or_else(|| Error::NotFound(format!("'{}' has no values", self.name(part.id))))
    }
}

fn values_kind(shape: &[u64]) -> NpyKind {
    NpyKind {
        descr: "<f4",
        shape: shape.into(),
        of_values: true,
    }
}

impl Model {
    /// How many weights a stored tensor holds: packed words count what they pack, a layer's scales
    /// and indexes nothing.
    pub fn parameters(&self, stored: TensorId) -> u64 {
        let tensor = &self.catalog.tensors.get(stored);
        match self.layer_of(stored) {
            None => {
                let last = tensor.name.rsplit('.').next().unwrap_or_default();
                match self.layer_count() > 0 && quant::is_sibling(last) {
                    true => 0,
                    false => self.packed(tensor),
                }
            }
            Some(layer) => {
                let recognized = self.recognized(layer);
                match recognized.parts.first() == Some(&stored) {
                    true => recognized.parameters.unwrap_or_else(|| self.packed(tensor)),
                    false => 0,
                }
            }
        }
    }

    /// How many values a tensor's elements pack, by what a manifest says: its words pack
    /// `32 / bits` each, also where no scales are there to decode them. Where nothing in the
    /// manifest says it they are integers.
    fn packed(&self, tensor: &TensorRef<'_>) -> u64 {
        let defaults = self.catalog.configs.manifest.as_ref();
        let is_said = defaults.is_some_and(|c| c.contains_key("default_bits"));
        match tensor.bits {
            Some(b)
                if tensor.dtype.is(Dtype::U32)
                    && (1..=32).contains(&b.bits)
                    && (b.explicit || is_said) =>
            {
                tensor.numel() * 32 / u64::from(b.bits)
            }
            _ => tensor.numel(),
        }
    }
}
