//! Bytes → numbers: groups of codes with a scale (and a bias), one after another.
//!
//! A row consists of whole groups without padding, so the whole tensor, whatever its rank, is one
//! sequence of groups: group t has `group_size` values in `group_size · bits / 8` bytes, scale t
//! and bias t.

use std::ops::Range;
use std::sync::Arc;

use super::config::Mode;
use crate::dtype::Dtype;
use crate::dtype::decode::decode;
use crate::error::Result;
use crate::quant::read::part;
use crate::quant::{Kernel, bits, e2m1};
use crate::simd::for_each_cpu;
use crate::view::{FloatSource, Floats, Scratch, SharedView};

/// Values that are decoded at a time: 32 KiB of 4-bit codes, which stay in the L2 cache between the
/// `pread` and the loop that widens them. A multiple of every group size.
const BLOCK: usize = 64 * 1024;

/// The largest group size of any mode.
const MAX_GROUP: usize = 128;

/// How one layer's bytes become numbers.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupKernel {
    pub(super) mode: Mode,
    /// 1, 2, 3, 4, 5, 6 or 8, as the mode allows.
    pub(super) bits: u32,
    /// Values in a group: 16, 32, 64 or 128.
    pub(super) group_size: usize,
    /// The dtype of the scales: a float type, F8_E8M0 or F8_E4M3.
    pub(super) scales: Dtype,
    /// The dtype of the biases, which only affine mode has.
    pub(super) biases: Option<Dtype>,
    /// The number of values.
    pub(super) numel: u64,
}

impl Kernel for GroupKernel {
    fn view(&self, parts: &[SharedView]) -> Result<SharedView> {
        let part = |i| part(parts, i).cloned();
        let biases = match self.biases {
            Some(dtype) => Some((part(2)?, dtype)),
            None => None,
        };
        Ok(Arc::new(Floats(Groups {
            kernel: *self,
            words: part(0)?,
            scales: part(1)?,
            biases,
        })))
    }
}

/// A layer's values, read from its parts.
struct Groups {
    kernel: GroupKernel,
    words: SharedView,
    scales: SharedView,
    biases: Option<(SharedView, Dtype)>,
}

impl FloatSource for Groups {
    fn numel(&self) -> u64 {
        self.kernel.numel
    }

    fn fill(&self, first: u64, out: &mut [f32]) -> Result<()> {
        let group_size = self.kernel.group_size as u64;
        let mut done = 0;
        while done < out.len() {
            let at = first + done as u64;
            let skip = (at % group_size) as usize;
            let n = (out.len() - done).min(BLOCK - skip);
            let groups = at / group_size..(at + n as u64).div_ceil(group_size);
            let fetched = self.fetch(groups)?;
            fetched
                .block(self.kernel)
                .decode(skip, &mut out[done..done + n]);
            done += n;
        }
        Ok(())
    }

    fn grain(&self) -> u64 {
        self.kernel.group_size as u64
    }
}

impl Groups {
    fn fetch(&self, groups: Range<u64>) -> Result<Fetched> {
        let bytes = self.kernel.group_bytes() as u64;
        let mut codes = Scratch::take(((groups.end - groups.start) * bytes) as usize);
        self.words.read_at(groups.start * bytes, &mut codes)?;
        let mut scales = widen(&self.scales, self.kernel.scales, &groups)?;
        let biases = match &self.biases {
            None => Scratch::take(0),
            Some((view, dtype)) => {
                let mut biases = widen(view, *dtype, &groups)?;
                one_nan(&mut scales, &mut biases);
                biases
            }
        };
        Ok(Fetched {
            codes,
            scales,
            biases,
        })
    }
}

/// Some groups' codes, scales and biases.
struct Fetched {
    codes: Scratch<u8>,
    scales: Scratch<f32>,
    biases: Scratch<f32>,
}

impl Fetched {
    fn block(&self, kernel: GroupKernel) -> Block<'_> {
        Block {
            kernel,
            codes: &self.codes,
            scales: &self.scales,
            biases: &self.biases,
        }
    }
}

/// Reads these elements of `view` as binary32.
fn widen(view: &SharedView, dtype: Dtype, elements: &Range<u64>) -> Result<Scratch<f32>> {
    let count = (elements.end - elements.start) as usize;
    let width = dtype.bits() as usize / 8;
    let mut raw = Scratch::<u8>::take(count * width);
    view.read_at(elements.start * width as u64, &mut raw)?;
    let mut values = Scratch::take(count);
    decode(dtype, &raw, 0, &mut values);
    Ok(values)
}

