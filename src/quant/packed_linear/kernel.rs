//! The float matrix `[N, K]` of a layer that is stored transposed, read lazily.
//!
//! A stored row runs across all outputs, so one output's codes are spread over as many rows as
//! there are words of inputs. They are read in *panels*, blocks of some hundred outputs × some
//! thousand inputs, and cached packed but transposed: then each output's codes are contiguous, and
//! any run of values is decoded straight into the output. At 4 bits a panel takes an eighth of its
//! values' size.

use std::ops::{Range, RangeInclusive};
use std::sync::Arc;

use super::decode::{Piece, Scratch, decode};
use super::geometry::{Geometry, GroupIndex};
use super::groups::{Group, Grouping, problems, table};
use super::strips::Matrix;
use crate::error::Result;
use crate::quant::Kernel;
use crate::quant::read::part;
use crate::view::{FloatSource, Floats, SharedView, TileCache};

impl Kernel for Geometry {
    fn view(&self, parts: &[SharedView]) -> Result<SharedView> {
        Ok(Arc::new(Floats(Linear::new(self, parts)?)))
    }

    fn check(&self, parts: &[SharedView]) -> Vec<String> {
        let Some((index, bytes)) = self.index.as_ref().zip(parts.get(3)) else {
            return Vec::new();
        };
        match problems(self, index, bytes) {
            Ok(problem) => problem.into_iter().collect(),
            Err(e) => vec![format!("{}: {e}", index.name)],
        }
    }
}

/// A layer's matrix.
struct Linear {
    geometry: Geometry,
    panel: Panel,
    words: Matrix,
    scales: Matrix,
    zeros: Matrix,
    index: Option<(GroupIndex, SharedView)>,
    groupings: TileCache<Grouping>,
    tables: TileCache<Vec<Group>>,
    panels: TileCache<Vec<u32>>,
}

/// The size of a panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Panel {
    outputs: usize,
    inputs: usize,
}

impl Panel {
    /// The most strips of a panel. They are the cost of a small read at a random offset.
    const STRIPS: usize = 512;
    /// The target size in memory of a band of panels (all inputs), in bytes, if that leaves its
    /// strips wide enough.
    const BAND: usize = 4 << 20;
    /// The minimum and maximum width of a strip, in bytes. A `pread` costs as much as copying about
    /// 500 bytes, so much narrower strips are mostly overhead.
    const STRIP: Range<usize> = 512..2048;

    fn of(geometry: &Geometry) -> Panel {
        let packing = geometry.packing;
        // Multiples of 32 outputs begin at whole words of qzeros, and multiples of 32 inputs at
        // whole words of qweight, whatever the width.
        let inputs = (Panel::STRIPS * packing.inputs_a_row()).next_multiple_of(32);
        let bytes = |outputs: usize| packing.word_columns(0..outputs).len() * 4;
        let row = (geometry.k * packing.bits() as usize / 8).saturating_add(geometry.groups * 8);
        let widest = 32 * Panel::STRIP.end / bytes(32);
        let narrowest = 32 * Panel::STRIP.start / bytes(32);
        let most = (Panel::BAND / row.max(1)).clamp(narrowest, widest);
        let bands = geometry.n.div_ceil(most);
        let outputs = geometry.n.div_ceil(bands).next_multiple_of(32);
        Panel { outputs, inputs }
    }
}

impl Linear {
    fn new(geometry: &Geometry, parts: &[SharedView]) -> Result<Linear> {
        let part = |i| part(parts, i).cloned();
        let (n, scale) = (geometry.n, geometry.scales.bits() as usize / 8);
        let packing = geometry.packing;
        Ok(Linear {
            geometry: geometry.clone(),
            panel: Panel::of(geometry),
            words: Matrix::new(part(0)?, packing.word_columns(0..n).len() * 4),
            scales: Matrix::new(part(1)?, n * scale),
            zeros: Matrix::new(part(2)?, packing.zero_words(0..n).len() * 4),
            index: match &geometry.index {
                Some(index) => Some((index.clone(), part(3)?)),
                None => None,
            },
            groupings: TileCache::new(),
            tables: TileCache::new(),
            panels: TileCache::new(),
        })
    }

    fn grouping(&self) -> Result<Arc<Grouping>> {
        match &self.index {
            None => Ok(Arc::new(Grouping::Even(self.geometry.group_size))),
            Some((index, bytes)) => self.groupings.get(0, self.geometry.k * 4, || {
                Grouping::read(&self.geometry, index, bytes)
            }),
        }
    }

    /// The groups of a band's outputs.
    fn table(&self, band: usize, outputs: Range<usize>) -> Result<Arc<Vec<Group>>> {
        let bytes = outputs.len() * self.geometry.groups * size_of::<Group>();
        self.tables.get(band as u64, bytes, || {
            table(&self.geometry, &self.scales, &self.zeros, outputs)
        })
    }

