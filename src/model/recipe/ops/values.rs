//! Values: binary32, computed from the values of operands.

use std::sync::Arc;

use super::{Made, above, all_rules, possible, shape_of, within_reach};
use crate::dtype::{Dtype, numel};
use crate::model::recipe::tensor::Derived;
use crate::model::{Computed, Expr, Operation};
use crate::view::Arithmetic;

/// The largest inner dimension of a product.
const MAX_INNER: u64 = 1024;

/// A tensor, or a number that meets one.
#[derive(Debug, Clone)]
pub enum Operand {
    /// A tensor: its values.
    Tensor(Derived),
    /// A number, rounded once.
    Number(f32),
}

/// The values as F32.
pub fn values(x: &Derived) -> Made {
    let label = x.label.made("f32");
    if let Some(decoded) = &x.values {
        let of = decoded.expr.as_ref();
        let expr = of.map_err(|why| format!("{} has no values: {why}", x.label))?;
        return Ok(Derived {
            dtype: Dtype::F32.into(),
            shape: decoded.shape.clone(),
            nbytes: f32_bytes(x, &decoded.shape)?,
            expr: expr.clone(),
            values: None,
            exact: decoded.exact,
            label,
            ..x.clone()
        });
    }
    if x.dtype.is(Dtype::F32) {
        return Ok(x.clone());
    }
    if !x.dtype.has_f32() {
        return Err(format!("{} is {}, which has no values", x.label, x.dtype));
    }
    Ok(Derived {
        dtype: Dtype::F32.into(),
        nbytes: f32_bytes(x, &x.shape)?,
        expr: computed(Operation::Widen(x.dtype.clone()), [x.expr.clone()]),
        exact: x.exact && x.dtype.exact_in_f32(),
        // The values of a model's own tensor are a view that it has anyway.
        depth: match x.expr.alias() {
            Some(_) => x.depth,
            None => above(x.depth)?,
        },
        label,
        ..x.clone()
    })
}

/// The values in another float type: F32, F16, BF16, F8_E4M3 or F8_E5M2. Elements that are of that type
/// already stay as they are.
pub fn cast(x: &Derived, dtype: Dtype) -> Made {
    if x.values.is_none() && x.dtype.is(dtype) {
        return Ok(x.clone());
    }
    let of = values(x)?;
    if dtype == Dtype::F32 {
        return Ok(of);
    }
    let from = match x.values {
        Some(_) => Some(Dtype::F32),
        None => x.dtype.known(),
    };
    Ok(Derived {
        dtype: dtype.into(),
        nbytes: possible(&x.label, numel(&of.shape).and_then(|n| dtype.bytes(n)))?,
        exact: of.exact && from.is_some_and(|from| dtype.holds(from)),
        expr: computed(Operation::Narrow(dtype), [of.expr.clone()]),
        depth: above(of.depth)?,
        label: x.label.made("cast"),
        ..of
    })
}

/// The values with the other sign.
pub fn negate(x: &Derived) -> Made {
    let of = values(x)?;
    Ok(Derived {
        expr: computed(Operation::Negate, [of.expr.clone()]),
        exact: false,
        depth: above(of.depth)?,
        label: x.label.made("'-'"),
        ..of
    })
}

/// Value by value. Shapes are equal, or one operand is a number or has one element.
pub fn arithmetic(op: Arithmetic, a: Operand, b: Operand) -> Made {
    if let (Arithmetic::Divide, Operand::Number(0.0)) = (op, &b) {
        return Err("division by 0".into());
    }
    let label = match op {
        Arithmetic::Add => "'+'",
        Arithmetic::Subtract => "'-'",
        Arithmetic::Multiply => "'*'",
        Arithmetic::Divide => "'/'",
    };
    let (a, b) = (side(a)?, side(b)?);
    let operands = [&a, &b].map(|side| match side {
        Side::Values(x) => x.expr.clone(),
        Side::Number(n) => Expr::Number(*n),
    });
    let of = match (a, b) {
        (Side::Values(a), Side::Values(b)) => together(a, b)?,
        (Side::Values(x), _) | (_, Side::Values(x)) => x,
        _ => return Err("one operand must be a tensor".into()),
    };
    Ok(Derived {
        expr: computed(Operation::Arithmetic(op), operands),
        exact: false,
        depth: above(of.depth)?,
        reach: within_reach(of.reach.into())?,
        label: of.label.made(label),
        ..of
    })
}

/// What an operand is once its values are taken.
enum Side {
    Values(Derived),
    Number(f32),
}

fn side(operand: Operand) -> Result<Side, String> {
    match operand {
        Operand::Number(number) => Ok(Side::Number(number)),
        Operand::Tensor(x) => {
            let label = x.label.clone();
            let of = values(&x)?;
            Ok(Side::Values(Derived { label, ..of }))
        }
    }
}

/// What is known of both operands together.
fn together(a: Derived, b: Derived) -> Made {
    let (depth, reach) = (a.depth.max(b.depth), a.reach.saturating_add(b.reach));
    let rules = all_rules([&a, &b]);
    let label = a.label.clone();
    Ok(Derived {
        depth,
        reach,
        rules,
        label,
        ..fitting(a, b)?
    })
}

/// The operand whose shape the result has.
fn fitting(a: Derived, b: Derived) -> Made {
    let is_one = |x: &Derived| x.numel() == 1;
    match (is_one(&a), is_one(&b)) {
        _ if a.shape == b.shape => Ok(a),
        (true, true) if a.shape.len() < b.shape.len() => Ok(b),
        (_, true) => Ok(a),
        (true, false) => Ok(b),
        (false, false) => Err(format!(
            "shapes differ: {} and {}",
            shape_of(&a),
            shape_of(&b)
        )),
    }
}

/// `a @ b` of matrices.
pub fn product(a: &Derived, b: &Derived) -> Made {
    let (left, right) = (values(a)?, values(b)?);
    let named = |of: &Derived, x: &Derived| {
        let label = x.label.clone();
        shape_of(&Derived {
            label,
            ..of.clone()
        })
    };
    let (&[m, inner], &[k, n]) = (&*left.shape, &*right.shape) else {
        return Err(format!(
            "needs two matrices: {} and {}",
            named(&left, a),
            named(&right, b)
        ));
    };
    if inner != k {
        return Err(format!(
            "inner dimensions differ, {inner} and {k}: {} and {}",
            named(&left, a),
            named(&right, b)
        ));
    }
    if k > MAX_INNER {
        return Err(format!(
            "the inner dimension is {k}, at most {MAX_INNER} is possible: {} and {}",
            named(&left, a),
            named(&right, b)
        ));
    }
    let shape: Arc<[u64]> = [m, n].into();
    let reach = u64::from(left.reach) + u64::from(right.reach);
    Ok(Derived {
        nbytes: f32_bytes(a, &shape)?,
        shape,
        exact: false,
        depth: above(left.depth.max(right.depth))?,
        reach: within_reach((k * reach).max(1))?,
        rules: all_rules([&left, &right]),
        label: a.label.made("'@'"),
        expr: computed(
            Operation::Product { m, k, n },
            [left.expr.clone(), right.expr],
        ),
        ..left
    })
}

fn computed<const N: usize>(operation: Operation, operands: [Expr; N]) -> Expr {
    let operands = operands.into();
    Expr::Computed(Arc::new(Computed {
        operation,
        operands,
    }))
}

/// Bytes of that many values, made of `x`.
fn f32_bytes(x: &Derived, shape: &[u64]) -> Result<u64, String> {
    let nbytes = numel(shape).and_then(|n| Dtype::F32.bytes(n));
    possible(&x.label, nbytes)
}
