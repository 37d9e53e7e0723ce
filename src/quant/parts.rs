//! The parts of a layer whose weight keeps its own name: what its scales may be, how they join.

use super::scale_grid::{Form, ScaleGrid};
use super::{Component, Join};
use crate::catalog::TensorRef;
use crate::dtype::{Dtype, numel};
use crate::reason::{Reason, reason};

/// What the elements of a tensor of float scales are: U8 stands for E8M0 exponents.
///
/// # Errors
/// The reason, if they are not floats.
pub fn scale_dtype(scales: TensorRef<'_>) -> Result<Dtype, Reason> {
    match scales.dtype.known() {
        Some(Dtype::U8) => Ok(Dtype::F8_E8M0),
        Some(d) if d.is_plain_float() || d.is_f8() => Ok(d),
        _ => Err(reason!(
            "its scale '{}' is {}, which is no float",
            scales.name,
            scales.dtype
        )),
    }
}

/// The weight of a layer as fusions see it: codes, row by row.
pub fn weight_component(tensor: u32) -> Component {
    Component {
        suffix: "weight",
        tensor,
        join: Join::Rows,
        whole: true,
    }
}

/// Scales, or what is shaped like them, as fusions see them.
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

/// Inputs of a layer whose order is read whole, at most: what the indices take is then 512 MiB at
/// worst. A sparse file can claim any number at no cost; and the kernel
/// promises more memory than there is, so that asking for it would not fail.
pub const MOST_INPUTS: u64 = 1 << 26;

/// Whether an order (`g_idx`) of so many inputs may be read.
///
/// # Errors
/// The reason, with both numbers.
pub fn check_inputs(name: &str, inputs: u64) -> Result<(), Reason> {
    match inputs <= MOST_INPUTS {
        true => Ok(()),
        false => Err(reason!(
            "{name} is for {inputs} inputs, at most {MOST_INPUTS} are read"
        )),
    }
}

/// The shape and number of the values that bytes of that shape hold, two each.
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
    Err(reason!("a weight {bytes:?} cannot hold two values a byte"))
}
