//! A tensor, as far as a picture of it needs to know.

use crate::error::Result;
use crate::model::{Model, Origin, TensorId};
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
    /// The values as stored, where binary32 cannot hold them.
    pub wide: Option<Wide>,
    /// Bytes that all of them take in the model's files: at most [`super::BUDGET`] of these are
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
        let dtype = tensor.dtype.known().filter(|_| !model.is_dequantized(id));
        let wide = match dtype {
            Some(dtype) => Wide::of(model.raw(id)?, dtype),
            None => None,
        };
        Ok(tensor.values.as_ref().map(|v| Subject {
            name: model.name(id).to_string(),
            stored_as: stored_as(model, id),
            shape: v.shape.clone(),
            values,
            wide,
            stored_bytes: stored_bytes(model, id),
        }))
    }
}

/// `BF16`; of a quantized layer's values `gptq, 4 bits`.
pub fn stored_as(model: &Model, id: TensorId) -> String {
    let Ok(tensor) = model.tensor(id) else {
        return String::new();
    };
    let layer = match &tensor.origin {
        _ if !model.is_dequantized(id) => None,
        Origin::Stored { layer } => *layer,
        Origin::Dequantized { layer } => Some(*layer),
        Origin::Fused(join) | Origin::Stacked(join) => {
            let first = join.groups.iter().flatten().next();
            return first.map_or_else(String::new, |p| stored_as(model, p.id));
        }
        Origin::Tied(of) => return stored_as(model, *of),
    };
    match layer.map(|l| model.layer(l)) {
        Some((recognized, Ok(layer))) => format!("{}, {} bits", recognized.method, layer.bits),
        _ => tensor.dtype.name().to_string(),
    }
}

/// Bytes in the model's files that a tensor's values are made of.
pub fn stored_bytes(model: &Model, id: TensorId) -> u64 {
    let Ok(tensor) = model.tensor(id) else {
        return 0;
    };
    let nbytes = |part: &u32| model.catalog.tensors.get(*part).nbytes;
    match &tensor.origin {
        Origin::Dequantized { layer } => model.recognized(*layer).parts.iter().map(nbytes).sum(),
        Origin::Stored { layer: Some(layer) } if model.is_dequantized(id) => {
            model.recognized(*layer).parts.iter().map(nbytes).sum()
        }
        Origin::Stored { .. } => nbytes(&id),
        Origin::Fused(join) | Origin::Stacked(join) => join
            .groups
            .iter()
            .flatten()
            .map(|part| stored_bytes(model, part.id))
            .sum(),
        Origin::Tied(of) => stored_bytes(model, *of),
    }
}
