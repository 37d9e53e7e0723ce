//! A tensor that a recipe made or may use: what is known of it before a byte is read.

use std::sync::Arc;

use super::super::Expr;
use crate::dtype::ElementType;

/// An array that is an expression over the tensors of [`Sources`](super::Sources).
#[derive(Debug, Clone)]
pub struct Derived {
    /// Element type of its bytes.
    pub dtype: ElementType,
    /// Its shape.
    pub shape: Arc<[u64]>,
    /// Length in bytes.
    pub nbytes: u64,
    /// Its bytes.
    pub expr: Expr,
    /// Its values, if they are not its elements widened: a quantized tensor that nothing was done to.
    pub values: Option<Arc<Decoded>>,
    /// Whether no value can have been rounded.
    pub exact: bool,
    /// Views on top of one another.
    pub depth: u32,
    /// Source elements that one element depends on.
    pub reach: u32,
    /// The rules that made it, innermost first: number of the rule, and of the result in it.
    pub rules: Arc<[(u16, u16)]>,
    /// How messages name it: `'a.weight'`, `tuned:'a.weight'`.
    pub label: Arc<str>,
}

/// Values that are decoded from a quantized layer.
#[derive(Debug, Clone)]
pub struct Decoded {
    /// Their shape.
    pub shape: Arc<[u64]>,
    /// The values, as binary32.
    pub expr: Expr,
    /// Whether none can have been rounded.
    pub exact: bool,
}
