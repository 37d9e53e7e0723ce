//! Slices, permutations and shapes: a strided array over what the operand is made of.

use std::sync::Arc;

use super::units::{Grid, Unit, check_blocks, units_of};
use super::{Made, above, check_axis, list_text, shape_of, shape_text};
use crate::dtype::{ElementType, numel};
use crate::model::gather::Axes;
use crate::model::recipe::tensor::Derived;
use crate::model::{Computed, Expr, Gather, Operation, Strided};

/// Along one axis: from `start` to before `stop`, each `step`th; of a single index the axis goes.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub start: u64,
    pub stop: u64,
    pub step: u64,
    pub is_index: bool,
}

impl Range {
    /// All of an axis of that size.
    pub fn all(size: u64) -> Range {
        Range {
            start: 0,
            stop: size,
            step: 1,
            is_index: false,
        }
    }

    /// How many indexes it has.
    pub fn count(&self) -> u64 {
        let distance = self.stop.saturating_sub(self.start);
        distance.div_ceil(self.step.max(1))
    }
}

/// `x[…]`: ranges of the first axes, within them.
pub fn slice(x: &Derived, ranges: &[Range]) -> Made {
    if ranges.len() > x.shape.len() {
        return Err(format!(
            "{} indexes for {} axes: {}",
            ranges.len(),
            x.shape.len(),
            shape_of(x)
        ));
    }
    let rest = x.shape.iter().skip(ranges.len());
    let rest = rest.map(|&size| Range::all(size));
    let all: Vec<Range> = ranges.iter().copied().chain(rest).collect();
    for (axis, (range, &size)) in all.iter().zip(&*x.shape).enumerate() {
        if range.stop > size || range.start > range.stop || range.step == 0 {
            let Range { start, stop, .. } = range;
            return Err(format!(
                "{start}:{stop} is out of range: axis {axis} of {} is {size}",
                x.label
            ));
        }
    }
    let kept = all.iter().filter(|range| !range.is_index);
    let shape: Arc<[u64]> = kept.map(Range::count).collect();
    check_blocks(x, &shape)?;
    let grid = Grid::of(x)?;
    let units = in_units(x, &grid, &all)?;
    let cut = |axes: &mut Axes| {
        for (axis, (start, count, step)) in units.into_iter().enumerate() {
            axes.slice(axis, start, count, step);
        }
    };
    strided(x, &grid, shape, cut, "slice")
}

/// First, count and step of each axis of the grid.
fn in_units(x: &Derived, grid: &Grid, ranges: &[Range]) -> Result<Vec<(u64, u64, u64)>, String> {
    let plain = |range: &Range| (range.start, range.count(), range.step);
    let Some(first) = grid.first else {
        return Ok(ranges.iter().map(plain).collect());
    };
    let inner = x.shape.get(first + 1..).and_then(numel).unwrap_or(0);
    let is_all = |axis: usize| {
        let range = ranges.get(axis);
        range.is_some_and(|range| Some(&range.count()) == x.shape.get(axis))
    };
    let elements = grid.unit.elements;
    let last = ranges.get(first).copied().unwrap_or(Range::all(1));
    let (start, count) = (last.start * inner, last.count() * inner);
    let is_whole = start.is_multiple_of(elements) && count.is_multiple_of(elements);
    let fits = (first + 1..x.shape.len()).all(is_all)
        && (is_all(first) || is_whole && (last.step == 1 || last.count() < 2));
    let last = match fits {
        true if is_all(first) => (0, x.shape.get(first).map_or(0, |n| n * inner / elements), 1),
        true => (start / elements, count / elements, 1),
        false => {
            return Err(format!(
                "{} is in {}, and can be cut only between them",
                shape_of(x),
                units_of(x)
            ));
        }
    };
    let before = ranges.iter().take(first).map(plain);
    Ok(before.chain([last]).collect())
}

/// The `index`th of `count` equal parts along an axis.
pub fn part(x: &Derived, index: i64, count: i64, axis: usize) -> Made {
    check_axis(x, axis)?;
    let size = x.shape.get(axis).copied().unwrap_or(0);
    let of = match u64::try_from(count) {
        Ok(of) if of > 0 => of,
        _ => return Err(format!("{count} parts: there must be at least 1")),
    };
    let number = u64::try_from(index).ok().filter(|&number| number < of);
    let number = number.ok_or_else(|| {
        let last = of - 1;
        format!("there is no part {index} of {count}: they are 0 to {last}")
    })?;
    if !size.is_multiple_of(of) {
        return Err(format!(
            "axis {axis} of {} is {size}, which {count} does not divide",
            x.label
        ));
    }
    let of_each = size / of;
    let mut ranges: Vec<Range> = x.shape.iter().take(axis).map(|&n| Range::all(n)).collect();
    ranges.push(Range {
        start: number * of_each,
        stop: (number + 1) * of_each,
        ..Range::all(size)
    });
    let made = slice(x, &ranges)?;
    Ok(Derived {
        label: x.label.made("part"),
        ..made
    })
}

/// The same elements in another shape, of as many elements.
pub fn reshape(x: &Derived, shape: &[u64]) -> Made {
    if numel(shape) != numel(&x.shape) {
        let there = match numel(shape) {
            Some(n) => n.to_string(),
            None => "more than 64 bits count".into(),
        };
        return Err(format!(
            "{} has {} elements, {} has {there}",
            shape_of(x),
            x.numel(),
            shape_text(shape),
        ));
    }
    check_blocks(x, shape)?;
    Ok(Derived {
        shape: shape.into(),
        label: x.label.made("reshape"),
        ..elements(x)
    })
}

