//! Strings: a length of eight bytes, then as many bytes of UTF-8.

use crate::catalog::container::cursor::{Cursor, Reading};

/// The bytes of the next string, which is `what`.
#[inline]
pub(super) fn string<'c>(
    cursor: &'c mut Cursor<'_>,
    what: &dyn Fn() -> String,
) -> Reading<&'c [u8]> {
    let length = string_length(cursor, what)?;
    cursor.take(length, what)
}

fn string_length(cursor: &mut Cursor<'_>, what: &dyn Fn() -> String) -> Reading<u64> {
    let length = cursor.u64(&|| format!("the length of {}", what()))?;
    cursor.hold(length, &|| format!("{} is {length} bytes long", what()))?;
    Ok(length)
}

/// Passes over `count` strings, which are `what`.
pub(super) fn skip_strings(
    cursor: &mut Cursor<'_>,
    count: u64,
    what: &dyn Fn() -> String,
) -> Reading<()> {
    let mut left = count;
    while left > 0 {
        // As many as are here whole, without a check of each against the file's end.
        let ready = cursor.ready();
        let mut rest = ready;
        while left > 0
            && let Some((length, tail)) = rest.split_first_chunk()
            && let Ok(length) = usize::try_from(u64::from_le_bytes(*length))
            && let Some(tail) = tail.get(length..)
        {
            rest = tail;
            left -= 1;
        }
        let passed = ready.len() - rest.len();
        cursor.advance(passed);
        if left > 0 {
            let string = || format!("string {} of {}", count - left + 1, what());
            let length = string_length(cursor, &string)?;
            cursor.skip(length, &string)?;
            left -= 1;
        }
    }
    Ok(())
}
