//! Joins along any axis as one view: rows of the parts, side by side.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use super::parts::Part;
use super::{Parts, Scratch, SharedView, View};
use crate::catalog::Piece;
use crate::error::Result;

/// Bytes of several short rows that are read at a time: few enough to stay in the L2 cache between the
/// `pread` and the copy.
const PIECE: usize = 256 << 10;
/// Rows of up to this many bytes are read several at a time: otherwise the system calls, one for each
/// part of a row, take most of the time. 200 MB of fused AWQ words in rows of 3 KiB take 41 ms of a core
/// instead of 86, 100 MB in rows of 12 KiB take 32 instead of 40.
const SHORT_ROW: u64 = 16 << 10;
/// Parts with caches for each reader that one reader keeps open: a row of a fusion has up to three parts.
const OPEN: usize = 8;

/// Parts joined along an axis. In C order, a join along axis `a` of parts `[d0 … da …]` has, for
/// each of the `d0·…·d(a-1)` outer indices, the bytes of each part at that index in turn. Along
/// axis 0 (and for stacks) there is one outer index, and the parts simply follow one another.
pub struct Concat {
    /// Part i has the bytes from `parts.end_of(i) / outer` on within one outer row.
    parts: Arc<Parts>,
    outer: u64,
    /// Parts that this reader has opened for itself, by number, the latest first.
    own: Option<Mutex<VecDeque<(usize, SharedView)>>>,
}

impl Concat {
    /// Joins `parts` over `outer` outer rows. Every part's length must be a multiple of `outer`,
    /// which must not be 0 unless all parts are empty.
    pub fn new(parts: Vec<SharedView>, outer: u64) -> Self {
        debug_assert!(parts.iter().all(|p| p.len().is_multiple_of(outer.max(1))));
        Concat::of(Arc::new(parts.into_iter().collect()), outer)
    }

    /// The same of parts that other joins share.
    pub fn of(parts: Arc<Parts>, outer: u64) -> Self {
        let outer = outer.max(1);
        Concat {
            own: parts.has_readers().then(Mutex::default),
            parts,
            outer,
        }
    }

    /// Bytes in one outer row.
    fn row(&self) -> u64 {
        self.start(self.parts.count())
    }

    /// Where a part starts within one outer row.
    fn start(&self, part: usize) -> u64 {
        self.parts.end_of(part) / self.outer
    }

    /// The part that holds byte `offset` of the whole, the offset in that part, and how many bytes
    /// of the whole are contiguous there.
    fn locate(&self, offset: u64) -> (usize, u64, u64) {
        let (outer, inner) = (offset / self.row(), offset % self.row());
        // This skips empty parts.
        let i = self.parts.at(inner, self.outer);
        let (start, end) = (self.start(i), self.start(i + 1));
        let (width, within) = (end - start, inner - start);
        let at = outer * width + within;
        let run = if self.outer == 1 || self.parts.count() == 1 {
            self.parts.get(i).1 - at
        } else {
            width - within
        };
        (i, at, run)
    }

    /// How many of part i's bytes come before byte `at` of the whole. Outer rows are contiguous in the
    /// part, so a range of the whole is one range of the part.
    fn before(&self, i: usize, at: u64) -> u64 {
        let (start, end) = (self.start(i), self.start(i + 1));
        let inner = (at % self.row()).clamp(start, end) - start;
        at / self.row() * (end - start) + inner
    }

    /// Reads bytes of part i, and of those that follow it in their file.
    fn read_part(&self, i: usize, at: u64, buf: &mut [u8]) -> Result<()> {
        match (self.parts.get(i).0, &self.own) {
            (Part::View(view), Some(own)) => {
                let own = opened(own, i, view);
                own.as_ref().unwrap_or(view).read_at(at, buf)
            }
            (part, _) => part.read_at(at, buf),
        }
    }

