//! The value of an expression for one match.

use std::sync::Arc;

use super::language::{Node, Template};
use super::mistake::Mistake;
use super::tensor::Derived;

/// What an expression can be.
#[derive(Debug, Clone)]
pub enum Value {
    /// A whole number, exact in 64 bits.
    Integer(i64),
    /// Any other number.
    Real(f64),
    /// The text of a hole, of the configuration, or in quotes in a condition. A hole that is a whole number counts
    /// as one where a number is needed.
    Text(Arc<str>),
    /// A truth value of the configuration.
    Bool(bool),
    /// A tensor.
    Tensor(Derived),
}

/// What names mean in an expression. Errors are without a place; where a name is not known, they say what
/// was probably meant.
pub trait Scope {
    /// A hole, a parameter or a loop variable.
    fn name(&self, name: &str) -> Option<Value>;
    /// Names that there are, for suggestions.
    fn names(&self) -> Vec<String>;
    /// `it`, or the tensor of `it`'s name in another model.
    fn it(&self, model: Option<&str>) -> Result<Derived, String>;
    /// `'name'` or `NAME:'name'`.
    fn tensor(&self, model: Option<&str>, name: &str) -> Result<Derived, String>;
    /// `config.KEY`.
    fn config(&self, keys: &[Box<str>]) -> Result<Value, String>;
    /// The highest number plus one of a gathering hole of that name.
    fn gathered(&self, name: &str) -> Option<u64>;
}

/// The value of an expression.
pub fn expression(node: &Node, scope: &dyn Scope) -> Result<Value, Mistake> {
    let _ = scope;
    Err(Mistake::at(node.at, ""))
}

/// Whether a condition holds.
pub fn condition(node: &Node, scope: &dyn Scope) -> Result<bool, Mistake> {
    let _ = scope;
    Err(Mistake::at(node.at, ""))
}

/// The text of a template.
pub fn template(template: &Template, scope: &dyn Scope) -> Result<String, Mistake> {
    let _ = scope;
    Err(Mistake::at(template.at, ""))
}
