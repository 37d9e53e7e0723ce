//! What can be done to tensors: shapes and element types are checked, and expressions made. The error is
//! what is wrong, with both shapes and both names.
//!
//! Structure ([`slice()`], [`part`], [`permute`], [`concat()`], [`stack`], [`pad`], [`reshape`]) moves elements as they
//! are stored. Values ([`values()`], [`cast`], [`arithmetic`], [`negate`], [`product`]) are binary32.

use std::sync::Arc;

use super::tensor::{Derived, Label, Rules};

mod cut;
mod join;
#[cfg(test)]
mod tests;
mod units;
mod values;

pub use crate::view::Arithmetic;
pub use cut::{Range, part, permute, reshape, slice, transpose};
pub use join::{concat, pad, stack};
pub use values::{Operand, arithmetic, cast, negate, product, values};

/// What is wrong, without its place.
pub type Made = Result<Derived, String>;

/// Views on top of one another.
const MAX_DEPTH: u32 = 64;
/// Source elements that one element may depend on.
const MAX_REACH: u64 = 4096;
/// Bytes of a tensor.
const MAX_BYTES: u64 = i64::MAX as u64;

/// One more view on top of others.
fn above(depth: u32) -> Result<u32, String> {
    match depth.checked_add(1) {
        Some(depth) if depth <= MAX_DEPTH => Ok(depth),
        _ => Err(format!(
            "more than {MAX_DEPTH} views on top of one another: fewer steps, or a model that has some of them done"
        )),
    }
}

/// Source elements that an element depends on.
fn within_reach(reach: u64) -> Result<u32, String> {
    match u32::try_from(reach) {
        Ok(fits) if reach <= MAX_REACH => Ok(fits),
        _ => Err(format!(
            "one element would depend on {reach} source elements, at most {MAX_REACH} are possible"
        )),
    }
}

/// A length that a tensor can have.
fn possible(label: &Label, nbytes: Option<u64>) -> Result<u64, String> {
    let nbytes = nbytes.filter(|&nbytes| nbytes <= MAX_BYTES);
    nbytes.ok_or_else(|| format!("more than {MAX_BYTES} bytes (made of {label})"))
}

/// The rules that made any of several tensors. Most have the very same ones: a list is at most looked through, and
/// a new one is made only if none has all.
fn all_rules<'a>(tensors: impl IntoIterator<Item = &'a Derived>) -> Rules {
    let mut tensors = tensors.into_iter();
    let first = tensors.next();
    let first = first.map_or_else(Derived::no_rules, |first| first.rules.clone());
    tensors.fold(first, |all, tensor| both(all, &tensor.rules))
}

/// Two lists of rules as one. Both are in ascending order.
fn both(a: Rules, b: &Rules) -> Rules {
    if Arc::ptr_eq(&a, b) || b.is_empty() {
        return a;
    }
    let (mut left, mut right) = (a.iter().peekable(), b.iter().peekable());
    let mut merged = Vec::with_capacity(a.len() + b.len());
    while let Some(next) = left.peek().into_iter().chain(right.peek()).min() {
        let next = **next;
        left.next_if(|rule| **rule == next);
        right.next_if(|rule| **rule == next);
        merged.push(next);
    }
    match merged.len() {
        // No more than one of them has.
        n if n == a.len() => a,
        n if n == b.len() => b.clone(),
        _ => merged.into(),
    }
}

/// A shape, for a message.
pub fn shape_text(shape: &[u64]) -> String {
    list_of(shape, "axes")
}

/// Any numbers, for a message.
pub fn list_text(numbers: &[impl std::fmt::Debug]) -> String {
    list_of(numbers, "numbers")
}

/// The first ones of a list, and if there are more, how many of `what` there are.
fn list_of(numbers: &[impl std::fmt::Debug], what: &str) -> String {
    const MOST: usize = 16;
    match numbers.get(..MOST) {
        Some(first) if numbers.len() > MOST => {
            format!("{} {what} {first:?}…", numbers.len())
        }
        _ => format!("{numbers:?}"),
    }
}

/// A tensor with its shape, for a message.
fn shape_of(x: &Derived) -> String {
    format!("{} ({})", shape_text(&x.shape), x.label)
}

/// That an axis is there.
fn check_axis(x: &Derived, axis: usize) -> Result<(), String> {
    match x.shape.get(axis) {
        Some(_) => Ok(()),
        None => Err(format!("{} has no axis {axis}", shape_of(x))),
    }
}
