//! Which scale belongs to which value: the granularity of a quantized weight, from the shapes of the
//! weight and its scales.
//!
//! Files determine only how many scales there are, so the rules go from the certain to the likely,
//! and the first that fits wins. The declared block and 128 × 128 come before an even division
//! because last blocks may be ragged: 136 rows with two rows of scales mean 128 + 8, not 68 + 68
//! (transformers' `integrations/finegrained_fp8.py` derives the latter, which is wrong).

use crate::reason::{Reason, reason};
use std::fmt;

/// The block of nearly every FP8 checkpoint, declared or not (DeepSeek-V3 and its derivatives).
const USUAL_BLOCK: [u64; 2] = [128, 128];

/// How a weight's values share scales: a matrix `[N, K]`, or a stack of such matrices, is divided
/// into blocks with one scale each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScaleGrid {
    /// N, the rows of one matrix of the stack, or of the whole stack if it has only one scale.
    rows: u64,
    /// K, the columns.
    cols: u64,
    /// Rows and columns that share a scale; the last blocks may be smaller. Never 0.
    block: [u64; 2],
    /// Rows and columns of one matrix's scales.
    grid: [u64; 2],
    form: Form,
}

/// How a weight's scales are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// One scale for a whole matrix.
    Matrix,
    /// `[N]`: one per row.
    Rows,
    /// `[N, 1]`: one per row.
    Column,
    /// `[R, C]`: one per block.
    Blocks,
    /// `[R, 1, C, 1]`: one per block, as ModelOpt writes them.
    SpacedBlocks,
}

impl ScaleGrid {
    /// The granularity of `scale` over `weight` (`[N, K]` or `[E, N, K]`). `declared` returns the
    /// block that the config declares for this weight; it is called only if that matters.
    ///
    /// # Errors
    /// The reason, with both shapes, why these scales cannot belong to this weight.
    pub fn find(
        weight: &[u64],
        scale: &[u64],
        declared: impl FnOnce() -> Option<[u64; 2]>,
    ) -> Result<ScaleGrid, Reason> {
        if scale.iter().all(|&d| d == 1) {
            return Ok(ScaleGrid::one_scale(weight));
        }
        let (n, k, per_matrix) = one_matrix(weight, scale)?;
        let (form, [r, c]) = match *per_matrix {
            [r] if r == n => (Form::Rows, [n, 1]),
            [r, 1] if r == n => (Form::Column, [n, 1]),
            [1, 1] => (Form::Matrix, [1, 1]),
            [r, c] => (Form::Blocks, [r, c]),
            [r, 1, c, 1] => (Form::SpacedBlocks, [r, c]),
            [_] => {
                return Err(misfit(
                    weight,
                    scale,
                    "neither one scale nor one for each row",
                ));
            }
            _ => return Err(wrong_rank(weight, scale)),
        };
        let block = match form {
            Form::Rows | Form::Column => [1, k],
            Form::Matrix => [n, k],
            Form::Blocks | Form::SpacedBlocks => {
                let declared = declared().filter(|b| !b.contains(&0));
                block([n, k], [r, c], declared).ok_or_else(|| no_block(weight, scale, declared))?
            }
        };
        Ok(ScaleGrid::new(n, k, block, [r, c], form))
    }

    /// Scales that each cover exactly `group` values of a row: `scale` must equal `weight` except
    /// for its last dimension, which is K / `group`.
    ///
    /// # Errors
    /// The reason, with both shapes.
    pub fn groups(weight: &[u64], scale: &[u64], group: u64) -> Result<ScaleGrid, Reason> {
        let (&[n, k], lead) = match weight {
            [n, k] => (&[*n, *k], &weight[..0]),
            [_, n, k] => (&[*n, *k], &weight[..1]),
            _ => return Err(wrong_rank(weight, scale)),
        };
        if scale.len() != weight.len() {
            return Err(wrong_rank(weight, scale));
        }
        let want = [lead, &[n, k / group]].concat();
        if !k.is_multiple_of(group) || scale != want {
            return Err(misfit(
                weight,
                scale,
                &format!("not one for every {group} values of a row ({want:?})"),
            ));
        }
        Ok(ScaleGrid::new(
            n,
            k,
            [1, group],
            [n, k / group],
            Form::Blocks,
        ))
    }

    fn one_scale(weight: &[u64]) -> ScaleGrid {
        let cols = weight.last().copied().unwrap_or(1);
        let lead = &weight[..weight.len().saturating_sub(1)];
        // Without a 0 this cannot overflow, because the header's element count was checked; with a
        // 0, any number will do.
        let rows = lead.iter().fold(1u64, |n, &d| n.saturating_mul(d));
        ScaleGrid::new(rows, cols, [rows, cols], [1, 1], Form::Matrix)
    }

    fn new(rows: u64, cols: u64, block: [u64; 2], grid: [u64; 2], form: Form) -> ScaleGrid {
        ScaleGrid {
            rows: rows.max(1),
            cols: cols.max(1),
            block: block.map(|b| b.max(1)),
            grid,
            form,
        }
    }