    /// The packed codes of a panel: the words of each output (AWQ: of eight outputs).
    fn panel(
        &self,
        index: u64,
        outputs: Range<usize>,
        inputs: Range<usize>,
    ) -> Result<Arc<Vec<u32>>> {
        let packing = self.geometry.packing;
        let (rows, columns) = (packing.word_rows(inputs), packing.word_columns(outputs));
        self.panels.get(index, rows.len() * columns.len() * 4, || {
            self.words.read_turned(rows, columns)
        })
    }

    /// Fills `out` with the values of a run within one band.
    fn fill_band(&self, band: usize, run: &Run, out: &mut [f32]) -> Result<()> {
        let size = self.panel.inputs;
        let blocks = run.k.div_ceil(size);
        let rows = band * self.panel.outputs;
        let rows = rows..self.geometry.n.min(rows + self.panel.outputs);
        let grouping = self.grouping()?;
        let table = self.table(band, rows.clone())?;
        let mut scratch = Scratch::new();
        for block in run.blocks(size) {
            let inputs = block * size..run.k.min((block + 1) * size);
            let touched = run
                .rows()
                .filter(|&row| !run.wanted(row, &inputs).is_empty());
            if touched.clone().next().is_none() {
                continue;
            }
            let mut checked = touched.clone();
            checked.try_for_each(|row| grouping.check(&self.geometry, run.wanted(row, &inputs)))?;
            let index = (band * blocks + block) as u64;
            let block = Block {
                words: &self.panel(index, rows.clone(), inputs.clone())?,
                grouping: &grouping,
                groups: &table,
                rows: rows.clone(),
                inputs: inputs.clone(),
            };
            touched.for_each(|row| self.fill_row(run, &block, row, &mut scratch, out));
        }
        Ok(())
    }

    /// Fills the part of a run that is in one row of a block.
    fn fill_row(
        &self,
        run: &Run,
        block: &Block<'_>,
        row: usize,
        scratch: &mut Scratch,
        out: &mut [f32],
    ) {
        let Geometry {
            packing, groups, ..
        } = self.geometry;
        let local = row - block.rows.start;
        let height = packing.word_rows(block.inputs.clone()).len();
        let inputs = run.wanted(row, &block.inputs);
        let at = row * run.k + inputs.start - run.first;
        let out = &mut out[at..][..inputs.len()];
        let piece = Piece {
            packing,
            words: &block.words[packing.line(local) * height..][..height],
            output: row,
            base: block.inputs.start,
            inputs,
            grouping: block.grouping,
            groups: &block.groups[local * groups..][..groups],
        };
        decode(&piece, scratch, out);
    }
}

/// A non-empty range of values.
struct Run {
    first: usize,
    end: usize,
    k: usize,
}

impl Run {
    /// The rows that it touches.
    fn rows(&self) -> Range<usize> {
        self.first / self.k..(self.end - 1) / self.k + 1
    }

    /// Blocks of `size` inputs that it may touch.
    fn blocks(&self, size: usize) -> RangeInclusive<usize> {
        match self.rows().len() {
            1 => self.first % self.k / size..=(self.end - 1) % self.k / size,
            _ => 0..=(self.k - 1) / size,
        }
    }

    /// The part of `inputs` that it includes in a row that it touches.
    fn wanted(&self, row: usize, inputs: &Range<usize>) -> Range<usize> {
        let start = row * self.k;
        let from = self.first.saturating_sub(start).max(inputs.start);
        from..(self.end - start).min(inputs.end).max(from)
    }
}

/// A panel, and the groups that its rows are decoded with.
struct Block<'a> {
    words: &'a [u32],
    grouping: &'a Grouping,
    groups: &'a [Group],
    rows: Range<usize>,
    inputs: Range<usize>,
}

impl FloatSource for Linear {
    fn numel(&self) -> u64 {
        (self.geometry.n * self.geometry.k) as u64
    }

    fn fill(&self, first: u64, out: &mut [f32]) -> Result<()> {
        let band_len = self.panel.outputs * self.geometry.k;
        let (mut at, mut rest) = (first as usize, out);
        while !rest.is_empty() {
            let band = at / band_len;
            let count = rest.len().min((band + 1) * band_len - at);
            let (now, later) = rest.split_at_mut(count);
            let run = Run {
                first: at,
                end: at + count,
                k: self.geometry.k,
            };
            self.fill_band(band, &run, now)?;
            at += count;
            rest = later;
        }
        Ok(())
    }

    fn grain(&self) -> u64 {
        (self.panel.outputs * self.geometry.k) as u64
    }
}
