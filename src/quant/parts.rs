//! The parts of a layer whose weight keeps its own name: which dtypes its scales may have, and how
//! they join.

use super::scale_grid::{Form, ScaleGrid};
use super::{Component, Join};
use crate::catalog::TensorRef;
use crate::dtype::{Dtype, numel};
use crate::reason::{Reason, reason};

/// The dtype of a tensor of float scales. U8 means E8M0 exponents.
///
/// # Errors
/// The reason, if they are not floats.
pub fn scale_dtype(scales: TensorRef<'_>) -> Result<Dtype, Reason> {
    match scales.dtype.known() {
        Some(Dtype::U8) => Ok(Dtype::F8_E8M0),
        Some(d) if d.is_plain_float() || d.is_f8() => Ok(d),
        _ => Err(reason!(
            "its scale '{}' is {}, which is not a float",
            scales.name,
            scales.dtype
        )),
    }
}

/// The weight of a layer as a component of fusions: codes, row by row.
pub fn weight_component(tensor: u32) -> Component {
    Component {
        suffix: "weight",
        tensor,
        join: Join::Rows,
        whole: true,
    }
}

/// Scales, or a tensor shaped like them, as a component of fusions.
pub fn scale_component(suffix: &'static str, tensor: u32, grid: &ScaleGrid) -> Component {
    Component {
        suffix,
        tensor,
        join: match grid.form() {
            Form::Matrix => Join::Never("one scale for a whole weight does not join"),
            Form::Rows | Form::Column | Form::Blocks => Join::Rows,
            Form::SpacedBlocks => Join::First,
        },
        whole: grid.whole_rows(),
    }
}

/// The shape and number of the values in bytes of that shape, which hold two values each.
///
/// # Errors
/// The shape has no last dimension to double, or it overflows.
pub fn unpacked_pairs(bytes: &[u64]) -> Result<(Vec<u64>, u64), Reason> {
    let mut shape = bytes.to_vec();
    let doubled = shape.last().and_then(|cols| cols.checked_mul(2));
    if let (Some(last), Some(doubled)) = (shape.last_mut(), doubled) {
        *last = doubled;
        if let Some(values) = numel(&shape) {
            return Ok((shape, values));
        }
    }
    Err(reason!(
        "a weight {bytes:?} cannot hold two values per byte"
    ))
}
