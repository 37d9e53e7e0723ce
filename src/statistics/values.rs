//! How values are read for statistics and comparison: as binary32, or as binary64 if binary32
//! cannot hold them.

use crate::dtype::Dtype;
use crate::error::Result;
use crate::view::{Scratch, SharedView, View};

/// A value that is counted and compared as binary64.
pub trait Value: Copy + Default + PartialOrd + Into<f64> + Send + 'static {
    /// Greater than all numbers.
    const INFINITY: Self;
    /// Less than all numbers.
    const NEG_INFINITY: Self;
    /// Whether binary64 has enough digits for a sum of millions of values, however far from zero.
    const SUMS_WELL: bool;
}

impl Value for f32 {
    const INFINITY: f32 = f32::INFINITY;
    const NEG_INFINITY: f32 = f32::NEG_INFINITY;
    const SUMS_WELL: bool = true;
}

impl Value for f64 {
    const INFINITY: f64 = f64::INFINITY;
    const NEG_INFINITY: f64 = f64::NEG_INFINITY;
    const SUMS_WELL: bool = false;
}

/// Values that can be read in arbitrary pieces.
pub trait Values: Sync {
    /// The type that they are read as.
    type Value: Value;

    /// How many there are.
    fn numel(&self) -> u64;

    /// The number of values that are cheapest to read at a time.
    fn grain(&self) -> u64;

    /// Reads `len` values from value `first` on into `buf`, which is resized to that length.
    ///
    /// # Errors
    /// As [`View::read_at`].
    fn read(&self, first: u64, len: u64, buf: &mut Vec<Self::Value>) -> Result<()>;
}

/// A values view: little-endian binary32.
impl Values for dyn View + '_ {
    type Value = f32;

    fn numel(&self) -> u64 {
        self.len() / 4
    }

    fn grain(&self) -> u64 {
        View::grain(self) / 4
    }

    fn read(&self, first: u64, len: u64, buf: &mut Vec<f32>) -> Result<()> {
        buf.resize(len as usize, 0.0);
        self.read_at(first * 4, bytemuck::cast_slice_mut(buf))
    }
}

/// Stored elements that binary32 would round, overflow or flush to zero. Integers that binary64
/// cannot hold are rounded to it.
pub struct Wide {
    raw: SharedView,
    dtype: Dtype,
}

impl Wide {
    /// The elements of `raw`; `None` for a dtype that binary32 holds, and for C64.
    pub fn of(raw: SharedView, dtype: Dtype) -> Option<Wide> {
        let is_wide = dtype.has_f32() && !dtype.exact_in_f32();
        is_wide.then_some(Wide { raw, dtype })
    }

    fn width(&self) -> u64 {
        u64::from(self.dtype.bits() / 8)
    }
}

impl Values for Wide {
    type Value = f64;

    fn numel(&self) -> u64 {
        self.raw.len() / self.width()
    }

    fn grain(&self) -> u64 {
        1
    }

    fn read(&self, first: u64, len: u64, buf: &mut Vec<f64>) -> Result<()> {
        buf.resize(len as usize, 0.0);
        let at = first * self.width();
        match self.dtype {
            Dtype::I32 => self.decode(at, buf, |e| i32::from_le_bytes(e).into()),
            Dtype::U32 => self.decode(at, buf, |e| u32::from_le_bytes(e).into()),
            Dtype::I64 => self.decode(at, buf, |e| i64::from_le_bytes(e) as f64),
            Dtype::U64 => self.decode(at, buf, |e| u64::from_le_bytes(e) as f64),
            // F64, as it is stored.
            _ => self.raw.read_at(at, bytemuck::cast_slice_mut(buf)),
        }
    }
}

impl Wide {
    fn decode<const W: usize>(
        &self,
        at: u64,
        out: &mut [f64],
        decode: impl Fn([u8; W]) -> f64,
    ) -> Result<()> {
        let mut bytes = Scratch::<u8>::take(out.len() * W);
        self.raw.read_at(at, &mut bytes)?;
        for (o, &e) in out.iter_mut().zip(bytes.as_chunks::<W>().0) {
            *o = decode(e);
        }
        Ok(())
    }
}
