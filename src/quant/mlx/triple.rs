//! The tensors of one layer: what follows from their dtypes and shapes, and the layer that they
//! form.

use std::sync::Arc;

use super::config::{Mode, Settings};
use super::kernel::GroupKernel;
use crate::dtype::{Dtype, numel};
use crate::quant::module::{Module, Part};
use crate::quant::{Component, Join, Layer};
use crate::reason::{Reason, reason};

/// Words and the tensors beside them, not yet checked.
pub(super) struct Triple<'a> {
    pub(super) module: Module<'a>,
    /// `X.weight`: U32.
    pub(super) words: Part<'a>,
    /// `X.scales`.
    pub(super) scales: Option<Part<'a>>,
    /// `X.biases`.
    pub(super) biases: Option<Part<'a>>,
}

/// What follows from the shapes of a layer's tensors.
pub(super) struct Shapes {
    /// Whether scales and biases are floats; else the scales are U8 and there are no biases.
    pub(super) float: bool,
    /// Bits of a row, 32 per word.
    row_bits: u64,
    /// Groups in a row.
    groups: u64,
    /// Bits of a group's codes: bits · group size.
    pub(super) group_bits: u64,
}

impl Triple<'_> {
    /// The reason for a module that the config exempts although it is quantized.
    pub(super) fn exempt(&self) -> Reason {
        reason!(
            "config.json marks {} as not quantized (false), but it is U32 and has scales",
            self.module.path()
        )
    }

    /// The indexes of the existing tensors, the words first.
    pub(super) fn parts(&self) -> Vec<u32> {
        [Some(self.words), self.scales, self.biases]
            .iter()
            .flatten()
            .map(|part| part.index)
            .collect()
    }

    /// Checks that dtypes and shapes match each other, before any setting is known.
    ///
    /// # Errors
    /// What is missing or does not fit.
    pub(super) fn shapes(&self) -> Result<Shapes, Reason> {
        let (float, scales) = self.dtypes()?;
        let (words, shape) = (self.words.shape, scales.shape);
        let ([lead @ .., w], [scales_lead @ .., groups]) = (words, shape) else {
            return Err(reason!(
                "weight {words:?} and scales {shape:?} need at least two dimensions"
            ));
        };
        if lead.is_empty() || lead != scales_lead {
            return Err(reason!(
                "weight {words:?} and scales {shape:?}: all dimensions but the last must exist and be equal"
            ));
        }
        if let Some(biases) = self.biases
            && biases.shape != shape
        {
            return Err(reason!(
                "scales {shape:?} and biases {:?} differ in shape",
                biases.shape
            ));
        }
        let row_bits = w
            .checked_mul(32)
            .filter(|bits| *groups > 0 && bits.is_multiple_of(*groups))
            .ok_or_else(|| {
                reason!("rows of {w} words (32 bits each) do not divide into {groups} groups")
            })?;
        Ok(Shapes {
            float,
            row_bits,
            groups: *groups,
            group_bits: row_bits / groups,
        })
    }

    /// Whether the scales are floats (and then the biases, too), and the scales.
    fn dtypes(&self) -> Result<(bool, Part<'_>), Reason> {
        let missing = |what: &str| {
            let elsewhere = self.module.elsewhere();
            reason!("{} is missing{elsewhere}", self.module.name(what))
        };
        let scales = self.scales.ok_or_else(|| missing("scales"))?;
        let dtype = &scales.dtype;
        match (is_float(scales), self.biases) {
            (true, None) => Err(missing("biases")),
            (true, Some(biases)) if !is_float(biases) => Err(reason!(
                "{} are {}, need F16, BF16 or F32",
                self.module.name("biases"),
                biases.dtype
            )),
            (true, Some(_)) => Ok((true, scales)),
            (false, _) if !dtype.is(Dtype::U8) => Err(reason!(
                "{} are {dtype}, need F16, BF16, F32 or U8",
                self.module.name("scales")
            )),
            (false, Some(_)) => Err(reason!(
                "{} exist, but U8 scales have no biases",
                self.module.name("biases")
            )),
            (false, None) => Ok((false, scales)),
        }
    }

    /// The layer with these settings.
    ///
    /// # Errors
    /// Settings and shapes do not agree.
    pub(super) fn layer(&self, shapes: &Shapes, settings: Settings) -> Result<Layer, Reason> {
        let Settings {
            mode,
            group_size,
            bits,
        } = settings;
        let Shapes {
            row_bits,
            groups,
            group_bits,
            ..
        } = *shapes;
        if group_size.checked_mul(u64::from(bits)) != Some(group_bits) {
            return Err(reason!(
                "{group_bits} bits in a group ({row_bits} bits per row in {groups} groups), but {bits} bits in groups of {group_size} would be {}",
                u64::from(bits).saturating_mul(group_size)
            ));
        }
        // b·g divides the row's bits, so K consists of whole groups.
        let k = row_bits / u64::from(bits);
        let mut shape = Box::<[u64]>::from(self.words.shape);
        if let Some(last) = shape.last_mut() {
            *last = k;
        }
        let numel = numel(&shape)
            .filter(|n| n.checked_mul(4).is_some())
            .ok_or_else(|| reason!("shape {shape:?} overflows 64 bits"))?;
        let kernel = GroupKernel {
            mode,
            bits,
            group_size: group_size as usize,
            scales: scale_dtype(mode, self.scales),
            biases: self.biases.and_then(|b| b.dtype.known()),
            numel,
        };
        Ok(Layer {
            bits,
            group_size: Some(group_size),
            shape,
            exact: matches!(mode, Mode::Mxfp4 | Mode::Mxfp8),
            components: self.components(),
            compatible: self.compatible(settings, k),
            kernel: Arc::new(kernel),
        })
    }

    fn components(&self) -> Vec<Component> {
        let named = [
            ("weight", Some(self.words)),
            ("scales", self.scales),
            ("biases", self.biases),
        ];
        named
            .into_iter()
            .filter_map(|(suffix, part)| {
                Some(Component {
                    suffix,
                    tensor: part?.index,
                    join: Join::Rows,
                    whole: true,
                })
            })
            .collect()
    }

    fn compatible(&self, settings: Settings, k: u64) -> String {
        let mut text = format!("MLX {settings}, K {k}");
        for (what, part) in [("scales", self.scales), ("biases", self.biases)] {
            if let Some(tensor) = part {
                text.push_str(&format!(", {} {what}", tensor.dtype));
            }
        }
        text
    }
}

fn is_float(tensor: Part<'_>) -> bool {
    let floats = [Dtype::F16, Dtype::BF16, Dtype::F32];
    floats.into_iter().any(|dtype| tensor.dtype.is(dtype))
}

/// The dtype of a layer's scales. MLX stores two kinds of 8-bit floats as U8.
fn scale_dtype(mode: Mode, scales: Option<Part<'_>>) -> Dtype {
    match mode {
        Mode::Affine => scales.and_then(|s| s.dtype.known()).unwrap_or(Dtype::F32),
        Mode::Mxfp4 | Mode::Mxfp8 => Dtype::F8_E8M0,
        Mode::Nvfp4 => Dtype::F8_E4M3,
    }
}
