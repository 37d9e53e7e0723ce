//! Stored elements of any type → binary32, in pieces.

use std::ops::Range;
use std::sync::Arc;

use super::scratch::Scratch;
use super::{FloatSource, Floats, SharedView, View};
use crate::dtype::decode::{decode, elements_per_unit};
use crate::dtype::{Block, DecodeBlocks, Dtype, ElementType};
use crate::error::Result;

/// How many stored bytes are read and widened at a time: few enough to stay in the L2 cache between
/// the `pread` and the loop that widens them.
const PIECE: usize = 64 * 1024;

/// The elements of a view of some dtype, as binary32.
pub struct Cast {
    source: SharedView,
    dtype: Dtype,
}

impl Cast {
    /// The `f32` of `source`, whose bytes are elements of `dtype`. For F32 this is `source` itself,
    /// so that even NaN payloads stay. `None` if the type has no real values.
    pub fn view(source: SharedView, dtype: impl Into<ElementType>) -> Option<SharedView> {
        match dtype.into() {
            ElementType::Known(Dtype::F32) => Some(source),
            ElementType::Known(dtype) if dtype.has_f32() => {
                Some(Arc::new(Floats(Cast { source, dtype })))
            }
            ElementType::Block(block) => Some(Arc::new(Floats(Blocks {
                source,
                block,
                decode: block.decode?,
            }))),
            ElementType::Known(_) | ElementType::Opaque(_) | ElementType::Other(_) => None,
        }
    }
}

impl FloatSource for Cast {
    fn numel(&self) -> u64 {
        self.source.len() * 8 / u64::from(self.dtype.bits())
    }

    fn fill(&self, first: u64, out: &mut [f32]) -> Result<()> {
        let per_unit = elements_per_unit(self.dtype);
        let unit_bytes = per_unit * u64::from(self.dtype.bits()) / 8;
        let most = (PIECE as u64 / unit_bytes * per_unit) as usize;
        let mut scratch = Scratch::<u8>::take(PIECE);
        let mut done = 0;
        while done < out.len() {
            let at = first + done as u64;
            let skip = (at % per_unit) as usize;
            let n = (out.len() - done).min(most - skip);
            let start = at / per_unit * unit_bytes;
            let stop = (at + n as u64).div_ceil(per_unit) * unit_bytes;
            let bytes = &mut scratch[..(stop - start) as usize];
            self.source.read_at(start, bytes)?;
            decode(self.dtype, bytes, skip, &mut out[done..done + n]);
            done += n;
        }
        Ok(())
    }

    fn grain(&self) -> u64 {
        (self.source.grain().saturating_mul(8) / u64::from(self.dtype.bits())).max(1)
    }

    fn will_need(&self, elements: &[Range<u64>]) {
        let per_unit = elements_per_unit(self.dtype);
        let size = per_unit * u64::from(self.dtype.bits()) / 8;
        let bytes = elements.iter();
        let bytes = bytes.map(|r| r.start / per_unit * size..r.end.div_ceil(per_unit) * size);
        self.source.will_need(&bytes.collect::<Vec<_>>());
    }

    fn opened(&self) -> Option<SharedView> {
        Cast::view(self.source.opened()?, self.dtype)
    }
}

/// The values of a block type. Blocks are independent, so a read decodes only the blocks that it
/// touches.
struct Blocks {
    source: SharedView,
    block: &'static Block,
    decode: DecodeBlocks,
}

impl Blocks {
    /// Decodes the values from `skip` on of one block.
    fn part(&self, block: &[u8], skip: usize, out: &mut [f32]) {
        let mut values = Scratch::<f32>::take(self.block.elements as usize);
        (self.decode)(block, &mut values);
        out.copy_from_slice(&values[skip..][..out.len()]);
    }

    /// Decodes the values from `skip` on of the first of some blocks, up to any value of the last.
    fn decode(&self, blocks: &[u8], skip: usize, out: &mut [f32]) {
        let (size, elements) = (self.block.bytes as usize, self.block.elements as usize);
        let head = if skip == 0 { 0 } else { elements - skip };
        let (head, rest) = out.split_at_mut(head.min(out.len()));
        let (whole, tail) = rest.split_at_mut(rest.len() / elements * elements);
        let first = usize::from(!head.is_empty());
        if !head.is_empty() {
            self.part(blocks, skip, head);
        }
        (self.decode)(&blocks[first * size..], whole);
        if !tail.is_empty() {
            let last = first + whole.len() / elements;
            self.part(&blocks[last * size..], 0, tail);
        }
    }
}