/// If a bias is NaN, makes it and its scale the same NaN. The sum of two NaNs has the bits of
/// either, and which one depends on the instructions that the loop is compiled to.
fn one_nan(scales: &mut [f32], biases: &mut [f32]) {
    for (scale, bias) in scales.iter_mut().zip(biases) {
        if bias.is_nan() {
            (*scale, *bias) = (f32::NAN, f32::NAN);
        }
    }
}

impl GroupKernel {
    /// Bytes that a group's codes take: 4 to 128.
    fn group_bytes(&self) -> usize {
        self.group_size * self.bits as usize / 8
    }
}

/// Some groups that have been read.
#[derive(Clone, Copy)]
struct Block<'s> {
    kernel: GroupKernel,
    codes: &'s [u8],
    scales: &'s [f32],
    /// Empty if the mode has none.
    biases: &'s [f32],
}

impl<'s> Block<'s> {
    /// Decodes the block's values from value `skip` of its first group on.
    fn decode(&self, skip: usize, out: &mut [f32]) {
        let size = self.kernel.group_size;
        let head = if skip == 0 {
            0
        } else {
            (size - skip).min(out.len())
        };
        let (first, rest) = out.split_at_mut(head);
        if head > 0 {
            self.within(0, skip, first);
        }
        let whole = rest.len() / size;
        let (middle, last) = rest.split_at_mut(whole * size);
        let next = usize::from(head > 0);
        self.groups(next..next + whole).values(middle);
        if !last.is_empty() {
            self.within(next + whole, 0, last);
        }
    }

    /// Decodes values inside one group.
    fn within(&self, group: usize, skip: usize, out: &mut [f32]) {
        let mut values = [0.0; MAX_GROUP];
        let values = &mut values[..self.kernel.group_size];
        self.groups(group..group + 1).values(values);
        out.copy_from_slice(&values[skip..skip + out.len()]);
    }

    fn groups(&self, range: Range<usize>) -> Block<'s> {
        let bytes = self.kernel.group_bytes();
        Block {
            kernel: self.kernel,
            codes: &self.codes[range.start * bytes..range.end * bytes],
            scales: &self.scales[range.clone()],
            biases: self.biases.get(range).unwrap_or(&[]),
        }
    }

    /// Iterates over the groups: each one's output and codes, in units of eight values, and its
    /// number.
    #[inline(always)]
    fn each<'o, const B: usize>(
        &'o self,
        out: &'o mut [f32],
    ) -> impl Iterator<Item = (&'o mut [[f32; 8]], &'o [[u8; B]], usize)> {
        let size = self.kernel.group_size;
        let codes = self.codes.chunks_exact(size / 8 * B);
        let groups = out
            .chunks_exact_mut(size)
            .zip(codes)
            .zip(0..self.scales.len());
        groups.map(|((out, codes), group)| (out.as_chunks_mut().0, codes.as_chunks().0, group))
    }

    /// Decodes all values of the block.
    fn values(&self, out: &mut [f32]) {
        match self.kernel.mode {
            Mode::Affine => affine(self, out),
            Mode::Mxfp4 | Mode::Nvfp4 => e2m1(self, out),
            Mode::Mxfp8 => e4m3(self, out),
        }
    }
}

for_each_cpu! {
    /// code · scale + bias: the product is rounded, then the sum.
    fn affine(block: &Block, out: &mut [f32]) {
        match block.kernel.bits {
            1 => affine_of::<1>(block, out),
            2 => affine_of::<2>(block, out),
            3 => affine_of::<3>(block, out),
            4 => affine_of::<4>(block, out),
            5 => affine_of::<5>(block, out),
            6 => affine_of::<6>(block, out),
            _ => affine_of::<8>(block, out),
        }
    }
}

#[inline(always)]
fn affine_of<const B: usize>(block: &Block, out: &mut [f32]) {
    for (out, codes, group) in block.each::<B>(out) {
        let (scale, bias) = (block.scales[group], block.biases[group]);
        for (out, unit) in out.iter_mut().zip(codes) {
            *out = bits::eight::<B>(unit).map(|q| q as i32 as f32 * scale + bias);
        }
    }
}

for_each_cpu! {
    /// E2M1 · scale.
    fn e2m1(block: &Block, out: &mut [f32]) {
        for (out, codes, group) in block.each::<4>(out) {
            let half_scale = block.scales[group] * 0.5;
            for (out, unit) in out.iter_mut().zip(codes) {
                *out = bits::eight::<4>(unit).map(|code| e2m1::doubled(code) * half_scale);
            }
        }
    }
}

/// E4M3 · scale.
fn e4m3(block: &Block, out: &mut [f32]) {
    decode(Dtype::F8_E4M3, block.codes, 0, out);
    for (group, scale) in out
        .chunks_exact_mut(block.kernel.group_size)
        .zip(block.scales)
    {
        for value in group {
            *value *= scale;
        }
    }
}
