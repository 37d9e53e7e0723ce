//! The parts of a join, in little memory: a stack of experts may have 300,000, and they are mostly extents
//! of the same length at regular distances.

use std::ops::Range;
use std::sync::Arc;

use super::{SharedView, View};
use crate::catalog::{Extent, Object, Piece};
use crate::error::Result;

/// A list of views, by number. Extents of files are stored as runs, as long as they have the same length
/// and distance.
#[derive(Default)]
pub struct Parts {
    runs: Vec<Run>,
    files: Vec<Arc<dyn Object>>,
    lens: Lens,
    count: usize,
    /// Whether a part has caches for each of its readers.
    has_readers: bool,
}

/// Parts that follow one another in the list.
struct Run {
    /// The number of the first.
    first: usize,
    of: Of,
}

enum Of {
    /// Extents of a file: the first one's offset, and from each to the next (which may be backward, so
    /// the sum wraps).
    File { file: u32, offset: u64, apart: u64 },
    /// One view of any kind.
    View(SharedView),
}

/// The lengths of the parts.
enum Lens {
    /// All have this one.
    Equal(u64),
    /// Where each ends, counted from the start of the first.
    Ends(Vec<u64>),
}

impl Default for Lens {
    fn default() -> Self {
        Lens::Equal(0)
    }
}

