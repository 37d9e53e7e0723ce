//! Packed matrices of contiguous rows as lazy binary32: the [`FloatSource`] of all formats here.
//! Any range of elements is computed straight into the output; words, scales and zero points are
//! read with one `pread` each for a block of rows, so that nothing has to be cached.

use super::decode::{Biases, Layout, Numbers, Segment, decode};
use super::scales::{Order, Scales, Zeros, read};
use crate::error::Result;
use crate::view::{FloatSource, Scratch, SharedView};

/// Values computed between two `pread`s: 32 KiB of 4-bit words, 256 KiB of output.
const BLOCK: u64 = 64 * 1024;

/// The geometry of a packed matrix, from headers and `weight_shape`.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    /// Rows, N.
    pub rows: u64,
    /// Values of a row, K; not zero.
    pub columns: u64,
    /// Packed bytes of a row.
    pub row_bytes: u64,
    /// How a row packs its codes.
    pub layout: Layout,
    /// What the codes mean.
    pub numbers: Numbers,
    /// Columns that share a scale; K if a whole row or the tensor does.
    pub group: u64,
    /// Scales of a row; 0 if the whole tensor has one.
    pub row_scales: u64,
}

/// A packed matrix as values.
pub(super) struct Rows {
    /// Its layout.
    pub shape: Shape,
    /// The packed rows.
    pub words: SharedView,
    /// The scales.
    pub scales: Scales,
    /// The zero points.
    pub zeros: Zeros,
    /// The column order, if there is one.
    pub order: Option<Order>,
}

/// The rows and scales that a run of elements touches.
pub(super) struct Span {
    /// First and last row.
    pub rows: (u64, u64),
    /// The range of scales (end exclusive), counted from the tensor's first.
    pub scales: (u64, u64),
}

impl FloatSource for Rows {
    fn numel(&self) -> u64 {
        self.shape.rows * self.shape.columns
    }

    fn fill(&self, first: u64, out: &mut [f32]) -> Result<()> {
        let order = match &self.order {
            Some(order) => order.groups(self.shape.row_scales.max(1))?,
            None => None,
        };
        let mut done = 0;
        while done < out.len() {
            let at = first + done as u64;
            let len = self.shape.block(at, (out.len() - done) as u64) as usize;
            self.fill_block(at, order, &mut out[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    fn grain(&self) -> u64 {
        // As many whole rows as fit into a block.
        let columns = self.shape.columns.max(1);
        columns * (BLOCK / columns).clamp(1, self.shape.rows.max(1))
    }
}

impl Shape {
    /// How many of `len` elements from `first` on to compute at once.
    fn block(&self, first: u64, len: u64) -> u64 {
        let to_row_end = self.columns - first % self.columns;
        if self.columns >= BLOCK {
            return len.min(to_row_end).min(BLOCK);
        }
        let more_rows = BLOCK / self.columns - 1;
        len.min(to_row_end + more_rows * self.columns)
    }

    /// The first byte of an element's unit in the packed matrix.
    fn byte(&self, row: u64, column: u64) -> u64 {
        let (unit, unit_bytes) = self.layout.unit();
        row * self.row_bytes + column / unit * unit_bytes
    }

    /// The end of an element's unit; the last unit of a row may be cut short.
    fn byte_after(&self, row: u64, column: u64) -> u64 {
        let (_, unit_bytes) = self.layout.unit();
        (self.byte(row, column) + unit_bytes).min((row + 1) * self.row_bytes)
    }

    /// The range of scales for columns `from..to` of a row, or for the whole row if there is an
    /// order; counted from the tensor's first.
    fn scales(&self, row: u64, (from, to): (u64, u64), ordered: bool) -> (u64, u64) {
        let (from, to) = if ordered {
            (0, self.columns)
        } else {
            (from, to)
        };
        let first = row * self.row_scales;
        (first + from / self.group, first + (to - 1) / self.group + 1)
    }

    fn span(&self, first: u64, last: u64, ordered: bool) -> Span {
        let k = self.columns;
        let from = self.scales(first / k, (first % k, k), ordered).0;
        let to = self.scales(last / k, (0, last % k + 1), ordered).1;
        Span {
            rows: (first / k, last / k),
            scales: (from, to),
        }
    }
}

impl Rows {
    fn fill_block(&self, first: u64, order: Option<&[u32]>, out: &mut [f32]) -> Result<()> {
        let shape = &self.shape;
        let k = shape.columns;
        let last = first + out.len() as u64 - 1;
        let span = shape.span(first, last, order.is_some());
        let start = shape.byte(first / k, first % k);
        let end = shape.byte_after(last / k, last % k);
        let words = read(&self.words, start, end - start)?;
        let all_scales = self.scales.load(span.scales)?;
        let offset = 1 << (shape.layout.bits - 1);
        let biases = self.zeros.load(shape, &span, offset)?;
        let mut codes = Scratch::take(out.len());

        let (unit, _) = shape.layout.unit();
        let mut rest = out;
        let mut at = first;
        while !rest.is_empty() {
            let (row, column) = (at / k, at % k);
            let n = (rest.len() as u64).min(k - column);
            let (here, after) = rest.split_at_mut(n as usize);
            let (from, to) = shape.scales(row, (column, column + n), order.is_some());
            let scales = (from - span.scales.0) as usize..(to - span.scales.0) as usize;
            let bytes =
                shape.byte(row, column) - start..shape.byte_after(row, column + n - 1) - start;
            let segment = Segment {
                bytes: &words[bytes.start as usize..bytes.end as usize],
                skip: (column % unit) as usize,
                left: (shape.group - column % shape.group) as usize,
                group: shape.group as usize,
                scales: &all_scales[scales.clone()],
                biases: match &biases {
                    Some(biases) => Biases::Each(&biases[scales]),
                    None => Biases::One(offset),
                },
                order: order.map(|groups| &groups[column as usize..][..n as usize]),
            };
            decode(shape.layout, shape.numbers, &segment, &mut codes, here);
            rest = after;
            at += n;
        }
        Ok(())
    }
}