    /// K, the columns (at least 1).
    pub fn cols(&self) -> u64 {
        self.cols
    }

    /// Columns that share a scale.
    pub fn block_cols(&self) -> u64 {
        self.block[1]
    }

    /// Columns of the scales.
    pub fn scale_cols(&self) -> u64 {
        self.grid[1]
    }

    /// How the scales are laid out.
    pub fn form(&self) -> Form {
        self.form
    }

    /// The row of scales for row `row`, counted through the whole stack. It never decreases as
    /// `row` increases.
    pub fn scale_row(&self, row: u64) -> u64 {
        row / self.rows * self.grid[0] + row % self.rows / self.block[0]
    }

    /// Whether another matrix's rows and scales may follow this one's, because its last block is
    /// whole.
    pub fn whole_rows(&self) -> bool {
        self.rows.is_multiple_of(self.block[0])
    }

    /// Values of a row that share a scale, if that is less than a whole row.
    pub fn group_size(&self) -> Option<u64> {
        matches!(self.form, Form::Blocks | Form::SpacedBlocks).then_some(self.block[1])
    }
}

/// As it appears in reasons: `blocks of 128 x 128`.
impl fmt::Display for ScaleGrid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [rows, cols] = self.block;
        match self.form {
            Form::Matrix => f.write_str("one scale"),
            Form::Rows => f.write_str("a scale for each row"),
            Form::Column => f.write_str("a column of scales, one for each row"),
            Form::Blocks => write!(f, "blocks of {rows} x {cols}"),
            Form::SpacedBlocks => write!(f, "blocks of {rows} x {cols} on four axes"),
        }
    }
}

/// N, K and the part of the scales' shape that belongs to one matrix of the stack.
fn one_matrix<'a>(weight: &[u64], scale: &'a [u64]) -> Result<(u64, u64, &'a [u64]), Reason> {
    match (weight, scale) {
        (&[n, k], scale) => Ok((n, k, scale)),
        (&[e, n, k], [es, scale @ ..]) if scale.len() == 2 => {
            if *es == e {
                Ok((n, k, scale))
            } else {
                let both = [&[*es], scale].concat();
                Err(misfit(weight, &both, "not for as many experts"))
            }
        }
        _ => Err(wrong_rank(weight, scale)),
    }
}

/// The block, if there is one, that divides `[n, k]` into this grid.
fn block(shape: [u64; 2], grid: [u64; 2], declared: Option<[u64; 2]>) -> Option<[u64; 2]> {
    let cuts = |block: &[u64; 2]| (0..2).all(|i| shape[i].div_ceil(block[i]) == grid[i]);
    let known = [declared, Some(USUAL_BLOCK)];
    if let Some(block) = known.into_iter().flatten().find(cuts) {
        return Some(block);
    }
    let divides = (0..2).all(|i| grid[i] > 0 && shape[i].is_multiple_of(grid[i]));
    divides.then(|| [shape[0] / grid[0], shape[1] / grid[1]])
}

fn misfit(weight: &[u64], scale: &[u64], why: &str) -> Reason {
    reason!("scales {scale:?} do not fit the weight {weight:?}: they are {why}")
}

fn no_block(weight: &[u64], scale: &[u64], declared: Option<[u64; 2]>) -> Reason {
    let [bm, bn] = USUAL_BLOCK;
    let named = match declared {
        Some([m, n]) if [m, n] != USUAL_BLOCK => reason!("{m} x {n} (the config's), {bm} x {bn}"),
        _ => reason!("{bm} x {bn}"),
    };
    let why = reason!(
        "neither one scale, nor one for each row, nor blocks of {named}, nor an even division"
    );
    misfit(weight, scale, &why)
}

