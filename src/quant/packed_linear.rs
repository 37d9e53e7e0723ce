//! GPTQ and AWQ: a linear layer `X` stored transposed (inputs down, outputs across) as
//! `X.qweight`, `X.scales`, `X.qzeros` and, GPTQ only, `X.g_idx`. What stands for it is the float
//! weight `X.weight`, `[N, K]`: N outputs, K inputs, in G groups of inputs.
//!
//! `weight[n, k] = f32(q[k, n] - z[g, n]) · f32(scales[g, n])`, g = `g_idx[k]` or k / group size.
//!
//! Shapes decide which of the two it is and every number, per layer; `config` says what little
//! configs are asked. How codes are packed is in [`gptq`] and [`awq`].

use std::ops::Range;
use std::sync::Arc;

use super::{Format, Opened, Recognizer, awq, gptq};
use crate::dtype::Dtype;

mod config;
mod decode;
mod groups;
mod kernel;
mod recognize;
mod shapes;
mod strips;
#[cfg(test)]
mod tests;

pub(super) use decode::Line;
use recognize::Model;

/// GPTQ (v1, v2, planar where it is the same) and AWQ (GEMM).
pub struct PackedLinear;

/// How codes and zero points are packed into words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    Gptq {
        bits: u32,
        /// Zero points are stored less one.
        less_one: bool,
    },
    Awq,
}

impl Packing {
    fn name(self) -> &'static str {
        match self {
            Packing::Gptq { .. } => "gptq",
            Packing::Awq => "awq",
        }
    }

    fn bits(self) -> u32 {
        match self {
            Packing::Gptq { bits, .. } => bits,
            Packing::Awq => 4,
        }
    }

    /// Inputs that a row of `qweight` holds, rounded up.
    fn inputs_a_row(self) -> usize {
        match self {
            Packing::Gptq { bits, .. } => 32usize.div_ceil(bits as usize),
            Packing::Awq => 1,
        }
    }

    /// Rows of `qweight` that hold `inputs`, which begin at a multiple of 32.
    fn word_rows(self, inputs: Range<usize>) -> Range<usize> {
        match self {
            Packing::Gptq { bits, .. } => {
                let bits = bits as usize;
                inputs.start * bits / 32..(inputs.end * bits).div_ceil(32)
            }
            Packing::Awq => inputs,
        }
    }

    /// Columns of `qweight` that hold `outputs`, which begin at a multiple of 32.
    fn word_columns(self, outputs: Range<usize>) -> Range<usize> {
        match self {
            Packing::Gptq { .. } => outputs,
            Packing::Awq => outputs.start / 8..outputs.end.div_ceil(8),
        }
    }

    /// The column of words that holds output `n`, both counted from the same multiple of 32.
    fn line(self, n: usize) -> usize {
        match self {
            Packing::Gptq { .. } => n,
            Packing::Awq => n / 8,
        }
    }

    /// Columns of `qzeros` that hold `outputs`, which begin at a multiple of 32.
    fn zero_words(self, outputs: Range<usize>) -> Range<usize> {
        let bits = self.bits() as usize;
        outputs.start * bits / 32..(outputs.end * bits).div_ceil(32)
    }

    /// The zero points in a row's words, which are changed on the way.
    fn zeros(self, words: &mut [u32], out: &mut [u8]) {
        match self {
            Packing::Gptq { bits, less_one } => gptq::zeros(bits, less_one, words, out),
            Packing::Awq => awq::zeros(words, out),
        }
    }
}

/// All that headers and configs say of one layer.
#[derive(Debug, Clone)]
struct Geometry {
    packing: Packing,
    n: usize,
    k: usize,
    groups: usize,
    /// Inputs a group, where no `g_idx` says it.
    group_size: usize,
    scales: Dtype,
    index: Option<GroupIndex>,
}

/// A stored `g_idx` that is not empty.
#[derive(Debug, Clone)]
struct GroupIndex {
    name: Arc<str>,
    dtype: Dtype,
}

impl Format for PackedLinear {
    fn open<'a>(&self, opened: &'a Opened<'a>) -> Option<Box<dyn Recognizer + 'a>> {
        Some(Box::new(Model::open(opened.catalog)?))
    }

    fn remarks(&self, opened: &Opened<'_>) -> Vec<String> {
        let model = Model::open(opened.catalog);
        model.and_then(|m| m.overruled()).into_iter().collect()
    }

    fn siblings(&self) -> &'static [&'static str] {
        &["scales", "qzeros", "g_idx"]
    }
}