/// Axis i of the result is axis `axes[i]`.
pub fn permute(x: &Derived, axes: &[usize]) -> Made {
    let mut sorted = axes.to_vec();
    sorted.sort_unstable();
    if !sorted.iter().copied().eq(0..x.shape.len()) {
        return Err(format!(
            "{} is not an order of all axes of {}",
            list_text(axes),
            shape_of(x)
        ));
    }
    let unit = Unit::of(x)?;
    let keeps_last = axes.last().is_none_or(|&last| last + 1 == axes.len());
    let is_block = matches!(x.dtype, ElementType::Block(_));
    if unit.elements > 1 && !(is_block && keeps_last) {
        return Err(format!(
            "{} is {}, which can be cut and joined, not permuted{}: f32(…) of it can be",
            x.label,
            x.dtype,
            if is_block { " along its last axis" } else { "" }
        ));
    }
    let shape = axes.iter().filter_map(|&axis| x.shape.get(axis));
    let shape: Arc<[u64]> = shape.copied().collect();
    if let ([1, 0], Some(expr)) = (axes, turned_product(x)) {
        return Ok(Derived {
            shape,
            expr,
            depth: above(x.depth)?,
            label: x.label.made("permute"),
            ..elements(x)
        });
    }
    let grid = Grid::of(x)?;
    strided(x, &grid, shape, |all| all.permute(axes), "permute")
}

/// The last two axes exchanged.
pub fn transpose(x: &Derived) -> Made {
    let rank = x.shape.len();
    if rank < 2 {
        return Err(format!("{} has fewer than two axes", shape_of(x)));
    }
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.swap(rank - 2, rank - 1);
    let made = permute(x, &axes)?;
    Ok(Derived {
        label: x.label.made("t"),
        ..made
    })
}

/// The stored elements, whatever the values are.
pub(super) fn elements(x: &Derived) -> Derived {
    Derived {
        values: None,
        exact: is_exact(x),
        ..x.clone()
    }
}

/// Whether the elements are exact, whatever the values are.
pub(super) fn is_exact(x: &Derived) -> bool {
    match &x.values {
        Some(_) => x.dtype.exact_in_f32(),
        None => x.exact,
    }
}

/// The units of `x` in another order.
fn strided(
    x: &Derived,
    grid: &Grid,
    shape: Arc<[u64]>,
    change: impl FnOnce(&mut Axes),
    by: &'static str,
) -> Made {
    let impossible = || format!("{} has {} bytes", shape_of(x), x.nbytes);
    let of_shape = numel(&grid.shape).and_then(|n| n.checked_mul(grid.unit.bytes.into()));
    if of_shape != Some(x.nbytes) {
        return Err(impossible());
    }
    let all = Strided::all(x.nbytes, grid.unit.bytes);
    let moved = Moved::of(&x.expr, all, &grid.shape, change).ok_or_else(impossible)?;
    Ok(Derived {
        shape,
        nbytes: moved.nbytes,
        depth: moved.depth(x.depth)?,
        expr: moved.expr,
        label: x.label.made(by),
        ..elements(x)
    })
}

/// Bytes of an expression in another order.
struct Moved {
    expr: Expr,
    nbytes: u64,
    /// The expression was itself a strided array, and is no longer needed.
    is_merged: bool,
    /// The result is one.
    is_strided: bool,
}

impl Moved {
    /// `all` of an expression, as an array of that shape in units, changed. If the expression is itself a strided
    /// array, the result is one over the same operand, unless its axes cannot be told by strides.
    fn of(
        expr: &Expr,
        all: Strided,
        shape: &[u64],
        change: impl FnOnce(&mut Axes),
    ) -> Option<Moved> {
        let merged = match expr {
            Expr::Gather(gather) => gather.strided.shaped(shape).map(|axes| (axes, &gather.of)),
            _ => None,
        };
        let is_merged = merged.is_some();
        let whole = || Some((all.shaped(shape)?, expr));
        let (mut axes, of) = merged.or_else(whole)?;
        change(&mut axes);
        let strided = axes.normal();
        let (nbytes, is_strided) = (strided.nbytes(), !strided.is_all());
        let of = of.clone();
        Some(Moved {
            expr: match is_strided {
                true => Expr::Gather(Arc::new(Gather { of, strided })),
                false => of,
            },
            nbytes,
            is_merged,
            is_strided,
        })
    }

    /// The depth, if that of the expression was `depth`.
    fn depth(&self, depth: u32) -> Result<u32, String> {
        let below = depth.saturating_sub(self.is_merged.into());
        match self.is_strided {
            true => above(below),
            false => Ok(below),
        }
    }
}

/// `t(a @ b)` as `t(b) @ t(a)`: the same bit for bit, but rows of it are computed from rows.
fn turned_product(x: &Derived) -> Option<Expr> {
    let Expr::Computed(computed) = &x.expr else {
        return None;
    };
    let (Operation::Product { m, k, n }, [a, b]) = (&computed.operation, &*computed.operands)
    else {
        return None;
    };
    let turned = |of: &Expr, rows: u64, columns: u64| {
        let all = Strided::all(rows.checked_mul(columns)?.checked_mul(4)?, 4);
        let moved = Moved::of(of, all, &[rows, columns], |axes| axes.permute(&[1, 0]))?;
        Some(moved.expr)
    };
    let operands = [turned(b, *k, *n)?, turned(a, *m, *k)?];
    let is_whole = *x.shape == [*m, *n];
    is_whole.then(|| {
        let (m, k, n) = (*n, *k, *m);
        Expr::Computed(Arc::new(Computed {
            operation: Operation::Product { m, k, n },
            operands: operands.into(),
        }))
    })
}