fn wrong_rank(weight: &[u64], scale: &[u64]) -> Reason {
    reason!(
        "scales {scale:?} of {} dimensions cannot belong to a weight {weight:?} of {}",
        scale.len(),
        weight.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(weight: &[u64], scale: &[u64], block: Option<[u64; 2]>) -> Result<ScaleGrid, Reason> {
        ScaleGrid::find(weight, scale, || block)
    }

    fn ok(weight: &[u64], scale: &[u64], block: Option<[u64; 2]>) -> (Form, [u64; 2]) {
        let grid = find(weight, scale, block).unwrap();
        (grid.form, grid.block)
    }

    #[test]
    fn the_first_rule_that_fits_wins() {
        // 1: one element, whatever its rank and the weight's.
        for scale in [&[][..], &[1], &[1, 1]] {
            assert_eq!(ok(&[6, 8], scale, None), (Form::Matrix, [6, 8]));
        }
        assert_eq!(ok(&[2, 6, 8], &[], None), (Form::Matrix, [12, 8]));
        assert_eq!(ok(&[7], &[1], None), (Form::Matrix, [1, 7]));
        assert_eq!(ok(&[1, 8], &[1], None), (Form::Matrix, [1, 8]));
        // 2: per row, although a declared block would fit as well.
        assert_eq!(ok(&[6, 8], &[6], None), (Form::Rows, [1, 8]));
        assert_eq!(ok(&[6, 8], &[6, 1], Some([1, 8])), (Form::Column, [1, 8]));
        // 3: ModelOpt's.
        let spaced = ok(&[256, 384], &[2, 1, 3, 1], None);
        assert_eq!(spaced, (Form::SpacedBlocks, [128, 128]));
        // 4: the declared block, ragged too, and before 128 x 128.
        assert_eq!(ok(&[130, 70], &[3, 2], Some([64, 64])).1, [64, 64]);
        assert_eq!(ok(&[136, 256], &[2, 2], Some([72, 128])).1, [72, 128]);
        // 5: 128 x 128 before an even division, and where the declared block does not fit.
        assert_eq!(ok(&[136, 256], &[2, 2], None).1, [128, 128]);
        assert_eq!(ok(&[136, 256], &[2, 2], Some([64, 64])).1, [128, 128]);
        assert_eq!(ok(&[576, 7168], &[5, 56], None).1, [128, 128]);
        // 6: an even division: group and MX scales among them.
        assert_eq!(ok(&[136, 256], &[4, 2], None).1, [34, 128]);
        assert_eq!(ok(&[6, 64], &[6, 2], None).1, [1, 32]);
        assert_eq!(ok(&[6, 64], &[6, 64], None).1, [1, 1]);
    }

    #[test]
    fn experts_go_by_the_same_rules_each() {
        assert_eq!(ok(&[3, 136, 256], &[3, 2, 2], None).1, [128, 128]);
        assert_eq!(ok(&[3, 6, 8], &[3, 1, 1], None), (Form::Matrix, [6, 8]));
        assert_eq!(ok(&[3, 6, 8], &[3, 6, 1], None), (Form::Column, [1, 8]));
        let grid = find(&[3, 136, 256], &[3, 2, 2], None).unwrap();
        let rows: Vec<u64> = [0, 127, 128, 135, 136, 271, 272]
            .map(|r| grid.scale_row(r))
            .to_vec();
        assert_eq!(rows, [0, 0, 1, 1, 2, 3, 4]);
        let one = find(&[3, 6, 8], &[1], None).unwrap();
        assert_eq!(one.scale_row(17), 0);
    }

    #[test]
    fn what_fits_no_rule_says_so_with_both_shapes() {
        let cases: [(&[u64], &[u64], &str); 9] = [
            (&[136, 256], &[3, 2], "nor blocks of 128 x 128"),
            (&[136, 256], &[2, 3], "scales [2, 3]"),
            (&[136, 256], &[5], "weight [136, 256]"),
            (&[136, 256], &[2, 2, 2], "3 dimensions"),
            (&[136, 256], &[2, 1, 2, 2], "4 dimensions"),
            (&[136, 256], &[0, 2], "scales [0, 2]"),
            (&[3, 136, 256], &[2, 2, 2], "as many experts"),
            (&[3, 136, 256], &[136, 1], "2 dimensions"),
            (&[256], &[256], "of 1"),
        ];
        for (weight, scale, part) in cases {
            let reason = find(weight, scale, None).unwrap_err();
            assert!(reason.contains(part), "{reason}");
        }
        let declared = find(&[136, 256], &[3, 3], Some([64, 32])).unwrap_err();
        assert!(declared.contains("64 x 32 (the config's)"), "{declared}");
        // A nonsensical block in the config is ignored.
        assert_eq!(ok(&[136, 256], &[2, 2], Some([0, 128])).1, [128, 128]);
    }

    #[test]
    fn empty_weights_divide_by_nothing() {
        for (weight, scale) in [([0u64, 8], [5u64, 1]), ([0, 8], [0, 1]), ([8, 0], [8, 0])] {
            if let Ok(grid) = find(&weight, &scale, None) {
                assert!(grid.block.iter().all(|&b| b > 0) && grid.cols > 0);
                grid.whole_rows();
            }
        }
    }

    #[test]
    fn groups_must_be_exact() {
        let grid = ScaleGrid::groups(&[4, 64], &[4, 2], 32).unwrap();
        assert_eq!(
            (grid.block, grid.grid, grid.whole_rows()),
            ([1, 32], [4, 2], true)
        );
        assert!(ScaleGrid::groups(&[2, 4, 64], &[2, 4, 4], 16).is_ok());
        for (weight, scale) in [
            (&[4u64, 64][..], &[4u64, 4][..]),
            (&[4, 48], &[4, 1]),
            (&[4, 64], &[3, 2]),
            (&[4, 64], &[8]),
            (&[2, 4, 64], &[3, 4, 2]),
            (&[64], &[2]),
        ] {
            assert!(ScaleGrid::groups(weight, scale, 32).is_err());
        }
    }

    #[test]
    fn only_whole_blocks_let_rows_follow() {
        assert!(find(&[256, 256], &[2, 2], None).unwrap().whole_rows());
        assert!(!find(&[136, 256], &[2, 2], None).unwrap().whole_rows());
        assert!(!find(&[64, 256], &[1, 2], None).unwrap().whole_rows());
        assert!(find(&[136, 256], &[136], None).unwrap().whole_rows());
    }
}
