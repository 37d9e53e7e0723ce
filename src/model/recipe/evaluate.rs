//! The value of an expression for one match.

use std::sync::Arc;

use super::language::{Each, Kind, Node, Operator, Template, TemplatePiece};
use super::mistake::Mistake;
use super::nearest;
use super::ops::{self, Arithmetic, Operand};
use super::tensor::Derived;

mod call;
mod compare;
mod index;
mod number;
#[cfg(test)]
mod tests;

use number::Number;

/// Operations within one another that are followed: what the parser's limit bounds, and chains of operators.
const MAX_DEPTH: u32 = 256;

/// The most numbers of a range, and the most tensors that one match gathers.
pub const MAX_RANGE: u64 = 65_536;

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
    /// A truth value: of a condition, or of the configuration.
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
    /// Called for every step of an expression: an error ends a recipe that would compute for hours before it is
    /// mounted.
    fn step(&self) -> Result<(), String> {
        Ok(())
    }
}

/// The value of an expression.
///
/// # Errors
/// What is wrong, at the piece that is.
pub fn expression(node: &Node, scope: &dyn Scope) -> Result<Value, Mistake> {
    let evaluator = Evaluator {
        scope,
        in_condition: false,
        depth: 0,
    };
    evaluator.value(node)
}

/// Whether a condition holds.
///
/// # Errors
/// As [`expression`]; also if its value is not a truth value.
pub fn condition(node: &Node, scope: &dyn Scope) -> Result<bool, Mistake> {
    let evaluator = Evaluator {
        scope,
        in_condition: true,
        depth: 0,
    };
    evaluator.truth(node)
}

/// The numbers that the variable of a `for` is.
///
/// # Errors
/// As [`expression`]; also if there are too many of them.
pub fn numbers(each: &Each, scope: &dyn Scope) -> Result<std::ops::Range<i64>, Mistake> {
    let evaluator = Evaluator {
        scope,
        in_condition: false,
        depth: 0,
    };
    evaluator.numbers(each)
}

/// The text of a template.
///
/// # Errors
/// As [`expression`]; also if a piece is neither text nor a whole number.
pub fn template(template: &Template, scope: &dyn Scope) -> Result<String, Mistake> {
    let mut text = String::new();
    for piece in &template.pieces {
        match piece {
            TemplatePiece::Text(piece) => text.push_str(piece),
            TemplatePiece::Value(node) => match expression(node, scope)? {
                Value::Integer(number) => text.push_str(&number.to_string()),
                Value::Text(piece) => text.push_str(&piece),
                other => {
                    let what = format!("{} where text or a whole number is needed", shown(&other));
                    return Err(Mistake::at(node.at, what));
                }
            },
        }
    }
    Ok(text)
}

/// Names, and where they are used.
#[derive(Clone, Copy)]
struct Evaluator<'a> {
    scope: &'a dyn Scope,
    /// Quotes are text, and `dtype` and `ndim` are known.
    in_condition: bool,
    depth: u32,
}

