//! The scales, zero points and column orders of packed rows.

use std::sync::{Arc, OnceLock};

use super::decode::Layout;
use super::rows::{Shape, Span};
use crate::dtype::Dtype;
use crate::dtype::decode::{F8_E4M3, decode as widen};
use crate::error::{Error, Result};
use crate::quant::g_idx::{integers, out_of_range};
use crate::reason::Reason;
use crate::view::{Scratch, SharedView, View, read_all};

/// The source of scales.
pub(super) enum Scales {
    /// Stored directly, in this dtype.
    Stored(SharedView, Dtype),
    /// F8_E4M3, each divided by the tensor's global scale (of this dtype).
    Divided {
        /// The F8_E4M3 scales.
        scales: SharedView,
        /// The global scale and its dtype.
        global: (SharedView, Dtype),
        /// The 256 quotients, once they are known.
        table: OnceLock<Box<[f32; 256]>>,
    },
}

/// The source of zero points. All are added to the offset that makes codes unsigned.
pub(super) enum Zeros {
    /// There are none.
    Symmetric,
    /// Packed I32, along the rows.
    Packed(SharedView),
    /// I8, shaped like the scales.
    Bytes(SharedView),
}

/// `weight_g_idx`: which group each column belongs to.
pub(super) struct Order {
    /// The tensor's name, for errors.
    pub name: Arc<str>,
    /// Its bytes, I32.
    pub view: SharedView,
    /// The groups, once read; the inner `None` means "no order".
    pub groups: OnceLock<Option<Box<[u32]>>>,
}

/// `len` bytes of a view from `offset` on.
pub(super) fn read(view: &SharedView, offset: u64, len: u64) -> Result<Scratch<u8>> {
    let mut bytes = Scratch::take(len as usize);
    view.read_at(offset, &mut bytes)?;
    Ok(bytes)
}

impl Scales {
    /// The scales `from..to`.
    pub fn load(&self, (from, to): (u64, u64)) -> Result<Scratch<f32>> {
        let n = to - from;
        let mut out = Scratch::take(n as usize);
        match self {
            Scales::Stored(view, dtype) => {
                let size = u64::from(dtype.bits() / 8);
                let bytes = read(view, from * size, n * size)?;
                widen(*dtype, &bytes, 0, &mut out);
            }
            Scales::Divided {
                scales,
                global,
                table,
            } => {
                let table = match table.get() {
                    Some(table) => table,
                    None => {
                        let quotients = divided(global)?;
                        table.get_or_init(|| quotients)
                    }
                };
                let codes = read(scales, from, n)?;
                for (scale, &code) in out.iter_mut().zip(&*codes) {
                    *scale = table[usize::from(code)];
                }
            }
        }
        Ok(out)
    }
}

/// The value of each F8_E4M3 code divided by the global scale. It must be a division:
/// multiplication by the reciprocal gives other numbers.
fn divided((view, dtype): &(SharedView, Dtype)) -> Result<Box<[f32; 256]>> {
    let mut global = [0.0];
    widen(*dtype, &read_all(view)?, 0, &mut global);
    Ok(Box::new(F8_E4M3.map(|scale| scale / global[0])))
}

impl Zeros {
    /// The biases of integer codes, one for each of the span's scales; `None` if all codes have the
    /// bias `offset`.
    pub fn load(&self, shape: &Shape, span: &Span, offset: i32) -> Result<Option<Scratch<i32>>> {
        let (from, to) = span.scales;
        if let Zeros::Symmetric = self {
            return Ok(None);
        }
        let mut biases = Scratch::take((to - from) as usize);
        match self {
            Zeros::Symmetric => {}
            Zeros::Bytes(view) => {
                let bytes = read(view, from, to - from)?;
                for (bias, &z) in biases.iter_mut().zip(&*bytes) {
                    *bias = offset + i32::from(z as i8);
                }
            }
            Zeros::Packed(view) => {
                let zeros = PackedZeros::read(view, shape, span)?;
                let columns = shape.row_scales;
                for (bias, i) in biases.iter_mut().zip(from..) {
                    *bias = zeros.code(i / columns, i % columns);
                }
            }
        }
        Ok(Some(biases))
    }
}

/// Zero points of a few rows. In each column of words they follow each other down the rows.
struct PackedZeros {
    layout: Layout,
    bytes: Scratch<u8>,
    first_word: u64,
    first_column: u64,
    width: u64,
}

impl PackedZeros {
    fn read(view: &SharedView, shape: &Shape, span: &Span) -> Result<Self> {
        let (layout, columns) = (shape.layout, shape.row_scales);
        let (rows, (from, to)) = (span.rows, span.scales);
        // For one row, only the columns that are needed; for several rows, all.
        let (c0, c1) = match rows.0 == rows.1 {
            true => (from % columns, from % columns + (to - from)),
            false => (0, columns),
        };
        let first_word = layout.place(rows.0).0;
        let (last, _, straddles) = layout.place(rows.1);
        let count = last + u64::from(straddles) - first_word + 1;
        let width = c1 - c0;
        let bytes = if width == columns {
            read(view, first_word * columns * 4, count * columns * 4)?
        } else {
            let mut bytes = Scratch::take((count * width * 4) as usize);
            for (word, row) in (first_word..).zip(bytes.chunks_mut((width * 4) as usize)) {
                view.read_at((word * columns + c0) * 4, row)?;
            }
            bytes
        };
        Ok(PackedZeros {
            layout,
            bytes,
            first_word,
            first_column: c0,
            width,
        })
    }

    fn code(&self, row: u64, column: u64) -> i32 {
        let (word, low, straddles) = self.layout.place(row);
        let at = |word: u64| {
            let i = (word - self.first_word) * self.width + column - self.first_column;
            u64::from(u32::from_le_bytes(self.bytes.as_chunks().0[i as usize]))
        };
        let next = if straddles { at(word + 1) << 32 } else { 0 };
        ((at(word) | next) >> low & ((1 << self.layout.bits) - 1)) as i32
    }
}

impl Order {
    /// The group of each column; `None` if the tensor means "no order".
    ///
    /// # Errors
    /// It cannot be read, or names a group that does not exist.
    pub fn groups(&self, count: u64) -> Result<Option<&[u32]>> {
        if self.groups.get().is_none() {
            let groups = read_order(&*self.view, count)?;
            let groups = groups.map_err(|problem| Error::data(&*self.name, problem))?;
            let _ = self.groups.set(groups);
        }
        Ok(self.groups.get().and_then(|g| g.as_deref()))
    }
}

/// Reads and checks a `weight_g_idx`. The inner error is what is wrong with its contents.
///
/// # Errors
/// It cannot be read.
#[allow(clippy::type_complexity)]
pub(super) fn read_order(
    view: &dyn View,
    count: u64,
) -> Result<std::result::Result<Option<Box<[u32]>>, Reason>> {
    let bytes = read_all(view)?;
    let groups = || integers(Dtype::I32, &bytes);
    // The library writes -1 if nothing was reordered.
    if groups().any(|group| group == -1) {
        return Ok(Ok(None));
    }
    Ok(match out_of_range(groups(), count) {
        Some(problem) => Err(problem),
        None => Ok(Some(groups().map(|group| group as u32).collect())),
    })
}
