//! What is wrong with a recipe, and where.

/// A byte of the recipe's text, at which something in it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place(pub u32);

/// A mistake in a recipe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mistake {
    /// Where the offending piece begins.
    pub at: Place,
    /// Whether it is about the whole rule: then the message names the line alone.
    pub of_line: bool,
    /// What is wrong, with both numbers, both names, and what was probably meant.
    pub what: String,
}

impl Mistake {
    /// A mistake at that place.
    pub fn at(at: Place, what: impl Into<String>) -> Mistake {
        let what = what.into();
        let of_line = false;
        Mistake { at, of_line, what }
    }

    /// A mistake of the rule or key that begins there.
    pub fn of_line(at: Place, what: impl Into<String>) -> Mistake {
        let of_line = true;
        Mistake {
            of_line,
            ..Mistake::at(at, what)
        }
    }
}

/// Text in quotes for a message: at most 80 characters of it, and none that a terminal would act on.
pub fn quoted(text: &str) -> String {
    format!(
        "'{}'",
        crate::text::printable(&crate::text::elide(text, 80))
    )
}

/// Where the lines of a recipe's text begin.
pub struct Lines<'t> {
    text: &'t str,
    starts: Vec<usize>,
}

impl<'t> Lines<'t> {
    /// The lines of a recipe's text.
    pub fn new(text: &'t str) -> Lines<'t> {
        let after = text.match_indices('\n').map(|(at, _)| at + 1);
        let starts = std::iter::once(0).chain(after).collect();
        Lines { text, starts }
    }

    /// Line and column, both from 1. Columns count characters.
    pub fn position(&self, place: Place) -> (usize, usize) {
        let at = (place.0 as usize).min(self.text.len());
        let line = self.line(place);
        let start = self.starts.get(line - 1).copied().unwrap_or(0);
        let before = self.text.as_bytes().get(start..at).unwrap_or(&[]);
        // A character has one byte that does not continue another one.
        let characters = before.iter().filter(|b| **b & 0xC0 != 0x80).count();
        (line, characters + 1)
    }

    /// The line, from 1.
    pub fn line(&self, at: Place) -> usize {
        let at = (at.0 as usize).min(self.text.len());
        self.starts.partition_point(|start| *start <= at).max(1)
    }

    /// `FILE:LINE:COLUMN: WHAT`, or `FILE:LINE: WHAT` if it is about a whole rule.
    #[cfg(test)]
    pub fn message(&self, file: &str, mistake: &Mistake) -> String {
        let (line, column) = self.position(mistake.at);
        match mistake.of_line {
            true => format!("{file}:{line}: {}", mistake.what),
            false => format!("{file}:{line}:{column}: {}", mistake.what),
        }
    }
}
