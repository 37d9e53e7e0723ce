//! What can be done to tensors: shapes and element types are checked, and expressions made. The error is
//! what is wrong, with both shapes and both names.

use super::tensor::Derived;
use crate::dtype::Dtype;

/// What is wrong, without its place.
pub type Made = Result<Derived, String>;

/// An operation on two values.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
}

/// A tensor, or a number that meets one.
#[derive(Debug, Clone)]
pub enum Operand {
    /// A tensor: its values.
    Tensor(Derived),
    /// A number, rounded once.
    Number(f32),
}

/// Along one axis: from `start` to before `stop`, each `step`th; of a single index the axis goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub start: u64,
    pub stop: u64,
    pub step: u64,
    pub is_index: bool,
}

/// `x[…]`: ranges of the first axes, within them.
pub fn slice(x: &Derived, ranges: &[Range]) -> Made {
    let _ = (x, ranges);
    Err(String::new())
}
/// Parts side by side along an axis.
pub fn concat(parts: &[Derived], axis: usize) -> Made {
    let _ = (parts, axis);
    Err(String::new())
}
/// Parts along a new axis.
pub fn stack(parts: &[Derived], axis: usize) -> Made {
    let _ = (parts, axis);
    Err(String::new())
}
/// Bytes of zero at the end of an axis until it has that size.
pub fn pad(x: &Derived, size: u64, axis: usize) -> Made {
    let _ = (x, size, axis);
    Err(String::new())
}
/// The same elements in another shape, of as many elements.
pub fn reshape(x: &Derived, shape: &[u64]) -> Made {
    let _ = (x, shape);
    Err(String::new())
}
/// Axis i of the result is axis `axes[i]`.
pub fn permute(x: &Derived, axes: &[usize]) -> Made {
    let _ = (x, axes);
    Err(String::new())
}
/// The values as F32.
pub fn values(x: &Derived) -> Made {
    let _ = x;
    Err(String::new())
}
/// The values in another float type.
pub fn cast(x: &Derived, dtype: Dtype) -> Made {
    let _ = (x, dtype);
    Err(String::new())
}
/// Value by value.
pub fn arithmetic(op: Arithmetic, a: Operand, b: Operand) -> Made {
    let _ = (op, a, b);
    Err(String::new())
}
/// `a @ b` of matrices.
pub fn product(a: &Derived, b: &Derived) -> Made {
    let _ = (a, b);
    Err(String::new())
}
