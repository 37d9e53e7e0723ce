//! Numbers and strings as protocol 0 writes them, and integers of any length.

use super::arena::Node;

/// A little-endian two's complement integer.
pub(super) fn long(bytes: &[u8]) -> Node {
    let (low, high) = bytes.split_at(bytes.len().min(8));
    let sign = match bytes.last() {
        Some(last) if last & 0x80 != 0 => 0xFF,
        _ => 0,
    };
    let mut value = [sign; 8];
    if let Some(place) = value.get_mut(..low.len()) {
        place.copy_from_slice(low);
    }
    let value = i64::from_le_bytes(value);
    match high.iter().all(|b| *b == sign) && (value < 0) == (sign != 0) {
        true => Node::Int(value),
        false => Node::BigInt,
    }
}

/// A decimal integer; `None` if it is something else.
pub(super) fn decimal(line: &[u8]) -> Option<Node> {
    let text = str::from_utf8(line).ok()?.trim();
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    Some(text.parse().map_or(Node::BigInt, Node::Int))
}

/// A string as Python's `repr` writes it, in quotes and with escapes; `None` if it is something else.
pub(super) fn quoted(line: &[u8]) -> Option<Vec<u8>> {
    let line = line.trim_ascii_end();
    let inner = match line {
        [b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"'] => inner,
        _ => return None,
    };
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        if byte != b'\\' {
            out.push(byte);
            continue;
        }
        let (&escape, tail) = rest.split_first()?;
        rest = tail;
        match escape {
            b'\\' | b'\'' | b'"' => out.push(escape),
            b'a' => out.push(7),
            b'b' => out.push(8),
            b't' => out.push(b'\t'),
            b'n' => out.push(b'\n'),
            b'v' => out.push(11),
            b'f' => out.push(12),
            b'r' => out.push(b'\r'),
            b'x' => {
                let (digits, tail) = rest.split_first_chunk::<2>()?;
                out.push(u8::try_from(hexadecimal(digits)?).ok()?);
                rest = tail;
            }
            b'0'..=b'7' => {
                let mut value = u32::from(escape - b'0');
                for _ in 0..2 {
                    if let Some((&digit @ b'0'..=b'7', tail)) = rest.split_first() {
                        value = value * 8 + u32::from(digit - b'0');
                        rest = tail;
                    }
                }
                out.push((value & 0xFF) as u8);
            }
            other => out.extend([b'\\', other]),
        }
    }
    Some(out)
}

fn hexadecimal(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |value, digit| {
        Some(value << 4 | char::from(*digit).to_digit(16)?)
    })
}

/// Decodes Python's `raw-unicode-escape`: Latin-1, with `\u` and four hexadecimal digits, or `\U` and
/// eight, for all other characters. Returns UTF-8, which is invalid where there is half of a surrogate
/// pair; `None` if an escape is cut short.
pub(super) fn raw_unicode(line: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(line.len());
    let mut rest = line;
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = match (byte, tail.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => {
                rest = tail;
                push(&mut out, byte.into());
                // A backslash before another is not the beginning of an escape.
                if byte == b'\\'
                    && let Some((b'\\', tail)) = tail.split_first()
                {
                    out.push(b'\\');
                    rest = tail;
                }
                continue;
            }
        };
        push(&mut out, hexadecimal(tail.get(1..=digits)?)?);
        rest = tail.get(1 + digits..)?;
    }
    Some(out)
}

/// Appends a character, or half of a surrogate pair in the same form.
fn push(out: &mut Vec<u8>, code: u32) {
    match char::from_u32(code) {
        Some(c) => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        None => out.extend([
            0xE0 | (code >> 12) as u8 & 0x0F,
            0x80 | (code >> 6) as u8 & 0x3F,
            0x80 | code as u8 & 0x3F,
        ]),
    }
}

/// A line, for a message.
pub(super) fn shown_line(line: &[u8]) -> String {
    crate::catalog::container::pytorch::describe::shown(&String::from_utf8_lossy(line))
}
