//! Joins: parts side by side.

use std::sync::Arc;

use super::cut::{elements, is_exact};
use super::units::{Unit, check_blocks, check_rows};
use super::{Made, above, all_rules, check_axis, possible, shape_of};
use crate::dtype::{ElementType, numel};
use crate::model::recipe::tensor::Derived;
use crate::model::{Expr, Join};

/// A join of up to this many parts becomes parts of the one that it is a part of. Larger ones are shared.
const FLAT: usize = 8;

/// Parts side by side along an axis.
pub fn concat(parts: &[Derived], axis: usize) -> Made {
    let first = first_of(parts)?;
    if first.shape.is_empty() {
        return Err(format!(
            "{} has no axis to join along: stack(…) makes one",
            shape_of(first)
        ));
    }
    check_axis(first, axis)?;
    let mut size = 0u64;
    for part in parts {
        let fits = part.shape.len() == first.shape.len()
            && (0..first.shape.len()).all(|d| d == axis || part.shape.get(d) == first.shape.get(d));
        if !fits {
            return Err(format!(
                "only axis {axis} may differ: {} and {}",
                shape_of(first),
                shape_of(part)
            ));
        }
        let more = part.shape.get(axis).copied().unwrap_or(0);
        size = size.checked_add(more).ok_or("the axis is too long")?;
    }
    let mut shape = first.shape.to_vec();
    if let Some(axis) = shape.get_mut(axis) {
        *axis = size;
    }
    let label = first.label.made("concat");
    Ok(Derived {
        label,
        ..joined(parts, axis, shape.into())?
    })
}

/// Parts along a new axis.
pub fn stack(parts: &[Derived], axis: usize) -> Made {
    let first = first_of(parts)?;
    if axis > first.shape.len() {
        return Err(format!(
            "{} has no axis {axis} to stack along",
            shape_of(first)
        ));
    }
    if let Some(other) = parts.iter().find(|part| part.shape != first.shape) {
        let (first, other) = (shape_of(first), shape_of(other));
        return Err(format!("shapes differ: {first} and {other}"));
    }
    let mut shape = first.shape.to_vec();
    shape.insert(axis, parts.len() as u64);
    let label = first.label.made("stack");
    Ok(Derived {
        label,
        ..joined(parts, axis, shape.into())?
    })
}

/// Bytes of zero at the end of an axis until it has that size.
pub fn pad(x: &Derived, size: u64, axis: usize) -> Made {
    check_axis(x, axis)?;
    let there = x.shape.get(axis).copied().unwrap_or(0);
    let Some(more) = size.checked_sub(there) else {
        return Err(format!(
            "axis {axis} of {} is {there}, more than {size}",
            x.label
        ));
    };
    let label = x.label.made("pad");
    if more == 0 {
        return Ok(Derived {
            label,
            ..elements(x)
        });
    }
    let mut added = x.shape.to_vec();
    if let Some(axis) = added.get_mut(axis) {
        *axis = more;
    }
    let unit = Unit::of(x)?;
    let numel = numel(&added).ok_or_else(|| possible(&x.label, None).err().unwrap_or_default())?;
    let nbytes = (numel / unit.elements).checked_mul(unit.bytes.into());
    let nbytes = possible(&x.label, nbytes)?;
    let zeros = Derived {
        shape: added.into(),
        nbytes,
        expr: Expr::Zeros(nbytes),
        values: None,
        depth: 0,
        ..x.clone()
    };
    check_rows(&zeros, axis)?;
    if !numel.is_multiple_of(unit.elements) {
        return Err(format!(
            "{more} more along axis {axis} of {} are not whole bytes",
            shape_of(x)
        ));
    }
    let mut shape = x.shape.to_vec();
    if let Some(axis) = shape.get_mut(axis) {
        *axis = size;
    }
    Ok(Derived {
        label,
        ..joined(&[x.clone(), zeros], axis, shape.into())?
    })
}

/// The first part, if there is one, and all are of its type. Where stfs does not know the type, its elements must
/// at least be of one length.
fn first_of(parts: &[Derived]) -> Result<&Derived, String> {
    let first = parts.first().ok_or("nothing to join")?;
    if let Some(other) = parts.iter().find(|part| part.dtype != first.dtype) {
        return Err(format!(
            "dtypes differ: {} is {}, {} is {}; f32(…) of both has one",
            first.label, first.dtype, other.label, other.dtype
        ));
    }
    if let ElementType::Other(name) = &first.dtype {
        let unit = Unit::of(first)?;
        for other in parts {
            let of_other = Unit::of(other)?;
            if of_other != unit {
                return Err(format!(
                    "elements of the unknown dtype '{name}' have {} bytes in {}, {} in {}",
                    unit.bytes, first.label, of_other.bytes, other.label
                ));
            }
        }
    }
    Ok(first)
}

/// Parts that fit, as one tensor of that shape.
fn joined(parts: &[Derived], axis: usize, shape: Arc<[u64]>) -> Made {
    let first = parts.first().ok_or("nothing to join")?;
    check_blocks(first, &shape)?;
    parts.iter().try_for_each(|part| check_rows(part, axis))?;
    let mut bytes = parts.iter().map(|part| part.nbytes);
    let nbytes = bytes.try_fold(0u64, u64::checked_add);
    let nbytes = possible(&first.label, nbytes.filter(|_| numel(&shape).is_some()))?;
    let outer = shape
        .iter()
        .take(axis)
        .fold(1u64, |n, &size| n.saturating_mul(size));
    let mut exprs = Vec::with_capacity(parts.len());
    let mut depth = 0;
    for part in parts {
        match &part.expr {
            // Its parts follow one another, as these do.
            Expr::Join(join) if outer == 1 && is_flat(join) => {
                exprs.extend(join.parts.iter().cloned());
                depth = depth.max(part.depth.saturating_sub(1));
            }
            expr => {
                exprs.push(expr.clone());
                depth = depth.max(part.depth);
            }
        }
    }
    let (expr, depth) = match &exprs[..] {
        [one] => (one.clone(), depth),
        _ => {
            let join = Join::side_by_side(exprs, axis, outer);
            (Expr::Join(Arc::new(join)), above(depth)?)
        }
    };
    Ok(Derived {
        shape,
        nbytes,
        expr,
        exact: parts.iter().all(is_exact),
        depth,
        reach: parts.iter().map(|part| part.reach).max().unwrap_or(1),
        rules: all_rules(parts),
        ..elements(first)
    })
}

fn is_flat(join: &Join) -> bool {
    join.outer == 1 && !join.stacked && join.parts.len() <= FLAT
}
