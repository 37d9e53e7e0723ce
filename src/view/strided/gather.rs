//! Reads a part of the output: strips of the source, as wide as it has use for, which are put in order in
//! memory.

use std::ops::Range;

use super::form::{Form, Part};
use super::turn::{self, Axis};
use crate::error::Result;
use crate::view::{Scratch, View};

/// Gaps of up to this many bytes are read rather than skipped: a `pread` from the page cache costs about
/// 0.3 µs, as much as copying this.
pub(super) const GAP: u64 = 2 << 10;
/// Bytes of the source that are put in order at a time: they stay in the L2 cache.
const SCRATCH: u64 = 512 << 10;
/// A strip is no longer than this if strips of many rows must be at hand to write a row's elements. A
/// `pread` of it costs little more than its copy, and 64 of them are at hand.
const STRIP: u64 = 8 << 10;
/// Runs of at least this many bytes are read into their place.
const LONG_RUN: u64 = 2 << 10;
/// How many strips are announced at a time.
const ANNOUNCED: usize = 4096;

/// How a part is read: in blocks, which have some indexes of each dimension.
struct Blocks<'a> {
    form: &'a Form,
    part: &'a Part,
    /// Indexes of each dimension that a block has.
    sizes: Box<[u64]>,
    /// The dimension whose indexes a block reads one by one.
    apart: Option<usize>,
    /// Dimensions by their distance in the source, the nearest first.
    order: Box<[usize]>,
}

/// A block of a part.
struct Block {
    /// First byte in the source.
    from: u64,
    /// First byte in the part.
    to: u64,
    sizes: Box<[u64]>,
}

/// What one `pread` of a part of those sizes covers, if gaps up to `gap` are read: for each dimension
/// whether it covers all of it, and the bytes.
pub(super) fn strip(form: &Form, sizes: &[u64], gap: u64) -> (Box<[bool]>, u64) {
    let mut covered: Box<[bool]> = sizes.iter().map(|&size| size == 1).collect();
    let mut span = form.element;
    for i in by_distance(form) {
        let (dim, size) = (form.dims[i], sizes[i]);
        if size > 1 && dim.from <= span + gap {
            covered[i] = true;
            span += (size - 1) * dim.from;
        }
    }
    (covered, span)
}

fn by_distance(form: &Form) -> Box<[usize]> {
    let mut order: Box<[usize]> = (0..form.dims.len()).collect();
    order.sort_by_key(|&i| form.dims[i].from);
    order
}

impl<'a> Blocks<'a> {
    fn of(form: &'a Form, part: &'a Part, gap: u64) -> Blocks<'a> {
        let order = by_distance(form);
        let mut sizes: Box<[u64]> = vec![1; order.len()].into();
        let inner = (0..order.len()).rfind(|&i| part.sizes[i] > 1);
        let mut span = form.element;
        for &i in &order {
            let (dim, wanted) = (form.dims[i], part.sizes[i]);
            if wanted == 1 {
                continue;
            }
            if dim.from == 0 {
                sizes[i] = wanted;
                continue;
            }
            let has_rows = inner.is_none_or(|inner| inner == i || sizes[inner] > 1);
            let most = if has_rows { SCRATCH } else { STRIP };
            if dim.from > span + gap || span >= most {
                break;
            }
            sizes[i] = wanted.min((most - span) / dim.from + 1);
            span += (sizes[i] - 1) * dim.from;
            if sizes[i] < wanted {
                break;
            }
        }
        // The elements of a row are read one by one, with those of other rows.
        let apart = inner.filter(|&inner| sizes[inner] == 1);
        if let Some(inner) = apart {
            sizes[inner] = part.sizes[inner].min(SCRATCH / pitch(span)).max(1);
        }
        Blocks {
            form,
            part,
            sizes,
            apart,
            order,
        }
    }

    /// All blocks, in the order of the source as far as it has one.
    fn iter(&self) -> impl Iterator<Item = Block> + '_ {
        let mut next = Some(vec![0; self.sizes.len()]);
        std::iter::from_fn(move || {
            let mut index = next.take()?;
            let block = self.block(&index);
            for &i in &self.order {
                index[i] += self.sizes[i];
                if index[i] < self.part.sizes[i] {
                    next = Some(index);
                    break;
                }
                index[i] = 0;
            }
            Some(block)
        })
    }

    fn block(&self, index: &[u64]) -> Block {
        let (mut from, mut to) = (self.part.from, 0);
        for (dim, &i) in self.form.dims.iter().zip(index) {
            from += i * dim.from;
            to += i * dim.to;
        }
        let left = self.part.sizes.iter().zip(index).map(|(&n, &i)| n - i);
        let sizes = left.zip(&self.sizes).map(|(left, &size)| size.min(left));
        Block {
            from,
            to,
            sizes: sizes.collect(),
        }
    }

    /// Bytes that one `pread` of a block covers.
    fn span(&self, block: &Block) -> u64 {
        let mut sizes = block.sizes.clone();
        if let Some(apart) = self.apart {
            sizes[apart] = 1;
        }
        self.form.span(&sizes)
    }

    /// The strips of a block: each is one `pread`.
    fn strips(&self, block: &Block) -> impl Iterator<Item = Range<u64>> + use<> {
        let span = self.span(block);
        let (count, distance) = match self.apart {
            Some(apart) => (block.sizes[apart], self.form.dims[apart].from),
            None => (1, 0),
        };
        let first = block.from;
        (0..count).map(move |i| {
            let at = first + i * distance;
            at..at + span
        })
    }

    /// Reads a block, and puts it into the part's bytes.
    fn read(&self, block: &Block, source: &dyn View, out: &mut [u8]) -> Result<()> {
        let Some(out) = out.get_mut(block.to as usize..) else {
            return Ok(());
        };
        let span = self.span(block);
        let apart = match self.apart {
            Some(_) => pitch(span),
            None => span,
        };
        let strips = self.strips(block);
        let count = self.apart.map_or(1, |i| block.sizes[i]);
        let mut scratch = Scratch::<u8>::take((count * apart) as usize);
        for (strip, to) in strips.zip(scratch.chunks_exact_mut(apart as usize)) {
            source.read_at(strip.start, &mut to[..span as usize])?;
        }
        let axis = |(i, dim): (usize, &super::form::Dim)| Axis {
            size: block.sizes[i] as usize,
            from: if self.apart == Some(i) {
                apart
            } else {
                dim.from
            } as usize,
            to: dim.to as usize,
        };
        let axes: Vec<Axis> = self.form.dims.iter().enumerate().map(axis).collect();
        turn::copy(&scratch, out, &axes, self.form.element as usize);
        Ok(())
    }
}

