//! A tensor as a NumPy array.

use std::sync::Arc;

use super::{Model, TensorId};
use crate::error::Result;
use crate::view::{Npy, SharedView, npy_header};

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
    /// What the tensor's `.npy` is, if it has one: NumPy's own dtype if there is one, else (and for
    /// quantized weights) binary32 values.
    pub fn npy_kind(&self, id: TensorId) -> Option<NpyKind> {
        let tensor = self.tensor(id).ok()?;
        let values = tensor.values.as_ref().map(|values| NpyKind {
            descr: "<f4",
            shape: values.shape.into(),
            of_values: true,
        });
        let native = tensor.dtype.npy_descr().map(|descr| NpyKind {
            descr,
            shape: tensor.shape.into(),
            of_values: false,
        });
        match tensor.is_dequantized() {
            true => values.or(native),
            false => native.or(values),
        }
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
}
