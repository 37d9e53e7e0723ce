//! Comparisons: of numbers by value, of text for being the same.

use std::cmp::Ordering;

use super::super::language::{Comparison, Node};
use super::super::mistake::Mistake;
use super::number::Number;
use super::{Evaluator, Value, shown};

impl Evaluator<'_> {
    /// `a <= b < c`: as far as it holds.
    pub(super) fn compare(
        self,
        first: &Node,
        rest: &[(Comparison, Node)],
    ) -> Result<bool, Mistake> {
        let mut left = self.value(first)?;
        let mut left_node = first;
        for (comparison, node) in rest {
            let right = self.value(node)?;
            let sides = [(&left, left_node), (&right, node)];
            if !holds(*comparison, sides)? {
                return Ok(false);
            }
            (left, left_node) = (right, node);
        }
        Ok(true)
    }
}

fn holds(comparison: Comparison, sides: [(&Value, &Node); 2]) -> Result<bool, Mistake> {
    for (value, node) in sides {
        if let Value::Tensor(_) = value {
            let what = format!("{} cannot be compared", shown(value));
            return Err(Mistake::at(node.at, what));
        }
    }
    let [(a, _), (b, _)] = sides;
    let is_equal = matches!(comparison, Comparison::Equal | Comparison::NotEqual);
    let order = match (a, b) {
        (Value::Text(a), Value::Text(b)) if is_equal => Some(a.cmp(b)),
        _ => match (number(a), number(b)) {
            (Some(a), Some(b)) => a.compare(b),
            // Text is never a number.
            _ if is_equal => None,
            (a, _) => {
                let (value, node) = sides[usize::from(a.is_some())];
                let what = format!("{} where a number is needed", shown(value));
                return Err(Mistake::at(node.at, what));
            }
        },
    };
    Ok(match comparison {
        Comparison::Equal => order == Some(Ordering::Equal),
        Comparison::NotEqual => order != Some(Ordering::Equal),
        Comparison::Less => order == Some(Ordering::Less),
        Comparison::LessOrEqual => matches!(order, Some(Ordering::Less | Ordering::Equal)),
        Comparison::Greater => order == Some(Ordering::Greater),
        Comparison::GreaterOrEqual => matches!(order, Some(Ordering::Greater | Ordering::Equal)),
    })
}

/// A number, as which a truth value counts here.
fn number(value: &Value) -> Option<Number> {
    match value {
        Value::Bool(truth) => Some(Number::Integer((*truth).into())),
        value => Number::of(value),
    }
}