    /// Reads several outer rows: all that they need of a part at once, then row by row into its place.
    fn read_rows(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let (row, stop) = (self.row(), offset + buf.len() as u64);
        for i in 0..self.parts.count() {
            let (from, to) = (self.before(i, offset), self.before(i, stop));
            if from == to {
                continue;
            }
            let mut bytes = Scratch::<u8>::take((to - from) as usize);
            self.read_part(i, from, &mut bytes)?;
            let mut rest = &*bytes;
            for first in (offset / row * row..stop).step_by(row as usize) {
                let start = (first + self.start(i)).clamp(offset, stop);
                let end = (first + self.start(i + 1)).clamp(offset, stop);
                let (now, later) = rest.split_at((end - start) as usize);
                buf[(start - offset) as usize..(end - offset) as usize].copy_from_slice(now);
                rest = later;
            }
        }
        Ok(())
    }

    /// Announces ranges of parts that follow one another, as few as there are.
    fn announce(&self, ranges: &[Range<u64>]) {
        // By file or part, so that each is told all at once.
        let mut pending: Option<(Part<'_>, Vec<Range<u64>>)> = None;
        for range in ranges {
            let mut at = range.start;
            while at < range.end {
                let (i, from, run) = self.locate(at);
                let n = run.min(range.end - at);
                let of = self.parts.get(i).0;
                let needed = of.base(from)..of.base(from + n);
                match &mut pending {
                    Some((last, all)) if last.is(of) => all.push(needed),
                    other => {
                        if let Some((last, all)) = other.replace((of, vec![needed])) {
                            last.will_need(&all);
                        }
                    }
                }
                at += n;
            }
        }
        if let Some((last, all)) = pending {
            last.will_need(&all);
        }
    }
}

/// The reader's own view of part `i`, if that is worth it.
fn opened(
    own: &Mutex<VecDeque<(usize, SharedView)>>,
    i: usize,
    view: &SharedView,
) -> Option<SharedView> {
    let mut own = own.lock().unwrap_or_else(PoisonError::into_inner);
    let known = own.iter().position(|(part, _)| *part == i);
    let entry = match known.and_then(|at| own.remove(at)) {
        Some(entry) => entry,
        None => (i, view.opened()?),
    };
    own.push_front(entry.clone());
    // A part is dropped when its last reader is done.
    own.truncate(OPEN);
    Some(entry.1)
}

impl View for Concat {
    fn len(&self) -> u64 {
        self.parts.end_of(self.parts.count())
    }

    fn read_at(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<()> {
        if self.outer > 1 && self.parts.count() > 1 && self.row() <= SHORT_ROW {
            for (piece, buf) in buf.chunks_mut(PIECE).enumerate() {
                self.read_rows(offset + (piece * PIECE) as u64, buf)?;
            }
            return Ok(());
        }
        while !buf.is_empty() {
            let (part, at, run) = self.locate(offset);
            let n = run.min(buf.len() as u64) as usize;
            let (now, rest) = buf.split_at_mut(n);
            self.read_part(part, at, now)?;
            buf = rest;
            offset += n as u64;
        }
        Ok(())
    }

    fn piece(&self, offset: u64, len: usize) -> Option<Piece<'_>> {
        if len == 0 {
            return None;
        }
        let (part, at, run) = self.locate(offset);
        let part = (run >= len as u64).then(|| self.parts.get(part).0)?;
        part.piece(at, len)
    }

    fn will_need(&self, ranges: &[Range<u64>]) {
        if self.row() == 0 {
            return;
        }
        if self.outer == 1 {
            return self.announce(ranges);
        }
        for i in 0..self.parts.count() {
            let before = |at| self.before(i, at);
            let of_part = ranges.iter().map(|r| before(r.start)..before(r.end));
            let part = self.parts.get(i).0;
            let of_part = of_part.filter(|r| !r.is_empty());
            let of_part = of_part.map(|r| part.base(r.start)..part.base(r.end));
            let of_part: Vec<_> = of_part.collect();
            if !of_part.is_empty() {
                part.will_need(&of_part);
            }
        }
    }

    fn grain(&self) -> u64 {
        match (self.outer, self.parts.count()) {
            (2.., _) => self.row().max(1),
            (_, 0) => 1,
            _ => self.parts.get(0).0.grain(),
        }
    }

    fn opened(&self) -> Option<SharedView> {
        self.own.as_ref()?;
        Some(Arc::new(Concat::of(self.parts.clone(), self.outer)))
    }
}
