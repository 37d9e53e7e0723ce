//! A tile: some groups of some block rows of one expert, transposed.

use super::GROUP_BYTES;
use crate::dtype::decode::F8_E8M0;
use crate::error::Result;
use crate::quant::e2m1;
use crate::quant::read::zeroed;
use crate::simd::for_each_cpu;

/// Bytes of a group's codes, which is also the number of lines of a group: each line holds two
/// output rows.
const SIDE: usize = GROUP_BYTES as usize;

/// A tile's codes and scales.
pub(super) struct Codes {
    /// Block rows: the length of a line.
    rows: usize,
    /// Sixteen lines per group: the low nibbles of line j are output row 2j, the high nibbles row
    /// 2j + 1.
    nibbles: Vec<u8>,
    /// One line per group, with half of each scale. Halving is exact.
    half_scales: Vec<f32>,
}

impl Codes {
    /// An empty tile for this many block rows and groups.
    ///
    /// # Errors
    /// ENOMEM.
    pub(super) fn new(rows: usize, groups: usize) -> Result<Self> {
        Ok(Codes {
            rows,
            nibbles: zeroed(SIDE * groups * rows)?,
            half_scales: zeroed(groups * rows)?,
        })
    }

    /// The size of such a tile in memory.
    pub(super) fn bytes(rows: usize, groups: usize) -> usize {
        rows * groups * (SIDE + size_of::<f32>())
    }

    /// Block rows.
    pub(super) fn rows(&self) -> usize {
        self.rows
    }

    /// Stores block rows from `start` on. In `blocks` and `scales` they begin `pitch` groups apart.
    pub(super) fn put(&mut self, start: usize, blocks: &[u8], scales: &[u8], pitch: usize) {
        let width = self.nibbles.len() / self.rows;
        let nibbles = &mut self.nibbles[start..];
        transpose(blocks, pitch * SIDE, width, nibbles, self.rows);
        for (i, scales) in scales.chunks(pitch).enumerate() {
            for (group, &scale) in scales[..width / SIDE].iter().enumerate() {
                let half = F8_E8M0[usize::from(scale)] * 0.5;
                self.half_scales[group * self.rows + start + i] = half;
            }
        }
    }

    /// Decodes a run of output row `line` (0 to 31) of a group, from block row `column` on.
    pub(super) fn run(&self, group: usize, line: usize, column: usize, out: &mut [f32]) {
        let nibbles = &self.nibbles[(group * SIDE + line / 2) * self.rows + column..];
        let scales = &self.half_scales[group * self.rows + column..];
        values(nibbles, 4 * (line as u32 % 2), scales, out);
    }
}

for_each_cpu! {
    /// E2M1 · scale, for the nibbles at bit `shift` (0 or 4).
    fn values(nibbles: &[u8], shift: u32, half_scales: &[f32], out: &mut [f32]) {
        let codes = nibbles.iter().zip(half_scales);
        for (out, (&byte, half_scale)) in out.iter_mut().zip(codes) {
            *out = e2m1::doubled(u32::from(byte) >> shift & 15) * half_scale;
        }
    }
}

/// Writes the first `width` columns of `src`, whose rows begin `pitch` bytes apart, as rows of
/// `dst`, which begin `stride` bytes apart. Sixteen rows and columns at a time.
fn transpose(src: &[u8], pitch: usize, width: usize, dst: &mut [u8], stride: usize) {
    for (band, rows) in src.chunks(SIDE * pitch).enumerate() {
        let count = rows.len().div_ceil(pitch);
        for left in (0..width).step_by(SIDE) {
            let mut square = [[0u8; SIDE]; SIDE];
            for (to, row) in square.iter_mut().zip(rows.chunks(pitch)) {
                to.copy_from_slice(&row[left..][..SIDE]);
            }
            for (i, column) in transposed(square).iter().enumerate() {
                dst[(left + i) * stride + band * SIDE..][..count].copy_from_slice(&column[..count]);
            }
        }
    }
}

/// Transposes by four perfect shuffles of the sixteen rows: each interleaves the upper half with
/// the lower. The compiler turns that into two instructions for two rows.
#[inline(always)]
fn transposed(mut square: [[u8; SIDE]; SIDE]) -> [[u8; SIDE]; SIDE] {
    for _ in 0..4 {
        let from = square;
        for i in 0..SIDE / 2 {
            let (upper, lower) = (from[i], from[i + SIDE / 2]);
            square[2 * i] = interleave(&upper[..SIDE / 2], &lower[..SIDE / 2]);
            square[2 * i + 1] = interleave(&upper[SIDE / 2..], &lower[SIDE / 2..]);
        }
    }
    square
}

#[inline(always)]
fn interleave(upper: &[u8], lower: &[u8]) -> [u8; SIDE] {
    std::array::from_fn(|i| {
        if i % 2 == 0 {
            upper[i / 2]
        } else {
            lower[i / 2]
        }
    })
}
