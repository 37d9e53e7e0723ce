//! How a strided tensor is read, by what reading costs: straight from the source, or in tiles that are
//! kept for a reader in order.

use std::ops::Range;
use std::sync::LazyLock;

use super::form::Form;
use super::gather::{GAP, strip};
use crate::{memory, parallel};

/// What a `pread` costs, in bytes that could be copied in the same time.
const PREAD: u64 = 3 << 10;
/// What an element's way into its row costs, in the same unit, by the byte.
const TURN: u64 = 6;
/// A gap that is read in any case.
const SMALL_GAP: u64 = 64;
/// What a reader in order asks for at a time, at least.
const REQUEST: u64 = 128 << 10;
/// The most bytes that one view keeps: a quarter of what all views keep.
static MOST_KEPT: LazyLock<u64> = LazyLock::new(|| memory::budget().tiles as u64 / 4);
/// The smallest and the largest tile.
const TILES: [u64; 2] = [1 << 20, 16 << 20];

/// How many tiles a view keeps: threads that share it, and the requests of one reader that come out of
/// order, must find room for a tile each.
static KEPT: LazyLock<u64> = LazyLock::new(|| parallel::threads() as u64 + 2);
/// The largest tile here.
static LARGEST: LazyLock<u64> = LazyLock::new(|| (*MOST_KEPT / *KEPT).clamp(TILES[0], TILES[1]));

/// How a tensor is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plan {
    /// Gaps of up to this many bytes are read rather than skipped.
    pub gap: u64,
    /// What is read at a time for a reader in order; `None` if small reads are as cheap.
    pub tile: Option<Tile>,
}

/// Some indexes of one dimension with all inner ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    /// Bytes of the output for one index of the dimension outside; the last tile of such a row may be
    /// shorter.
    row: u64,
    /// Bytes of a tile.
    pub bytes: u64,
    /// What it costs to make one.
    pub cost: u64,
}

impl Plan {
    pub fn of(form: &Form) -> Plan {
        let [wide, narrow] = [GAP, SMALL_GAP].map(|gap| Choice::of(form, gap, *LARGEST));
        // Reading gaps is cheaper, but other tiles need what lies there: the source would be read many
        // times. If all tiles together read it once, or the other way is too slow, gaps are read.
        let reads_twice = wide.total > form.span(&form.sizes()) / 10 * 11;
        let choice = match reads_twice && narrow.rate < wide.rate.saturating_mul(2) {
            true => narrow,
            false => wide,
        };
        choice.plan
    }

    /// The most bytes of tiles that a view keeps: no more than it needs, so that memory is used again.
    pub fn kept(&self) -> usize {
        let tiles = self.tile.map_or(0, |tile| tile.bytes.saturating_mul(*KEPT));
        tiles.min(*MOST_KEPT) as usize
    }
}

/// Tiles of up to that many bytes, whether or not they are worth it.
#[cfg(test)]
pub(super) fn tile_of(form: &Form, bytes: u64) -> Tile {
    Candidate::of(form, GAP, bytes).tile
}

/// A plan with what it costs.
struct Choice {
    plan: Plan,
    /// The cost of a KiB of output.
    rate: u64,
    /// Bytes that are read of the source for the whole output.
    total: u64,
}

impl Choice {
    fn of(form: &Form, gap: u64, largest: u64) -> Choice {
        let direct = Candidate::of(form, gap, REQUEST);
        let sizes = std::iter::successors(Some(TILES[0]), |size| Some(size * 2));
        let sizes = sizes.take_while(|&size| size <= largest);
        let tiles: Vec<Candidate> = sizes.map(|size| Candidate::of(form, gap, size)).collect();
        let best = tiles.iter().map(|tile| tile.rate).min().unwrap_or(u64::MAX);
        let (chosen, is_tile) = match direct.rate / 3 <= best / 2 {
            true => (&direct, false),
            // The smallest that is nearly as good: it is made sooner, and leaves room for others.
            false => match tiles.iter().find(|tile| tile.rate / 4 <= best / 3) {
                Some(tile) => (tile, true),
                None => (&direct, false),
            },
        };
        Choice {
            plan: Plan {
                gap,
                tile: is_tile.then_some(chosen.tile),
            },
            rate: chosen.rate,
            total: chosen
                .read
                .saturating_mul(form.len.div_ceil(chosen.tile.bytes.max(1))),
        }
    }
}

/// A size of tiles, with what it costs.
struct Candidate {
    tile: Tile,
    /// Bytes that are read of the source.
    read: u64,
    /// The cost of a KiB of output.
    rate: u64,
}

impl Candidate {
    /// Tiles of up to `bytes`, if one element is not more.
    fn of(form: &Form, gap: u64, bytes: u64) -> Candidate {
        let mut sizes: Box<[u64]> = vec![1; form.dims.len()].into();
        let (mut row, mut len) = (form.len, form.element);
        if let Some(k) = form.dims.iter().position(|dim| dim.to <= bytes) {
            for (size, dim) in sizes.iter_mut().zip(&form.dims).skip(k + 1) {
                *size = dim.size;
            }
            let dim = form.dims[k];
            let most = (bytes / dim.to).min(dim.size);
            sizes[k] = dim.size.div_ceil(dim.size.div_ceil(most));
            (row, len) = (dim.to * dim.size, sizes[k] * dim.to);
        }
        let (read, cost) = cost(form, &sizes, gap);
        Candidate {
            tile: Tile {
                row,
                bytes: len,
                cost,
            },
            read,
            rate: cost.saturating_mul(1 << 10) / len.max(1),
        }
    }
}

/// The bytes of the source that are read for a part of those sizes, and what it costs.
pub(super) fn cost(form: &Form, sizes: &[u64], gap: u64) -> (u64, u64) {
    let (covered, span) = strip(form, sizes, gap);
    let apart = sizes
        .iter()
        .zip(&*covered)
        .filter(|(_, covered)| !**covered);
    let count = apart.fold(1u64, |count, (&size, _)| count.saturating_mul(size));
    let read = count.saturating_mul(span);
    let len = sizes
        .iter()
        .fold(form.element, |n, &size| n.saturating_mul(size));
    let is_turned = form.run() == form.element && form.dims.last().is_some_and(|d| d.from > 0);
    let turn = len.saturating_mul(if is_turned { TURN } else { 1 });
    let cost = count
        .saturating_mul(PREAD)
        .saturating_add(read)
        .saturating_add(turn);
    (read, cost)
}

impl Tile {
    /// The tile that holds byte `at` of the output: its index, and its range.
    pub fn at(&self, at: u64) -> (u64, Range<u64>) {
        let (outer, within) = (at / self.row, at % self.row);
        let index = within / self.bytes;
        let start = outer * self.row + index * self.bytes;
        let end = (start + self.bytes).min((outer + 1) * self.row);
        (outer * self.row.div_ceil(self.bytes) + index, start..end)
    }
}
