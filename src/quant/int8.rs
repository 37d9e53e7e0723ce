//! Eight-bit integers under the weight's own name: compressed-tensors' `int-quantized` and integer
//! `naive-quantized`, ModelOpt's `W8A16` and `W8A8_SQ_PER_CHANNEL`.
//!
//! value = float(q − z) · widen(scale): the difference is exact, so there is one rounding. The
//! granularity is found as for FP8. Zero points, if there are any, are shaped like the scales.
//!
//! Source: vllm-project/compressed-tensors `compressors/quantized_compressors/`.

use std::sync::Arc;

use super::declared::Kind;
use super::module::{Module, Part};
use super::parts::{scale_component, weight_component};
use super::scale_grid::ScaleGrid;
use super::scaled::{Extra, ScaledKernel};
use super::{Format, Layer, Opened, Recognized, Recognizer, Target};
use crate::catalog::TensorRef;
use crate::dtype::Dtype;
use crate::reason::{Reason, reason};

/// The format described above.
pub struct Int8;

impl Format for Int8 {
    fn open<'a>(&self, opened: &'a Opened<'a>) -> Option<Box<dyn Recognizer + 'a>> {
        let some = opened.has(|dtype| dtype == Dtype::I8);
        some.then(|| Box::new(Int8Recognizer(opened)) as Box<dyn Recognizer + 'a>)
    }

    fn siblings(&self) -> &'static [&'static str] {
        &["weight_scale", "weight_zero_point"]
    }
}

struct Int8Recognizer<'a>(&'a Opened<'a>);

impl Recognizer for Int8Recognizer<'_> {
    fn recognize(&self, index: u32, tensor: TensorRef<'_>) -> Option<Recognized> {
        if !tensor.dtype.is(Dtype::I8) {
            return None;
        }
        let module = Module::of_weight(self.0.listing, tensor.name)?;
        let scale = module.part("weight_scale");
        let zeros = module.part("weight_zero_point");
        if scale.is_none() && zeros.is_none() {
            let kind = self
                .0
                .declared()
                .kind(module.path(), tensor.shape.len() == 2);
            if kind != Some(Kind::Int8) || module.part("SCB").is_some() {
                return None;
            }
        }
        let others = [scale, zeros].into_iter().flatten().map(|part| part.index);
        Some(Recognized {
            method: "int8",
            parts: [index].into_iter().chain(others).collect(),
            target: Target::Anchor,
            parameters: None,
            outcome: self.layer(index, tensor, &module, scale, zeros).into(),
        })
    }
}

impl Int8Recognizer<'_> {
    fn layer(
        &self,
        index: u32,
        tensor: TensorRef<'_>,
        module: &Module<'_>,
        scale: Option<Part<'_>>,
        zeros: Option<Part<'_>>,
    ) -> Result<Layer, Reason> {
        let matrix = tensor.shape.len() == 2;
        let scales = scale.ok_or_else(|| {
            reason!(
                "its scale '{}' is missing{}",
                module.names(&["weight_scale"]),
                module.elsewhere()
            )
        })?;
        let dtype = float_dtype(scales.tensor)?;
        let grid = ScaleGrid::find(tensor.shape, scales.shape, || {
            self.0.declared().block(module.path(), matrix)
        })?;
        let mut components = vec![
            weight_component(index),
            scale_component("weight_scale", scales.index, &grid),
        ];
        match (zeros, self.0.declared().symmetric(module.path(), matrix)) {
            (Some(zeros), _) => {
                check_zeros(zeros.tensor, scales.tensor)?;
                components.push(scale_component("weight_zero_point", zeros.index, &grid));
            }
            (None, None) => module.check_has_no("weight_zero_point")?,
            (None, Some(true)) => {}
            (None, Some(false)) => {
                return Err(reason!(
                    "{} declares it asymmetric, but its zero point '{}' is missing{}",
                    self.0.declared().source(),
                    module.names(&["weight_zero_point"]),
                    module.elsewhere()
                ));
            }
        }
        Ok(Layer {
            bits: 8,
            group_size: grid.group_size(),
            shape: tensor.shape.into(),
            exact: false,
            components,
            compatible: format!("I8, {grid}, scales {dtype}, K {}", grid.cols()),
            kernel: Arc::new(ScaledKernel {
                code: Dtype::I8,
                scale: dtype,
                grid,
                extra: zeros.map_or(Extra::None, |_| Extra::Zeros),
                numel: tensor.numel(),
            }),
        })
    }
}

/// Unlike in FP8, U8 does not mean E8M0 here.
fn float_dtype(scales: TensorRef<'_>) -> Result<Dtype, Reason> {
    match scales.dtype.known() {
        Some(d) if d.is_plain_float() => Ok(d),
        _ => Err(reason!(
            "its scale '{}' is {}, not F16, BF16 or F32",
            scales.name,
            scales.dtype
        )),
    }
}

fn check_zeros(zeros: TensorRef<'_>, scales: TensorRef<'_>) -> Result<(), Reason> {
    if !zeros.dtype.is(Dtype::I8) {
        return Err(reason!(
            "its zero point '{}' is {}, not I8",
            zeros.name,
            zeros.dtype
        ));
    }
    let one = |t: TensorRef<'_>| t.shape.iter().all(|&d| d == 1);
    if zeros.shape != scales.shape && !(one(zeros) && one(scales)) {
        return Err(reason!(
            "its zero points {:?} are not shaped like its scales {:?}",
            zeros.shape,
            scales.shape
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
