//! The small language in a recipe's strings: expressions, conditions, patterns and templates. Here is what
//! they are once they are parsed.

mod call;
mod condition;
mod lexer;
mod located;
mod number;
mod parser;
mod pattern;
mod pattern_text;
mod subscript;
mod template;

use super::mistake::{Mistake, Place};
use crate::dtype::Dtype;

use parser::Parser;

pub use call::FUNCTIONS;
pub use located::Located;
pub use parser::{MAX_LENGTH, check_name};
pub use pattern::Bindings;

/// An expression or a condition.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Where it begins; of an operator with two operands (arithmetic, `and`, `or`), where the operator is; of
    /// comparisons, the first one.
    pub at: Place,
    /// What it is.
    pub kind: Kind,
}

/// What a [`Node`] is.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    /// A whole number.
    Integer(i64),
    /// Any other number.
    Real(f64),
    /// A hole, a parameter, a loop variable; in conditions also `dtype` and `ndim`.
    Name(Box<str>),
    /// `it`, or `NAME:it`.
    It(Option<Box<str>>),
    /// `config.KEY`, keys in order.
    Config(Box<[Box<str>]>),
    /// `'name'` or `NAME:'name'`: a tensor; in conditions text.
    Quoted {
        /// The model, if it is another.
        model: Option<Box<str>>,
        /// What stands in the quotes.
        name: Template,
    },
    /// A function.
    Call(Box<Call>),
    /// `x[…]`
    Index(Box<Node>, Box<[Subscript]>),
    /// `-x`
    Negative(Box<Node>),
    /// `a + b`
    Binary(Operator, Box<[Node; 2]>),
    /// `a <= b < c`
    Compare(Box<Node>, Box<[(Comparison, Node)]>),
    /// `a and b`
    And(Box<[Node; 2]>),
    /// `a or b`
    Or(Box<[Node; 2]>),
    /// `not a`
    Not(Box<Node>),
    /// What could not be understood, which has been reported. Its value is a mistake with an empty message, which
    /// is not listed.
    Mistaken,
}

/// An operator between two operands.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    /// `//`
    FloorDivide,
    /// `%`
    Modulo,
    /// `@`
    Product,
}

/// A comparison.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// `function(arguments for each, axis=…)`
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Which one.
    pub function: Function,
    /// Its arguments. With `each`, the one that is repeated.
    pub arguments: Vec<Node>,
    /// `for e`, `for r in a..b`
    pub each: Option<Each>,
    /// `axis=…`
    pub axis: Option<Node>,
}

/// The functions.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Function {
    Part,
    Concat,
    Stack,
    Pad,
    Reshape,
    Permute,
    T,
    Dim,
    Up,
    Min,
    Max,
    /// `f32`, `f16`, `bf16`, `f8_e4m3`, `f8_e5m2`
    Cast(Dtype),
}

/// `VARIABLE in a..b`; without a range, the numbers that a gathering hole of that name gathers.
#[derive(Debug, Clone, PartialEq)]
pub struct Each {
    /// Where it begins.
    pub at: Place,
    /// The variable.
    pub variable: Box<str>,
    /// First, and one behind the last.
    pub range: Option<Box<[Node; 2]>>,
}

/// One index of `x[…]`.
#[derive(Debug, Clone, PartialEq)]
pub enum Subscript {
    /// A single one: its axis goes.
    Index(Node),
    /// `start:stop:step`
    #[allow(missing_docs)]
    Slice {
        at: Place,
        start: Option<Node>,
        stop: Option<Node>,
        step: Option<Node>,
    },
}

/// Text with holes to be filled in.
#[derive(Debug, Clone, PartialEq)]
pub struct Template {
    /// Where it begins.
    pub at: Place,
    /// Its pieces.
    pub pieces: Vec<TemplatePiece>,
}

/// A piece of a [`Template`].
#[derive(Debug, Clone, PartialEq)]
pub enum TemplatePiece {
    /// Text as it is.
    Text(Box<str>),
    /// A hole's text, or a whole number.
    Value(Node),
}

/// A pattern, which matches whole names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// Where it begins.
    pub at: Place,
    /// As it is written, for messages.
    pub text: Box<str>,
    /// Its pieces.
    pub pieces: Vec<PatternPiece>,
}

/// A piece of a [`Pattern`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PatternPiece {
    /// Text as it is.
    Text(Box<str>),
    /// `*`
    Any,
    /// `{name…}`
    Hole(Box<str>, Hole),
}

/// What a hole takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hole {
    /// `{n}`: one or more characters without a dot.
    Component,
    /// `{rest..}`: also dots.
    Rest,
    /// `{e#}`: a number without leading zeros; names that differ only there are one match.
    Gather,
    /// `{x=k|v}`: one of these, the shortest first.
    OneOf(Box<[Box<str>]>),
}

/// Parses an expression.
pub fn parse_expression(text: &Located) -> Result<Node, Mistake> {
    parse_whole(text, false)
}

/// Parses a condition.
pub fn parse_condition(text: &Located) -> Result<Node, Mistake> {
    parse_whole(text, true)
}

fn parse_whole(text: &Located, is_condition: bool) -> Result<Node, Mistake> {
    check_length(text, "expression")?;
    let mut parser = Parser::new(text, 0, is_condition, 0)?;
    let (node, _) = parser.any()?;
    parser.finish()?;
    Ok(node)
}

/// Parses `VARIABLE in a..b`.
pub fn parse_each(text: &Located) -> Result<Each, Mistake> {
    check_length(text, "expression")?;
    let mut parser = Parser::new(text, 0, false, 0)?;
    let (each, _) = parser.each(false)?;
    parser.finish()?;
    Ok(each)
}

/// Parses a name with holes to be filled in.
pub fn parse_template(text: &Located) -> Result<Template, Mistake> {
    check_length(text, "name")?;
    Ok(template::parse(text, 0, false)?.0)
}

/// Parses a pattern. `check` is given the name of each hole, and says why it cannot be.
pub fn parse_pattern(
    text: &Located,
    check: &dyn Fn(&str) -> Result<(), String>,
) -> Result<Pattern, Mistake> {
    check_length(text, "pattern")?;
    pattern_text::parse(text, check)
}

fn check_length(text: &Located, what: &str) -> Result<(), Mistake> {
    let length = text.text.chars().count();
    if length <= MAX_LENGTH {
        return Ok(());
    }
    let (length, most) = (crate::text::thousands(length as u64), MAX_LENGTH as u64);
    let most = crate::text::thousands(most);
    Err(text.mistake(
        0,
        format!("the {what} has {length} characters; at most {most}"),
    ))
}

#[cfg(test)]
mod tests;
