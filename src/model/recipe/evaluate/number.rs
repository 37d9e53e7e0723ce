//! Numbers, as Python has them: whole ones exact (here: in 64 bits), others binary64.

use std::cmp::Ordering;

use super::super::language::{Node, Operator};
use super::super::mistake::Mistake;
use super::{Value, shown};

/// A number.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Number {
    Integer(i64),
    Real(f64),
}

/// The number that an operand is.
pub(super) fn needed(value: &Value, node: &Node) -> Result<Number, Mistake> {
    let what = || format!("{} where a number is needed", shown(value));
    Number::of(value).ok_or_else(|| Mistake::at(node.at, what()))
}

/// The whole number that a value is.
pub(super) fn whole(value: &Value, node: &Node) -> Result<i64, Mistake> {
    match Number::of(value) {
        Some(Number::Integer(number)) => Ok(number),
        real => {
            let hint = if real.is_some() {
                "; '//' divides without a fraction"
            } else {
                ""
            };
            let what = format!("{} where a whole number is needed{hint}", shown(value));
            Err(Mistake::at(node.at, what))
        }
    }
}

impl From<Number> for Value {
    fn from(number: Number) -> Value {
        match number {
            Number::Integer(number) => Value::Integer(number),
            Number::Real(number) => Value::Real(number),
        }
    }
}

impl Number {
    /// The number that a value is, if it is one: also text of digits alone.
    pub fn of(value: &Value) -> Option<Number> {
        match value {
            Value::Integer(number) => Some(Number::Integer(*number)),
            Value::Real(number) => Some(Number::Real(*number)),
            Value::Text(text) if text.bytes().all(|b| b.is_ascii_digit()) => {
                text.parse().ok().map(Number::Integer)
            }
            Value::Text(_) | Value::Bool(_) | Value::Tensor(_) => None,
        }
    }

    /// Rounded to binary32, once.
    pub fn to_f32(self) -> f32 {
        match self {
            Number::Integer(number) => number as f32,
            Number::Real(number) => number as f32,
        }
    }

    fn to_f64(self) -> f64 {
        match self {
            Number::Integer(number) => number as f64,
            Number::Real(number) => number,
        }
    }

    /// `self op other`.
    pub fn operation(self, op: Operator, other: Number) -> Result<Number, String> {
        let divides = [Operator::Divide, Operator::FloorDivide, Operator::Modulo];
        if divides.contains(&op) && other.to_f64() == 0.0 {
            return Err("division by 0".into());
        }
        match (self, other) {
            (Number::Integer(a), Number::Integer(b)) => of_integers(op, a, b),
            (a, b) => of_reals(op, a.to_f64(), b.to_f64()).map(Number::Real),
        }
    }

    /// By exact value; `None` if one is NaN.
    pub fn compare(self, other: Number) -> Option<Ordering> {
        match (self, other) {
            (Number::Integer(a), Number::Integer(b)) => Some(a.cmp(&b)),
            (Number::Real(a), Number::Real(b)) => a.partial_cmp(&b),
            (Number::Integer(a), Number::Real(b)) => against_real(a, b),
            (Number::Real(a), Number::Integer(b)) => against_real(b, a).map(Ordering::reverse),
        }
    }
}

fn of_integers(op: Operator, a: i64, b: i64) -> Result<Number, String> {
    let exact = match op {
        Operator::Add => a.checked_add(b),
        Operator::Subtract => a.checked_sub(b),
        Operator::Multiply => a.checked_mul(b),
        Operator::FloorDivide => floored(a, b).map(|(quotient, _)| quotient),
        // The least number by -1 has no remainder, though its quotient does not fit.
        Operator::Modulo if b == -1 => Some(0),
        Operator::Modulo => floored(a, b).map(|(_, rest)| rest),
        Operator::Divide => return Ok(Number::Real(quotient(a, b))),
        Operator::Product => return Err(format!("needs two matrices: {a}")),
    };
    let overflow = || format!("of {a} and {b} does not fit in 64 bits");
    exact.map(Number::Integer).ok_or_else(overflow)
}

/// Quotient and remainder, rounded to minus infinity.
fn floored(a: i64, b: i64) -> Option<(i64, i64)> {
    let (quotient, rest) = (a.checked_div(b)?, a.checked_rem(b)?);
    match rest != 0 && (rest < 0) != (b < 0) {
        true => Some((quotient - 1, rest + b)),
        false => Some((quotient, rest)),
    }
}

/// `a / b`, rounded once.
fn quotient(a: i64, b: i64) -> f64 {
    const EXACT: u64 = 1 << 53;
    let (high, low) = (a.unsigned_abs(), b.unsigned_abs());
    if high <= EXACT && low <= EXACT {
        return a as f64 / b as f64;
    }
    if high == 0 {
        return 0.0;
    }
    // At least 64 bits of the quotient, and whether any others are set: then the conversion rounds once.
    let shift = u128::from(high).leading_zeros();
    let (shifted, low) = (u128::from(high) << shift, u128::from(low));
    let bits = (shifted / low) | u128::from(shifted % low != 0);
    let value = bits as f64 * 2f64.powi(-(shift as i32));
    if (a < 0) == (b < 0) { value } else { -value }
}

fn of_reals(op: Operator, a: f64, b: f64) -> Result<f64, String> {
    Ok(match op {
        Operator::Add => a + b,
        Operator::Subtract => a - b,
        Operator::Multiply => a * b,
        Operator::Divide => a / b,
        Operator::FloorDivide => floored_real(a, b).0,
        Operator::Modulo => floored_real(a, b).1,
        Operator::Product => return Err(format!("needs two matrices: {a:?}")),
    })
}

/// Quotient and remainder as Python's `divmod` has them.
///
/// Source: `_float_div_mod` in `Objects/floatobject.c` of CPython 3.
fn floored_real(a: f64, b: f64) -> (f64, f64) {
    let mut rest = a % b;
    let mut quotient = (a - rest) / b;
    if rest != 0.0 {
        if (b < 0.0) != (rest < 0.0) {
            rest += b;
            quotient -= 1.0;
        }
    } else {
        rest = 0f64.copysign(b);
    }
    let floor = match quotient != 0.0 {
        true => {
            let floor = quotient.floor();
            if quotient - floor > 0.5 {
                floor + 1.0
            } else {
                floor
            }
        }
        false => 0f64.copysign(a / b),
    };
    (floor, rest)
}

/// A whole number against a real one, without rounding either.
fn against_real(a: i64, b: f64) -> Option<Ordering> {
    const END: f64 = 9_223_372_036_854_775_808.0;
    if b.is_nan() {
        return None;
    }
    if b >= END {
        return Some(Ordering::Less);
    }
    if b < -END {
        return Some(Ordering::Greater);
    }
    let floor = b.floor();
    match a.cmp(&(floor as i64)) {
        Ordering::Equal if b > floor => Some(Ordering::Less),
        order => Some(order),
    }
}
