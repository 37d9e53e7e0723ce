//! The layout of the picture. Sizes follow from the grid, and so from the shape alone.

use super::canvas::{Canvas, text_width};
use super::color::{self, Rgb};
use super::{Grid, Picture, Subject, caption, font};
use crate::text::{elide, thousands};

const MARGIN: usize = 16;
/// Width of everything, and the most pixels the heat map has in either direction.
const CONTENT: usize = 512;
const WIDTH: usize = CONTENT + 2 * MARGIN;
/// A vector's heat map is this thick, in pixels, and a scalar's this large.
const THINNEST: usize = 48;
/// A cell of a small tensor is at most this large, in pixels.
const LARGEST_CELL: usize = 32;

/// Height of the color scale, and of the histogram.
const SCALE: usize = 10;
const STRIP: usize = 72;
/// Between a drawing and its labels, between one thing and the next, and from line to line.
const NEAR: usize = 4;
const GAP: usize = 12;
const LINE: usize = 17;
const LINES: usize = 5;

const LEGEND: usize = SCALE + NEAR + font::HEIGHT + GAP;
const BENEATH: usize = STRIP + NEAR + font::HEIGHT + GAP + LINES * LINE;

const PAPER: u8 = 0;
const INK: u8 = 1;
const FAINT: u8 = 2;
const RULE: u8 = 3;
const NAN: u8 = 4;
const INF: u8 = 5;
const NOT_READ: u8 = 6;
const BELOW: u8 = 7;
const ABOVE: u8 = 8;
/// The diverging scale: 241 colors, so that there is a middle one for zero.
const FIRST: u8 = 15;
const ARM: u8 = 120;

/// The color of each index.
pub fn palette() -> [Rgb; 256] {
    let mut p = [[0; 3]; 256];
    p[PAPER as usize] = [255; 3];
    p[INK as usize] = [0x20, 0x22, 0x28];
    p[FAINT as usize] = [0x6a, 0x6e, 0x78];
    p[RULE as usize] = [0xb8, 0xbc, 0xc4];
    p[NAN as usize] = color::NAN;
    p[INF as usize] = color::INF;
    p[NOT_READ as usize] = [0xd4, 0xd6, 0xda];
    p[BELOW as usize] = color::diverging(-0.6);
    p[ABOVE as usize] = color::diverging(0.6);
    for i in 0..=2 * ARM {
        let t = (f64::from(i) - f64::from(ARM)) / f64::from(ARM);
        p[usize::from(FIRST + i)] = color::diverging(t);
    }
    p
}

/// The color of a cell on a scale that ends at ±`scale`.
fn index(cell: Option<f64>, scale: f64) -> u8 {
    match cell {
        None => NOT_READ,
        Some(v) if v.is_nan() => NAN,
        Some(v) if v.is_infinite() => INF,
        Some(v) => {
            let t = v / scale;
            let arm = f64::from(ARM);
            // If all cells are zero, so is the scale: 0/0 is cast to 0, the middle.
            let step = (t * arm).round().clamp(-arm, arm) as i32;
            (i32::from(FIRST) + i32::from(ARM) + step) as u8
        }
    }
}

/// Pixels across and down that one cell takes.
fn cell_size(grid: &Grid) -> (usize, usize) {
    let (rows, cols) = (
        grid.cell_rows.max(1) as usize,
        grid.cell_cols.max(1) as usize,
    );
    let square = (CONTENT / rows.max(cols)).min(LARGEST_CELL);
    let at_least = |cells: usize| square.max(THINNEST.div_ceil(cells));
    (at_least(cols), at_least(rows))
}

/// Width and height of the picture, in pixels.
pub fn size(grid: &Grid) -> (usize, usize) {
    let heat = match grid.cell_rows {
        0 => 0,
        rows => rows as usize * cell_size(grid).1 + GAP + LEGEND,
    };
    (WIDTH, MARGIN + heat + BENEATH + MARGIN)
}

/// Draws it all.
pub fn draw(subject: &Subject, picture: &Picture) -> Canvas {
    let (width, height) = size(&picture.grid);
    let mut canvas = Canvas::new(width, height, PAPER);
    let mut y = MARGIN;
    if picture.grid.cell_rows > 0 {
        let scale = picture.scale();
        y = heat_map(&mut canvas, picture, scale, y) + GAP;
        legend(&mut canvas, scale, y);
        y += LEGEND;
    }
    histogram(&mut canvas, picture, y);
    captions(
        &mut canvas,
        subject,
        picture,
        height - MARGIN - LINES * LINE,
    );
    canvas
}

