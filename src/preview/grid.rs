//! Which values a cell covers, and which of them are read.

use std::ops::Range;

use crate::statistics::Spans;

/// At most this many stored bytes are read for one picture.
pub const BUDGET: u64 = 64 << 20;

/// A tensor as rows and columns (leading dimensions flattened), cut into cells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Rows of values: the product of the leading dimensions.
    pub rows: u64,
    /// Columns of values: the last dimension.
    pub cols: u64,
    /// Rows of cells.
    pub cell_rows: u32,
    /// Columns of cells.
    pub cell_cols: u32,
}

impl Grid {
    /// A grid of at most `max_rows` × `max_cols` cells. A scalar is one row of one column; a tensor
    /// without elements has no cells.
    pub fn of(shape: &[u64], max_rows: u32, max_cols: u32) -> Grid {
        let (cols, leading) = shape.split_last().map_or((1, &[][..]), |(c, l)| (*c, l));
        let rows = leading.iter().fold(1u64, |n, &d| n.saturating_mul(d));
        if shape.contains(&0) {
            return Grid {
                rows: 0,
                cols: 0,
                cell_rows: 0,
                cell_cols: 0,
            };
        }
        Grid {
            rows,
            cols,
            cell_rows: rows.min(u64::from(max_rows)) as u32,
            cell_cols: cols.min(u64::from(max_cols)) as u32,
        }
    }

    /// Number of values.
    pub fn numel(&self) -> u64 {
        self.rows.saturating_mul(self.cols)
    }

    /// The rows that cell row `i` covers.
    pub fn rows_of(&self, i: u32) -> Range<u64> {
        part(self.rows, self.cell_rows, i)
    }

    /// The columns that cell column `j` covers.
    pub fn cols_of(&self, j: u32) -> Range<u64> {
        part(self.cols, self.cell_cols, j)
    }

    /// The cell row that covers `row`.
    pub fn cell_row(&self, row: u64) -> u32 {
        which(self.rows, self.cell_rows, row)
    }
}

/// Part `i` of `0..len` cut into `n` parts that differ by at most one.
fn part(len: u64, n: u32, i: u32) -> Range<u64> {
    let (n, i) = (u64::from(n), u64::from(i));
    let at = |i: u64| len / n * i + len % n * i / n; // len·i/n, which could overflow
    at(i)..at(i + 1)
}

/// The part that holds `at`: the inverse of [`part`].
fn which(len: u64, n: u32, at: u64) -> u32 {
    (((u128::from(at) + 1) * u128::from(n) - 1) / u128::from(len)) as u32
}

/// A run of neighboring values: the first, and how many.
pub type Run = (u64, u64);

/// What is read, in order of position: everything if the stored bytes are within `budget`, otherwise
/// an even spread that stays within it. `grain` is how many values the view computes at a time.
pub fn plan(grid: &Grid, stored_bytes: u64, budget: u64, grain: u64) -> Vec<Run> {
    let numel = grid.numel();
    let grain = grain.max(1);
    if stored_bytes <= budget {
        let spans = Spans::new(numel, grain);
        return (0..spans.chunks())
            .flat_map(|c| spans.of_chunk(c))
            .collect();
    }
    let values = (u128::from(numel) * u128::from(budget) / u128::from(stored_bytes)) as u64;
    let cells = u64::from(grid.cell_rows) * u64::from(grid.cell_cols);
    let share = values / u64::from(grid.cell_rows);
    let tile_rows = grain.div_ceil(grid.cols);
    if tile_rows.saturating_mul(grid.cols) <= share {
        // Short rows are read several at a time: otherwise system calls would dominate.
        let run = (share / 4).min(4096);
        let block_rows = tile_rows * (run / (tile_rows * grid.cols)).max(1);
        whole_rows(grid, block_rows, share)
    } else if grain <= values / cells {
        within_rows(grid, values / cells / grain * grain, grain)
    } else {
        anywhere(numel, values, grain)
    }
}

/// Blocks of whole rows, the same number in every cell row.
fn whole_rows(grid: &Grid, block_rows: u64, share: u64) -> Vec<Run> {
    let blocks = share / (block_rows * grid.cols);
    let mut runs = Vec::new();
    let mut done = 0;
    for i in 0..grid.cell_rows {
        let band = grid.rows_of(i);
        for t in 0..blocks {
            let middle = band.start + (2 * t + 1) * (band.end - band.start) / (2 * blocks);
            let start = (middle / block_rows * block_rows).max(done);
            let end = (start + block_rows).min(band.end);
            if start < end {
                split(start * grid.cols, (end - start) * grid.cols, &mut runs);
                done = end;
            }
        }
    }
    runs
}

