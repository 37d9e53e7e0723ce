//! Expressions as tokens.

use super::super::mistake::Mistake;
use super::located::Located;
use super::number;

/// A piece of an expression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Token<'s> {
    /// A whole number; one that is too large for 64 bits with a sign may still follow a minus.
    Integer(u64),
    /// Any other number.
    Real(f64),
    /// A name or a word.
    Name(&'s str),
    /// `NAME:`, before `it` or a quote.
    Model(&'s str),
    /// `config.KEY.KEY`: the keys.
    Config(&'s str),
    /// `'…'`: bytes of the string within the quotes.
    Quoted(usize, usize),
    /// Anything else.
    Symbol(&'static str),
    /// The end of the string.
    End,
}

/// Longer ones first.
const SYMBOLS: &[&str] = &[
    "==", "!=", "<=", ">=", "//", "..", "<", ">", "+", "-", "*", "/", "%", "@", "(", ")", "[", "]",
    ",", ":", "=", "{", "}", "#",
];

/// What other languages have, and what is written here.
const FOREIGN: &[(&str, &str)] = &[
    ("**", "there is no '**'; write a product"),
    ("...", "there is no '...'; write ':' for each axis"),
    ("&&", "'&&' is written 'and'"),
    ("||", "'||' is written 'or'"),
    ("!", "'!' is written 'not'"),
    ("\"", "quotes in expressions are '…'"),
];

/// The tokens of a string, one after the other.
pub struct Lexer<'s> {
    source: &'s Located<'s>,
    at: usize,
}

impl<'s> Lexer<'s> {
    /// The tokens from a byte on.
    pub fn new(source: &'s Located<'s>, at: usize) -> Lexer<'s> {
        Lexer { source, at }
    }

    fn rest(&self) -> &'s str {
        self.source.text.get(self.at..).unwrap_or("")
    }

    /// The next token, and its bytes.
    pub fn next(&mut self) -> Result<(Token<'s>, usize, usize), Mistake> {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\r', '\n']).len();
        let start = self.at;
        let token = self.token()?;
        Ok((token, start, self.at))
    }

    fn token(&mut self) -> Result<Token<'s>, Mistake> {
        let rest = self.rest();
        let Some(first) = rest.chars().next() else {
            return Ok(Token::End);
        };
        let is_fraction = first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit());
        if first.is_ascii_digit() || is_fraction {
            let (token, length) =
                number::lex(rest).map_err(|what| self.source.mistake(self.at, what))?;
            self.at += length;
            return Ok(token);
        }
        if is_name_start(first) {
            return self.name(rest);
        }
        if first == '\'' {
            return self.quoted(rest);
        }
        self.symbol(rest, first)
    }

    fn symbol(&mut self, rest: &str, first: char) -> Result<Token<'s>, Mistake> {
        let symbol = SYMBOLS.iter().find(|s| rest.starts_with(**s));
        let foreign = FOREIGN.iter().find(|(s, _)| rest.starts_with(*s));
        match (symbol, foreign) {
            (Some(symbol), foreign) if foreign.is_none_or(|(f, _)| f.len() <= symbol.len()) => {
                self.at += symbol.len();
                Ok(Token::Symbol(symbol))
            }
            (_, Some((_, what))) => Err(self.source.mistake(self.at, *what)),
            _ => {
                let what = format!("'{}' means nothing here", first.escape_debug());
                Err(self.source.mistake(self.at, what))
            }
        }
    }

    fn name(&mut self, rest: &'s str) -> Result<Token<'s>, Mistake> {
        let (name, after) = split_name(rest);
        self.at += name.len();
        if name == "config"
            && let Some(keys) = after.strip_prefix('.')
        {
            let is_key = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
            let end = keys.find(|c| !is_key(c)).unwrap_or(keys.len());
            // `config.a..config.b` is a range.
            let end = keys[..end].find("..").unwrap_or(end);
            let keys = &keys[..end];
            self.at += 1 + end;
            if keys.is_empty() || keys.ends_with('.') {
                let what = "a key of config.json follows: config.KEY";
                return Err(self.source.mistake(self.at, what));
            }
            return Ok(Token::Config(keys));
        }
        if let Some(tail) = after.trim_start().strip_prefix(':') {
            let tail = tail.trim_start();
            if tail.starts_with('\'') || split_name(tail).0 == "it" {
                self.at = self.source.text.len() - tail.len();
                return Ok(Token::Model(name));
            }
        }
        Ok(Token::Name(name))
    }

    fn quoted(&mut self, rest: &str) -> Result<Token<'s>, Mistake> {
        let bytes = rest.as_bytes();
        let mut end = 1;
        loop {
            match (bytes.get(end), bytes.get(end + 1)) {
                (Some(b'\''), Some(b'\'')) => end += 2,
                (Some(b'\''), _) => break,
                (Some(_), _) => end += 1,
                (None, _) => return Err(self.source.mistake(self.at, "the quote is not closed")),
            }
        }
        let inside = self.at + 1;
        self.at += end + 1;
        Ok(Token::Quoted(inside, inside + end - 1))
    }
}

/// Whether a name can begin so.
pub fn is_name_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_'
}

/// The name that `text` begins with, perhaps empty, and the rest.
pub fn split_name(text: &str) -> (&str, &str) {
    if !text.starts_with(is_name_start) {
        return ("", text);
    }
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    text.split_at(end.unwrap_or(text.len()))
}
