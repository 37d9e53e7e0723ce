//! A string of the recipe, and where its bytes stand in the file.

use std::borrow::Cow;

use super::super::mistake::{Mistake, Place};

/// A string after escapes were resolved, and the place of each of its bytes in the file's text.
#[derive(Debug, Clone)]
pub struct Located<'t> {
    /// The string.
    pub text: Cow<'t, str>,
    /// From that byte of the string on, bytes stand in the file from that byte on. Ascending; the first is byte 0.
    runs: Vec<(usize, usize)>,
}

impl<'t> Located<'t> {
    /// A string as it stands in the file, from byte `at` of it on.
    pub fn plain(text: &'t str, at: usize) -> Located<'t> {
        Located {
            text: Cow::Borrowed(text),
            runs: vec![(0, at)],
        }
    }

    /// A string of TOML: `raw` is how it stands in the file, quotes included, from byte `at` on; `text` is what it
    /// means. A bare key has no quotes.
    pub fn toml(raw: &str, at: usize, text: Cow<'t, str>) -> Located<'t> {
        let (mut r, has_escapes) = opening(raw);
        let mut runs = vec![(0, at + r)];
        let mut d = 0;
        while let (Some(stored), Some(meant)) = (char_at(raw, r), char_at(&text, d)) {
            let skipped = match (stored, raw.get(r + 1..)) {
                ('\\', Some(escape)) if has_escapes => escape_length(escape),
                // TOML may make line ends uniform.
                ('\r', _) if meant != '\r' => Skipped::Nothing(1),
                _ if stored == meant => Skipped::Character(stored.len_utf8()),
                _ => break,
            };
            let (raw_length, length) = match skipped {
                Skipped::Nothing(n) => (n, 0),
                Skipped::Character(n) => (n, meant.len_utf8()),
            };
            (r, d) = (r + raw_length, d + length);
            if raw_length != length {
                runs.push((d, at + r));
            }
        }
        Located { text, runs }
    }

    /// The place of a byte of the string.
    pub fn place(&self, at: usize) -> Place {
        // The last run that begins there or before: a line that ends in a backslash leaves several.
        let run = self.runs.partition_point(|(start, _)| *start <= at);
        let (start, place) = run.checked_sub(1).map_or((0, 0), |i| self.runs[i]);
        Place(u32::try_from(place + (at - start)).unwrap_or(u32::MAX))
    }

    /// Where it begins.
    pub fn start(&self) -> Place {
        self.place(0)
    }

    /// A mistake at a byte of the string.
    pub fn mistake(&self, at: usize, what: impl Into<String>) -> Mistake {
        Mistake::at(self.place(at), what)
    }

    /// Bytes `start..end` of the string, in which `''` is `'`.
    pub fn unquoted(&self, start: usize, end: usize) -> Located<'_> {
        let inner = self.text.get(start..end).unwrap_or("");
        let mut runs = vec![(0, self.place(start).0 as usize)];
        let mut text = Cow::Borrowed(inner);
        if inner.contains("''") {
            text = Cow::Owned(inner.replace("''", "'"));
        }
        // Escapes of TOML and doubled quotes both begin new runs.
        let (mut removed, mut was_quote) = (0, false);
        for (i, c) in inner.char_indices() {
            let is_second = was_quote && c == '\'';
            if is_second {
                removed += 1;
            } else {
                runs.push((i - removed, self.place(start + i).0 as usize));
            }
            was_quote = c == '\'' && !is_second;
        }
        Located { text, runs }
    }
}

/// What of the file's text was passed over, in bytes.
enum Skipped {
    /// It stands for nothing.
    Nothing(usize),
    /// It stands for one character.
    Character(usize),
}

/// How many bytes come before the string's first one, and whether it has escapes.
fn opening(raw: &str) -> (usize, bool) {
    let has_escapes = raw.starts_with('"');
    for quotes in ["\"\"\"", "'''"] {
        if let Some(rest) = raw.strip_prefix(quotes) {
            let line_end = ["\r\n", "\n"].into_iter().find(|e| rest.starts_with(e));
            return (3 + line_end.map_or(0, str::len), has_escapes);
        }
    }
    match raw.starts_with(['"', '\'']) {
        true => (1, has_escapes),
        false => (0, false),
    }
}

/// The length of an escape, whose backslash stands before `rest`.
fn escape_length(rest: &str) -> Skipped {
    match rest.chars().next() {
        Some('x') => Skipped::Character(4),
        Some('u') => Skipped::Character(6),
        Some('U') => Skipped::Character(10),
        // A line that goes on after the next one's indentation.
        Some(' ' | '\t' | '\r' | '\n') => {
            let is_space = |c| matches!(c, ' ' | '\t' | '\r' | '\n');
            Skipped::Nothing(1 + rest.len() - rest.trim_start_matches(is_space).len())
        }
        _ => Skipped::Character(2),
    }
}

fn char_at(text: &str, at: usize) -> Option<char> {
    text.get(at..)?.chars().next()
}
