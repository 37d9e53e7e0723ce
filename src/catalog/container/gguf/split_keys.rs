//! The keys with which each file of a split model states its place in the set.

use std::collections::HashMap;

use serde_json::Value;

use super::header::Header;
use super::key::{Key, shown};
use super::splits::SplitName;
use super::value::{Kind, ValueType};
use crate::catalog::{Findings, Object, Problem};
use crate::error::{Error, Result};

/// The prefix of these keys.
const PREFIX: &str = "split.";
/// Which file it is, from 0 up.
const NUMBER: &str = "split.no";
/// How many files the model has.
const COUNT: &str = "split.count";
/// How many tensors all of them have together.
pub(super) const TENSORS: &str = "split.tensors.count";
/// Each file has its own.
const ALIGNMENT: &str = "general.alignment";

/// The types with which llama.cpp reads these keys.
const TYPES: [(&str, ValueType); 3] = [
    (NUMBER, ValueType::U16),
    (COUNT, ValueType::U16),
    (TENSORS, ValueType::I32),
];

/// What a file states about its set.
#[derive(Default)]
pub(super) struct Claims {
    /// Which file it is, from 0 up.
    number: Option<u64>,
    /// How many files there are.
    count: Option<u64>,
    /// How many tensors they have together.
    pub tensors: Option<u64>,
}

/// Reads the keys of the file `name`, and checks that they fit the name.
///
/// # Errors
/// They do not, while a model is opened.
pub(super) fn check(
    file: &dyn Object,
    name: &str,
    header: &Header,
    findings: &mut Findings,
) -> Result<Claims> {
    let mut claims = Claims::default();
    for (key, expected) in TYPES {
        let Some(key) = header.key(key) else {
            continue;
        };
        let (kind, value) = (key.kind, key.value.as_ref());
        let number = value.and_then(Value::as_u64);
        let is = || {
            let (name, is) = (&key.name, key.shown_value());
            format!("{name} is {is}, expected a {}", expected.name())
        };
        if number.is_none() {
            findings.file(name, Error::invalid(file.location(), is()))?;
        } else if kind != Kind::Single(expected) {
            let problem = format!("llama.cpp will not load this: {}", is());
            findings.flaw(Problem::of_file(name, problem));
        }
        match &*key.name {
            NUMBER => claims.number = number,
            COUNT => claims.count = number,
            _ => claims.tensors = number,
        }
    }
    let problems = match SplitName::parse(name) {
        Some(split) => against_name(&claims, split),
        None => without_number(&claims, name).into_iter().collect(),
    };
    for problem in problems {
        findings.file(name, Error::invalid(file.location(), problem))?;
    }
    Ok(claims)
}

/// What is wrong with the keys of a file that has this name.
fn against_name(claims: &Claims, split: SplitName<'_>) -> Vec<String> {
    let SplitName { number, total, .. } = split;
    let mut problems = Vec::new();
    let place = format!("its name makes it file {number} of {total}");
    for (key, is, should) in [
        (COUNT, claims.count, u64::from(total)),
        (NUMBER, claims.number, u64::from(number) - 1),
    ] {
        match is {
            Some(is) if is == should => {}
            Some(is) => problems.push(format!("{key} is {is}, but {place}: expected {should}")),
            // llama.cpp does not ask for them in a set of one.
            None if total == 1 => {}
            None => problems.push(format!("has no {key}, but {place}")),
        }
    }
    if claims.tensors.is_none() && total > 1 {
        problems.push(format!("has no {TENSORS}, but {place}"));
    }
    problems
}

/// What is wrong with a file of a set if its name has no number.
fn without_number(claims: &Claims, name: &str) -> Option<String> {
    let total = claims.count.filter(|total| *total > 1)?;
    let number = claims.number.and_then(|n| n.checked_add(1));
    let split = number.filter(|n| *n <= total).and_then(|number| {
        Some(SplitName {
            prefix: name.strip_suffix(super::END).unwrap_or(name),
            number: number.try_into().ok()?,
            total: total.try_into().ok()?,
        })
    });
    Some(match split {
        Some(split) => format!(
            "is file {} of {total} of a split model ({NUMBER}, {COUNT}), but its name has no number: rename it to {}, and the other files likewise",
            split.number,
            split.name()
        ),
        None => format!(
            "is one of {total} files of a split model ({COUNT}), but neither its name nor {NUMBER} has its number"
        ),
    })
}

/// Compares the keys of a later file with those of the first, which count.
///
/// # Errors
/// A file cannot be read.
pub(super) fn compare(
    first: (&dyn Object, &[Key]),
    other: (&dyn Object, &[Key]),
    findings: &mut Findings,
) -> Result<()> {
    let known: HashMap<&str, &Key> = first.1.iter().map(|key| (&*key.name, key)).collect();
    let own = |key: &&Key| !key.name.starts_with(PREFIX) && key.name != ALIGNMENT;
    for key in other.1.iter().filter(own) {
        let Some(known) = known.get(&*key.name) else {
            continue;
        };
        if key.kind == known.kind && same_bytes((first.0, known), (other.0, key))? {
            continue;
        }
        let (name, first) = (shown(&key.name), first.0.name());
        let problem = format!(
            "key '{name}' contradicts the same key of {first}, which is the one that is used"
        );
        findings.flaw(Problem::of_file(other.0.name(), problem));
    }
    Ok(())
}

/// Whether two keys are the same bytes in their files.
fn same_bytes(a: (&dyn Object, &Key), b: (&dyn Object, &Key)) -> Result<bool> {
    const PIECE: u64 = 1 << 20;
    let (span_a, span_b) = (&a.1.span, &b.1.span);
    let len = span_a.end - span_a.start;
    if len != span_b.end - span_b.start {
        return Ok(false);
    }
    let mut at = 0;
    while at < len {
        let n = PIECE.min(len - at) as usize;
        let (mut x, mut y) = (vec![0; n], vec![0; n]);
        a.0.read_at(span_a.start + at, &mut x)?;
        b.0.read_at(span_b.start + at, &mut y)?;
        if x != y {
            return Ok(false);
        }
        at += n as u64;
    }
    Ok(true)
}
