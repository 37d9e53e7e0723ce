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
