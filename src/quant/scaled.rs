//! The kernel of every format whose values are a small number times a scale: FP8, int8, FP4 pairs,
//! NVFP4, MXFP4.
//!
//! value = (code − zero) · scale, where only asymmetric int8 has a zero point, the difference is
//! exact, and the product is rounded once. If a format has a second factor, the scale is multiplied
//! by it first (NVFP4), or the value last (bitsandbytes' int8), with a rounding of its own.

use std::sync::Arc;

use super::Kernel;
use super::read::part;
use super::scale_grid::ScaleGrid;
use crate::dtype::Dtype;
use crate::dtype::decode::decode;
use crate::error::Result;
use crate::view::{FloatSource, Floats, Scratch, SharedView};

/// Codes are read this many at a time, into a buffer that stays in the L2 cache.
const PIECE: u64 = 64 * 1024;
/// Codes are decoded and scaled this many at a time, so that 16 KiB of values stay in the L1 cache
/// between the two steps.
const STRIP: usize = 4096;

/// What a value depends on besides its code and scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Extra {
    /// Nothing.
    None,
    /// I8 zero points, one for every scale, in the third part.
    Zeros,
    /// A second factor of all scales: one element of this dtype, in the third part.
    ScaleFactor(Dtype),
    /// A last factor of all values.
    ValueFactor(f32),
}

/// The kernel of one layer. Parts: codes, scales, and a third one according to [`Extra`].
#[derive(Debug, Clone)]
pub struct ScaledKernel {
    /// The dtype of the codes: one byte each, or F4 (two per byte, low nibble first).
    pub code: Dtype,
    /// The dtype of the scales: any of whole bytes.
    pub scale: Dtype,
    /// Which scale belongs to which value.
    pub grid: ScaleGrid,
    /// What else a value depends on.
    pub extra: Extra,
    /// The number of values.
    pub numel: u64,
}

impl Kernel for ScaledKernel {
    fn view(&self, parts: &[SharedView]) -> Result<SharedView> {
        let part = |i| part(parts, i).cloned();
        let third = match self.extra {
            Extra::Zeros | Extra::ScaleFactor(_) => Some(part(2)?),
            Extra::None | Extra::ValueFactor(_) => None,
        };
        Ok(Arc::new(Floats(Scaled {
            kernel: self.clone(),
            codes: part(0)?,
            scales: part(1)?,
            third,
        })))
    }
}

/// The values of one layer.
struct Scaled {
    kernel: ScaledKernel,
    codes: SharedView,
    scales: SharedView,
    third: Option<SharedView>,
}

impl FloatSource for Scaled {
    fn numel(&self) -> u64 {
        self.kernel.numel
    }

    fn fill(&self, first: u64, out: &mut [f32]) -> Result<()> {
        let cols = self.kernel.grid.cols();
        let mut done = 0;
        while done < out.len() {
            let at = first + done as u64;
            let mut n = PIECE.min((out.len() - done) as u64);
            if cols > PIECE {
                // Stay within a row, so that no more scales are read than there are values.
                n = n.min(cols - at % cols);
            }
            let n = n as usize;
            self.piece(at, &mut out[done..done + n])?;
            done += n;
        }
        Ok(())
    }
}

impl Scaled {
    /// Fills `out`: at most [`PIECE`] elements, within one row if rows are longer than that.
    fn piece(&self, first: u64, out: &mut [f32]) -> Result<()> {
        let window = Window::of(&self.kernel.grid, first, out.len() as u64);
        let kernel = &self.kernel;
        let mut scales = window.load(&self.scales, kernel.scale)?;
        let mut zeros = None;
        match (kernel.extra, &self.third) {
            (Extra::Zeros, Some(third)) => zeros = Some(window.load(third, Dtype::I8)?),
            (Extra::ScaleFactor(dtype), Some(third)) => {
                let factor = one(third, dtype)?;
                scales.iter_mut().for_each(|s| *s *= factor);
                one_nan(&mut scales);
            }
            _ => {}
        }
        let per_byte = u64::from(8 / kernel.code.bits());
        let start = first / per_byte;
        let stop = (first + out.len() as u64).div_ceil(per_byte);
        let mut bytes = Scratch::<u8>::take((stop - start) as usize);
        self.codes.read_at(start, &mut bytes)?;
        let mut at = first;
        for strip in out.chunks_mut(STRIP) {
            let from = (at / per_byte - start) as usize;
            decode(kernel.code, &bytes[from..], (at % per_byte) as usize, strip);
            if let Some(zeros) = &zeros {
                window.combine(&kernel.grid, at, strip, zeros, |v, z| v - z);
            }
            window.combine(&kernel.grid, at, strip, &scales, |v, s| v * s);
            if let Extra::ValueFactor(last) = kernel.extra {
                strip.iter_mut().for_each(|v| *v *= last);
            }
            at += strip.len() as u64;
        }
        Ok(())
    }
}

