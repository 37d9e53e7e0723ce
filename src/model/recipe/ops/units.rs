//! What can be moved of a tensor: elements, or the bytes or blocks that several of them share.

use super::{shape_of, shape_text};
use crate::dtype::{Dtype, ElementType, numel};
use crate::model::recipe::tensor::Derived;

/// What cannot be divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unit {
    /// Elements in it.
    pub elements: u64,
    /// Its bytes.
    pub bytes: u32,
}

/// A tensor in whole units: its axes, of which the last ones are one where single elements of them cannot be
/// moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    pub unit: Unit,
    /// Sizes of the axes in units: of those before `first`, and of all the others as one.
    pub shape: Vec<u64>,
    /// The axis whose range must be whole units; those behind it are taken whole. `None` if every element is a
    /// unit.
    pub first: Option<usize>,
}

impl Unit {
    /// The unit of a tensor's elements.
    pub fn of(x: &Derived) -> Result<Unit, String> {
        let one = |bytes| Unit { elements: 1, bytes };
        match &x.dtype {
            ElementType::Known(Dtype::F4) => Ok(Unit {
                elements: 2,
                bytes: 1,
            }),
            ElementType::Known(Dtype::F6_E2M3 | Dtype::F6_E3M2) => Ok(Unit {
                elements: 4,
                bytes: 3,
            }),
            ElementType::Known(dtype) => Ok(one(dtype.bits() / 8)),
            ElementType::Block(block) => Ok(Unit {
                elements: block.elements.into(),
                bytes: block.bytes,
            }),
            ElementType::Opaque(opaque) => Ok(one(opaque.bytes)),
            ElementType::Other(name) => {
                let bytes = x.nbytes.checked_div(x.numel()).unwrap_or(0);
                let whole = bytes > 0 && x.nbytes.is_multiple_of(x.numel());
                let bytes = u32::try_from(bytes).ok().filter(|_| whole);
                bytes.map(one).ok_or_else(|| {
                    format!(
                        "stfs does not know the dtype '{name}' of {}, and {} bytes do not tell how long each of its {} elements is",
                        x.label, x.nbytes, x.numel()
                    )
                })
            }
        }
    }
}

impl Grid {
    pub fn of(x: &Derived) -> Result<Grid, String> {
        let unit = Unit::of(x)?;
        if unit.elements == 1 {
            return Ok(Grid {
                unit,
                shape: x.shape.to_vec(),
                first: None,
            });
        }
        let whole = |axis: &usize| {
            let rest = x.shape.get(*axis..).and_then(numel);
            rest.is_some_and(|rest| rest.is_multiple_of(unit.elements))
        };
        let first = (0..x.shape.len()).rfind(whole);
        let first = first.ok_or_else(|| format!("{} is not whole {}", shape_of(x), units_of(x)))?;
        let (before, rest) = x.shape.split_at(first);
        let units = numel(rest).unwrap_or(0) / unit.elements;
        Ok(Grid {
            unit,
            shape: [before, &[units]].concat(),
            first: Some(first),
        })
    }
}

/// What the elements of a type are in, for messages.
pub fn units_of(x: &Derived) -> String {
    match (&x.dtype, Unit::of(x)) {
        (ElementType::Block(_), Ok(unit)) => format!("blocks of {} {}", unit.elements, x.dtype),
        (_, Ok(unit)) if unit.elements > 1 => {
            format!("bytes ({} {} each {})", unit.elements, x.dtype, unit.bytes)
        }
        _ => "bytes".into(),
    }
}

/// That what lies at each index of the axes before `axis` is whole units, so that something can stand beside
/// it.
pub fn check_rows(x: &Derived, axis: usize) -> Result<(), String> {
    let row = x.shape.get(axis..).unwrap_or_default();
    let unit = Unit::of(x)?;
    let is_whole = numel(row).is_some_and(|n| n.is_multiple_of(unit.elements));
    let is_one = x.shape.iter().take(axis).all(|&size| size == 1);
    if is_whole || is_one {
        return Ok(());
    }
    Err(format!(
        "rows {} of {} are not whole {}",
        shape_text(row),
        x.label,
        units_of(x)
    ))
}

/// That a result of that shape is whole blocks along its last axis.
pub fn check_blocks(x: &Derived, shape: &[u64]) -> Result<(), String> {
    let ElementType::Block(block) = x.dtype else {
        return Ok(());
    };
    let row = shape.last().copied().unwrap_or(1);
    match row.is_multiple_of(block.elements.into()) {
        true => Ok(()),
        false => Err(format!(
            "rows of {row} are not whole blocks of {} {} ({})",
            block.elements, x.dtype, x.label
        )),
    }
}
