//! The geometry of a layer, from headers and configs: everything that decoding needs to know.

use std::ops::Range;
use std::sync::Arc;

use super::{awq, gptq};
use crate::dtype::Dtype;

/// How codes and zero points are packed into words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Packing {
    Gptq {
        bits: u32,
        /// Whether zero points are stored minus one.
        less_one: bool,
    },
    Awq,
}

impl Packing {
    pub fn name(self) -> &'static str {
        match self {
            Packing::Gptq { .. } => "gptq",
            Packing::Awq => "awq",
        }
    }

    pub fn bits(self) -> u32 {
        match self {
            Packing::Gptq { bits, .. } => bits,
            Packing::Awq => 4,
        }
    }

    /// Inputs per row of `qweight`, rounded up.
    pub fn inputs_a_row(self) -> usize {
        match self {
            Packing::Gptq { bits, .. } => 32usize.div_ceil(bits as usize),
            Packing::Awq => 1,
        }
    }

    /// Rows of `qweight` that hold `inputs`, which begin at a multiple of 32.
    pub fn word_rows(self, inputs: Range<usize>) -> Range<usize> {
        match self {
            Packing::Gptq { bits, .. } => {
                let bits = bits as usize;
                inputs.start * bits / 32..(inputs.end * bits).div_ceil(32)
            }
            Packing::Awq => inputs,
        }
    }

    /// Columns of `qweight` that hold `outputs`, which begin at a multiple of 32.
    pub fn word_columns(self, outputs: Range<usize>) -> Range<usize> {
        match self {
            Packing::Gptq { .. } => outputs,
            Packing::Awq => outputs.start / 8..outputs.end.div_ceil(8),
        }
    }

    /// The column of words that holds output `n`, both counted from the same multiple of 32.
    pub fn line(self, n: usize) -> usize {
        match self {
            Packing::Gptq { .. } => n,
            Packing::Awq => n / 8,
        }
    }

    /// Columns of `qzeros` that hold `outputs`, which begin at a multiple of 32.
    pub fn zero_words(self, outputs: Range<usize>) -> Range<usize> {
        let bits = self.bits() as usize;
        outputs.start * bits / 32..(outputs.end * bits).div_ceil(32)
    }

    /// Unpacks the zero points in a row's words, which it modifies.
    pub fn zeros(self, words: &mut [u32], out: &mut [u8]) {
        match self {
            Packing::Gptq { bits, less_one } => gptq::zeros(bits, less_one, words, out),
            Packing::Awq => awq::zeros(words, out),
        }
    }
}

/// The geometry of one layer.
#[derive(Debug, Clone)]
pub(super) struct Geometry {
    pub packing: Packing,
    /// Outputs.
    pub n: usize,
    /// Inputs.
    pub k: usize,
    pub groups: usize,
    /// Inputs in a group, if there is no `g_idx`.
    pub group_size: usize,
    /// Element type of the scales.
    pub scales: Dtype,
    pub index: Option<GroupIndex>,
}

/// A stored `g_idx` that is not empty.
#[derive(Debug, Clone)]
pub(super) struct GroupIndex {
    pub name: Arc<str>,
    pub dtype: Dtype,
}
