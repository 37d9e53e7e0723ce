//! `{e#}`: names that differ only in their numbers are one match.

use std::collections::HashMap;

use super::super::evaluate::MAX_RANGE;
use super::super::file::Make;
use super::super::language::{Call, Function, Hole, Kind, Node, Pattern, Subscript, TemplatePiece};
use super::super::mistake::{Mistake, quoted};
use super::Run;
use super::matching::Found;
use super::state::State;

/// One match of a rule.
pub(super) struct Match {
    /// What was matched; of several, the one with the numbers 0.
    pub first: Found,
    /// The others that are gathered, in the order of their numbers.
    pub rest: Vec<Found>,
    /// How many numbers there are, if the pattern gathers.
    pub gathered: Option<Gathered>,
}

impl Match {
    /// All that was matched.
    pub fn all(&self) -> impl Iterator<Item = &Found> {
        std::iter::once(&self.first).chain(&self.rest)
    }
}

/// How many numbers each gathering hole has.
pub(super) struct Gathered {
    /// The hole's number in the pattern, and the count.
    counts: Vec<(usize, u64)>,
}

impl Gathered {
    /// How many numbers the hole of that name gathers.
    pub fn count(&self, pattern: &Pattern, name: &str) -> Option<u64> {
        let hole = pattern.hole(name)?;
        let found = self.counts.iter().find(|(number, _)| *number == hole);
        found.map(|(_, count)| *count)
    }
}

impl Run<'_> {
    /// The matches that names make. Those whose numbers have a gap are reported.
    pub(super) fn matches(&mut self, pattern: &Pattern, found: Vec<Found>) -> Vec<Match> {
        if pattern.gathering().is_none() {
            let single = |first| Match {
                first,
                rest: Vec::new(),
                gathered: None,
            };
            return found.into_iter().map(single).collect();
        }
        let holes: Vec<usize> = (0..)
            .zip(pattern.holes())
            .filter_map(|(number, (_, hole))| (*hole == Hole::Gather).then_some(number))
            .collect();
        let mut matches = Vec::new();
        for group in groups(&self.state, &holes, found) {
            let slots: Vec<u32> = group.iter().map(|(_, found)| found.slot).collect();
            match one(&self.state, pattern, &holes, group) {
                Ok(one) => matches.extend(one),
                Err(what) => {
                    self.doubtful.extend(slots);
                    self.mistakes.add(Mistake::at(pattern.at, what));
                }
            }
        }
        matches
    }

    /// Reports what a rule that gathers cannot mean: one result in place of several tensors, and `it`.
    pub(super) fn check_gathering(&mut self, pattern: &Pattern, make: &Make, rule: super::Place) {
        let Some((hole, _)) = pattern.gathering().and_then(|n| pattern.holes().nth(n)) else {
            return;
        };
        for result in &make.results {
            if result.name.is_none() {
                let what = format!(
                    "{{{hole}#}} gathers several tensors, and their result needs a name: to = …"
                );
                self.mistakes.add_static(Mistake::of_line(rule, what));
            } else if result.is.is_none() {
                let what = format!(
                    "{{{hole}#}} gathers several tensors; say how they are joined, as in is = \"stack('…{{{hole}}}…' for {hole})\""
                );
                self.mistakes.add_static(Mistake::of_line(rule, what));
            }
            if let Some(at) = result.is.as_ref().and_then(it_outside_dim) {
                let what = format!(
                    "'it' is not one tensor here, because {{{hole}#}} gathers several; name them, as in stack('…{{{hole}}}…' for {hole})"
                );
                self.mistakes.add_static(Mistake::at(at, what));
            }
        }
    }
}

/// Found names, with their numbers, by all of the name but the numbers; in the order of the first of each.
fn groups(state: &State, holes: &[usize], found: Vec<Found>) -> Vec<Vec<(Vec<u64>, Found)>> {
    let mut index: HashMap<Vec<&str>, usize> = HashMap::new();
    let mut groups: Vec<Vec<(Vec<u64>, Found)>> = Vec::new();
    for found in found {
        let name = &*state.slot(found.slot).name;
        let (mut key, mut numbers, mut end) = (Vec::new(), Vec::new(), 0);
        for range in holes.iter().filter_map(|&hole| found.bindings.range(hole)) {
            key.extend(name.get(end..range.start));
            end = range.end;
            let number = name.get(range).and_then(|text| text.parse().ok());
            // No tensor has so high a number that it does not fit, and then there is a gap before it.
            numbers.push(number.unwrap_or(u64::MAX));
        }
        key.extend(name.get(end..));
        let group = *index.entry(key).or_insert(groups.len());
        match groups.get_mut(group) {
            Some(group) => group.push((numbers, found)),
            None => groups.push(vec![(numbers, found)]),
        }
    }
    groups
}

