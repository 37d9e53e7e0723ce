//! The product of two matrices of values.
//!
//! ```text
//!            b  k × n, in panels of 16 columns: read once and kept if it is small,
//!            ┌────┬────┬────┐                   else the columns that a read needs
//!            └────┴────┴────┘
//! a  m × k   ┌──────────────┐
//! rows that  │ the values   │
//! a read     │ that are     │
//! needs      │ read         │
//!            └──────────────┘
//! ```

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::floats::{in_bytes, read_values};
use super::{FloatSource, Floats, Scratch, SharedView, TileCache, View};
use crate::error::{Error, Result};
use crate::simd::for_each_cpu;
use crate::{memory, patience};

/// Columns of `b` that are multiplied together: two vectors of AVX2.
const PANEL: usize = 16;
/// Rows of `a` that are multiplied together: with the panel's two, all vector registers are in use.
const ROWS: usize = 4;
/// Values of a matrix that are read at a time.
const PIECE: usize = 64 << 10;
/// The most bytes of `b` that are kept. Adapters have less: rank 256 of 14336 inputs is 14 MiB.
const MOST_KEPT: u64 = 16 << 20;
/// Products that are made and added in a nanosecond: 24 with AVX2.
const RATE: u64 = 16;

/// `a @ b`: each product is rounded to binary32, and they are added from k = 0 upwards. Without products (k = 0) it is 0.
pub struct Product {
    a: SharedView,
    b: SharedView,
    k: u64,
    m: u64,
    n: u64,
    /// All of `b` in panels, as piece 0.
    panels: TileCache<Vec<f32>>,
    /// Values of `b` that were read and not kept.
    passed: AtomicU64,
}

impl Product {
    /// The most products that a value may be the sum of.
    pub const MOST_TERMS: u64 = 1024;

    /// `a @ b` as binary32, for `a` of `m` × `k` and `b` of `k` × `n` values (binary32, C order). A reader in
    /// order reads `a` once. `b` is kept in memory if it is small (16 MiB); otherwise each read takes the columns that it
    /// needs. So `t(a @ b)` should be `t(b) @ t(a)`, which has the same values. `None` if a view has another number of
    /// values, or if `k` is larger than [`Product::MOST_TERMS`].
    pub fn view(a: SharedView, b: SharedView, m: u64, k: u64, n: u64) -> Option<SharedView> {
        let has = |view: &SharedView, rows: u64, columns: u64| {
            let values = rows.checked_mul(columns).and_then(|n| n.checked_mul(4));
            values == Some(view.len())
        };
        let is_possible = m.checked_mul(n).is_some_and(|n| n < 1 << 61);
        let fits = has(&a, m, k) && has(&b, k, n) && is_possible && k <= Product::MOST_TERMS;
        fits.then(|| {
            Arc::new(Floats(Product {
                a,
                b,
                m,
                k,
                n,
                panels: TileCache::new(),
                passed: AtomicU64::new(0),
            })) as SharedView
        })
    }

    /// Fills `out` with some columns of some rows.
    fn multiply(&self, rows: Range<u64>, columns: Range<u64>, out: &mut [f32]) -> Result<()> {
        let k = self.k as usize;
        let at_a_time = (PIECE / k.max(1)).max(ROWS);
        let width = (columns.end - columns.start) as usize;
        let all = self.kept(&columns)?;
        for (i, out) in out.chunks_mut(at_a_time * width).enumerate() {
            let first = rows.start + (i * at_a_time) as u64;
            let mut a = Scratch::<f32>::take(out.len() / width * k);
            read_values(&*self.a, first * self.k, &mut a)?;
            if let Some(all) = &all {
                let from = columns.start as usize;
                product(&a, k, all, from, width, 0..width, out);
                continue;
            }
            // No more columns at a time than a buffer holds.
            let most = PIECE / k.max(1) / PANEL * PANEL;
            for from in (0..width).step_by(most.max(PANEL)) {
                let to = width.min(from + most.max(PANEL));
                let some = columns.start + from as u64..columns.start + to as u64;
                let mut panels = Scratch::<f32>::take((to - from).next_multiple_of(PANEL) * k);
                self.pack(some, &mut panels)?;
                product(&a, k, &panels, 0, width, from..to, out);
            }
        }
        Ok(())
    }

