//! Matching names.

mod search;

use super::{Hole, Pattern, PatternPiece};

/// What the holes of a pattern took of a name, in the order of [`Pattern::holes`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Bindings {
    ranges: Box<[(u32, u32)]>,
}

impl Bindings {
    /// What a hole took, by its number in [`Pattern::holes`], of the name that was matched.
    pub fn text<'n>(&self, name: &'n str, hole: usize) -> Option<&'n str> {
        let (start, end) = *self.ranges.get(hole)?;
        name.get(start as usize..end as usize)
    }

    /// Its bytes in the name.
    pub fn range(&self, hole: usize) -> Option<std::ops::Range<usize>> {
        let (start, end) = *self.ranges.get(hole)?;
        Some(start as usize..end as usize)
    }
}

impl Pattern {
    /// What the holes take of a whole name; `None`: the pattern does not match it. Each hole is as short as
    /// it can be, earlier ones first. Time is linear in the name for each piece.
    pub fn matches(&self, name: &str) -> Option<Bindings> {
        let mut pieces = &*self.pieces;
        let (mut start, mut end) = (0, name.len());
        if let [PatternPiece::Text(text), rest @ ..] = pieces {
            start = name.starts_with(&**text).then_some(text.len())?;
            pieces = rest;
        }
        if let [rest @ .., PatternPiece::Text(text)] = pieces {
            name.ends_with(&**text).then_some(())?;
            end = end.checked_sub(text.len()).filter(|end| start <= *end)?;
            pieces = rest;
        }
        let ranges = search::search(pieces, name, start, end)?;
        Some(Bindings { ranges })
    }

    /// The named holes, in order. `*` has no name and is not among them.
    pub fn holes(&self) -> impl Iterator<Item = (&str, &Hole)> {
        self.pieces.iter().filter_map(|piece| match piece {
            PatternPiece::Hole(name, hole) => Some((&**name, hole)),
            _ => None,
        })
    }

    /// The number of a hole, for [`Bindings::text`].
    pub fn hole(&self, name: &str) -> Option<usize> {
        self.holes().position(|(hole, _)| hole == name)
    }

    /// The number of the first gathering hole (`{e#}`).
    pub fn gathering(&self) -> Option<usize> {
        self.holes().position(|(_, hole)| *hole == Hole::Gather)
    }

    /// The name that results if each hole is given `value` of its name: how the further patterns of a rule are
    /// filled in. `None`: there is no value of one, or the pattern has a `*`.
    pub fn filled<'v>(&self, mut value: impl FnMut(&str) -> Option<&'v str>) -> Option<String> {
        let mut name = String::new();
        for piece in &self.pieces {
            match piece {
                PatternPiece::Text(text) => name.push_str(text),
                PatternPiece::Any => return None,
                PatternPiece::Hole(hole, _) => name.push_str(value(hole)?),
            }
        }
        Some(name)
    }
}
