//! A picture of a tensor: a heat map of means, with histogram, range and counts beneath.
//!
//! ```text
//! values ── grid::plan ──▶ runs ── Picture::read ──▶ cells + summary ── page ──▶ pixels ── png ──▶ bytes
//!           (which are read)                         (also for `stfs show`)
//! ```
//!
//! The size of the PNG follows from the shape alone, so that `stat` on the mount costs nothing.

use crate::error::Result;

mod canvas;
pub mod caption;
pub mod color;
mod font;
mod grid;
mod page;
mod picture;
mod png;
mod subject;

pub use grid::{BUDGET, Grid};
pub use picture::Picture;
pub use subject::{Subject, stored_as};

/// The most cells a PNG's heat map has in either direction.
pub const MAX_CELLS: u32 = 512;

/// The exact size in bytes of [`render`]'s output for values of that shape.
pub fn png_len(shape: &[u64]) -> u64 {
    let grid = Grid::of(shape, MAX_CELLS, MAX_CELLS);
    let (width, height) = page::size(&grid);
    png::len(width, height) as u64
}

/// Draws a tensor as an 8-bit PNG.
///
/// # Errors
/// The values cannot be read.
pub fn render(subject: &Subject) -> Result<Vec<u8>> {
    let picture = Picture::read(subject, MAX_CELLS, MAX_CELLS)?;
    let canvas = page::draw(subject, &picture);
    Ok(png::encode(
        canvas.width,
        canvas.height,
        &page::palette(),
        &canvas.pixels,
    ))
}

#[cfg(test)]
mod tests;