impl<'a> Evaluator<'a> {
    /// The evaluator of an operand.
    fn inner(self, node: &Node) -> Result<Evaluator<'a>, Mistake> {
        let at = |why| Mistake::at(node.at, why);
        if self.depth >= MAX_DEPTH {
            let why = format!("more than {MAX_DEPTH} operations within one another");
            return Err(at(why));
        }
        self.scope.step().map_err(at)?;
        let depth = self.depth + 1;
        Ok(Evaluator { depth, ..self })
    }

    fn value(self, node: &Node) -> Result<Value, Mistake> {
        let inner = self.inner(node)?;
        let at = |why: String| Mistake::at(node.at, why);
        match &node.kind {
            Kind::Integer(number) => Ok(Value::Integer(*number)),
            Kind::Real(number) => Ok(Value::Real(*number)),
            Kind::Name(name) => self.name(name).map_err(at),
            Kind::It(model) => self
                .scope
                .it(model.as_deref())
                .map(Value::Tensor)
                .map_err(at),
            Kind::Config(keys) => self.scope.config(keys).map_err(at),
            Kind::Quoted { model, name } => {
                let name = template(name, self.scope)?;
                match (model, self.in_condition) {
                    (None, true) => Ok(Value::Text(name.into())),
                    (model, _) => {
                        let found = self.scope.tensor(model.as_deref(), &name);
                        found.map(Value::Tensor).map_err(at)
                    }
                }
            }
            Kind::Call(call) => inner.call(node, call),
            Kind::Index(of, subscripts) => inner.index(node, of, subscripts),
            Kind::Negative(of) => negative(inner.value(of)?).map_err(at),
            Kind::Binary(..) => inner.chain(node),
            Kind::Compare(first, rest) => inner.compare(first, rest).map(Value::Bool),
            Kind::And(both) => Ok(Value::Bool(
                inner.truth(&both[0])? && inner.truth(&both[1])?,
            )),
            Kind::Or(both) => Ok(Value::Bool(
                inner.truth(&both[0])? || inner.truth(&both[1])?,
            )),
            Kind::Not(of) => inner.truth(of).map(|truth| Value::Bool(!truth)),
            Kind::Mistaken => Err(at(String::new())),
        }
    }

    fn name(self, name: &str) -> Result<Value, String> {
        if let Some(value) = self.scope.name(name) {
            return Ok(value);
        }
        match name {
            "dtype" if self.in_condition => {
                let it = self.scope.it(None)?;
                Ok(Value::Text(it.dtype.name().into()))
            }
            "ndim" if self.in_condition => {
                let it = self.scope.it(None)?;
                Ok(Value::Integer(it.shape.len() as i64))
            }
            "dtype" | "ndim" => Err(format!("'{name}' is known in conditions (where = …) alone")),
            _ => {
                let names = self.scope.names();
                let nearest = nearest::word(name, names.iter().map(String::as_str));
                let meant = nearest::did_you_mean(nearest);
                Err(format!(
                    "'{name}' is not a hole, a parameter or a loop variable here{meant}"
                ))
            }
        }
    }

    /// A chain of operators with two operands: `a + b - c` is as deep as it is long, and so not followed by
    /// recursion.
    fn chain(self, node: &Node) -> Result<Value, Mistake> {
        let mut links = Vec::new();
        let mut first = node;
        while let Kind::Binary(operator, both) = &first.kind {
            let [left, right] = &**both;
            links.push((*operator, first, left, right));
            first = left;
        }
        let mut value = self.value(first)?;
        for (operator, node, left, right) in links.into_iter().rev() {
            let operand = self.value(right)?;
            value = match (value, operand) {
                (a @ Value::Tensor(_), b) | (a, b @ Value::Tensor(_)) => {
                    let sides = [(a, left), (b, right)];
                    of_tensors(operator, node, sides)?
                }
                (a, b) => {
                    let (a, b) = (number::needed(&a, left)?, number::needed(&b, right)?);
                    let made = a.operation(operator, b);
                    let why = |why| format!("'{}': {why}", symbol(operator));
                    made.map_err(|e| Mistake::at(node.at, why(e)))?.into()
                }
            };
        }
        Ok(value)
    }

    /// Whether a condition holds.
    fn truth(self, node: &Node) -> Result<bool, Mistake> {
        match self.value(node)? {
            Value::Bool(truth) => Ok(truth),
            other => {
                let what = format!("{} where a condition is needed (==, <, …)", shown(&other));
                Err(Mistake::at(node.at, what))
            }
        }
    }
}

/// An operation of which at least one operand is a tensor.
fn of_tensors(
    operator: Operator,
    node: &Node,
    sides: [(Value, &Node); 2],
) -> Result<Value, Mistake> {
    let symbol = symbol(operator);
    let at = |why: String| Mistake::at(node.at, format!("'{symbol}': {why}"));
    let operation = match operator {
        Operator::Add => Arithmetic::Add,
        Operator::Subtract => Arithmetic::Subtract,
        Operator::Multiply => Arithmetic::Multiply,
        Operator::Divide => Arithmetic::Divide,
        Operator::FloorDivide | Operator::Modulo => {
            return Err(at("is for numbers, not for tensors".into()));
        }
        Operator::Product => {
            let [(a, _), (b, _)] = &sides;
            return match (a, b) {
                (Value::Tensor(a), Value::Tensor(b)) => {
                    ops::product(a, b).map(Value::Tensor).map_err(at)
                }
                (Value::Tensor(_), other) | (other, _) => {
                    Err(at(format!("needs two matrices: {}", shown(other))))
                }
            };
        }
    };
    let operand = |(value, node): (Value, &Node)| match value {
        Value::Tensor(x) => Ok(Operand::Tensor(x)),
        other => number::needed(&other, node).map(|n| Operand::Number(n.to_f32())),
    };
    let [a, b] = sides;
    let made = ops::arithmetic(operation, operand(a)?, operand(b)?);
    made.map(Value::Tensor).map_err(at)
}

fn negative(of: Value) -> Result<Value, String> {
    match of {
        Value::Tensor(x) => ops::negate(&x).map(Value::Tensor),
        other => match Number::of(&other) {
            Some(Number::Integer(n)) => {
                let negative = n.checked_neg().ok_or("does not fit in 64 bits");
                Ok(Value::Integer(
                    negative.map_err(|why| format!("-({n}) {why}"))?,
                ))
            }
            Some(Number::Real(n)) => Ok(Value::Real(-n)),
            None => Err(format!("{} where a number is needed", shown(&other))),
        },
    }
}

fn symbol(operator: Operator) -> &'static str {
    match operator {
        Operator::Add => "+",
        Operator::Subtract => "-",
        Operator::Multiply => "*",
        Operator::Divide => "/",
        Operator::FloorDivide => "//",
        Operator::Modulo => "%",
        Operator::Product => "@",
    }
}

/// A value, for a message.
fn shown(value: &Value) -> String {
    match value {
        Value::Integer(number) => number.to_string(),
        Value::Real(number) => format!("{number:?}"),
        Value::Text(text) => {
            let text = crate::text::elide(text, 80);
            format!("text '{}'", crate::text::printable(&text))
        }
        Value::Bool(truth) => truth.to_string(),
        Value::Tensor(x) => format!("the tensor {}", x.label),
    }
}
