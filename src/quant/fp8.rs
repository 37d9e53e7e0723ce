//! FP8 in all its variants (transformers, DeepSeek, compressed-tensors, ModelOpt, fbgemm): F8 codes
//! under the weight's own name, each multiplied by the scale of its block, row or tensor. Also
//! DeepSeek-V4's experts: pairs of FP4 codes in I8, with a scale for every 32.
//!
//! value = widen(code) · widen(scale), one rounding. A scale with "inv" in its name is a factor,
//! too: the name is historical, and nothing is divided by it. U8 scales are E8M0 exponents.
//!
//! Sources: huggingface/transformers `integrations/finegrained_fp8.py`; deepseek-ai/DeepSeek-V3
//! `inference/fp8_cast_bf16.py`; vllm-project/compressed-tensors `compressors/`;
//! NVIDIA/TensorRT-Model-Optimizer `modelopt/torch/export/quant_utils.py`.

use std::sync::Arc;

use super::declared::Kind;
use super::module::{Module, Part};
use super::parts::{scale_component, scale_dtype, unpacked_pairs, weight_component};
use super::scale_grid::ScaleGrid;
use super::scaled::{Extra, ScaledKernel};
use super::{Format, Layer, Opened, Recognized, Recognizer, Target};
use crate::catalog::TensorRef;
use crate::dtype::Dtype;
use crate::reason::{Reason, reason};

/// The format described above.
pub struct Fp8;

/// The names that the scale of `X.weight` may have, in the order in which they are tried.
const SCALES: [&str; 4] = ["weight_scale_inv", "weight_scale", "scale", "qscale_weight"];
/// The same for FP4 pairs.
const PAIR_SCALES: [&str; 2] = ["weight_scale_inv", "scale"];
/// Values for each scale of FP4 pairs.
const PAIR_GROUP: u64 = 32;

impl Format for Fp8 {
    fn open<'a>(&self, opened: &'a Opened<'a>) -> Option<Box<dyn Recognizer + 'a>> {
        let some = opened.has(|dtype| dtype.is_f8() || dtype == Dtype::I8);
        some.then(|| Box::new(Fp8Recognizer(opened)) as Box<dyn Recognizer + 'a>)
    }

    fn siblings(&self) -> &'static [&'static str] {
        &["weight_scale", "weight_scale_inv"]
    }
}

struct Fp8Recognizer<'a>(&'a Opened<'a>);

/// A weight that may be in this format, and its scale, if there is one.
struct Weight<'a> {
    module: Module<'a>,
    scale: Option<Scale<'a>>,
}

/// A scale and the last component of its name.
type Scale<'a> = (Part<'a>, &'static str);

/// The codes of a layer.
struct Codes {
    dtype: Dtype,
    /// As it appears in [`Layer::compatible`].
    name: String,
    /// The shape of the values.
    shape: Box<[u64]>,
    numel: u64,
    group_size: Option<u64>,
}

impl Recognizer for Fp8Recognizer<'_> {
    fn recognize(&self, index: u32, tensor: TensorRef<'_>) -> Option<Recognized> {
        let dtype = tensor.dtype.known()?;
        if dtype.is_f8() {
            let found = self.find(tensor, &SCALES)?;
            self.f8(index, tensor, dtype, &found)
        } else if dtype == Dtype::I8 && self.0.declared().is_fp8_method() {
            let found = self.find(tensor, &PAIR_SCALES)?;
            self.pairs(index, tensor, &found)
        } else {
            None
        }
    }
}

