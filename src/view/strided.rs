//! The elements of a tensor that is not contiguous in its storage (a transposed matrix, a slice, an
//! expanded bias), gathered in C order.
//!
//! What is contiguous is read as it is. Otherwise strips of the source, as long as the elements that are
//! wanted lie near each other, are read and put in order in memory. If that costs much more for a small
//! range than for a large one (a transposed matrix: an element of each row), a reader in order is given
//! tiles, which are kept until the next read.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use super::{SharedView, TileCache, View};
use crate::catalog::Piece;
use crate::error::{Error, Result};
use crate::patience;

mod form;
mod gather;
mod plan;
mod swap;
#[cfg(test)]
mod tests;
mod turn;

use form::Form;
use plan::{Plan, Tile};

/// Which bytes of an element trade places when it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Swap {
    /// None: elements are as stored.
    Nothing,
    /// Each group of this many bytes is reversed: a number that was stored with its most significant
    /// byte first, or half of a complex one.
    Groups(u32),
}

/// How a tensor lies in its storage.
#[derive(Debug, Clone)]
pub struct Layout {
    /// Bytes of an element.
    pub element: u32,
    /// Sizes of the dimensions.
    pub shape: Box<[u64]>,
    /// How many elements apart neighbors along each dimension are. It does not matter along a dimension of
    /// size 1, nor of a tensor without elements.
    pub strides: Box<[u64]>,
    /// What to do to each element.
    pub swap: Swap,
}

/// More work than this is not for a thread that others wait for: about a millisecond, in the unit of
/// [`plan::cost`].
const LONG: u64 = 10 << 20;
/// A tile is made at once if the part of it that is wanted costs this share of it.
const SHARE: u64 = 4;
/// How many readers in order are told apart.
const READERS: usize = 64;
/// How many ranges of the source are announced for another view's reads.
const ANNOUNCED: usize = 1024;

/// Gathered elements.
pub struct Gathered {
    of: Arc<Strided>,
    /// Tiles by their index. Like the plan made for the first read: a model may have many such tensors.
    tiles: OnceLock<TileCache<Vec<u8>>>,
    /// Where recent reads ended: the next of a reader in order begins there.
    ends: OnceLock<Box<[AtomicU64; READERS]>>,
    next_end: AtomicUsize,
}

/// What all readers of a tensor share.
struct Strided {
    source: SharedView,
    form: Form,
    /// Bytes of the groups that are reversed; 1 if none are.
    swapped: usize,
    plan: OnceLock<Plan>,
}

impl Gathered {
    /// The elements of `source` that `layout` describes, the first at its byte 0. The source must have all
    /// of them, and their total size must be less than 2^63 bytes.
    pub fn new(source: SharedView, layout: Layout) -> Gathered {
        let form = Form::of(&layout);
        debug_assert!(form.len == 0 || form.span(&form.sizes()) <= source.len());
        Gathered::open(Arc::new(Strided {
            source,
            plan: OnceLock::new(),
            form,
            swapped: match layout.swap {
                Swap::Nothing => 1,
                Swap::Groups(width) => width.max(1) as usize,
            },
        }))
    }

    fn open(of: Arc<Strided>) -> Gathered {
        Gathered {
            of,
            tiles: OnceLock::new(),
            ends: OnceLock::new(),
            next_end: AtomicUsize::new(0),
        }
    }

    fn tiles(&self) -> &TileCache<Vec<u8>> {
        let new = || TileCache::of_at_most(self.of.plan().kept());
        self.tiles.get_or_init(new)
    }

    /// Whether a read from `start` on continues another one. Remembers where it ends.
    fn follows(&self, start: u64, end: u64) -> bool {
        let none = || Box::new([const { AtomicU64::new(u64::MAX) }; READERS]);
        let ends = self.ends.get_or_init(none);
        let is_known = |at| ends.iter().any(|e| e.load(Ordering::Relaxed) == at);
        let follows = is_known(start);
        if !is_known(end) {
            let next = self.next_end.fetch_add(1, Ordering::Relaxed);
            ends[next % READERS].store(end, Ordering::Relaxed);
        }
        follows
    }

    /// Fills `buf` with whole elements from `start` on.
    fn read_tiles(&self, tile: Tile, start: u64, buf: &mut [u8]) -> Result<()> {
        let follows = self.follows(start, start + buf.len() as u64);
        let (mut at, mut rest) = (start, buf);
        while !rest.is_empty() {
            let (index, range) = tile.at(at);
            let count = (range.end - at).min(rest.len() as u64) as usize;
            let (now, later) = rest.split_at_mut(count);
            if count as u64 == range.end - range.start {
                patience::take_long()?;
                self.of.gather(at, now)?;
            } else {
                self.read_tile(tile, index, &range, follows, at, now)?;
            }
            at += count as u64;
            rest = later;
        }
        Ok(())
    }

