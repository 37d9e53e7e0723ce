//! The weights that a float model has, for the commands that look at all of them.

use std::sync::Arc;

use crate::dtype::Dtype;
use crate::export::float_model;
use crate::model::{Model, TensorId};
use crate::statistics::Wide;
use crate::view::SharedView;

/// A tensor of a float model.
pub struct Weight {
    /// Which tensor.
    pub id: TensorId,
    /// Its name.
    pub name: Arc<str>,
    /// Whether it is a float tensor, taken as its values; else it is taken as stored.
    pub is_values: bool,
    /// Its dtype in a float model: the stored one, or F32 if it is dequantized.
    pub dtype: Box<str>,
    /// Its shape in a float model.
    pub shape: Box<[u64]>,
    /// Its size in the model's files, in bytes.
    pub stored_bytes: u64,
}

impl Weight {
    /// The elements of `raw`, if this is a weight as stored and its dtype has values that binary32
    /// cannot hold.
    pub fn wide(&self, raw: SharedView) -> Option<Wide> {
        Dtype::from_name(&self.dtype).and_then(|dtype| Wide::of(raw, dtype))
    }
}

/// All of them, in natural order of their names.
pub fn weights(model: &Model) -> Vec<Weight> {
    let weight = |(id, is_values): (TensorId, bool)| {
        let tensor = model.tensor(id).ok()?;
        let expr = match is_values {
            true => tensor.f32_expr(),
            false => &tensor.raw,
        };
        Some(Weight {
            id,
            name: model.name(id).into(),
            is_values,
            dtype: match tensor.is_dequantized() && is_values {
                true => Dtype::F32.name().into(),
                false => tensor.dtype.name().into(),
            },
            shape: match &tensor.values {
                Some(values) if is_values => values.shape.into(),
                _ => tensor.shape.into(),
            },
            stored_bytes: model.stored_bytes(expr),
        })
    };
    float_model(model).into_iter().filter_map(weight).collect()
}
