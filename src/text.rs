//! Text for display: readable numbers, and names that cannot control a terminal.

use std::borrow::Cow;
use std::fmt::Write;
use std::ops::RangeInclusive;

/// `text` with everything that a terminal would act on escaped as `\u{…}`: control characters (C0,
/// DEL, C1), and the Unicode characters that reorder or hide text.
pub fn printable(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|b| matches!(b, b' '..=b'~')) || !text.chars().any(acts_on_terminal) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if acts_on_terminal(c) => {
                let _ = write!(out, "\\u{{{:x}}}", c as u32);
            }
            c => out.push(c),
        }
    }
    out.into()
}

/// JSON text with the same characters escaped. They occur only inside its strings (newlines between
/// values stay), so it remains the same JSON value.
pub fn printable_json(text: &str) -> Cow<'_, str> {
    let acts = |c| acts_on_terminal(c) && c != '\n';
    if is_harmless(text.as_bytes()) || !text.chars().any(acts) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if !acts(c) {
            out.push(c);
            continue;
        }
        // Beyond the basic plane two escapes are one character.
        for unit in c.encode_utf16(&mut [0; 2]) {
            let _ = write!(out, "\\u{unit:04x}");
        }
    }
    out.into()
}

/// Appends JSON on one line, as [`printable_json`]. Map keys must be strings, as they are throughout
/// this program.
pub(crate) fn push_json(out: &mut Vec<u8>, value: &(impl serde::Serialize + ?Sized)) {
    let start = out.len();
    // Writing to a Vec cannot fail.
    let _ = serde_json::to_writer(&mut *out, value);
    if is_harmless(&out[start..]) {
        return;
    }
    let escaped = match std::str::from_utf8(&out[start..]) {
        Ok(text) => printable_json(text).into_owned(),
        Err(_) => return,
    };
    out.truncate(start);
    out.extend_from_slice(escaped.as_bytes());
}

/// Whether text has ASCII alone and no control character but newlines: nearly all text that is written.
fn is_harmless(text: &[u8]) -> bool {
    text.iter().all(|b| matches!(b, b'\n' | b' '..=b'~'))
}

fn acts_on_terminal(c: char) -> bool {
    c.is_control() || UNSEEN.iter().any(|range| range.contains(&c))
}

/// What reorders text or is not seen in it: Unicode's format characters (Cf), line and paragraph
/// separators, and all that it calls default-ignorable (joiners, fillers, variation selectors, tags).
const UNSEEN: [RangeInclusive<char>; 25] = [
    '\u{ad}'..='\u{ad}',
    '\u{34f}'..='\u{34f}',
    '\u{600}'..='\u{605}',
    '\u{61c}'..='\u{61c}',
    '\u{6dd}'..='\u{6dd}',
    '\u{70f}'..='\u{70f}',
    '\u{890}'..='\u{891}',
    '\u{8e2}'..='\u{8e2}',
    '\u{115f}'..='\u{1160}',
    '\u{17b4}'..='\u{17b5}',
    '\u{180b}'..='\u{180f}',
    '\u{200b}'..='\u{200f}',
    '\u{2028}'..='\u{202e}',
    '\u{2060}'..='\u{206f}',
    '\u{3164}'..='\u{3164}',
    '\u{fe00}'..='\u{fe0f}',
    '\u{feff}'..='\u{feff}',
    '\u{ffa0}'..='\u{ffa0}',
    '\u{fff0}'..='\u{fffb}',
    '\u{110bd}'..='\u{110bd}',
    '\u{110cd}'..='\u{110cd}',
    '\u{13430}'..='\u{1343f}',
    '\u{1bca0}'..='\u{1bca3}',
    '\u{1d173}'..='\u{1d17a}',
    '\u{e0000}'..='\u{e0fff}',
];

/// `8030261248` → `8,030,261,248`.
pub fn thousands(n: u64) -> String {
    indicatif::HumanCount(n).to_string()
}

/// `1 file`, `1,000 files`.
pub fn plural(n: u64, one: &str) -> String {
    match n {
        1 => format!("1 {one}"),
        n => format!("{} {one}s", thousands(n)),
    }
}

/// Bytes in decimal units with three significant digits: `16.1 GB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["kB", "MB", "GB", "TB", "PB", "EB"];
    if n < 1000 {
        return format!("{n} B");
    }
    let mut value = n as f64;
    let mut unit = "B";
    for u in UNITS {
        if value < 999.5 {
            break;
        }
        value /= 1000.0;
        unit = u;
    }
    let decimals = match value {
        v if v < 9.995 => 2,
        v if v < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.decimals$} {unit}")
}

/// Four significant digits without trailing zeros: `0.02134`, `-1.234e-7`, `1250`, `12.5`.
pub fn short(v: f64) -> String {
    if v == 0.0 {
        return "0".into();
    }
    if !v.is_finite() {
        return v.to_string();
    }
    let scientific = format!("{v:.3e}");
    let Some((mantissa, exponent)) = scientific.split_once('e') else {
        return scientific;
    };
    match exponent.parse::<i32>() {
        Ok(e @ -4..=5) => trim(&format!("{v:.*}", (3 - e).max(0) as usize)).into(),
        _ => format!("{}e{exponent}", trim(mantissa)),
    }
}

