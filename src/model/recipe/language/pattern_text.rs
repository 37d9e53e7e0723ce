//! Patterns, from their text.

use super::super::mistake::{Mistake, quoted};
use super::lexer::split_name;
use super::located::Located;
use super::parser::check_name;
use super::{Hole, Pattern, PatternPiece};

/// A brace without its other one.
const UNCLOSED: &str = "'{' is not closed; a brace in text is '{{'";

/// The kinds of holes.
const KINDS: &str = "a hole is {NAME}, {NAME..}, {NAME#} or {NAME=a|b}; a brace in text is '{{'";

/// A pattern with more pieces than this is not of a tensor's name.
const MAX_PIECES: usize = 512;

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

    /// A hole. What is wrong with it is said of the whole hole.
    fn hole(&mut self) -> Result<(), Mistake> {
        let opened = self.at;
        let Some(length) = self.rest().find('}') else {
            return Err(self.mistake(UNCLOSED));
        };
        let written = quoted(&self.rest()[..=length]);
        self.at += 1;
        let name: Box<str> = split_name(self.rest()).0.into();
        self.at += name.len();
        let hole = self.kind(&written);
        let checked = hole.and_then(|hole| self.check(&name, &written).map(|()| hole));
        let hole = checked.map_err(|what| self.source.mistake(opened, what))?;
        self.pieces.push(PatternPiece::Hole(name, hole));
        Ok(())
    }

    /// Whether a hole may have that name here.
    fn check(&self, name: &str, written: &str) -> Result<(), String> {
        if name.is_empty() {
            return Err(format!("{written}: {KINDS}"));
        }
        check_name(name)?;
        (self.check)(name)?;
        if self.pieces.len() >= MAX_PIECES {
            return Err(format!("a pattern has at most {MAX_PIECES} pieces"));
        }
        let is_same = |p: &PatternPiece| matches!(p, PatternPiece::Hole(n, _) if **n == *name);
        if !self.pieces.iter().any(is_same) {
            return Ok(());
        }
        let shown = quoted(name);
        Err(format!(
            "the hole {shown} stands twice; give one another name, and say that they are equal: where = \"{name} == …\""
        ))
    }

    /// What follows a hole's name.
    fn kind(&mut self, written: &str) -> Result<Hole, String> {
        if self.rest().starts_with('=') {
            self.at += 1;
            return self.alternatives(written);
        }
        let kinds = [
            ("..}", Hole::Rest),
            ("#}", Hole::Gather),
            ("}", Hole::Component),
        ];
        let rest = self.source.text.get(self.at..).unwrap_or("");
        let kind = kinds.into_iter().find(|(end, _)| rest.starts_with(end));
        let (end, hole) = kind.ok_or_else(|| format!("{written}: {KINDS}"))?;
        self.at += end.len();
        Ok(hole)
    }

    fn alternatives(&mut self, written: &str) -> Result<Hole, String> {
        let mut all: Vec<Box<str>> = Vec::new();
        let mut one = String::new();
        loop {
            let Some(c) = self.next() else {
                return Err(UNCLOSED.to_string());
            };
            let is_double = self.rest()[c.len_utf8()..].starts_with(c);
            self.at += c.len_utf8();
            match c {
                '{' | '}' if is_double => {
                    self.at += 1;
                    one.push(c);
                }
                '{' => {
                    return Err(format!(
                        "{written}: a hole within a hole; a brace in text is '{{{{'"
                    ));
                }
                '*' => {
                    return Err(format!(
                        "{written}: '*' within a hole, whose alternatives are text"
                    ));
                }
                '|' | '}' if one.is_empty() => {
                    return Err(format!(
                        "{written}: an empty alternative; a hole is never empty"
                    ));
                }
                '|' | '}' => all.push(std::mem::take(&mut one).into()),
                c => one.push(c),
            }
            if c == '}' && !is_double {
                all.sort_by_key(|text| text.len());
                return Ok(Hole::OneOf(all.into()));
            }
        }
    }
}
