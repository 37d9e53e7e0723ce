//! Reads a range of a file from front to back in large chunks, so that a store which answers each read
//! separately is asked only a few times. Nothing is allocated before it is known that the file has the
//! bytes.

use crate::catalog::Object;
use crate::error::Error;

/// How many bytes are fetched first: most headers fit.
const FIRST: u64 = 64 << 10;
/// How many are fetched at a time if there are more. Half of it doubles the time to walk a GGUF
/// vocabulary that is in the page cache, twice as many do not shorten it.
const CHUNK: u64 = 1 << 20;

/// Why reading ended.
pub(super) enum Stop {
    /// The bytes are not what they should be.
    Problem(String),
    /// They could not be read.
    Failed(Error),
    /// What was found so far is enough.
    Enough,
}

/// `Result` with [`Stop`].
pub(super) type Reading<T> = Result<T, Stop>;

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

/// A position in a range of a file.
pub(super) struct Cursor<'a> {
    file: &'a dyn Object,
    /// The bytes from `start` on that have been fetched.
    fetched: Vec<u8>,
    start: u64,
    /// How many of them have been taken.
    taken: usize,
    /// Where the range ends.
    end: u64,
    /// What is read, how long it may be, and the byte of the file that it must therefore end before.
    limit: (&'static str, u64, u64),
    /// How many bytes to fetch next.
    chunk: u64,
}

impl<'a> Cursor<'a> {
    /// At `start` of a file, to read as far as `end`, which must not lie past the file's own.
    pub fn new(file: &'a dyn Object, start: u64, end: u64) -> Cursor<'a> {
        Cursor {
            file,
            fetched: Vec::new(),
            start,
            taken: 0,
            end,
            limit: ("it", u64::MAX, u64::MAX),
            chunk: FIRST,
        }
    }

    /// Reads at most `most` bytes from here on: a file with holes can promise terabytes. `what` is what
    /// must end within them, for the error.
    pub fn limit(&mut self, most: u64, what: &'static str) {
        self.limit = (what, most, self.position().saturating_add(most));
    }

    /// Where it is, counted from the start of the file.
    pub fn position(&self) -> u64 {
        self.start + self.taken as u64
    }

    /// How many bytes follow.
    pub fn left(&self) -> u64 {
        self.end.saturating_sub(self.position())
    }

    /// The bytes that are fetched and not taken.
    pub fn ready(&self) -> &[u8] {
        self.fetched.get(self.taken..).unwrap_or_default()
    }

    /// Makes `n` bytes ready, which the range must have.
    #[inline]
    pub fn fetch(&mut self, n: usize) -> Reading<()> {
        match self.ready().len() {
            ready if ready >= n => Ok(()),
            ready => self.fetch_more(ready, n),
        }
    }

    fn fetch_more(&mut self, ready: usize, n: usize) -> Reading<()> {
        self.check_limit(n as u64)?;
        self.fetched.copy_within(self.taken.., 0);
        self.start += self.taken as u64;
        self.taken = 0;
        let len = self.chunk.max(n as u64).min(self.left());
        self.chunk = CHUNK;
        self.fetched.resize(len as usize, 0);
        let new = self.fetched.get_mut(ready..).unwrap_or_default();
        let read = self.file.read_at(self.start + ready as u64, new);
        if read.is_err() {
            self.fetched.truncate(ready);
        }
        Ok(read?)
    }

    /// Passes over `n` bytes, all of which are ready.
    #[inline]
    pub fn advance(&mut self, n: usize) {
        self.taken = (self.taken + n).min(self.fetched.len());
    }

    /// The next `n` bytes, which are `what`.
    #[inline]
    pub fn take(&mut self, n: u64, what: &dyn Fn() -> String) -> Reading<&[u8]> {
        self.check(n, what)?;
        let n = n as usize;
        self.fetch(n)?;
        let from = self.taken;
        self.taken += n;
        Ok(self.fetched.get(from..self.taken).unwrap_or_default())
    }

    /// The next `N` bytes, which are `what`.
    pub fn array<const N: usize>(&mut self, what: &dyn Fn() -> String) -> Reading<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    /// The next four bytes as a number, which is `what`.
    pub fn u32(&mut self, what: &dyn Fn() -> String) -> Reading<u32> {
        Ok(u32::from_le_bytes(self.array(what)?))
    }

    /// The next eight bytes as a number, which is `what`.
    pub fn u64(&mut self, what: &dyn Fn() -> String) -> Reading<u64> {
        Ok(u64::from_le_bytes(self.array(what)?))
    }

    /// Passes over `n` bytes, which are `what`, without reading them.
    pub fn skip(&mut self, n: u64, what: &dyn Fn() -> String) -> Reading<()> {
        self.check(n, what)?;
        self.check_limit(n)?;
        match usize::try_from(n).ok().filter(|n| *n <= self.ready().len()) {
            Some(n) => self.taken += n,
            None => {
                self.start = self.position() + n;
                self.taken = 0;
                self.fetched.clear();
            }
        }
        Ok(())
    }

    /// That the next `n` bytes are within the limit.
    fn check_limit(&self, n: u64) -> Reading<()> {
        let (what, most, end) = self.limit;
        match self.position().saturating_add(n) <= end {
            true => Ok(()),
            false => Err(Stop::Problem(format!(
                "{what} does not end within {most} bytes, the most that is read; the file is damaged, download it again"
            ))),
        }
    }

    /// That the range has `n` more bytes, for what `is` that long.
    pub fn hold(&self, n: u64, is: &dyn Fn() -> String) -> Reading<()> {
        match n <= self.left() {
            true => Ok(()),
            false => Err(self.too_short(is())),
        }
    }

    /// That the range has `n` more bytes, which are `what`.
    #[inline]
    fn check(&self, n: u64, what: &dyn Fn() -> String) -> Reading<()> {
        match n <= self.left() {
            true => Ok(()),
            false => Err(self.too_short(format!("{} needs {n} bytes", what()))),
        }
    }

    #[cold]
    fn too_short(&self, needs: String) -> Stop {
        let (left, at, has) = (self.left(), self.position(), self.file.len());
        Stop::Problem(format!(
            "{needs}, but {left} bytes are left at byte {at} of {has}; the file is cut short or damaged, download it again"
        ))
    }
}
