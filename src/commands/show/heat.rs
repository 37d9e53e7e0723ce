//! The heat map in characters: two pixels per character with colors, one shade without.

use super::super::terminal::{Colors, Painter, Screen};
use crate::preview::color::{self, Rgb};
use crate::preview::{Grid, Picture, caption};

/// The widest a picture gets, in columns.
const WIDEST: usize = 160;
/// On a terminal with fewer lines the picture still has this many, and scrolls.
const FEWEST_LINES: usize = 16;
/// A cell of a small tensor is at most this large, in pixels.
const LARGEST_CELL: usize = 4;
/// A vector is this thick, in pixels.
const THINNEST: usize = 4;
/// Shades from the scale's low end to its high end, for terminals without colors.
const SHADES: [&str; 5] = [" ", "░", "▒", "▓", "█"];

/// Columns and lines for the heat map, with `rest` lines left for everything else. A line is two
/// pixels high, so that a square is as wide as it is high.
pub fn room(screen: Screen, rest: usize) -> (usize, usize) {
    let cols = screen.width.min(WIDEST);
    let lines = screen.height.saturating_sub(rest).max(FEWEST_LINES);
    (cols, lines.min(cols / 2))
}

/// Columns and rows that one cell takes.
fn cell_size(grid: &Grid, cols: usize, rows: usize) -> (usize, usize) {
    let (r, c) = (grid.cell_rows as usize, grid.cell_cols as usize);
    let square = (cols / c).min(rows / r).clamp(1, LARGEST_CELL);
    let at_least = |cells: usize, room: usize| square.max((THINNEST / cells).min(room / cells));
    (at_least(c, cols), at_least(r, rows))
}

/// The cells of a picture in at most `cols` × `rows` pixels.
pub fn map(painter: &mut Painter, picture: &Picture, cols: usize, rows: usize) {
    let (w, h) = cell_size(&picture.grid, cols, rows);
    let across = picture.grid.cell_cols as usize;
    let scale = picture.scale();
    // Rows of pixels, each cell repeated.
    let pixel_rows: Vec<&[Option<f64>]> = picture
        .cells
        .chunks(across)
        .flat_map(|row| std::iter::repeat_n(row, h))
        .collect();
    match painter.colors() {
        Colors::None => {
            for row in pixel_rows {
                for &cell in row {
                    painter.plain(&shade(cell, scale).repeat(w));
                }
                painter.newline();
            }
        }
        _ => {
            for pair in pixel_rows.chunks(2) {
                for j in 0..across {
                    let above = Some(rgb(pair[0][j], scale));
                    let below = pair.get(1).map(|row| rgb(row[j], scale));
                    painter.paint(&"▀".repeat(w), above, below);
                }
                painter.newline();
            }
        }
    }
}

/// The scale: its ends in numbers, its colors between.
pub fn legend(painter: &mut Painter, scale: f64, cols: usize) {
    let (low, high) = (caption::number(-scale), caption::number(scale));
    let numbers = low.chars().count() + high.chars().count() + 2;
    let steps = cols.saturating_sub(numbers).clamp(5, 41);
    painter.plain(&format!("{low} "));
    for i in 0..steps {
        let t = (2 * i + 1) as f64 / steps as f64 - 1.0;
        match painter.colors() {
            Colors::None => painter.plain(shade(Some(t), 1.0)),
            _ => painter.paint("█", Some(rgb(Some(t), 1.0)), None),
        }
    }
    painter.plain(&format!(" {high}"));
    painter.newline();
}

/// Where on the scale a finite cell is, from -1 to 1. A scale of 0 means that all are 0.
fn position(v: f64, scale: f64) -> f64 {
    match scale {
        0.0 => 0.0,
        _ => (v / scale).clamp(-1.0, 1.0),
    }
}

fn rgb(cell: Option<f64>, scale: f64) -> Rgb {
    match cell {
        None => [0x80; 3],
        Some(v) if v.is_nan() => color::NAN,
        Some(v) if v.is_infinite() => color::INF,
        Some(v) => color::diverging(position(v, scale)),
    }
}

fn shade(cell: Option<f64>, scale: f64) -> &'static str {
    match cell {
        None => ".",
        Some(v) if v.is_nan() => "?",
        Some(v) if v.is_infinite() => "!",
        Some(v) => {
            let steps = SHADES.len() as f64;
            let i = (position(v, scale) + 1.0) / 2.0 * steps;
            SHADES[(i as usize).min(SHADES.len() - 1)]
        }
    }
}
