//! What was probably meant: the nearest of some names or words.

use std::collections::HashMap;

use super::language::{Hole, Pattern, PatternPiece};

/// Of the pieces of a pattern that are in no name, so many are looked up: the search is linear in all words.
const MAX_PIECES: usize = 8;

/// Longer words are compared by their first characters.
const MAX_LENGTH: usize = 512;

/// The word nearest to `wanted`, if one is near enough to have been meant. Of equally near ones the first.
pub fn word<'a>(wanted: &str, among: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut search = Search::new(wanted, most(wanted));
    among.into_iter().for_each(|word| search.try_word(word));
    search.best
}

/// The tensor name nearest to `wanted`, if one is near enough. Linear in the names: tens of milliseconds for
/// 100,000, so only for messages that are shown.
pub fn name<'a>(wanted: &str, among: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let mut search = Search::new(wanted, most(wanted));
    for name in among {
        if is_part(wanted, name) || is_part(name, wanted) {
            // A prefix too many or too few (`model.`) counts as one character.
            search.take(name, 1);
        } else {
            search.try_word(name);
        }
    }
    search.best
}

/// `; did you mean 'NEAREST'?`, or nothing.
pub fn did_you_mean(nearest: Option<&str>) -> String {
    nearest.map_or(String::new(), |n| {
        format!("; did you mean {}?", super::mistake::quoted(n))
    })
}

/// Why a pattern may match none of `names`: the piece of its text that is in no name, and the nearest one that
/// is: `("q_porj", "q_proj")`.
pub fn piece<'a>(
    pattern: &Pattern,
    names: impl Iterator<Item = &'a str> + Clone,
) -> Option<(String, String)> {
    // The pieces of names, and how often they come.
    let mut known: HashMap<&str, u64> = HashMap::new();
    for name in names {
        for part in parts(name) {
            *known.entry(part).or_default() += 1;
        }
    }
    let mut candidates: Vec<(&str, u64)> = known.iter().map(|(p, n)| (*p, *n)).collect();
    // The most frequent ones first, and the same ones every time.
    candidates.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let written = texts(pattern);
    let missing = written.iter().filter(|text| !known.contains_key(**text));
    missing
        .take(MAX_PIECES)
        .filter_map(|text| {
            let nearest = word(text, candidates.iter().map(|(part, _)| *part))?;
            Some((text.to_string(), nearest.to_string()))
        })
        .next()
}

/// The components of a name, and their words: `q_proj`, `q`, `proj`.
fn parts(name: &str) -> impl Iterator<Item = &str> {
    name.split('.').flat_map(|component| {
        let words = component.split('_').filter(move |word| *word != component);
        std::iter::once(component).chain(words)
    })
}

/// The components of a pattern's text, those that a hole is a part of as words.
fn texts(pattern: &Pattern) -> Vec<&str> {
    let mut texts = Vec::new();
    for (i, piece) in pattern.pieces.iter().enumerate() {
        match piece {
            PatternPiece::Text(text) => {
                let n = text.split('.').count();
                for (j, component) in text.split('.').enumerate() {
                    let is_cut = (j == 0 && i > 0) || (j + 1 == n && i + 1 < pattern.pieces.len());
                    match is_cut {
                        true => texts.extend(component.split('_')),
                        false => texts.push(component),
                    }
                }
            }
            PatternPiece::Hole(_, Hole::OneOf(all)) => {
                texts.extend(all.iter().flat_map(|text| text.split(['.', '_'])));
            }
            _ => {}
        }
    }
    // Single characters and numbers are near to everything.
    texts.retain(|text| text.len() > 1 && !text.bytes().all(|b| b.is_ascii_digit()));
    texts
}

/// How many changes a word may be away: one of three characters.
fn most(wanted: &str) -> usize {
    (wanted.chars().count() / 3).clamp(1, 12)
}

/// Whether a name is the end of another one, behind a dot.
fn is_part(end: &str, name: &str) -> bool {
    let start = name.strip_suffix(end);
    !end.is_empty() && start.is_some_and(|start| start.ends_with('.'))
}

struct Search<'a> {
    wanted: Vec<char>,
    /// Only nearer ones count.
    less_than: usize,
    best: Option<&'a str>,
    /// Three rows of the table of distances, and the word.
    rows: [Vec<usize>; 3],
    word: Vec<char>,
}

impl<'a> Search<'a> {
    fn new(wanted: &str, most: usize) -> Search<'a> {
        let wanted: Vec<char> = letters(wanted).collect();
        Search {
            wanted,
            less_than: most + 1,
            best: None,
            rows: Default::default(),
            word: Vec::new(),
        }
    }

    fn take(&mut self, word: &'a str, distance: usize) {
        if distance < self.less_than {
            (self.best, self.less_than) = (Some(word), distance);
        }
    }

    fn try_word(&mut self, word: &'a str) {
        let length = word.chars().count().min(MAX_LENGTH);
        if self.wanted.len().abs_diff(length) >= self.less_than {
            return;
        }
        self.word.clear();
        self.word.extend(letters(word));
        // Words of which no character is the same are not near.
        let longest = self.wanted.len().max(self.word.len());
        if let Some(distance) = self.distance().filter(|distance| *distance < longest) {
            self.take(word, distance);
        }
    }

    /// Characters to insert, remove or replace, and neighbors to exchange, if they are few enough: the distance
    /// of restricted edits, in a band along the diagonal.
    fn distance(&mut self) -> Option<usize> {
        let (a, b) = (&self.wanted, &self.word);
        let most = self.less_than - 1;
        let [two, one, row] = &mut self.rows;
        for cells in [&mut *two, &mut *one, &mut *row] {
            cells.clear();
            cells.resize(b.len() + 1, usize::MAX / 2);
        }
        for (j, cell) in one.iter_mut().enumerate().take(most + 1) {
            *cell = j;
        }
        for i in 1..=a.len() {
            let (first, last) = (i.saturating_sub(most).max(1), (i + most).min(b.len()));
            // Cells behind the band were never written, and the one before it is all that is read there.
            row[first - 1] = if first == 1 { i } else { usize::MAX / 2 };
            let mut least = i;
            for j in first..=last {
                let is_equal = a[i - 1] == b[j - 1];
                let mut cell = one[j - 1] + usize::from(!is_equal);
                cell = cell.min(one[j] + 1).min(row[j - 1] + 1);
                let is_exchange = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                if is_exchange {
                    cell = cell.min(two[j - 2] + 1);
                }
                row[j] = cell;
                least = least.min(cell);
            }
            if least > most {
                return None;
            }
            std::mem::swap(two, one);
            std::mem::swap(one, row);
        }
        one.get(b.len())
            .copied()
            .filter(|distance| *distance <= most)
    }
}

/// What is compared: upper case or lower case makes no difference.
fn letters(word: &str) -> impl Iterator<Item = char> {
    let letters = word.chars().take(MAX_LENGTH);
    letters.map(|c| c.to_ascii_lowercase())
}

#[cfg(test)]
mod tests;
