//! AWQ's packing in the GEMM layout: `qweight` `[K, N/8]` and `qzeros` `[G, N/8]`, eight 4-bit
//! values of neighboring outputs per word, in the order that its kernel expects.
//!
//! Source: `casper-hansen/AutoAWQ awq/modules/linear/gemm.py`.

use super::line::Line;
use crate::reason::{Reason, reason};

/// Column 8c + m of the matrix is nibble `NIBBLE[m]` of word c.
const NIBBLE: [u32; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The number of inputs, from the shape of `qweight` and the number of groups; or why they are not
/// AWQ's.
pub(super) fn fit(words: [u64; 2], groups: u64) -> Result<u64, Reason> {
    match words[0] {
        0 => Err(reason!("qweight {words:?} holds no inputs")),
        k if k % groups == 0 => Ok(k),
        k => Err(reason!(
            "{k} inputs (qweight {words:?}) in {groups} groups (scales, qzeros): AWQ's groups are equal"
        )),
    }
}

/// Unpacks the zero points in a row's words.
#[inline(always)]
pub(super) fn zeros(words: &[u32], out: &mut [u8]) {
    for (word, out) in words.iter().zip(out.as_chunks_mut::<8>().0) {
        *out = NIBBLE.map(|n| (word >> (4 * n) & 15) as u8);
    }
}

/// The codes of one output: one nibble of each word of a column of words.
#[derive(Clone, Copy)]
pub(super) struct Nibbles<'a> {
    words: &'a [u32],
    shift: u32,
}

impl<'a> Nibbles<'a> {
    /// For output `8c + m`; `words` are those of column c, one per input.
    #[inline(always)]
    pub(super) fn new(words: &'a [u32], m: usize) -> Self {
        Nibbles {
            words,
            shift: 4 * NIBBLE[m % 8],
        }
    }
}

impl Line for Nibbles<'_> {
    type Holder = u32;

    #[inline(always)]
    fn holders<'a>(self, first: usize, room: &'a mut [u8]) -> &'a [u32]
    where
        Self: 'a,
    {
        &self.words[first..][..room.len()]
    }

    #[inline(always)]
    fn code(self, word: u32) -> i32 {
        (word >> self.shift & 15) as i32
    }
}
