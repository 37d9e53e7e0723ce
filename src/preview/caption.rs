//! The captions of a picture, the same on the PNG and in the terminal.

use super::{Picture, Subject};
use crate::statistics::Summary;
use crate::text::{short, thousands};

/// A number, with a minus sign that is as wide as a digit.
pub fn number(v: f64) -> String {
    short(v).replace('-', "−")
}

/// `BF16 [4096, 14336] · 58,720,256 values`.
pub fn what(subject: &Subject, picture: &Picture) -> String {
    let n = picture.grid.numel();
    let values = if n == 1 { "value" } else { "values" };
    format!(
        "{} {:?} · {} {values}",
        subject.stored_as,
        subject.shape,
        thousands(n)
    )
}

/// Least, greatest, mean and standard deviation.
pub fn range(s: &Summary) -> String {
    match (s.min(), s.max(), s.mean(), s.std()) {
        (Some(min), Some(max), Some(mean), Some(std)) => format!(
            "min {}  max {}  mean {}  std {}",
            number(min),
            number(max),
            number(mean),
            short(std)
        ),
        _ => "min -  max -  mean -  std -".into(),
    }
}

/// What a cell is, and whether everything was read.
pub fn coverage(picture: &Picture) -> String {
    let grid = &picture.grid;
    if grid.cell_rows == 0 {
        return "no elements".into();
    }
    let whole = |values: u64, cells: u32| values.is_multiple_of(u64::from(cells));
    let per = |values: u64, cells: u32| match whole(values, cells) {
        true => thousands(values / u64::from(cells)),
        false => format!("{:.1}", values as f64 / f64::from(cells)),
    };
    let (rows, cols) = (
        per(grid.rows, grid.cell_rows),
        per(grid.cols, grid.cell_cols),
    );
    let about = match whole(grid.rows, grid.cell_rows) && whole(grid.cols, grid.cell_cols) {
        true => "",
        false => "about ",
    };
    let cell = match (rows.as_str(), cols.as_str()) {
        ("1", "1") => "a cell is one value".into(),
        ("1", n) | (n, "1") => format!("a cell is the mean of {about}{n} values"),
        (m, n) => format!("a cell is the mean of {about}{m} × {n} values"),
    };
    match picture.is_sample() {
        true => format!(
            "{cell}; a sample: {} values read",
            thousands(picture.summary.count)
        ),
        false => cell,
    }
}

/// The middle of bar `i` of `bars` that divide `min..=max`, whose width may overflow.
pub fn middle(min: f64, max: f64, i: usize, bars: usize) -> f64 {
    let t = (i as f64 + 0.5) / bars as f64;
    min * (1.0 - t) + max * t
}

/// How many bars a histogram of up to 512 is worth: few values in many bars would be a row of
/// needles. A power of two.
pub fn bars(summary: &Summary) -> usize {
    if summary.min() == summary.max() {
        return 32;
    }
    match summary.finite() {
        0..256 => 32,
        256..2_048 => 64,
        2_048..8_192 => 128,
        8_192..65_536 => 256,
        _ => 512,
    }
}