/// The cells; returns where they end.
fn heat_map(canvas: &mut Canvas, picture: &Picture, scale: f64, top: usize) -> usize {
    let (w, h) = cell_size(&picture.grid);
    let cols = picture.grid.cell_cols as usize;
    let rows = picture.grid.cell_rows as usize;
    let left = (WIDTH - cols * w) / 2;
    canvas.frame(left, top, cols * w, rows * h, RULE);
    let place = |k: usize| (left + k % cols * w, top + k / cols * h);
    for (k, &cell) in picture.cells.iter().enumerate() {
        let (x, y) = place(k);
        canvas.rect(x, y, w, h, index(cell, scale));
    }
    // One pixel of NaN in a field of noise is easily missed, so it gets a pixel more on every side.
    let (x1, y1) = (left + cols * w, top + rows * h);
    for (k, &cell) in picture.cells.iter().enumerate() {
        if w.min(h) < 3 && cell.is_some_and(|v| !v.is_finite()) {
            let (x, y) = place(k);
            let (from_x, from_y) = ((x - 1).max(left), (y - 1).max(top));
            let (to_x, to_y) = ((x + w + 1).min(x1), (y + h + 1).min(y1));
            canvas.rect(
                from_x,
                from_y,
                to_x - from_x,
                to_y - from_y,
                index(cell, scale),
            );
        }
    }
    y1
}

/// The color scale with its ends and its middle.
fn legend(canvas: &mut Canvas, scale: f64, top: usize) {
    canvas.frame(MARGIN, top, CONTENT, SCALE, RULE);
    for x in 0..CONTENT {
        let t = (2 * x + 1) as f64 / CONTENT as f64 - 1.0;
        canvas.rect(MARGIN + x, top, 1, SCALE, index(Some(t), 1.0));
    }
    let (low, high) = match scale {
        0.0 => (String::new(), String::new()),
        _ => (caption::number(-scale), caption::number(scale)),
    };
    labels(canvas, top + SCALE + NEAR, [&low, "0", &high]);
}

/// Three labels: at the left end, in the middle, at the right end.
fn labels(canvas: &mut Canvas, y: usize, [left, middle, right]: [&str; 3]) {
    canvas.text(MARGIN, y, left, FAINT);
    canvas.text((WIDTH - text_width(middle)) / 2, y, middle, FAINT);
    canvas.text(WIDTH - MARGIN - text_width(right), y, right, FAINT);
}

/// The histogram of the values from the least to the greatest, with logarithmic heights.
fn histogram(canvas: &mut Canvas, picture: &Picture, top: usize) {
    let bottom = top + STRIP;
    let summary = &picture.summary;
    if let (Some(lo), Some(hi), Some(histogram)) =
        (summary.min(), summary.max(), &summary.histogram)
    {
        let bars = caption::bars(summary);
        let width = CONTENT / bars;
        let counts = histogram.resample(lo, hi, bars);
        let most = counts.iter().fold(1.0f64, |m, &c| m.max(c)).ln_1p();
        for (i, &count) in counts.iter().enumerate() {
            let height = ((count.ln_1p() / most * STRIP as f64).ceil() as usize).min(STRIP);
            let middle = caption::middle(lo, hi, i, bars);
            let color = if middle < 0.0 { BELOW } else { ABOVE };
            canvas.rect(MARGIN + i * width, bottom - height, width, height, color);
        }
        let (low, high) = (caption::number(lo), caption::number(hi));
        let all = format!("all values are {low}");
        let label = match lo == hi {
            true => ["", &all, ""],
            false => [&low, "values, counts in log scale", &high],
        };
        labels(canvas, bottom + NEAR, label);
    } else {
        let none = match summary.count {
            0 => "no values",
            _ => "no finite values",
        };
        labels(canvas, bottom + NEAR, ["", none, ""]);
    }
    canvas.rect(MARGIN, bottom, CONTENT, 1, RULE);
}

fn captions(canvas: &mut Canvas, subject: &Subject, picture: &Picture, top: usize) {
    let letters = CONTENT / font::WIDTH;
    let line = |n: usize| top + n * LINE;
    canvas.text(MARGIN, line(0), &elide(&subject.name, letters), INK);
    canvas.text(
        MARGIN,
        line(1),
        &elide(&caption::what(subject, picture), letters),
        INK,
    );
    canvas.text(
        MARGIN,
        line(2),
        &elide(&caption::range(&picture.summary), letters),
        INK,
    );
    counts(canvas, picture, line(3));
    canvas.text(
        MARGIN,
        line(4),
        &elide(&caption::coverage(picture), letters),
        FAINT,
    );
}

/// `zeros 12   ■ NaN 0   ■ Inf 0`, the last two with the color that shows them.
fn counts(canvas: &mut Canvas, picture: &Picture, y: usize) {
    let s = &picture.summary;
    let mut x = MARGIN;
    let zeros = format!("zeros {}", thousands(s.zeros));
    canvas.text(x, y, &zeros, INK);
    x += text_width(&zeros) + 3 * font::WIDTH;
    for (word, n, color) in [("NaN", s.nan, NAN), ("Inf", s.inf, INF)] {
        canvas.rect(x, y + 2, 9, 9, color);
        x += 9 + font::WIDTH;
        let text = format!("{word} {}", thousands(n));
        canvas.text(x, y, &text, INK);
        x += text_width(&text) + 3 * font::WIDTH;
    }
}
