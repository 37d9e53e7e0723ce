//! A tensor as a NumPy array.

use std::sync::Arc;

use super::{Model, Tensor, TensorId};
use crate::error::Result;
use crate::view::{Npy, SharedView, npy_header};

/// A tensor's `.npy`: NumPy's dtype and shape, and whether the array is `raw` or `f32`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NpyKind<'a> {
    /// NumPy's `descr`, such as `<f4`.
    pub descr: &'static str,
    /// Shape of the array.
    pub shape: &'a [u64],
    /// Whether it holds the values rather than the stored bytes.
    pub of_values: bool,
}

impl<'a> Tensor<'a> {
    /// What the tensor's `.npy` is, if it has one: NumPy's own dtype if there is one, else (and for
    /// quantized weights) binary32 values.
    pub fn npy_kind(&self) -> Option<NpyKind<'a>> {
        let values = self.values.as_ref().map(|values| NpyKind {
            descr: "<f4",
            shape: values.shape,
            of_values: true,
        });
        let native = self.dtype.npy_descr().map(|descr| NpyKind {
            descr,
            shape: self.shape,
            of_values: false,
        });
        match self.is_dequantized() {
            true => values.or(native),
            false => native.or(values),
        }
    }

    /// Length of the `.npy` in bytes, if there is one.
    pub fn npy_len(&self) -> Option<u64> {
        let kind = self.npy_kind()?;
        let body = match kind.of_values {
            true => self.f32_len()?,
            false => self.nbytes,
        };
        Some(npy_header(kind.descr, kind.shape).len() as u64 + body)
    }
}

impl Model {
    fn npy_kind(&self, id: TensorId) -> Option<NpyKind<'_>> {
        self.tensor(id).ok()?.npy_kind()
    }

    /// The array of the tensor's `.npy`, without the header, if the tensor has one.
    ///
    /// # Errors
    /// As [`Model::raw`].
    pub fn npy_array(&self, id: TensorId) -> Result<Option<SharedView>> {
        match self.npy_kind(id) {
            Some(kind) if kind.of_values => self.f32(id),
            Some(_) => self.raw(id).map(Some),
            None => Ok(None),
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
        let array = self.npy_array(id)?;
        let npy = |array| Arc::new(Npy::new(kind.descr, kind.shape, array)) as SharedView;
        Ok(array.map(npy))
    }
}