    /// All of `b`, if it is kept: from when it costs no more than what was read of it so far.
    fn kept(&self, columns: &Range<u64>) -> Result<Option<Arc<Vec<f32>>>> {
        let most = MOST_KEPT.min(memory::budget().tiles as u64 / 2);
        if self.b.len() > most {
            return Ok(None);
        }
        if let Some(all) = self.panels.find(0) {
            return Ok(Some(all));
        }
        let needed = (columns.end - columns.start) * self.k;
        let passed = self.passed.load(Ordering::Relaxed);
        if passed + needed < self.k * self.n {
            self.passed.store(passed + needed, Ordering::Relaxed);
            return Ok(None);
        }
        patience::take_time(self.b.len())?;
        let len = (self.n as usize).next_multiple_of(PANEL) * self.k as usize;
        let make = || {
            let mut all = Vec::new();
            let bytes = len * 4;
            let no_memory = |_| Error::other(libc::ENOMEM, format!("no memory for {bytes} bytes"));
            all.try_reserve_exact(len).map_err(no_memory)?;
            all.resize(len, 0.0);
            self.pack(0..self.n, &mut all)?;
            Ok(all)
        };
        self.panels.get(0, len * 4, make).map(Some)
    }

    /// Reads some columns of `b` into panels. What is left of the last panel gets any values.
    fn pack(&self, columns: Range<u64>, panels: &mut [f32]) -> Result<()> {
        let (k, n) = (self.k as usize, self.n);
        let width = (columns.end - columns.start) as usize;
        // Whole rows follow one another; otherwise each is read by itself.
        let is_whole = columns.end - columns.start == n;
        let rows = if is_whole {
            (PIECE / width.max(1)).max(1)
        } else {
            1
        };
        if !is_whole {
            let strips = (0..self.k).map(|row| row * n + columns.start..row * n + columns.end);
            self.b.will_need(&in_bytes(&strips.collect::<Vec<_>>(), 4));
        }
        let mut values = Scratch::<f32>::take((rows * width).min(PIECE));
        for first in (0..k).step_by(rows) {
            let count = rows.min(k - first);
            // A row may be longer than the buffer.
            let part = if count == 1 { width.min(PIECE) } else { width };
            for from in (0..width).step_by(part.max(1)) {
                let part = part.min(width - from);
                let at = first as u64 * n + columns.start + from as u64;
                let values = &mut values[..count * part];
                read_values(&*self.b, at, values)?;
                for (row, values) in values.chunks(part).enumerate() {
                    spread(values, from, first + row, k, panels);
                }
            }
        }
        Ok(())
    }
}

/// Puts a part of a row of `b`, from column `from` on (a multiple of [`PANEL`]), into the panels.
fn spread(values: &[f32], from: usize, row: usize, k: usize, panels: &mut [f32]) {
    let panels = panels.chunks_mut(k * PANEL).skip(from / PANEL);
    for (panel, values) in panels.zip(values.chunks(PANEL)) {
        panel[row * PANEL..][..values.len()].copy_from_slice(values);
    }
}

/// Fills some columns of `out` (rows of `width` values): rows of `a`, by the panels' columns from `first` on.
fn product(
    a: &[f32],
    k: usize,
    panels: &[f32],
    first: usize,
    width: usize,
    columns: Range<usize>,
    out: &mut [f32],
) {
    if k == 0 {
        return out.fill(0.0);
    }
    let block = Block {
        k,
        panels,
        first,
        width,
        columns,
    };
    for (a, out) in a.chunks(ROWS * k).zip(out.chunks_mut(ROWS * width)) {
        if a.len() == ROWS * k {
            by_four(&block, a, out);
            continue;
        }
        for (a, out) in a.chunks(k).zip(out.chunks_mut(width)) {
            by_one(&block, a, out);
        }
    }
}

