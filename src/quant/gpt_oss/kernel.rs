//! Bytes → numbers, transposed.
//!
//! A row of the output takes one nibble from every row of an expert's blocks, so it touches every
//! page of the expert. Therefore an expert's bytes are read in order, transposed byte by byte, and
//! cached as tiles; each output row is then one run of nibbles with one run of scales.

use std::ops::Range;
use std::sync::Arc;

use super::tile::Codes;
use super::{GROUP_BYTES, GROUP_SIZE};
use crate::error::Result;
use crate::quant::Kernel;
use crate::quant::read::{part, zeroed};
use crate::view::{FloatSource, Floats, SharedView, TileCache};

/// The most block rows (output columns) in a tile. The published models have 2880 and 5760.
const TILE_ROWS: u64 = 8192;
/// The most bytes of codes in a tile. An expert of the published models is one tile (down_proj) or
/// two: small enough that a dozen readers of a dozen layers do not evict each other's tiles.
const TILE_BYTES: u64 = 4 << 20;
/// Block rows that are read at a time. Transposed, they fill whole cache lines.
const CHUNK_ROWS: usize = 64;
/// Block rows of up to this many groups are read whole, even if a tile needs only some of the
/// groups: one long read is faster than many short ones. Such a chunk takes at most 1 MiB, and any
/// other at most [`TILE_BYTES`].
const WHOLE_ROWS: u64 = 1024;

/// The geometry of one parameter.
#[derive(Clone, Copy)]
pub(super) struct Experts {
    experts: u64,
    /// Block rows: output columns.
    n: u64,
    /// Groups in a block row, with 32 output rows each.
    groups: u64,
    /// Block rows of a tile (the last of an expert may have fewer).
    tile_rows: u64,
    /// Groups of a tile (likewise).
    tile_groups: u64,
}

impl Experts {
    /// `experts` experts of `n` block rows of `groups` groups.
    pub(super) fn new(experts: u64, n: u64, groups: u64) -> Self {
        let tile_rows = n.clamp(1, TILE_ROWS);
        let fit = TILE_BYTES / (tile_rows * GROUP_BYTES);
        Experts {
            experts,
            n,
            groups,
            tile_rows,
            tile_groups: fit.min(groups).max(1),
        }
    }

    /// The position of output element `index`.
    fn locate(&self, index: u64) -> Position {
        let column = index % self.n;
        let row = index / self.n;
        let (group, line) = (row / GROUP_SIZE, row % GROUP_SIZE);
        let (expert, group) = (group / self.groups, group % self.groups);
        let tile = Tile {
            expert,
            group: group - group % self.tile_groups,
            row: column - column % self.tile_rows,
        };
        Position {
            group: (group - tile.group) as usize,
            line: line as usize,
            column: (column - tile.row) as usize,
            tile,
        }
    }

    fn rows_of(&self, tile: Tile) -> usize {
        self.tile_rows.min(self.n - tile.row) as usize
    }

    fn groups_of(&self, tile: Tile) -> usize {
        self.tile_groups.min(self.groups - tile.group) as usize
    }

    /// A unique number for each tile.
    fn key(&self, tile: Tile) -> u64 {
        (tile.expert * self.groups + tile.group) * self.n + tile.row
    }
}

/// A tile: its expert, first group and first block row.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Tile {
    expert: u64,
    group: u64,
    row: u64,
}

/// The position of an output element: its tile, and the position in it.
struct Position {
    tile: Tile,
    group: usize,
    /// Output row within the group, 0 to 31.
    line: usize,
    column: usize,
}

impl Kernel for Experts {
    fn view(&self, parts: &[SharedView]) -> Result<SharedView> {
        Ok(Arc::new(Floats(Transposed {
            experts: *self,
            blocks: part(parts, 0)?.clone(),
            scales: part(parts, 1)?.clone(),
            tiles: TileCache::new(),
        })))
    }
}

/// The parameter's values, read from its parts.
struct Transposed {
    experts: Experts,
    blocks: SharedView,
    scales: SharedView,
    tiles: TileCache<Codes>,
}

impl FloatSource for Transposed {
    fn numel(&self) -> u64 {
        let Experts {
            experts, n, groups, ..
        } = self.experts;
        experts * groups * GROUP_SIZE * n
    }

    fn fill(&self, first: u64, out: &mut [f32]) -> Result<()> {
        let mut held: Option<(Tile, Arc<Codes>)> = None;
        let mut done = 0;
        while done < out.len() {
            let place = self.experts.locate(first + done as u64);
            let codes = match held.take() {
                Some((tile, codes)) if tile == place.tile => codes,
                _ => self.codes(place.tile)?,
            };
            let run = (out.len() - done).min(codes.rows() - place.column);
            codes.run(
                place.group,
                place.line,
                place.column,
                &mut out[done..done + run],
            );
            held = Some((place.tile, codes));
            done += run;
        }
        Ok(())
    }

    fn grain(&self) -> u64 {
        self.experts.n
    }
}

impl Transposed {
    fn codes(&self, tile: Tile) -> Result<Arc<Codes>> {
        let bytes = Codes::bytes(self.experts.rows_of(tile), self.experts.groups_of(tile));
        let key = self.experts.key(tile);
        self.tiles.get(key, bytes, || self.fetch(tile))
    }

    /// Reads a tile, a few block rows at a time, and transposes it.
    fn fetch(&self, tile: Tile) -> Result<Codes> {
        let (rows, groups) = (self.experts.rows_of(tile), self.experts.groups_of(tile));
        let span = if self.experts.groups <= WHOLE_ROWS {
            0..self.experts.groups
        } else {
            tile.group..tile.group + groups as u64
        };
        let pitch = (span.end - span.start) as usize;
        let skip = (tile.group - span.start) as usize;
        let unit = GROUP_BYTES as usize;
        let mut codes = Codes::new(rows, groups)?;
        let most = pitch * rows.min(CHUNK_ROWS);
        let mut blocks = zeroed::<u8>(most * unit)?;
        let mut scales = zeroed::<u8>(most)?;
        for start in (0..rows).step_by(CHUNK_ROWS) {
            let count = pitch * (rows - start).min(CHUNK_ROWS);
            let first = tile.expert * self.experts.n + tile.row + start as u64;
            let (blocks, scales) = (&mut blocks[..count * unit], &mut scales[..count]);
            self.read(&self.blocks, GROUP_BYTES, first, &span, blocks)?;
            self.read(&self.scales, 1, first, &span, scales)?;
            codes.put(start, &blocks[skip * unit..], &scales[skip..], pitch);
        }
        Ok(codes)
    }

    /// Reads these groups of the block rows from `first` on; a group takes `unit` bytes in `view`.
    fn read(
        &self,
        view: &SharedView,
        unit: u64,
        first: u64,
        span: &Range<u64>,
        out: &mut [u8],
    ) -> Result<()> {
        let groups = self.experts.groups;
        let width = span.end - span.start;
        if width == groups {
            return view.read_at(first * groups * unit, out);
        }
        let strip = (width * unit) as usize;
        let start = |row: u64| (row * groups + span.start) * unit;
        let rows = first..first + (out.len() / strip) as u64;
        let strips: Vec<_> = rows
            .clone()
            .map(|row| start(row)..start(row) + strip as u64)
            .collect();
        view.will_need(&strips);
        for (row, out) in rows.zip(out.chunks_exact_mut(strip)) {
            view.read_at(start(row), out)?;
        }
        Ok(())
    }
}