    /// Fills `buf` with a part of one tile, from byte `at` of the output on.
    fn read_tile(
        &self,
        tile: Tile,
        index: u64,
        range: &Range<u64>,
        follows: bool,
        at: u64,
        buf: &mut [u8],
    ) -> Result<()> {
        let kept = self.tiles().find(index);
        let alone = match kept {
            Some(_) => 0,
            None => self.of.cost(at, buf.len()),
        };
        let kept = match kept {
            Some(kept) => kept,
            None if follows || alone >= tile.cost / SHARE => {
                patience::take_long()?;
                let len = (range.end - range.start) as usize;
                let make = |evicted: Option<Vec<u8>>| {
                    // A much larger one would take more memory than the cache counts.
                    let small = |bytes: &Vec<u8>| bytes.capacity() <= 2 * len;
                    let mut bytes = evicted.filter(small).unwrap_or_default();
                    let no_memory = |_| {
                        Error::other(libc::ENOMEM, format!("no memory for a tile of {len} bytes"))
                    };
                    let more = len.saturating_sub(bytes.len());
                    bytes.try_reserve_exact(more).map_err(no_memory)?;
                    bytes.resize(len, 0);
                    self.of.gather(range.start, &mut bytes)?;
                    Ok(bytes)
                };
                self.tiles().get_in(index, len, make)?
            }
            None => {
                if alone > LONG {
                    patience::take_long()?;
                }
                return self.of.gather(at, buf);
            }
        };
        let from = (at - range.start) as usize;
        if let Some(bytes) = kept.get(from..from + buf.len()) {
            buf.copy_from_slice(bytes);
        }
        Ok(())
    }

    /// Fills `buf` with whole elements from `start` on.
    fn read_whole(&self, start: u64, buf: &mut [u8]) -> Result<()> {
        match self.of.plan().tile {
            Some(tile) => self.read_tiles(tile, start, buf),
            None => {
                if self.of.cost(start, buf.len()) > LONG {
                    patience::take_long()?;
                }
                self.of.gather(start, buf)
            }
        }
    }
}

impl Strided {
    fn plan(&self) -> &Plan {
        self.plan.get_or_init(|| Plan::of(&self.form))
    }

    /// What it costs to gather `len` bytes from `start` on.
    fn cost(&self, start: u64, len: usize) -> u64 {
        let parts = self.form.parts(start, start + len as u64);
        let costs = parts.map(|part| plan::cost(&self.form, &part.sizes, self.plan().gap).1);
        costs.fold(0, u64::saturating_add)
    }

    /// Fills `buf` with whole elements from `start` on.
    fn gather(&self, start: u64, buf: &mut [u8]) -> Result<()> {
        if self.form.run() == self.form.len {
            self.source.read_at(start, buf)?;
        } else {
            let mut rest = &mut *buf;
            for part in self.form.parts(start, start + rest.len() as u64) {
                let (now, later) = rest.split_at_mut(part.len as usize);
                gather::read(&self.form, &part, self.plan().gap, &*self.source, now)?;
                rest = later;
            }
        }
        swap::swap(buf, self.swapped);
        Ok(())
    }

    /// The range widened to whole elements.
    fn whole(&self, range: &Range<u64>) -> Range<u64> {
        let element = self.form.element;
        let end = range.end.next_multiple_of(element);
        range.start / element * element..end.min(self.form.len)
    }
}

impl View for Gathered {
    fn len(&self) -> u64 {
        self.of.form.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let element = self.of.form.element;
        let (mut at, mut rest) = (offset, buf);
        // An element of which only a part is wanted, at the beginning or at the end.
        let edge = |at: u64, buf: &mut [u8]| {
            let mut whole = [0; 16];
            let first = at / element * element;
            let whole = whole.get_mut(..element as usize).unwrap_or_default();
            self.read_whole(first, whole)?;
            let from = (at - first) as usize;
            if let Some(bytes) = whole.get(from..from + buf.len()) {
                buf.copy_from_slice(bytes);
            }
            Ok(())
        };
        let head = (at.next_multiple_of(element) - at).min(rest.len() as u64);
        if head > 0 {
            let (now, later) = rest.split_at_mut(head as usize);
            edge(at, now)?;
            (at, rest) = (at + head, later);
        }
        let tail = rest.len() % element as usize;
        let (now, last) = rest.split_at_mut(rest.len() - tail);
        if !now.is_empty() {
            self.read_whole(at, now)?;
        }
        match last.is_empty() {
            true => Ok(()),
            false => edge(at + now.len() as u64, last),
        }
    }

    fn piece(&self, offset: u64, len: usize) -> Option<Piece<'_>> {
        let Strided { form, swapped, .. } = &*self.of;
        let run = form.run();
        let is_whole = *swapped == 1 && len > 0 && offset % run + len as u64 <= run;
        is_whole.then(|| self.of.source.piece(form.place(offset), len))?
    }

    fn will_need(&self, ranges: &[Range<u64>]) {
        let (form, plan) = (&self.of.form, self.of.plan());
        let mut needed = Vec::new();
        for range in ranges {
            let range = self.of.whole(range);
            if form.run() == form.len {
                needed.push(range);
                continue;
            }
            for part in form.parts(range.start, range.end) {
                let left = ANNOUNCED.saturating_sub(needed.len());
                needed.extend(gather::ranges(form, &part, plan.gap, left));
            }
        }
        needed.truncate(ANNOUNCED);
        if !needed.is_empty() {
            self.of.source.will_need(&needed);
        }
    }

    fn grain(&self) -> u64 {
        self.of.plan().tile.map_or(1, |tile| tile.bytes)
    }

    fn opened(&self) -> Option<SharedView> {
        Some(Arc::new(Gathered::open(self.of.clone())))
    }
}