impl Fp8Recognizer<'_> {
    fn find<'t>(&'t self, tensor: TensorRef<'t>, scales: &[&'static str]) -> Option<Weight<'t>> {
        let module = Module::of_weight(self.0.listing, tensor.name)?;
        let scale = scales.iter().find_map(|s| Some((module.part(s)?, *s)));
        Some(Weight { module, scale })
    }

    fn f8(
        &self,
        index: u32,
        tensor: TensorRef<'_>,
        dtype: Dtype,
        found: &Weight<'_>,
    ) -> Option<Recognized> {
        let (path, matrix) = (found.module.path(), tensor.shape.len() == 2);
        let outcome = match found.scale {
            Some(scale) => self.scaled(index, tensor, dtype, path, scale),
            // Not quantized, or the model is not FP8 at all: plain numbers.
            None if self.0.declared().kind(path, matrix) != Some(Kind::Fp8) => return None,
            None => Err(self.no_scale(found, &SCALES)),
        };
        Some(recognized("fp8", index, found, None, outcome))
    }

    fn scaled(
        &self,
        index: u32,
        tensor: TensorRef<'_>,
        dtype: Dtype,
        path: &str,
        scale: Scale<'_>,
    ) -> Result<Layer, Reason> {
        let shape = tensor.shape;
        scale_dtype(scale.0.tensor)?;
        let scales = scale.0;
        let grid = ScaleGrid::find(shape, scales.shape, || {
            self.0.declared().block(path, shape.len() == 2)
        })?;
        let codes = Codes {
            dtype,
            name: dtype.to_string(),
            shape: (*shape).into(),
            numel: tensor.numel(),
            group_size: grid.group_size(),
        };
        self.layer(index, codes, grid, scale)
    }

    /// FP4 pairs in I8.
    fn pairs(&self, index: u32, tensor: TensorRef<'_>, found: &Weight<'_>) -> Option<Recognized> {
        let path = found.module.path();
        let outcome = match found.scale {
            Some(scale) => self.scaled_pairs(index, tensor, scale),
            // Only experts are such pairs; any other I8 tensor is plain.
            None if !path.contains("experts.")
                || !self.0.declared().has_fp4_experts()
                || self.0.declared().kind(path, true).is_none() =>
            {
                return None;
            }
            None => Err(self.no_scale(found, &PAIR_SCALES)),
        };
        let values = tensor.numel().checked_mul(2);
        Some(recognized("fp4", index, found, values, outcome))
    }

    fn scaled_pairs(
        &self,
        index: u32,
        tensor: TensorRef<'_>,
        scale: Scale<'_>,
    ) -> Result<Layer, Reason> {
        scale_dtype(scale.0.tensor)?;
        let scales = scale.0;
        let (shape, numel) = unpacked_pairs(tensor.shape)?;
        let grid = ScaleGrid::groups(&shape, scales.shape, PAIR_GROUP)?;
        let codes = Codes {
            dtype: Dtype::F4,
            name: "FP4 pairs".into(),
            shape: shape.into(),
            numel,
            group_size: Some(PAIR_GROUP),
        };
        self.layer(index, codes, grid, scale)
    }

    fn layer(
        &self,
        index: u32,
        codes: Codes,
        grid: ScaleGrid,
        (scales, suffix): Scale<'_>,
    ) -> Result<Layer, Reason> {
        let scale_dtype = scale_dtype(scales.tensor)?;
        Ok(Layer {
            bits: codes.dtype.bits(),
            group_size: codes.group_size,
            shape: codes.shape,
            exact: scale_dtype == Dtype::F8_E8M0,
            components: vec![
                weight_component(index),
                scale_component(suffix, scales.index, &grid),
            ],
            compatible: format!(
                "{}, {grid}, scales {}, K {}",
                codes.name,
                scales.dtype,
                grid.cols()
            ),
            kernel: Arc::new(ScaledKernel {
                code: codes.dtype,
                scale: scale_dtype,
                grid,
                extra: Extra::None,
                numel: codes.numel,
            }),
        })
    }

    fn no_scale(&self, found: &Weight<'_>, scales: &[&str]) -> Reason {
        reason!(
            "{} declares it quantized, but it has no scale ({}){}",
            self.0.declared().source(),
            found.module.names(scales),
            found.module.elsewhere()
        )
    }
}

fn recognized(
    method: &'static str,
    index: u32,
    found: &Weight<'_>,
    parameters: Option<u64>,
    outcome: Result<Layer, Reason>,
) -> Recognized {
    let scale = found.scale.map(|(part, _)| part.index);
    Recognized {
        method,
        parts: [index].into_iter().chain(scale).collect(),
        target: Target::Anchor,
        parameters,
        outcome: outcome.into(),
    }
}

#[cfg(test)]
mod tests;
