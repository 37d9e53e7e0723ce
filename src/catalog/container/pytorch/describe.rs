//! Texts from a file in messages: short, and on one line.

use std::borrow::Cow;

use crate::text::{elide, printable};

/// The most characters of a text from a file that a message repeats.
pub(super) const SHOWN: usize = 80;

/// The first characters of a text: as many as are shown.
pub(super) fn cut(text: &str) -> &str {
    let end = text.char_indices().nth(SHOWN);
    end.map_or(text, |(end, _)| text.get(..end).unwrap_or_default())
}

/// Text from a file, cut to a length that a message can hold.
pub(super) fn short(text: &str) -> Cow<'_, str> {
    let start = cut(text);
    match start.len() == text.len() {
        true => text.into(),
        false => format!("{start}…").into(),
    }
}

/// [`short`], such that a terminal shows it as it is.
pub(super) fn shown(text: &str) -> String {
    printable(&short(text)).into_owned()
}

/// A name from the file for a message: short, and on one line. Members of an archive differ at their
/// ends, so the middle is left out.
pub(super) fn shown_name(name: &[u8]) -> String {
    // A character takes at most four bytes; a hostile name may have any number.
    let (start, end) = match name.len() > 8 * SHOWN {
        false => (name, &[][..]),
        true => (
            name.get(..4 * SHOWN).unwrap_or_default(),
            name.get(name.len() - 4 * SHOWN..).unwrap_or_default(),
        ),
    };
    let text = elide(&String::from_utf8_lossy(&[start, end].concat()), SHOWN);
    printable(&text).into_owned()
}
