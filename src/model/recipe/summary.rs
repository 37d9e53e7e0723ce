//! What each rule did, for people: `stfs ls --rules`.

use super::file::RecipeFile;
use super::mistake::Lines;
use super::rules::Applied;

/// What a rule did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuleSummary {
    /// Its line.
    pub line: usize,
    /// How many matches it has.
    pub matches: u64,
    /// The name of the first match.
    pub from: Option<String>,
    /// The first result of that match.
    pub to: Option<Made>,
}

/// A result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// Its name.
    pub name: String,
    /// Its element type.
    pub dtype: String,
    /// Its shape.
    pub shape: Box<[u64]>,
}

/// What the rules did, in their order.
pub fn summaries(file: &RecipeFile, lines: &Lines<'_>, applied: &[Applied]) -> Vec<RuleSummary> {
    let summary = |applied: &Applied| {
        let rule = file.rules.get(applied.rule)?;
        let example = applied.example.as_ref();
        let made = example.and_then(|(_, made)| made.as_ref());
        Some(RuleSummary {
            line: lines.line(rule.at),
            matches: applied.matches,
            from: example.map(|(from, _)| from.to_string()),
            to: made.map(|made| Made {
                name: made.name.to_string(),
                dtype: made.tensor.dtype.name().to_string(),
                shape: made.tensor.shape.iter().copied().collect(),
            }),
        })
    };
    applied.iter().filter_map(summary).collect()
}