/// The only element of `view`.
fn one(view: &SharedView, dtype: Dtype) -> Result<f32> {
    let mut bytes = [0; 8];
    let bytes = &mut bytes[..dtype.bits() as usize / 8];
    view.read_at(0, bytes)?;
    let mut value = [0.0];
    decode(dtype, bytes, 0, &mut value);
    Ok(value[0])
}

/// The scales that a run of elements needs: whole rows of them, or a part of one row.
struct Window {
    /// First row of scales.
    row: u64,
    /// First column; 0 if there is more than one row.
    col: u64,
    /// Index of the first scale in the tensor of scales.
    first: u64,
    count: u64,
}

impl Window {
    fn of(grid: &ScaleGrid, first: u64, len: u64) -> Window {
        let last = first + len.max(1) - 1;
        let (cols, width) = (grid.cols(), grid.block_cols());
        let row = grid.scale_row(first / cols);
        let (col, count) = if first / cols == last / cols {
            let col = first % cols / width;
            (col, last % cols / width - col + 1)
        } else {
            let rows = grid.scale_row(last / cols) - row + 1;
            (0, rows * grid.scale_cols())
        };
        Window {
            row,
            col,
            first: row * grid.scale_cols() + col,
            count,
        }
    }

    /// Reads the window from `view`, a tensor of `dtype` that is shaped like the scales.
    fn load(&self, view: &SharedView, dtype: Dtype) -> Result<Scratch<f32>> {
        let size = u64::from(dtype.bits() / 8);
        let mut bytes = Scratch::<u8>::take((self.count * size) as usize);
        view.read_at(self.first * size, &mut bytes)?;
        let mut values = Scratch::take(self.count as usize);
        decode(dtype, &bytes, 0, &mut values);
        one_nan(&mut values);
        Ok(values)
    }

    /// Combines each element from `at` on with the window's value for its block.
    fn combine(
        &self,
        grid: &ScaleGrid,
        mut at: u64,
        mut out: &mut [f32],
        by: &[f32],
        op: impl Fn(f32, f32) -> f32 + Copy,
    ) {
        let cols = grid.cols();
        while !out.is_empty() {
            let col = at % cols;
            let n = (cols - col).min(out.len() as u64);
            let (row, rest) = out.split_at_mut(n as usize);
            let base = (grid.scale_row(at / cols) - self.row) * grid.scale_cols();
            let from = base + col / grid.block_cols() - self.col;
            let skip = col % grid.block_cols();
            combine_runs(row, skip, grid.block_cols(), &by[from as usize..], op);
            out = rest;
            at += n;
        }
    }
}

/// Makes every NaN the same. If both factors are NaN, the product has the bits of either, and which
/// one depends on the position in a vector; but reads of the same file must not differ.
pub fn one_nan(values: &mut [f32]) {
    for v in values {
        *v = if v.is_nan() { f32::NAN } else { *v };
    }
}

/// Combines each run of `run` values with one value of `by`. The first `skip` values of the first
/// run come before `out`. The last run may be short.
///
/// # Panics
/// If `by` holds less than one for each run.
pub fn combine_runs(
    out: &mut [f32],
    skip: u64,
    run: u64,
    by: &[f32],
    op: impl Fn(f32, f32) -> f32 + Copy,
) {
    let head = (run - skip).min(out.len() as u64) as usize;
    let (head, rest) = out.split_at_mut(head);
    let Some((&first, by)) = by.split_first() else {
        return;
    };
    head.iter_mut().for_each(|v| *v = op(*v, first));
    match run {
        // The group sizes of NVFP4 and MX. Loops of constant length are twice as fast.
        16 => known_runs::<16>(rest, by, op),
        32 => known_runs::<32>(rest, by, op),
        _ => {
            let run = usize::try_from(run).unwrap_or(usize::MAX);
            for (values, &b) in rest.chunks_mut(run).zip(by) {
                values.iter_mut().for_each(|v| *v = op(*v, b));
            }
        }
    }
}

fn known_runs<const RUN: usize>(out: &mut [f32], by: &[f32], op: impl Fn(f32, f32) -> f32) {
    let (runs, rest) = out.as_chunks_mut::<RUN>();
    for (values, &b) in runs.iter_mut().zip(by) {
        for v in values {
            *v = op(*v, b);
        }
    }
    if let Some(&b) = by.get(runs.len()) {
        rest.iter_mut().for_each(|v| *v = op(*v, b));
    }
}

#[cfg(test)]
mod tests;
