//! Patterns, from their text.

use super::super::mistake::{Mistake, quoted};
use super::lexer::split_name;
use super::located::Located;
use super::parser::check_name;
use super::{Hole, Pattern, PatternPiece};

/// The pattern that `source` is. `check` says why a hole cannot have a name.
pub(super) fn parse(
    source: &Located,
    check: &dyn Fn(&str) -> Result<(), String>,
) -> Result<Pattern, Mistake> {
    let mut parser = Parser {
        source,
        check,
        at: 0,
        literal: String::new(),
        pieces: Vec::new(),
    };
    while let Some(c) = parser.next() {
        parser.piece(c)?;
    }
    parser.end_literal();
    if parser.pieces.is_empty() {
        return Err(source.mistake(
            0,
            "an empty pattern matches nothing; '*' matches every name",
        ));
    }
    Ok(Pattern {
        at: source.start(),
        text: Box::from(&*source.text),
        pieces: parser.pieces,
    })
}

struct Parser<'s> {
    source: &'s Located<'s>,
    check: &'s dyn Fn(&str) -> Result<(), String>,
    at: usize,
    literal: String,
    pieces: Vec<PatternPiece>,
}

impl Parser<'_> {
    fn rest(&self) -> &str {
        self.source.text.get(self.at..).unwrap_or("")
    }

    fn next(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn mistake(&self, what: impl Into<String>) -> Mistake {
        self.source.mistake(self.at, what)
    }

    fn end_literal(&mut self) {
        if !self.literal.is_empty() {
            let literal = std::mem::take(&mut self.literal);
            self.pieces.push(PatternPiece::Text(literal.into()));
        }
    }

    fn piece(&mut self, c: char) -> Result<(), Mistake> {
        let is_double = self.rest()[c.len_utf8()..].starts_with(c);
        match c {
            '{' | '}' if is_double => {
                self.literal.push(c);
                self.at += 2;
            }
            '{' => {
                self.end_literal();
                self.hole()?;
            }
            '}' => return Err(self.mistake("'}' closes nothing; a brace in text is '}}'")),
            '*' => {
                self.end_literal();
                self.pieces.push(PatternPiece::Any);
                self.at += 1;
            }
            c => {
                self.literal.push(c);
                self.at += c.len_utf8();
            }
        }
        Ok(())
    }

    fn hole(&mut self) -> Result<(), Mistake> {
        let opened = self.at;
        self.at += 1;
        let name = Box::from(split_name(self.rest()).0);
        if !self.rest().contains('}') {
            return Err(self
                .source
                .mistake(opened, "'{' is not closed; a brace in text is '{{'"));
        }
        check_hole(&name, self.rest()).map_err(|what| self.mistake(what))?;
        (self.check)(&name).map_err(|what| self.mistake(what))?;
        if self
            .pieces
            .iter()
            .any(|p| matches!(p, PatternPiece::Hole(n, _) if *n == name))
        {
            let what = format!(
                "the hole {} stands twice; give one another name, and say that they are equal: where = \"{name} == …\"",
                quoted(&name)
            );
            return Err(self.mistake(what));
        }
        self.at += name.len();
        let hole = self.kind(opened)?;
        self.pieces.push(PatternPiece::Hole(name, hole));
        Ok(())
    }

    /// What follows a hole's name.
    fn kind(&mut self, opened: usize) -> Result<Hole, Mistake> {
        if self.rest().starts_with('=') {
            self.at += 1;
            return self.alternatives(opened);
        }
        for (written, hole) in [
            ("..}", Hole::Rest),
            ("#}", Hole::Gather),
            ("}", Hole::Component),
        ] {
            if self.rest().starts_with(written) {
                self.at += written.len();
                return Ok(hole);
            }
        }
        Err(self.mistake("a hole of a pattern is {NAME}, {NAME..}, {NAME#} or {NAME=a|b}"))
    }

    fn alternatives(&mut self, opened: usize) -> Result<Hole, Mistake> {
        let mut all: Vec<Box<str>> = Vec::new();
        let mut one = String::new();
        loop {
            let Some(c) = self.next() else {
                let what = "'{' is not closed; a brace in text is '{{'";
                return Err(self.source.mistake(opened, what));
            };
            let is_double = self.rest()[c.len_utf8()..].starts_with(c);
            if matches!(c, '{' | '}') && is_double {
                one.push(c);
                self.at += 2;
                continue;
            }
            match c {
                '{' => return Err(self.mistake("a hole within a hole; a brace in text is '{{'")),
                '*' => return Err(self.mistake("'*' within a hole: its alternatives are text")),
                '|' | '}' if one.is_empty() => {
                    return Err(self.mistake("an empty alternative: a hole is never empty"));
                }
                '|' | '}' => all.push(std::mem::take(&mut one).into()),
                c => one.push(c),
            }
            self.at += c.len_utf8();
            if c == '}' {
                all.sort_by_key(|text| text.len());
                return Ok(Hole::OneOf(all.into()));
            }
        }
    }
}

/// Whether a hole may have that name; `text` begins with it.
fn check_hole(name: &str, text: &str) -> Result<(), String> {
    if name.is_empty() {
        let found = match text.chars().next() {
            Some('}') => "an empty hole".to_string(),
            Some(c) => format!("{} begins no name", quoted(&c.to_string())),
            None => "an empty hole".to_string(),
        };
        return Err(format!(
            "{found}; a hole is {{NAME}}, a brace in text is '{{{{'"
        ));
    }
    check_name(name)
}
