//! Reads a band of columns of a stored matrix: a strip of each row.

use std::array;
use std::ops::Range;

use crate::error::Result;
use crate::quant::read::zeroed;
use crate::view::{Scratch, SharedView};

/// Strips that are read before their words are transposed: enough to fill a cache line of the
/// output (16 words), and few enough that they and the output stay in the L1 cache.
const TURN: usize = 16;

/// Gaps between strips of up to this many bytes are read, too: a `pread` costs about as much as
/// copying these bytes (0.3 to 0.6 µs).
const GAP: usize = 2048;

/// A stored row-major matrix.
pub(super) struct Matrix {
    bytes: SharedView,
    row_bytes: usize,
}

impl Matrix {
    /// A matrix whose rows take `row_bytes` bytes each.
    pub fn new(bytes: SharedView, row_bytes: usize) -> Self {
        Matrix { bytes, row_bytes }
    }

    /// Reads the bytes `columns` of each of `rows`, one strip after another.
    ///
    /// # Errors
    /// As [`View::read_at`](crate::view::View::read_at).
    pub fn read(&self, rows: Range<usize>, columns: Range<usize>, out: &mut [u8]) -> Result<()> {
        let at = |row: usize| (row * self.row_bytes + columns.start) as u64;
        let gap = self.row_bytes - columns.len();
        if gap == 0 {
            return self.bytes.read_at(at(rows.start), out);
        }
        if gap <= GAP {
            return self.read_over(at(rows.start), columns.len(), out);
        }
        for (row, strip) in rows.zip(out.chunks_exact_mut(columns.len())) {
            self.bytes.read_at(at(row), strip)?;
        }
        Ok(())
    }

    /// Announces strips that are about to be read and lie far apart, so that a cold disk fetches them
    /// together rather than one after another.
    pub fn announce(&self, rows: Range<usize>, columns: &Range<usize>) {
        if self.row_bytes - columns.len() > GAP {
            let strip = |row: usize| {
                let start = (row * self.row_bytes + columns.start) as u64;
                start..start + columns.len() as u64
            };
            let strips: Vec<Range<u64>> = rows.map(strip).collect();
            self.bytes.will_need(&strips);
        }
    }

    /// Reads strips of `width` bytes together with the gaps between them.
    fn read_over(&self, offset: u64, width: usize, out: &mut [u8]) -> Result<()> {
        let rows = out.len() / width;
        let mut read = Scratch::<u8>::take(rows.saturating_sub(1) * self.row_bytes + width);
        self.bytes.read_at(offset, &mut read)?;
        let strips = read.chunks(self.row_bytes);
        for (strip, row) in out.chunks_exact_mut(width).zip(strips) {
            strip.copy_from_slice(&row[..width]);
        }
        Ok(())
    }

    /// Reads the words `columns` of `rows` of a matrix of words, transposed: `[columns][rows]`.
    ///
    /// # Errors
    /// As [`Matrix::read`], or ENOMEM.
    pub fn read_turned(&self, rows: Range<usize>, columns: Range<usize>) -> Result<Vec<u32>> {
        let (height, width) = (rows.len(), columns.len());
        let mut turned = zeroed::<u32>(height * width)?;
        let mut strips = zeroed::<u32>(TURN.min(height) * width)?;
        let bytes = columns.start * 4..columns.end * 4;
        self.announce(rows.clone(), &bytes);
        for first in (0..height).step_by(TURN) {
            let count = TURN.min(height - first);
            let strips = &mut strips[..count * width];
            let these = rows.start + first..rows.start + first + count;
            self.read(these, bytes.clone(), bytemuck::cast_slice_mut(strips))?;
            turn(strips, count, &mut turned, first, height);
        }
        Ok(turned)
    }
}

/// Writes `count` strips as columns from `first` on of rows of `height` words.
fn turn(strips: &[u32], count: usize, turned: &mut [u32], first: usize, height: usize) {
    let width = strips.len() / count;
    for (column, line) in turned.chunks_exact_mut(height).enumerate() {
        let line = &mut line[first..first + count];
        match <&mut [u32; TURN]>::try_from(&mut *line) {
            // The usual case is separate because its loop has a constant length.
            Ok(line) => *line = array::from_fn(|i| strips[i * width + column]),
            Err(_) => {
                for (i, word) in line.iter_mut().enumerate() {
                    *word = strips[i * width + column];
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::view::{Bytes, View};

    /// Rows of 11 words are read including gaps, rows of 700 words strip by strip.
    #[test]
    fn any_window_is_read_and_turned() {
        for columns in [11usize, 700] {
            let rows = 37usize;
            let words: Vec<u32> = (0..(rows * columns) as u32)
                .map(|i| i.wrapping_mul(2_654_435_761))
                .collect();
            let bytes: Arc<[u8]> = bytemuck::cast_slice(&words).into();
            let matrix = Matrix::new(Arc::new(Bytes(bytes)), columns * 4);
            let windows = [
                (0..37, 0..columns),
                (3..36, 2..9),
                (5..6, 10..11),
                (16..32, 0..1),
                (36..37, 1..columns),
            ];
            for (r, c) in windows {
                let turned = matrix.read_turned(r.clone(), c.clone()).unwrap();
                let pairs = c.flat_map(|c| r.clone().map(move |r| (r, c)));
                let want: Vec<u32> = pairs.map(|(r, c)| words[r * columns + c]).collect();
                assert_eq!(turned, want);
            }
        }
    }

    /// Bytes that record what is announced to them.
    struct Recording(Bytes, Mutex<Vec<Range<u64>>>);

    impl View for Recording {
        fn len(&self) -> u64 {
            self.0.len()
        }
        fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
            self.0.read_at(offset, buf)
        }
        fn will_need(&self, ranges: &[Range<u64>]) {
            self.1.lock().unwrap().extend_from_slice(ranges);
        }
    }

    #[test]
    fn strips_that_lie_apart_are_announced_once_and_all_together() {
        let row = 3000;
        let bytes = Recording(Bytes(vec![0; 40 * row].into()), Mutex::default());
        let bytes = Arc::new(bytes);
        let matrix = Matrix::new(bytes.clone(), row);
        matrix.read_turned(2..40, 1..5).unwrap();
        let strip = |r: u64| r * row as u64 + 4..r * row as u64 + 20;
        let announced = std::mem::take(&mut *bytes.1.lock().unwrap());
        assert!(announced.into_iter().eq((2..40).map(strip)));
        // Whole rows are one run, which needs no announcement.
        matrix.read(0..4, 0..row, &mut vec![0; 4 * row]).unwrap();
        assert!(bytes.1.lock().unwrap().is_empty());
    }
}
