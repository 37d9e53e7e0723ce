//! Templates: names with holes to be filled in.

use super::super::mistake::Mistake;
use super::located::Located;
use super::parser::Parser;
use super::{Template, TemplatePiece};

/// The template that `source` is, nested that deep, and its height. `is_text`: it is no name.
pub(super) fn parse(
    source: &Located,
    nesting: usize,
    is_text: bool,
) -> Result<(Template, usize), Mistake> {
    let (mut pieces, mut height) = (Vec::new(), 0);
    let (mut literal, mut at) = (String::new(), 0);
    while let Some(c) = source.text.get(at..).and_then(|t| t.chars().next()) {
        let is_double = source.text[at + c.len_utf8()..].starts_with(c);
        match c {
            '{' | '}' if is_double => {
                literal.push(c);
                at += 2;
            }
            '{' => {
                let (value, h, end) = hole(source, at, nesting)?;
                end_literal(&mut literal, &mut pieces);
                pieces.push(value);
                height = height.max(h);
                at = end;
            }
            '}' => return Err(source.mistake(at, "'}' closes nothing; a brace in text is '}}'")),
            '*' if !is_text => {
                let what = "'*' has no name, so nothing can stand for it here; give it one, such as {rest..}, and write {rest} here";
                return Err(source.mistake(at, what));
            }
            c => {
                literal.push(c);
                at += c.len_utf8();
            }
        }
    }
    end_literal(&mut literal, &mut pieces);
    if pieces.is_empty() && !is_text {
        return Err(source.mistake(0, "an empty name"));
    }
    let at = source.start();
    Ok((Template { at, pieces }, height))
}

fn end_literal(literal: &mut String, pieces: &mut Vec<TemplatePiece>) {
    if !literal.is_empty() {
        pieces.push(TemplatePiece::Text(std::mem::take(literal).into()));
    }
}

/// The hole whose brace is at byte `at`; its height, and its end.
fn hole(
    source: &Located,
    at: usize,
    nesting: usize,
) -> Result<(TemplatePiece, usize, usize), Mistake> {
    if !source.text[at..].contains('}') {
        return Err(source.mistake(at, "'{' is not closed; a brace in text is '{{'"));
    }
    let mut parser = Parser::new(source, at + 1, false, nesting)?;
    if parser.is("}") {
        return Err(source.mistake(at, "an empty hole; write {NAME}"));
    }
    let (node, height) = parser.nested(Parser::expression)?;
    if parser.is("..") || parser.is("#") || parser.is("=") {
        let what = "a hole's kind stands in the pattern; here write {NAME} alone";
        return Err(parser.mistake(what));
    }
    if !parser.is("}") {
        parser.close("}", at)?;
    }
    let end = parser.start + 1;
    Ok((TemplatePiece::Value(node), height + 1, end))
}
