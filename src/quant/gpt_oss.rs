//! gpt-oss MXFP4: `X_blocks` U8 `[E, N, G, 16]` and `X_scales` U8 `[E, N, G]` represent a parameter
//! `X` `[E, K, N]` with K = 32·G, which is transposed relative to the blocks, as x @ X uses it.
//!
//! Byte j of group t holds columns 32t + 2j (low nibble) and 32t + 2j + 1 (high nibble), E2M1 with
//! an E8M0 scale. Gate and up stay interleaved along N, as in the checkpoints that store `X`
//! itself.
//!
//! Sources: `src/transformers/integrations/mxfp4.py` (`convert_moe_packed_tensors`) and
//! `models/gpt_oss/modeling_gpt_oss.py` of huggingface/transformers; OCP MX v1.0.

use std::sync::Arc;

use super::listing::Listing;
use super::module::Module;
use super::{Format, Layer, Opened, Outcome, Recognized, Recognizer, Target};
use crate::catalog::TensorRef;
use crate::dtype::{Dtype, numel};
use crate::reason::{Reason, reason};

mod kernel;
#[cfg(test)]
mod tests;
mod tile;

use kernel::Experts;

/// Values that share one scale.
const GROUP_SIZE: u64 = 32;
/// Bytes of a group's codes.
const GROUP_BYTES: u64 = 16;

/// gpt-oss's expert weights.
pub struct GptOss;

impl Format for GptOss {
    fn open<'a>(&self, opened: &'a Opened<'a>) -> Option<Box<dyn Recognizer + 'a>> {
        let any = opened.listing.iter().any(|t| parameter(t).is_some());
        any.then(|| Box::new(GptOssRecognizer(opened.listing)) as Box<dyn Recognizer + 'a>)
    }
}

/// The parameter's name, if the tensor's name and dtype are those of blocks.
fn parameter(tensor: TensorRef<'_>) -> Option<&str> {
    let name = tensor.name.strip_suffix("_blocks")?;
    (!name.is_empty() && tensor.dtype.is(Dtype::U8)).then_some(name)
}

struct GptOssRecognizer<'a>(&'a Listing<'a>);

impl Recognizer for GptOssRecognizer<'_> {
    fn recognize(&self, index: u32, tensor: TensorRef<'_>) -> Option<Recognized> {
        let name = parameter(tensor)?;
        let module = Module::at(self.0, name, "_");
        let scales = module.part("scales");
        // Bytes of that name without scales and without the blocks' four dimensions are something
        // else.
        if scales.is_none() && tensor.shape.len() != 4 {
            return None;
        }
        let layer = match scales {
            Some(scales) => layer(name, tensor, scales.tensor),
            None => Err(reason!("{name}_scales is missing{}", module.elsewhere())),
        };
        Some(Recognized {
            method: "mxfp4",
            parts: std::iter::once(index)
                .chain(scales.map(|s| s.index))
                .collect(),
            target: Target::Named(name.into()),
            parameters: tensor.numel().checked_mul(2),
            outcome: layer.map_or_else(Outcome::Damaged, Outcome::Layer),
        })
    }
}

/// The layer of blocks and scales, or why they cannot be decoded.
fn layer(name: &str, blocks: TensorRef<'_>, scales: TensorRef<'_>) -> Result<Layer, Reason> {
    if !scales.dtype.is(Dtype::U8) {
        return Err(reason!("{name}_scales are {}, need U8", scales.dtype));
    }
    let [e, n, groups, GROUP_BYTES] = *blocks.shape else {
        return Err(reason!(
            "{name}_blocks have shape {:?}, need [experts, rows, groups, {GROUP_BYTES}]",
            blocks.shape
        ));
    };
    if *scales.shape != [e, n, groups] {
        return Err(reason!(
            "{name}_scales have shape {:?}, blocks {:?} need {:?}",
            scales.shape,
            blocks.shape,
            [e, n, groups]
        ));
    }
    let overflows = || format!("{name}_blocks {:?} overflow 64 bits", blocks.shape);
    let k = groups.checked_mul(GROUP_SIZE).ok_or_else(overflows)?;
    let shape = [e, k, n];
    numel(&shape)
        .and_then(|n| n.checked_mul(4))
        .ok_or_else(overflows)?;
    Ok(Layer {
        bits: 4,
        group_size: Some(GROUP_SIZE),
        shape: shape.into(),
        exact: true,
        components: Vec::new(),
        compatible: format!("gpt-oss MXFP4, K {k}, N {n}"),
        kernel: Arc::new(Experts::new(e, n, groups)),
    })
}
