//! Palette pixels to draw on.

use super::font;

/// A picture of palette indices, row by row.
pub struct Canvas {
    /// Pixels across.
    pub width: usize,
    /// Pixels down.
    pub height: usize,
    /// The indices.
    pub pixels: Vec<u8>,
}

impl Canvas {
    /// A canvas of one color.
    pub fn new(width: usize, height: usize, color: u8) -> Canvas {
        Canvas {
            width,
            height,
            pixels: vec![color; width * height],
        }
    }

    /// Fills a rectangle, clipped to the canvas.
    pub fn rect(&mut self, x: usize, y: usize, w: usize, h: usize, color: u8) {
        let (x1, y1) = ((x + w).min(self.width), (y + h).min(self.height));
        for y in y..y1 {
            let row = y * self.width;
            self.pixels[row + x.min(x1)..row + x1].fill(color);
        }
    }

    /// The one-pixel outline just outside a rectangle.
    pub fn frame(&mut self, x: usize, y: usize, w: usize, h: usize, color: u8) {
        self.rect(x - 1, y - 1, w + 2, 1, color);
        self.rect(x - 1, y + h, w + 2, 1, color);
        self.rect(x - 1, y - 1, 1, h + 2, color);
        self.rect(x + w, y - 1, 1, h + 2, color);
    }

    /// Writes a line of text with its top left corner there.
    pub fn text(&mut self, x: usize, y: usize, text: &str, color: u8) {
        for (i, c) in text.chars().enumerate() {
            for (dy, row) in font::glyph(c).enumerate() {
                for dx in (0..8).filter(|dx| row >> (7 - dx) & 1 == 1) {
                    self.rect(x + i * font::WIDTH + dx, y + dy, 1, 1, color);
                }
            }
        }
    }
}

/// How many pixels wide a text is.
pub fn text_width(text: &str) -> usize {
    text.chars().count() * font::WIDTH
}