/// If not even one row of each band is within the budget: `len` values of each cell, from its middle.
fn within_rows(grid: &Grid, len: u64, grain: u64) -> Vec<Run> {
    let mut runs = Vec::new();
    for i in 0..grid.cell_rows {
        let band = grid.rows_of(i);
        let row = band.start + (band.end - band.start) / 2;
        for j in 0..grid.cell_cols {
            let cols = grid.cols_of(j);
            let spare = (cols.end - cols.start).saturating_sub(len);
            let first = row * grid.cols + cols.start + spare / 2;
            let first = (first / grain * grain).max(row * grid.cols + cols.start);
            split(
                first,
                len.min(row * grid.cols + cols.end - first),
                &mut runs,
            );
        }
    }
    runs
}

/// If the view computes more at a time than a cell's share: whole grains, evenly spread.
fn anywhere(numel: u64, values: u64, grain: u64) -> Vec<Run> {
    let unit = grain.min(values).max(1);
    let units = numel.div_ceil(unit);
    let take = values / unit;
    let mut runs = Vec::new();
    for t in 0..take {
        let middle = u128::from(2 * t + 1) * u128::from(units) / u128::from(2 * take);
        let first = middle as u64 * unit;
        split(first, unit.min(numel - first), &mut runs);
    }
    runs
}

/// Adds a run, in pieces that stay in the cache.
fn split(first: u64, len: u64, runs: &mut Vec<Run>) {
    const SPAN: u64 = 64 * 1024;
    let end = first + len;
    runs.extend(
        (first..end)
            .step_by(SPAN as usize)
            .map(|at| (at, SPAN.min(end - at))),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_value_has_one_cell(rows in 1u64..3000, cols in 1u64..3000) {
            let grid = Grid::of(&[rows, cols], 512, 512);
            for row in 0..rows {
                prop_assert!(grid.rows_of(grid.cell_row(row)).contains(&row));
            }
            for j in 1..grid.cell_cols {
                prop_assert_eq!(grid.cols_of(j - 1).end, grid.cols_of(j).start);
            }
            prop_assert_eq!(grid.cols_of(grid.cell_cols - 1).end, cols);
        }

        #[test]
        fn plans_stay_in_bounds_in_order_and_in_budget(
            rows in 1u64..2_000_000,
            cols in 1u64..2_000_000,
            bits in prop::sample::select(vec![4u64, 8, 16, 64]),
            grain in prop::sample::select(vec![1u64, 8, 128, 4096, 100_000, 3_000_000]),
            budget in prop::sample::select(vec![1u64 << 20, BUDGET]),
        ) {
            let grid = Grid::of(&[rows, cols], 512, 512);
            let stored = (grid.numel() * bits).div_ceil(8);
            let runs = plan(&grid, stored, budget, grain);
            let mut at = 0;
            let mut read = 0;
            for (first, len) in runs {
                prop_assert!(first >= at && len > 0);
                at = first + len;
                read += len;
            }
            prop_assert!(at <= grid.numel());
            if stored <= budget {
                prop_assert_eq!(read, grid.numel());
            } else {
                prop_assert!(read * bits / 8 <= budget, "{} values", read);
                // And the budget is used.
                prop_assert!(read * bits / 8 >= budget / 4, "{} values", read);
            }
        }
    }

    #[test]
    fn every_cell_of_a_large_tensor_is_sampled() {
        for shape in [
            vec![151_936, 8_192],
            vec![64, 4_000_000_000],
            vec![5_000_000_000],
            vec![5_000_000_000, 1],
            vec![128, 14_336, 4_096],
        ] {
            let grid = Grid::of(&shape, 512, 512);
            let runs = plan(&grid, grid.numel() * 2, BUDGET, 1);
            let read = |first: u64, end: u64| {
                let next = runs.partition_point(|r| r.0 + r.1 <= first);
                runs.get(next).is_some_and(|r| r.0 < end)
            };
            for i in 0..grid.cell_rows {
                for j in 0..grid.cell_cols {
                    let cols = grid.cols_of(j);
                    let mut rows = grid.rows_of(i);
                    let start = rows.start;
                    assert!(
                        // Narrow rows: any value of the band; else a row that meets the cell.
                        grid.cols == 1 && read(start, rows.end)
                            || grid.cols > 1
                                && rows.any(|r| {
                                    read(r * grid.cols + cols.start, r * grid.cols + cols.end)
                                }),
                        "{shape:?}: cell {i}, {j}"
                    );
                }
            }
        }
    }

    #[test]
    fn empty_and_scalar_shapes() {
        assert_eq!(Grid::of(&[], 512, 512).numel(), 1);
        assert_eq!(Grid::of(&[u64::MAX, 3, 0], 512, 512).numel(), 0);
        assert_eq!(Grid::of(&[3, 5], 512, 512).cell_cols, 5);
    }
}