/// What rows are multiplied by.
struct Block<'a> {
    k: usize,
    panels: &'a [f32],
    first: usize,
    width: usize,
    columns: Range<usize>,
}

for_each_cpu! {
    fn by_four(block: &Block<'_>, a: &[f32], out: &mut [f32]) {
        block.rows::<ROWS>(a, out);
    }
}

for_each_cpu! {
    fn by_one(block: &Block<'_>, a: &[f32], out: &mut [f32]) {
        block.rows::<1>(a, out);
    }
}

impl Block<'_> {
    #[inline(always)]
    fn rows<const R: usize>(&self, a: &[f32], out: &mut [f32]) {
        let mut at = self.columns.start;
        let mut column = self.first;
        while at < self.columns.end {
            let panel = &self.panels[column / PANEL * self.k * PANEL..][..self.k * PANEL];
            let skip = column % PANEL;
            let count = (PANEL - skip).min(self.columns.end - at);
            let sums = sums::<R>(a, panel);
            for (r, sums) in sums.iter().enumerate() {
                out[r * self.width + at..][..count].copy_from_slice(&sums[skip..][..count]);
            }
            at += count;
            column += count;
        }
    }
}

/// The products of `R` rows with a panel.
#[inline(always)]
fn sums<const R: usize>(a: &[f32], panel: &[f32]) -> [[f32; PANEL]; R] {
    // Before the first product stands -0, which changes no sum: +0 would change a sum of -0.
    let mut sums = [[-0.0f32; PANEL]; R];
    let k = panel.len() / PANEL;
    let rows: [&[f32]; R] = std::array::from_fn(|r| &a[r * k..][..k]);
    for (i, b) in panel.as_chunks::<PANEL>().0.iter().enumerate() {
        for (sums, row) in sums.iter_mut().zip(&rows) {
            let a = row[i];
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum += a * b;
            }
        }
    }
    sums
}

impl FloatSource for Product {
    fn numel(&self) -> u64 {
        self.m * self.n
    }

    fn fill(&self, first: u64, out: &mut [f32]) -> Result<()> {
        let n = self.n;
        if out.is_empty() || n == 0 {
            return Ok(());
        }
        patience::take_time((out.len() as u64).saturating_mul(self.k) / RATE)?;
        let (mut at, mut rest) = (first, out);
        while !rest.is_empty() {
            let (row, column) = (at / n, at % n);
            let left = rest.len() as u64;
            // Whole rows as far as there are any, else a part of one.
            let (rows, columns) = match column == 0 && left >= n {
                true => (row..row + left / n, 0..n),
                false => (row..row + 1, column..n.min(column + left)),
            };
            let count = (rows.end - rows.start) * (columns.end - columns.start);
            let (now, later) = rest.split_at_mut(count as usize);
            self.multiply(rows, columns, now)?;
            (at, rest) = (at + count, later);
        }
        Ok(())
    }

    fn grain(&self) -> u64 {
        self.n.max(1)
    }

    fn will_need(&self, elements: &[Range<u64>]) {
        if self.n == 0 {
            return;
        }
        let rows = elements.iter();
        let rows = rows.map(|r| r.start / self.n * self.k..r.end.div_ceil(self.n) * self.k);
        self.a.will_need(&in_bytes(&rows.collect::<Vec<_>>(), 4));
    }

    fn opened(&self) -> Option<SharedView> {
        let [a, b] = [&self.a, &self.b].map(|of| of.opened().unwrap_or_else(|| of.clone()));
        Product::view(a, b, self.m, self.k, self.n)
    }
}

#[cfg(test)]
mod tests;