impl FloatSource for Blocks {
    fn numel(&self) -> u64 {
        self.source.len() / u64::from(self.block.bytes) * u64::from(self.block.elements)
    }

    fn fill(&self, first: u64, out: &mut [f32]) -> Result<()> {
        let (size, elements) = (self.block.bytes as usize, self.block.elements as usize);
        let most = (PIECE / size).max(1) * elements;
        let needed = (out.len().div_ceil(elements) + 1) * size;
        let mut scratch = Scratch::<u8>::take(needed.min(most / elements * size));
        let mut done = 0;
        while done < out.len() {
            let at = first + done as u64;
            let (block, skip) = (at / elements as u64, (at % elements as u64) as usize);
            let n = (out.len() - done).min(most - skip);
            let bytes = &mut scratch[..(skip + n).div_ceil(elements) * size];
            self.source.read_at(block * size as u64, bytes)?;
            self.decode(bytes, skip, &mut out[done..done + n]);
            done += n;
        }
        Ok(())
    }

    fn grain(&self) -> u64 {
        self.block.elements.into()
    }

    fn will_need(&self, elements: &[Range<u64>]) {
        let (size, count) = (u64::from(self.block.bytes), u64::from(self.block.elements));
        let bytes = elements.iter();
        let bytes = bytes.map(|r| r.start / count * size..r.end.div_ceil(count) * size);
        self.source.will_need(&bytes.collect::<Vec<_>>());
    }

    fn opened(&self) -> Option<SharedView> {
        Cast::view(self.source.opened()?, ElementType::Block(self.block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Extent, MemoryStore};
    use crate::dtype::ggml;
    use crate::view::StoredBytes;

    /// Values of a block type over `bytes`, as a view.
    fn values(number: u32, bytes: &[u8]) -> SharedView {
        let store = MemoryStore::new(&[("x", bytes)]);
        let source = StoredBytes(Extent {
            file: store.object("x").unwrap(),
            offset: 0,
            len: bytes.len() as u64,
        });
        let dtype = ggml::from_number(number).unwrap();
        Cast::view(Arc::new(source), dtype).unwrap()
    }

    fn read(view: &dyn View, at: u64, len: usize) -> Vec<u8> {
        // Whole values are read into an aligned buffer without a copy.
        let mut words = vec![0u32; len.div_ceil(4)];
        let buf = &mut bytemuck::cast_slice_mut(&mut words)[..len];
        view.read_at(at, buf).unwrap();
        buf.to_vec()
    }

    #[test]
    fn a_read_within_blocks_has_the_bytes_of_a_read_of_all() {
        // Q8_0, Q4_K and Q2_0: 32, 256 and 64 values. More than one piece of each.
        for (number, size, elements) in [(8, 34, 32), (12, 144, 256), (42, 18, 64)] {
            let blocks = 2 * PIECE / size + 3;
            let mut bytes: Vec<u8> = (0..blocks * size).map(|i| ((i * i) >> 7) as u8).collect();
            for block in bytes.chunks_mut(size) {
                // Finite numbers: NaN would compare as bytes, too, but hide a wrong block.
                (block[1], block[3]) = (0x24, 0x25);
            }
            let view = values(number, &bytes);
            let all = read(&*view, 0, 4 * blocks * elements);
            assert_eq!(view.len(), all.len() as u64);
            assert_eq!(view.grain(), 4 * elements as u64);
            let piece = PIECE / size * elements;
            let edges = [0, 1, elements - 1, elements, elements + 1, 5 * elements - 3];
            let starts = edges.iter().flat_map(|&e| [e, e + piece - elements]);
            for start in starts {
                let lengths = edges.iter().flat_map(|&e| [e, e + piece]);
                for len in lengths.filter(|len| start + len <= blocks * elements) {
                    let got = read(&*view, 4 * start as u64, 4 * len);
                    assert!(
                        got == all[4 * start..][..4 * len],
                        "{number}: {len} from {start}"
                    );
                }
                let odd = read(&*view, 4 * start as u64 + 1, 4 * elements - 3);
                assert!(
                    odd == all[4 * start + 1..][..4 * elements - 3],
                    "{number}: {start}"
                );
            }
        }
    }
}
