//! NVIDIA ModelOpt's four-bit floats under the weight's own name: NVFP4, and MXFP4. (Its FP8 and
//! int8 weights are ordinary ones, which those formats recognize.)
//!
//! A byte of `weight` (U8 `[N, K/2]`) holds the E2M1 codes of an even column in its low nibble and
//! of the next column in its high nibble.
//!
//! - NVFP4: s = widen(`weight_scale`) · `weight_scale_2`, rounded, for every 16 values of a row;
//!   then value = e2m1 · s. The second scale is a factor here, while that of compressed-tensors is
//!   a divisor.
//! - MXFP4: `weight_scale` is E8M0 (U8), for every 32; value = e2m1 · 2^(scale − 127).
//!
//! Source: NVIDIA/TensorRT-Model-Optimizer `modelopt/torch/quantization/qtensor/nvfp4_tensor.py`,
//! `modelopt/torch/export/quant_utils.py`.

use std::sync::Arc;

use super::declared::Kind;
use super::module::{Module, Part};
use super::parts::{scale_component, unpacked_pairs, weight_component};
use super::scale_grid::ScaleGrid;
use super::scaled::{Extra, ScaledKernel};
use super::{Component, Format, Join, Layer, Opened, Recognized, Recognizer, Target};
use crate::catalog::TensorRef;
use crate::dtype::Dtype;
use crate::reason::{Reason, reason};

/// The format described above.
pub struct ModelOpt;

/// Values for each scale.
const NVFP4_GROUP: u64 = 16;
const MXFP4_GROUP: u64 = 32;

const SCALE: &str = "weight_scale";
const SECOND: &str = "weight_scale_2";

impl Format for ModelOpt {
    fn open<'a>(&self, opened: &'a Opened<'a>) -> Option<Box<dyn Recognizer + 'a>> {
        let some = opened.has(|dtype| dtype == Dtype::U8);
        some.then(|| Box::new(ModelOptRecognizer(opened)) as Box<dyn Recognizer + 'a>)
    }

    fn siblings(&self) -> &'static [&'static str] {
        &["weight_scale", "weight_scale_2"]
    }
}

struct ModelOptRecognizer<'a>(&'a Opened<'a>);

/// A weight and its scales.
struct Weight<'a> {
    index: u32,
    tensor: TensorRef<'a>,
    module: Module<'a>,
    scale: Option<Part<'a>>,
    second: Option<Part<'a>>,
}

impl Recognizer for ModelOptRecognizer<'_> {
    fn recognize(&self, index: u32, tensor: TensorRef<'_>) -> Option<Recognized> {
        if !tensor.dtype.is(Dtype::U8) {
            return None;
        }
        let module = Module::of_weight(self.0.listing, tensor.name)?;
        let found = Weight {
            index,
            tensor,
            module,
            scale: module.part(SCALE),
            second: module.part(SECOND),
        };
        let kind = self.kind(&found)?;
        let (method, layer) = match kind {
            Kind::Nvfp4 => ("nvfp4", self.nvfp4(&found)),
            Kind::Mxfp4 => ("mxfp4", self.mxfp4(&found)),
            _ => ("w4a16_awq", Err(awq_reason(&found))),
        };
        let others = [found.scale, found.second];
        let others = others.into_iter().flatten().map(|part| part.index);
        Some(Recognized {
            method,
            parts: [index].into_iter().chain(others).collect(),
            target: Target::Anchor,
            parameters: tensor.numel().checked_mul(2),
            outcome: layer.into(),
        })
    }
}

