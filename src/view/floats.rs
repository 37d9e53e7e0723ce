//! Computed binary32 values as bytes: what cast and every dequantiser have in common.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use super::View;
use crate::error::Result;

/// Values that can be computed for any range of elements.
pub trait FloatSource: Send + Sync {
    /// How many elements.
    fn numel(&self) -> u64;

    /// Fills `out` with the elements from `first` on. The caller keeps the range inside `numel`.
    ///
    /// # Errors
    /// The source cannot be read, or its contents make values impossible.
    fn fill(&self, first: u64, out: &mut [f32]) -> Result<()>;

    /// How many elements are cheapest to ask for at a time (a row, a tile); 1 if it is no matter.
    fn grain(&self) -> u64 {
        1
    }
}

/// A [`FloatSource`] as a view: little-endian binary32, no header.
pub struct Floats<S>(pub S);

impl<S: FloatSource> View for Floats<S> {
    fn len(&self) -> u64 {
        self.0.numel() * 4
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        // The usual case: whole elements into an aligned buffer, with no copy between.
        if offset.is_multiple_of(4)
            && let Ok(out) = bytemuck::try_cast_slice_mut::<u8, f32>(buf)
        {
            return self.0.fill(offset / 4, out);
        }
        self.read_unaligned(offset, buf)
    }

    fn grain(&self) -> u64 {
        self.0.grain() * 4
    }
}

impl<S: FloatSource> Floats<S> {
    /// Ranges that begin or end inside an element, or a buffer at an odd address: through a buffer
    /// of whole elements.
    fn read_unaligned(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        const CHUNK: u64 = 64 * 1024;
        let end = offset + buf.len() as u64;
        let mut values = vec![0f32; (buf.len() as u64 / 4 + 2).min(CHUNK) as usize];
        let mut at = offset;
        while at < end {
            let first = at / 4;
            let count = (end.div_ceil(4) - first).min(values.len() as u64);
            let values = &mut values[..count as usize];
            self.0.fill(first, values)?;
            let stop = end.min((first + count) * 4);
            let bytes: &[u8] = bytemuck::cast_slice(values);
            let from = (at - first * 4) as usize;
            let n = (stop - at) as usize;
            buf[(at - offset) as usize..][..n].copy_from_slice(&bytes[from..from + n]);
            at = stop;
        }
        Ok(())
    }
}

/// Values that are only cheap to compute a tile at a time, because what is stored runs across the
/// output's rows (GPTQ, AWQ, gpt-oss). A tile is any contiguous run of output elements, usually a
/// band of whole rows.
pub trait TileSource: Send + Sync {
    /// How many elements in all.
    fn numel(&self) -> u64;

    /// Elements in a tile; the last may be shorter.
    fn tile_len(&self) -> u64;

    /// Computes tile `index` (elements `index·tile_len …`) into `out`, which is exactly as long.
    ///
    /// # Errors
    /// As [`FloatSource::fill`].
    fn fill_tile(&self, index: u64, out: &mut [f32]) -> Result<()>;
}

/// A [`TileSource`] with its last few tiles kept, so that a sequential reader, whose requests are
/// smaller than a tile and come from several threads, never has one computed twice.
pub struct Tiled<T> {
    source: T,
    /// Most recently used first. One lock a slot: two readers of the same tile wait for one
    /// computation, readers of different tiles do not wait for each other.
    recent: Mutex<VecDeque<Arc<Slot>>>,
    keep: usize,
}

struct Slot {
    index: u64,
    values: Mutex<Option<Box<[f32]>>>,
}

impl<T: TileSource> Tiled<T> {
    /// Keeps the last `keep` tiles (at least 1) of `source`.
    pub fn new(source: T, keep: usize) -> Self {
        Tiled {
            source,
            recent: Mutex::new(VecDeque::new()),
            keep: keep.max(1),
        }
    }

    /// The slot of a tile, made if it is not there; least recently used ones drop out.
    fn slot(&self, index: u64) -> Arc<Slot> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = match recent.iter().position(|s| s.index == index) {
            Some(i) => recent.remove(i),
            None => None,
        }
        .unwrap_or_else(|| {
            Arc::new(Slot {
                index,
                values: Mutex::new(None),
            })
        });
        recent.push_front(slot.clone());
        recent.truncate(self.keep);
        slot
    }
}

impl<T: TileSource> FloatSource for Tiled<T> {
    fn numel(&self) -> u64 {
        self.source.numel()
    }

    fn fill(&self, first: u64, out: &mut [f32]) -> Result<()> {
        let tile_len = self.source.tile_len();
        let mut done = 0;
        while done < out.len() {
            let at = first + done as u64;
            let index = at / tile_len;
            let start = index * tile_len;
            let len = tile_len.min(self.source.numel() - start) as usize;
            let from = (at - start) as usize;
            let n = (len - from).min(out.len() - done);
            if n == len {
                // A whole tile is asked for: straight to where it is wanted.
                self.source.fill_tile(index, &mut out[done..done + n])?;
            } else {
                let slot = self.slot(index);
                let mut values = slot.values.lock().unwrap_or_else(PoisonError::into_inner);
                if values.is_none() {
                    let mut tile = bytemuck::zeroed_slice_box(len);
                    self.source.fill_tile(index, &mut tile)?;
                    *values = Some(tile);
                }
                if let Some(tile) = values.as_ref() {
                    out[done..done + n].copy_from_slice(&tile[from..from + n]);
                }
            }
            done += n;
        }
        Ok(())
    }

    fn grain(&self) -> u64 {
        self.source.tile_len()
    }
}