/// Where the next of several strips of `span` bytes begins in memory: never a large power of two apart, so
/// that the same column of many strips does not compete for one set of the cache.
fn pitch(span: u64) -> u64 {
    span.next_multiple_of(64) + 64
}

/// Fills `out` with a part of the output.
///
/// # Errors
/// The source cannot be read.
pub(super) fn read(
    form: &Form,
    part: &Part,
    gap: u64,
    source: &dyn View,
    out: &mut [u8],
) -> Result<()> {
    if let Some(run) = long_run(form, part, gap) {
        return read_runs(form, part, run, source, out);
    }
    let blocks = Blocks::of(form, part, gap);
    let mut announced = blocks.iter();
    let mut all = blocks.iter().peekable();
    while all.peek().is_some() {
        let mut ranges = Vec::new();
        let mut count = 0;
        while ranges.len() < ANNOUNCED
            && let Some(block) = announced.next()
        {
            ranges.extend(blocks.strips(&block));
            count += 1;
        }
        announce(source, &ranges);
        for block in all.by_ref().take(count) {
            blocks.read(&block, source, out)?;
        }
    }
    Ok(())
}

/// Announces more than one range.
fn announce(source: &dyn View, ranges: &[Range<u64>]) {
    if ranges.len() > 1 {
        source.will_need(ranges);
    }
}

/// The length of a part's runs, if each is worth a `pread` into its place.
fn long_run(form: &Form, part: &Part, gap: u64) -> Option<u64> {
    let (inner, &size) = form.dims.last().zip(part.sizes.last())?;
    let run = size * form.element;
    let is_alone = || strip(form, &part.sizes, gap).1 == run;
    (inner.from == form.element && size > 1 && (run >= LONG_RUN || run >= 64 && is_alone()))
        .then_some(run)
}

fn read_runs(form: &Form, part: &Part, run: u64, source: &dyn View, out: &mut [u8]) -> Result<()> {
    let runs = || {
        let starts = (0..part.len / run).map(|i| form.place(part.to + i * run));
        starts.map(|at| at..at + run)
    };
    let mut outs = out.chunks_exact_mut(run as usize);
    let mut left = runs();
    loop {
        let ranges: Vec<_> = left.by_ref().take(ANNOUNCED).collect();
        if ranges.is_empty() {
            return Ok(());
        }
        announce(source, &ranges);
        for (range, out) in ranges.iter().zip(outs.by_ref()) {
            source.read_at(range.start, out)?;
        }
    }
}

/// The first ranges of the source that a part needs, at most `most`.
pub(super) fn ranges(form: &Form, part: &Part, gap: u64, most: usize) -> Vec<Range<u64>> {
    let blocks = Blocks::of(form, part, gap);
    let strips = blocks.iter().flat_map(|block| blocks.strips(&block));
    strips.take(most).collect()
}
