//! GPTQ and AWQ: a linear layer `X` stored transposed (inputs down, outputs across) as `X.qweight`,
//! `X.scales`, `X.qzeros` and, GPTQ only, `X.g_idx`. It represents the float weight `X.weight`,
//! `[N, K]`: N outputs and K inputs, with the inputs in G groups.
//!
//! `weight[n, k] = f32(q[k, n] - z[g, n]) · f32(scales[g, n])`, g = `g_idx[k]` or k / group size.
//!
//! The files, in the order in which a layer passes through them:
//!
//! | file | question |
//! |---|---|
//! | [`recognize`] | Which tensors form a layer? It uses [`config`] (a little) and [`shapes`]
//! (mostly). |
//! | [`geometry`] | What is known of the layer from headers and configs: all that decoding needs. |
//! | [`kernel`] | Which panels and rows does a read touch? |
//! | [`strips`] | How are columns read from stored rows? |
//! | [`groups`] | Which group does an input belong to, with which scale and zero point? |
//! | [`decode`] | Codes → binary32, one output at a time (`line`). |
//! | [`gptq`], [`awq`] | How are codes and zero points packed? |

use super::{Format, Opened, Recognizer};

mod awq;
mod config;
mod decode;
mod geometry;
mod gptq;
mod groups;
mod kernel;
mod line;
mod recognize;
mod shapes;
mod strips;
#[cfg(test)]
mod tests;

use recognize::PackedLinearRecognizer;

/// GPTQ (v1, v2, and planar for the widths where it is the same) and AWQ (GEMM).
pub struct PackedLinear;

impl Format for PackedLinear {
    fn open<'a>(&self, opened: &'a Opened<'a>) -> Option<Box<dyn Recognizer + 'a>> {
        Some(Box::new(PackedLinearRecognizer::open(opened.listing)?))
    }

    fn remarks(&self, opened: &Opened<'_>) -> Vec<String> {
        let ours = PackedLinearRecognizer::open(opened.listing);
        ours.and_then(|r| r.overruled()).into_iter().collect()
    }

    fn siblings(&self) -> &'static [&'static str] {
        &["scales", "qzeros", "g_idx"]
    }
}
