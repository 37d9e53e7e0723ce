//! Converts tensor names to file names, with as few changes as possible, and back.

use std::borrow::Cow;

use sha2::{Digest, Sha256};

mod table;

pub use table::NameTable;

/// The most bytes of a tensor's file name, so that `.npy` and `.png` still fit into 255.
const MAX: usize = 240;
/// How many bytes of a longer name are kept before `~` and 16 hex digits.
const KEPT: usize = 200;

/// The module that a tensor belongs to: its name without the last component; empty if it has one.
pub fn module(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(module, _)| module)
}

/// The file name of a tensor: `/` → `%2F`, `%` → `%25`, NUL → `%00`, a whole name `.` → `%2E`, `..`
/// → `%2E%2E`, the empty name → `%`. A result over 240 bytes is [`cut`]. Two tensors of a model may
/// thus get the same file name; `Model::file_name` resolves that.
pub fn file_name(name: &str) -> Cow<'_, str> {
    let escaped = escaped(name);
    if escaped.len() <= MAX {
        return escaped;
    }
    cut(name).into()
}

/// The escaped name's first 200 bytes (cut at a character), `~`, and the first 16 hex digits of the
/// SHA-256 of the name.
pub fn cut(name: &str) -> String {
    let digest = format!("{:x}", Sha256::digest(name.as_bytes()));
    let escaped = escaped(name);
    let kept = &escaped[..escaped.floor_char_boundary(KEPT)];
    format!("{kept}~{}", &digest[..16])
}

fn escaped(name: &str) -> Cow<'_, str> {
    match name {
        "" => "%".into(),
        "." => "%2E".into(),
        ".." => "%2E%2E".into(),
        _ if name.contains(['/', '%', '\0']) => {
            let mut out = String::with_capacity(name.len() + 8);
            for c in name.chars() {
                match c {
                    '/' => out.push_str("%2F"),
                    '%' => out.push_str("%25"),
                    '\0' => out.push_str("%00"),
                    c => out.push(c),
                }
            }
            out.into()
        }
        _ => name.into(),
    }
}

/// A component of a name under `tree/`: as [`file_name`], but `@`, which has a special meaning
/// there, becomes `%40`.
pub fn tree_name(component: &str) -> Cow<'_, str> {
    match component {
        "@" => "%40".into(),
        _ => file_name(component),
    }
}

/// The name whose escaped form is `file`, unless it was cut.
pub fn from_file_name(file: &str) -> Option<Cow<'_, str>> {
    let name: Cow<str> = match file {
        "%" => "".into(),
        "%2E" => ".".into(),
        "%2E%2E" => "..".into(),
        _ if file.contains('%') => file
            .replace("%2F", "/")
            .replace("%00", "\0")
            .replace("%25", "%")
            .into(),
        _ => file.into(),
    };
    // Only the spelling that `file_name` produces is valid.
    (file_name(&name) == file).then_some(name)
}

/// Whether the file name of `name` is cut, so that the name cannot be recovered from it.
pub fn is_cut(name: &str) -> bool {
    let escaped = |c: char| {
        if matches!(c, '/' | '%' | '\0') {
            3
        } else {
            c.len_utf8()
        }
    };
    name.len() > MAX / 3 && name.chars().map(escaped).sum::<usize>() > MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_change_as_little_as_a_file_name_needs() {
        for (name, file) in [
            ("a.b", "a.b"),
            ("", "%"),
            (".", "%2E"),
            ("..", "%2E%2E"),
            ("...", "..."),
            ("../x", "..%2Fx"),
            ("a/b%c\0", "a%2Fb%25c%00"),
            ("%2F", "%252F"),
            ("~ \n\u{e9}", "~ \n\u{e9}"),
        ] {
            assert_eq!(file_name(name), file);
            assert_eq!(from_file_name(file).as_deref(), Some(name));
        }
        assert_eq!(from_file_name("%2f"), None);
        assert_eq!(from_file_name("%zz"), None);
        assert_eq!(tree_name("@"), "%40");
        assert_eq!(tree_name("a@"), "a@");
    }

    #[test]
    fn long_names_are_cut_at_a_character_and_hashed() {
        let name = "\u{e9}".repeat(150);
        let file = file_name(&name);
        assert_eq!(file.len(), 200 + 17);
        assert!(is_cut(&name));
        // printf 'é%.0s' {1..150} | sha256sum
        assert_eq!(&file[200..], "~cb1fa3158102cb16");
        assert_eq!(file_name(&"x".repeat(240)).len(), 240);
        assert!(!is_cut(&"x".repeat(240)));
        assert_eq!(file_name(&"x".repeat(241)).len(), 217);
        // 120 slashes are 360 bytes escaped.
        assert!(is_cut(&"/".repeat(120)));
    }
}
