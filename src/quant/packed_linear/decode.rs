//! Packed codes → binary32, one output at a time.

use std::ops::Range;

use super::geometry::Packing;
use super::groups::{Group, Grouping};
use super::line::Line;
use super::{awq, gptq};
use crate::simd::for_each_cpu;

/// Codes that are unpacked at a time: few enough to stay in the L1 cache together with their
/// groups.
const CHUNK: usize = 512;

/// Buffers for a chunk. They are reused, because clearing them for each run of values would take as
/// long as decoding it.
pub(super) struct Scratch {
    room: [u8; CHUNK],
    groups: [Group; CHUNK],
}

impl Scratch {
    pub fn new() -> Self {
        Scratch {
            room: [0; CHUNK],
            groups: [Group::default(); CHUNK],
        }
    }
}

/// A run of one output's inputs.
pub(super) struct Piece<'a> {
    pub packing: Packing,
    /// The words that hold the output's codes, from input `base` on.
    pub words: &'a [u32],
    pub output: usize,
    pub base: usize,
    /// The inputs wanted.
    pub inputs: Range<usize>,
    pub grouping: &'a Grouping,
    /// The output's groups.
    pub groups: &'a [Group],
}

for_each_cpu! {
    /// Decodes a piece. Every group that it needs must be in range.
    pub(super) fn decode(piece: &Piece<'_>, scratch: &mut Scratch, out: &mut [f32]) {
        match piece.packing {
            Packing::Awq => values(awq::Nibbles::new(piece.words, piece.output), piece, scratch, out),
            Packing::Gptq { bits: 2, .. } => values(gptq::Stream::<2>(piece.words), piece, scratch, out),
            Packing::Gptq { bits: 3, .. } => values(gptq::Stream::<3>(piece.words), piece, scratch, out),
            Packing::Gptq { bits: 4, .. } => values(gptq::Stream::<4>(piece.words), piece, scratch, out),
            Packing::Gptq { .. } => values(gptq::Stream::<8>(piece.words), piece, scratch, out),
        }
    }
}

#[inline(always)]
fn values<L: Line>(line: L, piece: &Piece<'_>, scratch: &mut Scratch, out: &mut [f32]) {
    let Scratch { room, groups } = scratch;
    let (mut at, mut rest) = (piece.inputs.start, out);
    while !rest.is_empty() {
        let skip = (at - piece.base) % 8;
        let count = rest.len().min(CHUNK - skip);
        let (now, later) = rest.split_at_mut(count);
        let holders = line.holders(at - piece.base - skip, &mut room[..skip + count]);
        let holders = &holders[skip..];
        match piece.grouping {
            Grouping::Even(size) => even(line, holders, at, *size, piece.groups, now),
            Grouping::Stored { of, .. } => {
                // Two loops, because the compiler vectorizes the second one by itself.
                for (group, &g) in groups.iter_mut().zip(&of[at..at + count]) {
                    *group = piece.groups[g as usize];
                }
                for ((out, &holder), group) in now.iter_mut().zip(holders).zip(&*groups) {
                    *out = value(line.code(holder), *group);
                }
            }
        }
        at += count;
        rest = later;
    }
}

/// Decodes the inputs from `at` on, in groups of `size`.
#[inline(always)]
fn even<L: Line>(
    line: L,
    mut holders: &[L::Holder],
    mut at: usize,
    size: usize,
    groups: &[Group],
    mut out: &mut [f32],
) {
    while !holders.is_empty() {
        let group = groups[at / size];
        let count = holders.len().min(size - at % size);
        let (these, more) = holders.split_at(count);
        let (now, later) = out.split_at_mut(count);
        for (out, &holder) in now.iter_mut().zip(these) {
            *out = value(line.code(holder), group);
        }
        (holders, out) = (more, later);
        at += count;
    }
}

/// (q - z) · scale: the difference is exact, so there is one rounding.
#[inline(always)]
fn value(code: i32, group: Group) -> f32 {
    (code - group.zero()) as f32 * group.scale()
}