/// The match that a group is.
fn one(
    state: &State,
    pattern: &Pattern,
    holes: &[usize],
    mut group: Vec<(Vec<u64>, Found)>,
) -> Result<Option<Match>, String> {
    group.sort_by(|a, b| a.0.cmp(&b.0));
    let highest = |k: usize| group.iter().filter_map(|(n, _)| n.get(k)).max().copied();
    let counts: Vec<u64> = (0..holes.len())
        .map(|k| highest(k).unwrap_or(0).saturating_add(1))
        .collect();
    if let Some((missing, like)) = first_gap(&group, &counts) {
        return Err(gap(state, pattern, holes, &missing, like, group.last()));
    }
    if group.len() as u64 > MAX_RANGE {
        let (pattern, len) = (quoted(&pattern.text), group.len());
        return Err(format!(
            "{pattern} gathers {len} tensors, at most {MAX_RANGE} are possible"
        ));
    }
    let mut all = group.into_iter().map(|(_, found)| found);
    let first = all.next();
    Ok(first.map(|first| Match {
        first,
        rest: all.collect(),
        gathered: Some(Gathered {
            counts: holes.iter().copied().zip(counts).collect(),
        }),
    }))
}

/// The first numbers that are not there, though each hole goes on to its count; and a name like the missing one.
fn first_gap<'g>(group: &'g [(Vec<u64>, Found)], counts: &[u64]) -> Option<(Vec<u64>, &'g Found)> {
    let mut expected = vec![0; counts.len()];
    for (numbers, found) in group {
        if *numbers != expected {
            return Some((expected, found));
        }
        // The next numbers, the last hole's first.
        for (number, count) in expected.iter_mut().zip(counts).rev() {
            *number += 1;
            if *number < *count {
                break;
            }
            *number = 0;
        }
    }
    let (_, last) = group.last()?;
    expected.iter().any(|n| *n != 0).then_some((expected, last))
}

/// That the tensor with these numbers is not there, but others are.
fn gap(
    state: &State,
    pattern: &Pattern,
    holes: &[usize],
    missing: &[u64],
    like: &Found,
    last: Option<&(Vec<u64>, Found)>,
) -> String {
    let name = &*state.slot(like.slot).name;
    let (mut wanted, mut end) = (String::new(), 0);
    for (range, number) in holes
        .iter()
        .filter_map(|&hole| like.bindings.range(hole))
        .zip(missing)
    {
        wanted.push_str(name.get(end..range.start).unwrap_or_default());
        wanted.push_str(&number.to_string());
        end = range.end;
    }
    wanted.push_str(name.get(end..).unwrap_or_default());
    let last = last.map_or(name, |(_, found)| &*state.slot(found.slot).name);
    format!(
        "gap in the numbers of {}: {} is not there, but {} is; they must run from 0",
        quoted(&pattern.text),
        quoted(&wanted),
        quoted(last)
    )
}

/// Where an expression uses `it` for more than its shape.
fn it_outside_dim(node: &Node) -> Option<super::Place> {
    let all = |nodes: &[Node]| nodes.iter().find_map(it_outside_dim);
    match &node.kind {
        Kind::It(_) => Some(node.at),
        Kind::Call(call) => it_in_call(call),
        Kind::Index(of, subscripts) => it_outside_dim(of).or_else(|| {
            let mut parts = subscripts.iter().flat_map(|subscript| match subscript {
                Subscript::Index(node) => [Some(node), None, None],
                Subscript::Slice {
                    start, stop, step, ..
                } => [start.as_ref(), stop.as_ref(), step.as_ref()],
            });
            parts.find_map(|node| it_outside_dim(node?))
        }),
        Kind::Negative(of) | Kind::Not(of) => it_outside_dim(of),
        Kind::Binary(_, two) | Kind::And(two) | Kind::Or(two) => all(&**two),
        Kind::Compare(first, rest) => {
            it_outside_dim(first).or_else(|| rest.iter().find_map(|(_, n)| it_outside_dim(n)))
        }
        Kind::Quoted { name, .. } => name.pieces.iter().find_map(|piece| match piece {
            TemplatePiece::Value(node) => it_outside_dim(node),
            TemplatePiece::Text(_) => None,
        }),
        Kind::Integer(_) | Kind::Real(_) | Kind::Name(_) | Kind::Config(_) | Kind::Mistaken => None,
    }
}

fn it_in_call(call: &Call) -> Option<super::Place> {
    let skipped = match (call.function, call.arguments.first()) {
        (
            Function::Dim,
            Some(Node {
                kind: Kind::It(_), ..
            }),
        ) => 1,
        _ => 0,
    };
    let range = call.each.iter().filter_map(|each| each.range.as_deref());
    let arguments = call.arguments.iter().skip(skipped);
    let mut nodes = arguments.chain(call.axis.as_ref()).chain(range.flatten());
    nodes.find_map(it_outside_dim)
}
