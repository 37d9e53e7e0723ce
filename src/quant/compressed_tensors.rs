//! compressed-tensors: layers of vLLM's `compressed-tensors` library whose packed words are called
//! `X.weight_packed`. The values appear as `X.weight`.
//!
//! | words | scales | format | file |
//! |---|---|---|---|
//! | I32 | F16, BF16, F32; `weight_shape` | pack-quantized | `pack` |
//! | U8 | F8_E4M3, `weight_global_scale` | nvfp4-pack-quantized | `small_floats` |
//! | U8 | U8 or F8_E8M0 | mxfp4-pack-quantized, mxfp6-pack-quantized | `small_floats` |
//!
//! The library's formats that keep the name `X.weight` (FP8, int8) are handled by other files here,
//! which use [`config`]. Layouts: `compressed_tensors/compressors/*` of
//! `vllm-project/compressed-tensors`.

use self::config::Scheme;
use super::module::{Module, Part};
use super::{Format, Opened, Outcome, Recognized, Recognizer, Target};
use crate::catalog::TensorRef;
use crate::dtype::Dtype;
use crate::reason::reason;

pub mod config;
mod decode;
mod header;
mod pack;
mod rows;
mod scales;
mod small_floats;
mod targets;
#[cfg(test)]
mod tests;

/// The method's name in `meta.json`, as `quant_method` has it.
const METHOD: &str = "compressed-tensors";

/// Formats that stfs knows, here or as `X.weight`, and two that store plain weights. The tensors
/// decide which of them applies. A config that names any other format describes tensors that stfs
/// cannot read, however familiar they look.
const KNOWN: &[&str] = &[
    "pack-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp6-pack-quantized",
    "mxfp8-quantized",
    "float-quantized",
    "int-quantized",
    "naive-quantized",
    "dense",
    "fakequant",
];

/// Siblings that distinguish `X.weight_packed` from a tensor that merely has that name.
const SIBLINGS: &[&str] = &[
    "weight_scale",
    "weight_shape",
    "weight_global_scale",
    "weight_zero_point",
    "scale_packed",
];

/// The formats of compressed-tensors that pack weights under other names.
pub struct CompressedTensors;

impl Format for CompressedTensors {
    fn open<'a>(&self, opened: &'a Opened<'a>) -> Option<Box<dyn Recognizer + 'a>> {
        Some(Box::new(CompressedTensorsRecognizer(opened)))
    }

    fn remarks(&self, opened: &Opened<'_>) -> Vec<String> {
        opened.declared().notes()
    }

    fn siblings(&self) -> &'static [&'static str] {
        &[
            "weight_scale",
            "weight_zero_point",
            "weight_shape",
            "weight_g_idx",
            "weight_global_scale",
        ]
    }
}

struct CompressedTensorsRecognizer<'a>(&'a Opened<'a>);

/// A tensor that may be a layer's words, and its module.
struct Anchor<'a> {
    module: Module<'a>,
    index: u32,
    tensor: TensorRef<'a>,
}

impl<'a> Anchor<'a> {
    fn sibling(&self, last: &str) -> Option<Part<'a>> {
        self.module.part(last)
    }

    /// The siblings that exist among these names.
    fn siblings(&self, lasts: &[&str]) -> impl Iterator<Item = u32> {
        self.module.indexes(lasts)
    }

    /// Makes the result, with the parts besides the anchor.
    fn found(&self, parts: impl IntoIterator<Item = u32>, outcome: Outcome) -> Recognized {
        Recognized {
            method: METHOD,
            parts: std::iter::once(self.index).chain(parts).collect(),
            target: Target::Named(self.module.name("weight")),
            parameters: None,
            outcome,
        }
    }
}

impl Recognizer for CompressedTensorsRecognizer<'_> {
    fn recognize(&self, index: u32, tensor: TensorRef<'_>) -> Option<Recognized> {
        let anchor = |last| {
            Some(Anchor {
                module: Module::of(self.0.listing, tensor.name, last)?,
                index,
                tensor,
            })
        };
        if let Some(anchor) = anchor("weight_packed") {
            self.packed(&anchor)
        } else {
            sparse(&anchor("compressed")?)
        }
    }
}

impl CompressedTensorsRecognizer<'_> {
    fn packed(&self, anchor: &Anchor) -> Option<Recognized> {
        let config = self.0.declared().compressed_tensors();
        if config.is_none() && anchor.siblings(SIBLINGS).next().is_none() {
            return None;
        }
        let matrix = anchor.tensor.shape.len() == 2;
        let scheme = config.map(|c| c.scheme(anchor.module.path(), matrix));
        let words = anchor.tensor.numel();
        let mut found = if let Some(format) = refused(anchor, scheme.as_ref()) {
            let parts = anchor.siblings(&["weight_scale", "scale_packed", "meta"]);
            anchor.found(parts, Outcome::Damaged(format.into()))
        } else {
            match anchor.tensor.dtype.known() {
                Some(Dtype::I32) => pack::recognize(anchor, scheme.and_then(|s| s.weights())),
                Some(Dtype::U8) => small_floats::recognize(anchor),
                _ => anchor.found(
                    anchor.siblings(SIBLINGS),
                    Outcome::Damaged(reason!(
                        "weight_packed is {}, needs I32 words or U8 codes",
                        anchor.tensor.dtype
                    )),
                ),
            }
        };
        if found.parameters.is_none() && anchor.tensor.dtype.is(Dtype::I32) {
            let bits = scheme.and_then(|s| s.weights()?.bits);
            let bits = bits.filter(|b| (1..=8).contains(b)).unwrap_or(4);
            found.parameters = Some(words.saturating_mul(32) / u64::from(bits));
        }
        Some(found)
    }
}

/// The name of a format that stfs does not decode, if that is what this is.
fn refused<'a>(anchor: &Anchor, scheme: Option<&Scheme<'a>>) -> Option<&'a str> {
    // 2:4 sparse, in the order of a GPU kernel. The library can only write it, not read it.
    if anchor.sibling("scale_packed").is_some() {
        return Some("marlin-24");
    }
    scheme?.format.filter(|format| !KNOWN.contains(format))
}

/// Weights stored as their non-zero values and a mask: `X.compressed`, `X.bitmask`, `X.shape`, and
/// with `X.row_offsets` if rows differ in length. (Older files: `X.weight.compressed` …)
fn sparse(anchor: &Anchor) -> Option<Recognized> {
    anchor.sibling("bitmask")?;
    let format = match anchor.sibling("row_offsets") {
        Some(_) => "sparse-bitmask",
        None => "sparse-24-bitmask",
    };
    let parts = anchor.siblings(&["bitmask", "shape", "row_offsets"]);
    let mut found = anchor.found(parts, Outcome::Damaged(format.into()));
    if anchor.module.path().ends_with(".weight") {
        found.target = Target::Named(anchor.module.path().to_string());
    }
    Some(found)
}
