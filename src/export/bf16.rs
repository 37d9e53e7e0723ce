//! The checkpoint that a quantized model came from: dequantized weights, and floats of less than 16 bits, as
//! BF16; all else as it is stored.

use super::{Absent, Item, safetensors, stored_ids};
use crate::dtype::{Dtype, ElementType};
use crate::model::{Model, TensorId, float_model};

/// Whether the model has such weights: otherwise the file would only repeat what is stored. What cannot be known
/// for now counts as one.
pub(super) fn exists(model: &Model) -> Result<(), Absent> {
    let tensors = &model.catalog.tensors;
    let is_alone = |id: TensorId| is_small(tensors.get(id).dtype) && model.layer_of(id).is_none();
    let has_small = || tensors.dtypes().iter().any(is_small) && stored_ids(model).any(is_alone);
    match (0..model.layer_count()).any(|layer| model.may_be_decoded(layer)) || has_small() {
        true => safetensors::holds(model, ElementType::has_f32),
        false => Err(Absent::OfOtherModels),
    }
}

/// The tensors of the export: those of the float model.
pub(super) fn items(model: &Model) -> Vec<Item> {
    let item = |(id, as_values)| match as_values && is_cast(model, id) {
        true => Item::values(model, id, Dtype::BF16),
        false => Item::raw(model, id),
    };
    float_model(model).into_iter().filter_map(item).collect()
}

/// Whether a float of the model is not there as it is stored.
fn is_cast(model: &Model, id: TensorId) -> bool {
    let tensor = model.tensor(id);
    tensor.is_ok_and(|tensor| tensor.is_dequantized() || is_small(tensor.dtype))
}

/// Whether it is a float of less than 16 bits, or values in blocks.
fn is_small(dtype: &ElementType) -> bool {
    let is_narrow = dtype.known().is_none_or(|dtype| dtype.bits() < 16);
    dtype.is_float() && is_narrow
}
