//! Numbers, written as in Python.

use super::lexer::{Token, is_name_start};

/// The number that `text` begins with, and its length.
///
/// # Errors
/// Why it is not a number.
pub fn lex(text: &str) -> Result<(Token<'static>, usize), String> {
    let radix = match text.as_bytes() {
        [b'0', b'x' | b'X', ..] => 16,
        [b'0', b'o' | b'O', ..] => 8,
        [b'0', b'b' | b'B', ..] => 2,
        _ => return decimal(text),
    };
    let is_digit = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let end = text.find(|c| !is_digit(c)).unwrap_or(text.len());
    let digits = text[2..end].strip_prefix('_').unwrap_or(&text[2..end]);
    let is_number = are_digits(digits) && digits.chars().all(|c| c == '_' || c.is_digit(radix));
    if !is_number {
        return Err(format!("'{}' is not a number", shown(&text[..end])));
    }
    let value = u64::from_str_radix(&digits.replace('_', ""), radix);
    Ok((Token::Integer(value.map_err(|_| large(&text[..end]))?), end))
}

fn decimal(text: &str) -> Result<(Token<'static>, usize), String> {
    let whole = digits(text);
    let (mut end, after) = (whole, &text[whole..]);
    // `0..4` is a range.
    if after.starts_with('.') && !after.starts_with("..") {
        end += 1 + digits(&after[1..]);
    }
    if let Some(exponent) = text[end..].strip_prefix(['e', 'E']) {
        let unsigned = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
        let length = digits(unsigned);
        if length > 0 {
            end += 1 + exponent.len() - unsigned.len() + length;
        }
    }
    let tail = text[end..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let written = &text[..tail.map_or(text.len(), |tail| end + tail)];
    let groups = text[..end].split(|c: char| !c.is_ascii_digit() && c != '_');
    if !groups.filter(|g| !g.is_empty()).all(are_digits) {
        return Err(format!("'{}' is not a number", shown(written)));
    }
    if text[end..].starts_with(is_name_start) {
        let (number, name) = (shown(&text[..end]), shown(&written[end..]));
        return Err(format!(
            "'{number}{name}' is neither a number nor a name; a product is {number}*{name}"
        ));
    }
    let plain = text[..end].replace('_', "");
    if end > whole {
        let value = plain.parse::<f64>();
        let value = value.map_err(|_| format!("'{}' is not a number", shown(written)));
        return Ok((Token::Real(value?), end));
    }
    if plain.len() > 1 && plain.starts_with('0') && plain.bytes().any(|b| b != b'0') {
        let value = shown(plain.trim_start_matches('0'));
        return Err(format!("a number has no leading zeros; write {value}"));
    }
    let value = plain.parse::<u64>().map_err(|_| large(written))?;
    Ok((Token::Integer(value), end))
}

/// How many bytes of digits and underscores come first.
fn digits(text: &str) -> usize {
    let is_digit = |c: char| c.is_ascii_digit() || c == '_';
    text.find(|c| !is_digit(c)).unwrap_or(text.len())
}

/// Underscores stand between digits only.
fn are_digits(group: &str) -> bool {
    !group.is_empty() && !group.starts_with('_') && !group.ends_with('_') && !group.contains("__")
}

/// The message for a whole number that is too large.
pub fn large(written: &str) -> String {
    format!(
        "{} is too large: whole numbers are from -2^63 to 2^63 - 1",
        shown(written)
    )
}

fn shown(text: &str) -> String {
    crate::text::elide(text, 80)
}
