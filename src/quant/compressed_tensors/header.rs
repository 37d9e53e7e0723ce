//! Reads a pack-quantized layer's headers and config, and checks them.

use std::sync::Arc;

use super::Anchor;
use super::config::Weights;
use crate::dtype::Dtype;
use crate::quant::module::Part;
use crate::reason::{Reason, reason};

pub(super) const SCALE: &str = "weight_scale";
pub(super) const SHAPE: &str = "weight_shape";
pub(super) const ZERO: &str = "weight_zero_point";
pub(super) const ORDER: &str = "weight_g_idx";

/// What is known of a layer from headers and config.
pub(super) struct Head {
    pub packed: u32,
    /// Rows and words of a row.
    pub size: [u64; 2],
    pub scale: u32,
    pub scale_dtype: Dtype,
    /// There is only one scale. Such layers never join.
    pub scalar: bool,
    pub granularity: Granularity,
    pub shape: u32,
    pub wide_shape: bool,
    pub zeros: Option<ZeroPart>,
    /// `weight_g_idx`: index, name, length.
    pub order: Option<(u32, Arc<str>, u64)>,
    pub bits: Option<u32>,
    pub group_size: Option<u64>,
}

/// What shares a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Granularity {
    Tensor,
    /// The number of groups in a row; 1 means the whole row.
    Groups(u64),
}

/// The zero points.
#[derive(Debug, Clone, Copy)]
pub(super) struct ZeroPart {
    pub tensor: u32,
    /// Rows of words, if they are packed; else each takes one byte.
    pub packed_rows: Option<u64>,
}

impl Head {
    /// Reads them. The error is why the layer cannot be decoded.
    pub fn read(anchor: &Anchor, weights: Option<&Weights>) -> std::result::Result<Head, Reason> {
        let &[n, words] = anchor.tensor.shape else {
            return Err(reason!(
                "weight_packed has shape {:?}, needs two dimensions",
                anchor.tensor.shape
            ));
        };
        let bits = weights.and_then(|w| w.bits);
        if let Some(bits) = bits.filter(|b| !(1..=8).contains(b)) {
            return Err(reason!(
                "the config gives {bits} bits; packed integers have 1 to 8"
            ));
        }
        let elsewhere = anchor.module.elsewhere();
        let need = |suffix: &str| {
            anchor
                .sibling(suffix)
                .ok_or_else(|| reason!("{suffix} is missing{elsewhere}"))
        };
        let scale = need(SCALE)?;
        let (scale_dtype, granularity) = check_scale(scale, n)?;
        let shape = need(SHAPE)?;
        let wide_shape = check_shape(shape)?;
        let zeros = anchor.sibling(ZERO);
        let symmetric = weights.and_then(|w| w.symmetric);
        let zeros = match (symmetric, zeros) {
            (Some(true), _) => None,
            (None, None) => {
                anchor.module.check_has_no(ZERO)?;
                None
            }
            (Some(false), None) => {
                return Err(reason!(
                    "{ZERO} is missing, but the config has symmetric: false{elsewhere}"
                ));
            }
            (_, Some(zeros)) => Some(check_zeros(zeros, scale, granularity)?),
        };
        let order = match anchor.sibling(ORDER) {
            Some(order) if order.tensor.dtype.is(Dtype::I32) && order.tensor.shape.len() == 1 => {
                Some((order.index, order.tensor.name, order.tensor.shape[0]))
            }
            Some(order) => {
                return Err(reason!(
                    "{ORDER} is {} {:?}, needs I32 of one dimension",
                    order.tensor.dtype,
                    order.tensor.shape
                ));
            }
            None => {
                anchor.module.check_has_no(ORDER)?;
                None
            }
        };
        Ok(Head {
            packed: anchor.index,
            size: [n, words],
            scale: scale.index,
            scale_dtype,
            scalar: scale.tensor.numel() == 1,
            granularity,
            shape: shape.index,
            wide_shape,
            zeros,
            order: order.map(|(i, name, n)| (i, name.into(), n)),
            bits,
            group_size: weights.and_then(|w| w.group_size),
        })
    }
}

fn check_scale(scale: Part<'_>, n: u64) -> std::result::Result<(Dtype, Granularity), Reason> {
    let dtype = scale.tensor.dtype.known();
    let dtype = dtype
        .filter(|d| matches!(d, Dtype::F16 | Dtype::BF16 | Dtype::F32))
        .ok_or_else(|| reason!("{SCALE} is {}, needs F16, BF16 or F32", scale.tensor.dtype))?;
    let granularity = match *scale.tensor.shape {
        [rows, groups] if rows == n => Granularity::Groups(groups),
        _ if scale.tensor.numel() == 1 => Granularity::Tensor,
        [rows] if rows == n => Granularity::Groups(1),
        _ => {
            return Err(reason!(
                "{SCALE} has shape {:?}, needs [{n}, groups], [{n}, 1] or [1] beside {n} packed rows",
                scale.tensor.shape
            ));
        }
    };
    Ok((dtype, granularity))
}

/// Checks `weight_shape`. Returns whether it holds 64-bit numbers.
fn check_shape(shape: Part<'_>) -> std::result::Result<bool, Reason> {
    match (shape.tensor.dtype.known(), shape.tensor.numel()) {
        (Some(Dtype::I64), 2) => Ok(true),
        (Some(Dtype::I32), 2) => Ok(false),
        (_, elements) => Err(reason!(
            "{SHAPE} is {} of {elements} elements, needs I64 or I32 of 2",
            shape.tensor.dtype
        )),
    }
}

/// Zero points are packed if there is one for each group or row, and a byte if there is one for the
/// tensor. Releases before 0.8 always stored them as bytes.
fn check_zeros(
    zeros: Part<'_>,
    scale: Part<'_>,
    granularity: Granularity,
) -> std::result::Result<ZeroPart, Reason> {
    let tensor = zeros.index;
    let shape = zeros.tensor.shape;
    match (zeros.tensor.dtype.known(), granularity, shape) {
        (Some(Dtype::I32), Granularity::Groups(groups), &[rows, columns]) if columns == groups => {
            Ok(ZeroPart {
                tensor,
                packed_rows: Some(rows),
            })
        }
        (Some(Dtype::I8), Granularity::Tensor, _) if zeros.tensor.numel() == 1 => Ok(ZeroPart {
            tensor,
            packed_rows: None,
        }),
        (Some(Dtype::I8), Granularity::Groups(_), _) if *shape == *scale.tensor.shape => {
            Ok(ZeroPart {
                tensor,
                packed_rows: None,
            })
        }
        (_, Granularity::Tensor, _) => Err(reason!(
            "{ZERO} is {} {shape:?}, needs I8 of one element beside one scale",
            zeros.tensor.dtype
        )),
        (_, Granularity::Groups(groups), _) => Err(reason!(
            "{ZERO} is {} {shape:?}, needs I32 with {groups} columns, as {SCALE} has",
            zeros.tensor.dtype
        )),
    }
}
