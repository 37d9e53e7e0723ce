//! What follows an opcode: numbers, counted strings and lines.

use super::Wrong;
use crate::catalog::container::cursor::{Cursor, Stop};

/// The longest line that is kept to be decoded: a text of 64 KiB whose every character is an escape.
pub(super) const MAX_LINE: usize = 640 << 10;

/// The bytes of a pickle.
pub(super) struct Input<'c, 'f> {
    cursor: &'c mut Cursor<'f>,
    /// The byte of the file that is the first of the pickle, for messages.
    start: u64,
}

impl<'c, 'f> Input<'c, 'f> {
    pub fn new(cursor: &'c mut Cursor<'f>, start: u64) -> Input<'c, 'f> {
        Input { cursor, start }
    }

    /// Where it is.
    pub fn position(&self) -> u64 {
        self.cursor.position().saturating_sub(self.start)
    }

    /// How many bytes follow.
    pub fn left(&self) -> u64 {
        self.cursor.left()
    }

    /// The next byte, `None` at the end.
    #[inline]
    pub fn next(&mut self) -> Result<Option<u8>, Wrong> {
        if let Some(&byte) = self.cursor.ready().first() {
            self.cursor.advance(1);
            return Ok(Some(byte));
        }
        if self.cursor.left() == 0 {
            return Ok(None);
        }
        Ok(self.take(1)?.first().copied())
    }

    /// That `n` bytes follow.
    #[inline]
    pub fn hold(&self, n: u64) -> Result<(), Wrong> {
        let left = self.left();
        match n <= left {
            true => Ok(()),
            false => Err(Wrong::Damaged(format!(
                "needs {n} bytes, but {left} are left; the file is cut short or damaged, download it again"
            ))),
        }
    }

    /// The next `n` bytes, which should be few.
    #[inline]
    pub fn take(&mut self, n: u64) -> Result<&[u8], Wrong> {
        self.hold(n)?;
        Ok(self.cursor.take(n, &String::new)?)
    }

    /// The next `N` bytes.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N], Wrong> {
        if let Some(&bytes) = self.cursor.ready().first_chunk() {
            self.cursor.advance(N);
            return Ok(bytes);
        }
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N as u64)?);
        Ok(bytes)
    }

    /// Passes over `n` bytes.
    pub fn skip(&mut self, n: u64) -> Result<(), Wrong> {
        self.hold(n)?;
        Ok(self.cursor.skip(n, &String::new)?)
    }

    /// The next line, without its end, in place of what is in `line`. Returns its length; of one that
    /// is too long only the beginning is kept.
    pub fn line(&mut self, line: &mut Vec<u8>) -> Result<u64, Wrong> {
        line.clear();
        let mut length = 0;
        loop {
            if self.cursor.ready().is_empty() {
                if self.left() == 0 {
                    return Err(Wrong::Damaged(
                        "has no end of line; the file is cut short or damaged, download it again"
                            .into(),
                    ));
                }
                self.cursor.fetch(1)?;
            }
            let ready = self.cursor.ready();
            let end = ready.iter().position(|b| *b == b'\n');
            let part = ready.get(..end.unwrap_or(ready.len())).unwrap_or_default();
            length += part.len() as u64;
            let room = MAX_LINE.saturating_sub(line.len()).min(part.len());
            line.extend_from_slice(part.get(..room).unwrap_or_default());
            let passed = part.len() + usize::from(end.is_some());
            self.cursor.advance(passed);
            if end.is_some() {
                return Ok(length);
            }
        }
    }
}

impl From<Stop> for Wrong {
    fn from(stop: Stop) -> Wrong {
        match stop {
            Stop::Failed(error) => Wrong::Failed(error),
            Stop::Problem(problem) => Wrong::Unavailable(problem),
            Stop::Enough => Wrong::Unavailable("ends early".into()),
        }
    }
}