fn trim(decimal: &str) -> &str {
    match decimal.contains('.') {
        true => decimal.trim_end_matches('0').trim_end_matches('.'),
        false => decimal,
    }
}

/// Shortens text to `max` characters by leaving out the middle, because tensor names differ at both
/// ends.
pub fn elide(text: &str, max: usize) -> String {
    let n = text.chars().count();
    if n <= max {
        return text.to_string();
    }
    let head = max / 2;
    let tail = max.saturating_sub(head + 1);
    let start: String = text.chars().take(head).collect();
    let end: String = text.chars().skip(n - tail).collect();
    format!("{start}…{end}")
}

/// Parses a size as coreutils do: `1000`, `4K`, `80G` and `80GiB` (powers of 1024), `80GB`
/// (powers of 1000).
///
/// # Errors
/// Why it is not a size.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text[digits.len()..].to_ascii_uppercase();
    let power = |letter: char| "KMGTPE".find(letter).map(|i| i as u32 + 1);
    let mut letters = unit.chars();
    let factor = match (letters.next(), letters.as_str()) {
        (None, _) => Some(1),
        (Some(letter), "" | "IB") => power(letter).map(|p| 1024u64.pow(p)),
        (Some(letter), "B") => power(letter).map(|p| 1000u64.pow(p)),
        _ => None,
    };
    let number: Option<u64> = digits.parse().ok();
    number
        .zip(factor)
        .and_then(|(n, f)| n.checked_mul(f))
        .ok_or_else(|| format!("'{text}' is not a size; write 80G or 80000000000"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_stays_the_same_value() {
        let value = serde_json::json!({
            "\u{1b}[2J\u{9b}": ["\u{202e}x\u{7f}\"\\", "é🦀", "\u{e0041}\u{1d173}\u{ad}\u{2028}"],
        });
        let text = serde_json::to_string_pretty(&value).unwrap();
        let shown = printable_json(&text);
        assert!(shown.contains("\\u202ex\\u007f") && shown.contains("é🦀"));
        assert!(!shown.chars().any(|c| acts_on_terminal(c) && c != '\n'));
        let back: serde_json::Value = serde_json::from_str(&shown).unwrap();
        assert_eq!(back, value);
        let mut line = b"before ".to_vec();
        push_json(&mut line, &value);
        let line = line.strip_prefix(b"before ").unwrap();
        let shown = std::str::from_utf8(line).unwrap();
        assert!(!shown.chars().any(acts_on_terminal) && shown.contains("\\udb40\\udc41"));
        assert_eq!(
            serde_json::from_slice::<serde_json::Value>(line).unwrap(),
            value
        );
    }

    #[test]
    fn bytes_are_read_as_coreutils_read_them() {
        for (text, bytes) in [
            ("0", 0),
            ("1000", 1000),
            ("4K", 4096),
            ("4k", 4096),
            ("2GiB", 2 << 30),
            ("2GB", 2_000_000_000),
            ("15E", 15 << 60),
        ] {
            assert_eq!(parse_bytes(text), Ok(bytes));
        }
        for text in ["", "G", "-1", "1.5G", "16E", "4X", "4KK", "é", "4é"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(thousands(0), "0");
        assert_eq!(thousands(999), "999");
        assert_eq!(thousands(8_030_261_248), "8,030,261,248");
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(16_060_522_496), "16.1 GB");
        assert_eq!(bytes(999_999), "1.00 MB");
        assert_eq!(bytes(1_605_632), "1.61 MB");
    }

    #[test]
    fn nothing_reaches_the_terminal_that_acts_on_it() {
        assert_eq!(printable("a.b é"), "a.b é");
        assert_eq!(printable("\x1b[31mx\n"), "\\u{1b}[31mx\\n");
        assert_eq!(printable("\u{9b}2J\u{202e}"), "\\u{9b}2J\\u{202e}");
        assert_eq!(printable("\u{61c}1"), "\\u{61c}1");
    }

    #[test]
    fn numbers_are_short_and_right() {
        for (v, text) in [
            (0.0, "0"),
            (1.0, "1"),
            (-0.5, "-0.5"),
            (0.021_339, "0.02134"),
            (1250.04, "1250"),
            (123_456.0, "123456"),
            (9_999_990.0, "1e7"),
            (-1.234_56e-7, "-1.235e-7"),
            (0.000_123_456, "0.0001235"),
            (99.999, "100"),
            (f64::from(f32::MAX), "3.403e38"),
        ] {
            assert_eq!(short(v), text);
        }
    }

    #[test]
    fn long_names_keep_both_ends() {
        assert_eq!(elide("abc", 3), "abc");
        assert_eq!(elide("abcdefgh", 5), "ab…gh");
        assert_eq!(elide("ééééé", 3), "é…é");
    }
}
