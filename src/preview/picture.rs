//! What a picture shows, before there are pixels: a mean for each cell, and a summary.

use super::Subject;
use super::grid::{BUDGET, Grid, Run, plan};
use crate::error::Result;
use crate::statistics::{Summary, Value, Values};
use crate::{memory, parallel};

/// The means of a tensor's cells and the statistics of the values that were read.
#[derive(Debug, Clone)]
pub struct Picture {
    /// The grid of cells.
    pub grid: Grid,
    /// The mean of each cell, row by row: NaN if one of its values is (or if infinities cancel),
    /// `None` if the sample has no value of the cell.
    pub cells: Vec<Option<f64>>,
    /// Statistics of what was read: of all values, or of a sample.
    pub summary: Summary,
}

/// Values in a piece of work, approximately.
const PIECE: u64 = 1 << 20;

/// Sums over the cells of some whole cell rows.
struct Sums {
    first_row: u32,
    cells: Vec<(f64, u64)>,
    summary: Summary,
}

impl Picture {
    /// Reads `subject` in at most `max_rows` × `max_cols` cells, and at most 64 MiB of its stored
    /// bytes.
    ///
    /// # Errors
    /// The values cannot be read.
    pub fn read(subject: &Subject, max_rows: u32, max_cols: u32) -> Result<Picture> {
        let grid = Grid::of(&subject.shape, max_rows, max_cols);
        match &subject.wide {
            Some(wide) => Picture::of(wide, grid, subject.stored_bytes),
            None => Picture::of(&*subject.values, grid, subject.stored_bytes),
        }
    }

    fn of<V: Values + ?Sized>(values: &V, grid: Grid, stored_bytes: u64) -> Result<Picture> {
        let runs = plan(&grid, stored_bytes, BUDGET, values.grain());
        let pieces = pieces(&runs);
        let threads = parallel::threads().min(memory::budget().render_threads);
        let add = |i: usize| sum(values, &grid, pieces[i]);
        let parts = parallel::ordered_on(threads, pieces.len(), add)?;
        let mut sums = vec![(0f64, 0u64); (grid.cell_rows * grid.cell_cols) as usize];
        let mut summary = Summary::new(true);
        for part in &parts {
            summary.merge(&part.summary);
            let at = (part.first_row * grid.cell_cols) as usize;
            for (all, (s, n)) in sums[at..].iter_mut().zip(&part.cells) {
                all.0 += s;
                all.1 += n;
            }
        }
        let mean = |(sum, n): (f64, u64)| (n > 0).then(|| sum / n as f64);
        Ok(Picture {
            grid,
            cells: sums.into_iter().map(mean).collect(),
            summary,
        })
    }

    /// Whether only a part of the values was read.
    pub fn is_sample(&self) -> bool {
        self.summary.count < self.grid.numel()
    }

    /// The value at which the color scale ends: nearly the largest of the cells, so that a few
    /// outliers do not wash out the rest. 0 if every cell is 0.
    pub fn scale(&self) -> f64 {
        let mut sizes: Vec<f64> = self
            .cells
            .iter()
            .flatten()
            .filter(|v| v.is_finite())
            .map(|v| v.abs())
            .collect();
        sizes.sort_by(f64::total_cmp);
        let Some(last) = sizes.len().checked_sub(1) else {
            return 0.0;
        };
        let most = sizes[(last as f64 * 0.995).ceil() as usize];
        if most > 0.0 { most } else { sizes[last] }
    }
}

/// Runs in groups of about [`PIECE`] values.
fn pieces(runs: &[Run]) -> Vec<&[Run]> {
    let mut groups = Vec::new();
    let (mut start, mut values) = (0, 0);
    for (i, (_, len)) in runs.iter().enumerate() {
        values += len;
        if values >= PIECE || i + 1 == runs.len() {
            groups.push(&runs[start..=i]);
            (start, values) = (i + 1, 0);
        }
    }
    groups
}

/// Reads some runs and adds their values up by cells.
fn sum<V: Values + ?Sized>(values: &V, grid: &Grid, runs: &[Run]) -> Result<Sums> {
    let (Some(&(start, _)), Some(&(last, len))) = (runs.first(), runs.last()) else {
        return Ok(Sums {
            first_row: 0,
            cells: Vec::new(),
            summary: Summary::new(true),
        });
    };
    let first_row = grid.cell_row(start / grid.cols);
    let last_row = grid.cell_row((last + len - 1) / grid.cols);
    let cells = ((last_row - first_row + 1) * grid.cell_cols) as usize;
    let mut sums = Sums {
        first_row,
        cells: vec![(0.0, 0); cells],
        summary: Summary::new(true),
    };
    let edges: Vec<u64> = (0..grid.cell_cols)
        .map(|j| grid.cols_of(j).start)
        .chain([grid.cols])
        .collect();
    let mut buf = Vec::new();
    let mut pending = Vec::new();
    for &(first, len) in runs {
        values.read(first, len, &mut buf)?;
        sums.add(grid, &edges, first, &buf);
        // Short runs are summarized together: a summary of a hundred values is mostly overhead.
        pending.extend_from_slice(&buf);
        if pending.len() >= 1 << 15 {
            sums.summary.merge(&Summary::of(&pending, true));
            pending.clear();
        }
    }
    sums.summary.merge(&Summary::of(&pending, true));
    Ok(sums)
}

impl Sums {
    /// Adds values that follow one another from `first` on.
    fn add<T: Value>(&mut self, grid: &Grid, edges: &[u64], first: u64, mut values: &[T]) {
        let (mut row, mut col) = (first / grid.cols, first % grid.cols);
        let mut i = grid.cell_row(row);
        let mut band_end = grid.rows_of(i).end;
        while !values.is_empty() {
            let n = (grid.cols - col).min(values.len() as u64) as usize;
            let (now, rest) = values.split_at(n);
            let at = ((i - self.first_row) * grid.cell_cols) as usize;
            let cells = &mut self.cells[at..at + grid.cell_cols as usize];
            add_in_row(cells, edges, col, now);
            values = rest;
            (row, col) = (row + 1, 0);
            if row == band_end && !values.is_empty() {
                i += 1;
                band_end = grid.rows_of(i).end;
            }
        }
    }
}

/// Adds a piece of one row from column `col` on. Cell j covers the columns `edges[j]..edges[j + 1]`.
fn add_in_row<T: Value>(cells: &mut [(f64, u64)], edges: &[u64], mut col: u64, mut values: &[T]) {
    let mut j = edges.partition_point(|&e| e <= col) - 1;
    while !values.is_empty() {
        let n = (edges[j + 1] - col).min(values.len() as u64);
        let (now, rest) = values.split_at(n as usize);
        cells[j].0 += now.iter().map(|&v| v.into()).sum::<f64>();
        cells[j].1 += n;
        values = rest;
        col += n;
        j += 1;
    }
}
