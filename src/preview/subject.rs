//! What a picture needs to know about its tensor.

use crate::error::Result;
use crate::model::{Model, Tensor, TensorId};
use crate::statistics::Wide;
use crate::view::SharedView;

/// What a picture is made of.
pub struct Subject {
    /// The tensor's name, for the caption.
    pub name: String,
    /// How it is stored, for the caption: a dtype, or the method of a quantized layer.
    pub stored_as: String,
    /// Shape of the values.
    pub shape: Box<[u64]>,
    /// The values: little-endian binary32, C order.
    pub values: SharedView,
    /// The values as stored, if binary32 cannot hold them.
    pub wide: Option<Wide>,
    /// Size of all of them in the model's files, in bytes: at most [`super::BUDGET`] of these are
    /// read.
    pub stored_bytes: u64,
}

impl Subject {
    /// A tensor of a model, if it has values.
    ///
    /// # Errors
    /// As [`Model::f32`] and [`Model::raw`].
    pub fn of(model: &Model, id: TensorId) -> Result<Option<Subject>> {
        let (Some(values), Ok(tensor)) = (model.f32(id)?, model.tensor(id)) else {
            return Ok(None);
        };
        let dtype = tensor.dtype.known();
        let wide = match dtype.filter(|_| !tensor.is_dequantized()) {
            Some(dtype) => Wide::of(model.raw(id)?, dtype),
            None => None,
        };
        Ok(tensor.values.as_ref().map(|v| Subject {
            name: model.name(id).to_string(),
            stored_as: stored_as(model, &tensor),
            shape: v.shape.into(),
            values,
            wide,
            stored_bytes: model.stored_bytes(tensor.f32_expr()),
        }))
    }
}

/// `BF16`; of a quantized layer's values `gptq, 4 bits`.
pub fn stored_as(model: &Model, tensor: &Tensor<'_>) -> String {
    let layer = tensor.decoded().and_then(|e| model.decoded_from(e));
    match layer.map(|l| model.layer(l)) {
        Some((recognized, Ok(layer))) => format!("{}, {} bits", recognized.method, layer.bits),
        _ => tensor.dtype.name().to_string(),
    }
}