impl ModelOptRecognizer<'_> {
    /// The kind of a U8 weight, decided by the dtype of its scale, or by the config if it has none.
    fn kind(&self, found: &Weight<'_>) -> Option<Kind> {
        if found.second.is_some() {
            return Some(Kind::Nvfp4);
        }
        let matrix = found.tensor.shape.len() == 2;
        let declared = || self.0.declared().kind(found.module.path(), matrix);
        match found.scale.and_then(|s| s.dtype.known()) {
            Some(Dtype::F8_E4M3) => Some(Kind::Nvfp4),
            Some(Dtype::U8 | Dtype::F8_E8M0) => Some(Kind::Mxfp4),
            _ if found
                .scale
                .is_some_and(|s| is_awq(found.tensor.shape, s.tensor)) =>
            {
                Some(Kind::Awq)
            }
            _ => declared().filter(|k| matches!(k, Kind::Nvfp4 | Kind::Mxfp4 | Kind::Awq)),
        }
    }

    fn nvfp4(&self, found: &Weight<'_>) -> Result<Layer, Reason> {
        let scale = self.scale(found, "F8_E4M3", &[Dtype::F8_E4M3])?;
        let Some(second) = found.second else {
            return Err(self.missing(found, SECOND));
        };
        let factor = match second.dtype.known() {
            Some(d) if d.is_plain_float() && second.shape.iter().all(|&n| n == 1) => d,
            _ => {
                return Err(reason!(
                    "its second scale '{}' is {} {:?}, not one F32",
                    second.name,
                    second.dtype,
                    second.shape
                ));
            }
        };
        let never = Join::Never("each part has a second scale of its own (weight_scale_2)");
        let second = Component {
            suffix: SECOND,
            tensor: second.index,
            join: never,
            whole: true,
        };
        let (shape, values) = unpacked_pairs(found.tensor.shape)?;
        let grid = ScaleGrid::groups(&shape, scale.shape, NVFP4_GROUP)?;
        Ok(Layer {
            bits: 4,
            group_size: Some(NVFP4_GROUP),
            shape: shape.into(),
            exact: false,
            components: vec![
                weight_component(found.index),
                scale_component(SCALE, scale.index, &grid),
                second,
            ],
            compatible: format!("NVFP4, {grid}, K {}", grid.cols()),
            kernel: Arc::new(ScaledKernel {
                code: Dtype::F4,
                scale: Dtype::F8_E4M3,
                grid,
                extra: Extra::ScaleFactor(factor),
                numel: values,
            }),
        })
    }

    fn mxfp4(&self, found: &Weight<'_>) -> Result<Layer, Reason> {
        let scale = self.scale(found, "U8", &[Dtype::U8, Dtype::F8_E8M0])?;
        let (shape, values) = unpacked_pairs(found.tensor.shape)?;
        let grid = ScaleGrid::groups(&shape, scale.shape, MXFP4_GROUP)?;
        Ok(Layer {
            bits: 4,
            group_size: Some(MXFP4_GROUP),
            shape: shape.into(),
            exact: true,
            components: vec![
                weight_component(found.index),
                scale_component(SCALE, scale.index, &grid),
            ],
            compatible: format!("MXFP4, {grid}, K {}", grid.cols()),
            kernel: Arc::new(ScaledKernel {
                code: Dtype::F4,
                scale: Dtype::F8_E8M0,
                grid,
                extra: Extra::None,
                numel: values,
            }),
        })
    }

    /// The scale, if it has one of `dtypes`.
    fn scale<'f>(
        &self,
        found: &Weight<'f>,
        usual: &str,
        dtypes: &[Dtype],
    ) -> Result<Part<'f>, Reason> {
        let scale = found.scale.ok_or_else(|| self.missing(found, SCALE))?;
        match scale.dtype.known() {
            Some(d) if dtypes.contains(&d) => Ok(scale),
            _ => Err(reason!(
                "its scale '{}' is {}, not {usual}",
                scale.name,
                scale.dtype
            )),
        }
    }

    fn missing(&self, found: &Weight<'_>, what: &str) -> Reason {
        reason!(
            "its scale '{}' is missing{}",
            found.module.names(&[what]),
            found.module.elsewhere()
        )
    }
}

/// Whether the shapes are those of ModelOpt's AWQ: a byte holds values of two *rows*, so there are
/// twice as many rows of scales.
fn is_awq(weight: &[u64], scale: TensorRef<'_>) -> bool {
    match (weight, scale.shape) {
        (&[half, k], &[n, groups]) => {
            scale.dtype.known().is_some_and(Dtype::is_plain_float)
                && half.checked_mul(2) == Some(n)
                && groups > 0
                && k.is_multiple_of(groups)
        }
        _ => false,
    }
}

fn awq_reason(found: &Weight<'_>) -> Reason {
    let scale = found.scale.map_or("none".to_string(), |scale| {
        format!("{} {:?}", scale.dtype, scale.shape)
    });
    reason!(
        "ModelOpt's W4A16_AWQ (two rows per byte, weight {:?}, scale {scale}) is not decoded",
        found.tensor.shape
    )
}

#[cfg(test)]
mod tests;
