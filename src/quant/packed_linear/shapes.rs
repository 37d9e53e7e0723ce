//! Derives the format of a layer's tensors, and its dimensions, from dtypes and shapes. At most one
//! of the two formats fits: `qweight` has N columns in GPTQ, N/8 in AWQ.

use super::config::{Config, Stored};
use super::geometry::Packing;
use super::{awq, gptq};
use crate::dtype::Dtype;
use crate::quant::g_idx::is_integer;
use crate::quant::module::Part;
use crate::reason::{Reason, reason};

/// A layer's stored tensors.
pub(super) struct Parts<'a> {
    pub words: Part<'a>,
    pub scales: Part<'a>,
    pub zeros: Part<'a>,
    pub index: Option<Part<'a>>,
}

/// The format and dimensions of a layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    pub packing: Packing,
    /// Outputs.
    pub n: u64,
    /// Inputs.
    pub k: u64,
    pub groups: u64,
}

impl Parts<'_> {
    /// Finds the format that the tensors fit.
    ///
    /// # Errors
    /// Why they fit neither, with the dtypes or shapes.
    pub fn fit(&self, config: &Config) -> Result<Shape, Reason> {
        self.check_dtypes()?;
        let matrix = |t: Part<'_>| <[u64; 2]>::try_from(t.shape).ok();
        let fail = |why: String| Err(reason!("{}: {why}", self.shapes()));
        let (Some(words), Some(zeros), Some([groups, n])) =
            (matrix(self.words), matrix(self.zeros), matrix(self.scales))
        else {
            return fail("all three must be matrices".into());
        };
        if n == 0 || groups == 0 {
            return fail("there are no groups or no outputs".into());
        }
        if zeros[0] != groups {
            return fail(format!("qzeros have {} groups, scales {groups}", zeros[0]));
        }
        let (packing, k) = if words[1] == n {
            self.gptq(config, words, zeros, n)?
        } else if n.is_multiple_of(8) && [words[1], zeros[1]] == [n / 8; 2] {
            if let Some(layout) = config.awq_layout {
                return fail(format!(
                    "the config's AWQ layout is '{layout}'; only 'gemm' is decoded"
                ));
            }
            (Packing::Awq, awq::fit(words, groups)?)
        } else {
            let hint = config.awq_layout.map_or_else(String::new, |layout| {
                format!("; the config's AWQ layout '{layout}' is not decoded")
            });
            return fail(format!(
                "with {n} outputs, qweight has {n} columns in GPTQ; in AWQ it and qzeros have {n}/8{hint}"
            ));
        };
        Ok(Shape {
            packing,
            n,
            k,
            groups,
        })
    }

    fn shapes(&self) -> String {
        format!(
            "qweight {:?}, qzeros {:?}, scales {:?}",
            self.words.shape, self.zeros.shape, self.scales.shape
        )
    }

    fn check_dtypes(&self) -> Result<(), Reason> {
        let (words, zeros, scales) = (self.words, self.zeros, self.scales);
        let known = words.dtype.known();
        if !matches!(known, Some(Dtype::I32 | Dtype::U32)) {
            return Err(match known.is_some_and(is_integer) {
                true => reason!(
                    "qweight is {} {:?}: only words of 32 bits are decoded (not pack_dtype int8, int16 or int64, nor AWQ's gemv_fast)",
                    words.dtype,
                    words.shape
                ),
                false => reason!("qweight is {}, not integers", words.dtype),
            });
        }
        if zeros.dtype != words.dtype {
            return Err(reason!(
                "qzeros are {}, qweight is {}: both must be the same integers",
                zeros.dtype,
                words.dtype
            ));
        }
        match scales.dtype.known() {
            Some(Dtype::F16 | Dtype::BF16 | Dtype::F32) => Ok(()),
            _ => Err(reason!("scales are {}, not F16, BF16 or F32", scales.dtype)),
        }
    }

    fn gptq(
        &self,
        config: &Config,
        words: [u64; 2],
        zeros: [u64; 2],
        n: u64,
    ) -> Result<(Packing, u64), Reason> {
        let (bits, k) = gptq::fit(words, zeros, n)?;
        self.refuse_gemv(config, words, zeros)?;
        let less_one = match &config.stored {
            Stored::Planar if bits == 3 => {
                return Err(
                    "format gptq_p with 3 bits stores bit planes, which are not decoded; 2, 4 and 8 bits are".into(),
                );
            }
            Stored::AsIs | Stored::Planar => false,
            Stored::LessOne | Stored::Refused { .. } => true,
        };
        Ok((Packing::Gptq { bits, less_one }, k))
    }

    /// AWQ's `gemv` layout (`qweight` `[N, K/8]`, `qzeros` `[N, w]`, `scales` `[N, 8w]`, padded)
    /// can look like 4-bit GPTQ with groups of 8 at a few sizes, but never has a `g_idx`.
    fn refuse_gemv(&self, config: &Config, words: [u64; 2], zeros: [u64; 2]) -> Result<(), Reason> {
        if self.index.is_some() || config.says_gptq() {
            return Ok(());
        }
        // Columns of qzeros for a group size, as AutoAWQ's `calculate_zeros_width` pads them.
        let k = words[1].saturating_mul(8);
        let width = |size: u64, unit: u64| (k / size).div_ceil(8).next_multiple_of(unit);
        let widths = [width(128, 1), width(64, 2), width(32, 4)];
        let twins = words[0] == zeros[0]
            && words[0] > 1
            && words[1] == zeros[1].saturating_mul(8)
            && widths.contains(&zeros[1]);
        if config.awq_layout.is_none() && !twins {
            return Ok(());
        }
        Err(reason!(
            "{}: may be AWQ's gemv layout, which is not decoded; if they are GPTQ's, state quant_method 'gptq' in the config",
            self.shapes()
        ))
    }
}