/// One part, or several that follow one another in their file.
#[derive(Clone, Copy)]
pub(super) enum Part<'a> {
    File(&'a Arc<dyn Object>, u64),
    View(&'a SharedView),
}

impl Parts {
    /// Adds an extent of a file.
    pub fn push_extent(&mut self, extent: Extent) {
        let Extent { file, offset, len } = extent;
        // Almost always the file of the last extent.
        let known = self.files.iter().rposition(|f| Arc::ptr_eq(f, &file));
        let index = known.unwrap_or_else(|| {
            self.files.push(file);
            self.files.len() - 1
        }) as u32;
        if !self.continues(index, offset, len) {
            let of = Of::File {
                file: index,
                offset,
                apart: 0,
            };
            self.runs.push(Run {
                first: self.count,
                of,
            });
        }
        self.push_len(len);
    }

    /// Makes an extent the next of the last run, if it is.
    fn continues(&mut self, index: u32, at: u64, len: u64) -> bool {
        let count = self.count;
        if count == 0 || self.len_of(count - 1) != len {
            return false;
        }
        let Some(Run { first, of }) = self.runs.last_mut() else {
            return false;
        };
        let Of::File {
            file,
            offset,
            apart,
        } = of
        else {
            return false;
        };
        let already = (count - *first) as u64;
        if already == 1 && *file == index {
            *apart = at.wrapping_sub(*offset);
        }
        *file == index && offset.wrapping_add(apart.wrapping_mul(already)) == at
    }

    /// Adds a view.
    pub fn push(&mut self, view: SharedView) {
        let len = view.len();
        // To ask is to open it, which may take long: once is enough, and for equal ones that follow one another.
        let last = self.runs.last().map(|run| &run.of);
        let is_last = matches!(last, Some(Of::View(last)) if Arc::ptr_eq(last, &view));
        self.has_readers = self.has_readers || (!is_last && view.opened().is_some());
        self.runs.push(Run {
            first: self.count,
            of: Of::View(view),
        });
        self.push_len(len);
    }

    fn push_len(&mut self, len: u64) {
        let (count, whole) = (self.count as u64, self.end_of(self.count));
        match &mut self.lens {
            Lens::Equal(of_each) if count == 0 => *of_each = len,
            Lens::Equal(of_each) if *of_each == len => {}
            Lens::Equal(of_each) => {
                let mut ends: Vec<u64> = (1..=count).map(|i| i * *of_each).collect();
                ends.push(whole + len);
                self.lens = Lens::Ends(ends);
            }
            Lens::Ends(ends) => ends.push(whole + len),
        }
        self.count += 1;
    }

    /// Gives back memory that was set aside for more parts.
    pub fn shrink(&mut self) {
        self.runs.shrink_to_fit();
        self.files.shrink_to_fit();
        if let Lens::Ends(ends) = &mut self.lens {
            ends.shrink_to_fit();
        }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Bytes of the first `count` parts.
    pub(super) fn end_of(&self, count: usize) -> u64 {
        match &self.lens {
            Lens::Equal(len) => len * count as u64,
            Lens::Ends(ends) => count.checked_sub(1).map_or(0, |i| ends[i]),
        }
    }

    /// Bytes of one part.
    pub(super) fn len_of(&self, index: usize) -> u64 {
        self.end_of(index + 1) - self.end_of(index)
    }

    /// The last part that has byte `at` of all of them in a row, or begins there. With `share`, of parts
    /// that are all cut to a fraction of their length. There must be such a byte.
    pub(super) fn at(&self, at: u64, share: u64) -> usize {
        match &self.lens {
            Lens::Equal(len) => (at / (len / share)) as usize,
            Lens::Ends(ends) => ends.partition_point(|end| end / share <= at),
        }
    }

    /// A part by its number, and the bytes from its beginning that lie in a row there: its own, or also
    /// those of parts that follow it.
    pub(super) fn get(&self, index: usize) -> (Part<'_>, u64) {
        let run = self.runs.partition_point(|run| run.first <= index) - 1;
        let (next, Run { first, of }) = (self.runs.get(run + 1), &self.runs[run]);
        match of {
            Of::View(view) => (Part::View(view), view.len()),
            Of::File {
                file,
                offset,
                apart,
            } => {
                let (len, file) = (self.len_of(index), &self.files[*file as usize]);
                let offset = offset.wrapping_add(apart.wrapping_mul((index - first) as u64));
                let more = match *apart == len {
                    true => next.map_or(self.count, |next| next.first) - index,
                    false => 1,
                };
                (Part::File(file, offset), len * more as u64)
            }
        }
    }

    /// Whether all are extents of files: then nothing is kept of what was read.
    pub fn are_stored(&self) -> bool {
        self.runs
            .iter()
            .all(|run| matches!(run.of, Of::File { .. }))
    }

    /// Whether a part has caches for each of its readers.
    pub(super) fn has_readers(&self) -> bool {
        self.has_readers
    }

    /// How many runs there are.
    #[cfg(test)]
    pub(super) fn runs(&self) -> usize {
        self.runs.len()
    }
}

impl FromIterator<SharedView> for Parts {
    fn from_iter<I: IntoIterator<Item = SharedView>>(views: I) -> Parts {
        let mut parts = Parts::default();
        views.into_iter().for_each(|view| parts.push(view));
        parts
    }
}

impl<'a> Part<'a> {
    pub fn read_at(self, at: u64, buf: &mut [u8]) -> Result<()> {
        match self {
            Part::File(file, offset) => file.read_at(offset + at, buf),
            Part::View(view) => view.read_at(at, buf),
        }
    }

    pub fn piece(self, at: u64, len: usize) -> Option<Piece<'a>> {
        match self {
            Part::File(file, offset) => file.piece(offset + at, len),
            Part::View(view) => view.piece(at, len),
        }
    }

    pub fn grain(self) -> u64 {
        match self {
            Part::File(..) => 1,
            Part::View(view) => view.grain(),
        }
    }

    /// Where byte `at` is, counted from the start of its file or view.
    pub fn base(self, at: u64) -> u64 {
        match self {
            Part::File(_, offset) => offset + at,
            Part::View(_) => at,
        }
    }

    /// Whether both are of one file, or the same view.
    pub fn is(self, other: Part<'_>) -> bool {
        match (self, other) {
            (Part::File(a, _), Part::File(b, _)) => Arc::ptr_eq(a, b),
            (Part::View(a), Part::View(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }

    /// Announces ranges, counted as [`Part::base`] does.
    pub fn will_need(self, ranges: &[Range<u64>]) {
        match self {
            Part::File(file, _) => file.will_need(ranges),
            Part::View(view) => view.will_need(ranges),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{MemoryStore, Store};
    use crate::view::Bytes;

    fn file(bytes: &[u8]) -> Arc<dyn Object> {
        let store = MemoryStore::new(&[("f", bytes)]);
        store.open("f".as_ref()).unwrap()
    }

    /// The parts, of two files and two views, in every order that a rule of runs could get wrong.
    #[test]
    fn every_part_is_where_it_was_put() {
        let files: Vec<Arc<dyn Object>> = (0..2u8)
            .map(|f| {
                let bytes: Vec<u8> = (0..200).map(|i| i ^ (f << 7)).collect();
                file(&bytes)
            })
            .collect();
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        for round in 0..300 {
            let (mut parts, mut want) = (Parts::default(), Vec::new());
            let equal = random(2) == 0;
            let (mut at, mut apart) = (0, 8);
            for _ in 0..random(30) {
                let len = if equal { 8 } else { random(9) };
                if random(4) == 0 {
                    (at, apart) = (random(190), [8, 24, 0, u64::MAX - 7][random(4) as usize]);
                }
                at = at.wrapping_add(apart);
                if at > 190 {
                    at = random(190);
                }
                if random(9) == 0 {
                    let bytes = vec![random(256) as u8; len as usize];
                    parts.push(Arc::new(Bytes(bytes.clone().into())));
                    want.push(bytes);
                } else {
                    let file = &files[random(8) as usize / 7];
                    let mut bytes = vec![0; len as usize];
                    file.read_at(at, &mut bytes).unwrap();
                    let (file, offset) = (file.clone(), at);
                    parts.push_extent(Extent { file, offset, len });
                    want.push(bytes);
                }
            }
            parts.shrink();
            assert_eq!(parts.count(), want.len());
            let mut end = 0;
            for (i, bytes) in want.iter().enumerate() {
                let (part, run) = parts.get(i);
                assert!(run >= bytes.len() as u64);
                let follow: Vec<u8> = want[i..].concat();
                let mut got = vec![0; run as usize];
                part.read_at(0, &mut got).unwrap();
                assert!(follow.starts_with(&got), "round {round} part {i}");
                for byte in end..end + bytes.len() as u64 {
                    assert_eq!(parts.at(byte, 1), i);
                }
                end += bytes.len() as u64;
                assert_eq!(parts.end_of(i + 1), end);
            }
        }
    }

    #[test]
    fn regular_parts_take_no_memory_of_their_own() {
        let file = file(&[0; 4]);
        let mut parts = Parts::default();
        for i in 0..1000 {
            let (file, offset) = (file.clone(), 4 + 48 * i);
            parts.push_extent(Extent {
                file,
                offset,
                len: 16,
            });
        }
        assert_eq!((parts.runs(), parts.files.len()), (1, 1));
        assert!(matches!(parts.lens, Lens::Equal(16)));
        assert_eq!(parts.get(999).0.base(3), 4 + 48 * 999 + 3);
    }
}
