//! nvfp4-, mxfp4- and mxfp6-pack-quantized: codes of small floats in bytes, low bits first, with a
//! scale for every 16 or 32 values of a row.
//!
//! - nvfp4 (E2M1): s → widen(weight_scale) / weight_global_scale, w → e2m1 × s. Two roundings.
//! - mxfp4 (E2M1), mxfp6 (E2M3): w = value × 2^(code − 127), exact.
//!
//! Layouts: `compressed_tensors/compressors/{nvfp4,mxfp4,mxfp6}`.

use std::sync::{Arc, OnceLock};

use super::Anchor;
use super::decode::{Layout, Numbers, Packing};
use super::rows::{Rows, Shape};
use super::scales::{Scales, Zeros};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::quant::module::Part;
use crate::quant::read::part;
use crate::quant::{Component, Join, Kernel, Layer, Outcome, Recognized};
use crate::reason::{Reason, reason};
use crate::view::{Floats, SharedView};

const GLOBAL: &str = "weight_global_scale";

/// A layer whose words are U8.
pub(super) fn recognize(anchor: &Anchor) -> Recognized {
    let bytes = anchor.tensor.numel();
    let (outcome, bits) = match read(anchor) {
        Ok(layer) => {
            let bits = layer.bits;
            (Outcome::Layer(layer), bits)
        }
        Err(reason) => (Outcome::Damaged(reason), 4),
    };
    let mut found = anchor.found(anchor.siblings(&["weight_scale", GLOBAL]), outcome);
    found.parameters = Some(bytes.saturating_mul(8) / u64::from(bits));
    found
}

fn read(anchor: &Anchor) -> std::result::Result<Layer, Reason> {
    let &[rows, width] = anchor.tensor.shape else {
        return Err(reason!(
            "weight_packed has shape {:?}, needs two dimensions",
            anchor.tensor.shape
        ));
    };
    let elsewhere = anchor.module.elsewhere();
    let scale = anchor
        .sibling("weight_scale")
        .ok_or_else(|| reason!("weight_scale is missing{elsewhere}"))?;
    let &[scale_rows, groups] = scale.tensor.shape else {
        return Err(reason!(
            "weight_scale has shape {:?}, needs two dimensions, [{rows}, groups]",
            scale.tensor.shape
        ));
    };
    if scale_rows != rows {
        return Err(reason!(
            "weight_scale has {scale_rows} rows, weight_packed has {rows}"
        ));
    }
    let global = anchor.sibling(GLOBAL);
    match (scale.tensor.dtype.known(), global) {
        (Some(Dtype::F8_E4M3), Some(global)) => nvfp4(anchor, [rows, width], scale, groups, global),
        (Some(Dtype::F8_E4M3), None) => Err(reason!(
            "{GLOBAL} is missing; the F8_E4M3 weight_scale alone is not enough{elsewhere}"
        )),
        (Some(Dtype::U8 | Dtype::F8_E8M0), None) => mx(anchor, [rows, width], scale, groups),
        (Some(Dtype::U8 | Dtype::F8_E8M0), Some(_)) => Err(reason!(
            "weight_scale is {} as in mxfp4, but there is a {GLOBAL} as in nvfp4; stfs knows no format with both",
            scale.tensor.dtype
        )),
        _ => Err(reason!(
            "weight_scale is {}, needs F8_E4M3 (nvfp4) or U8 or F8_E8M0 (mxfp4, mxfp6)",
            scale.tensor.dtype
        )),
    }
}

fn nvfp4(
    anchor: &Anchor,
    [rows, width]: [u64; 2],
    scale: Part<'_>,
    groups: u64,
    global: Part<'_>,
) -> std::result::Result<Layer, Reason> {
    let columns = width.saturating_mul(2);
    if groups.checked_mul(16) != Some(columns) {
        return Err(reason!(
            "weight_scale has {groups} columns, {columns} values in groups of 16 need {}",
            columns.div_ceil(16)
        ));
    }
    if global.tensor.numel() != 1 {
        return Err(reason!(
            "{GLOBAL} has {} elements, needs 1",
            global.tensor.numel()
        ));
    }
    let global_dtype = global.tensor.dtype.known();
    let global_dtype = global_dtype
        .filter(|d| d.is_plain_float())
        .ok_or_else(|| reason!("{GLOBAL} is {}, needs F32", global.tensor.dtype))?;
    let shape = shape([rows, columns], width, 4, 16, groups);
    let mut components = rows_join(anchor, scale);
    components.push(Component {
        suffix: GLOBAL,
        tensor: global.index,
        join: Join::Never("each part has its own weight_global_scale"),
        whole: true,
    });
    Ok(Layer {
        bits: 4,
        group_size: Some(16),
        shape: [rows, columns].into(),
        exact: false,
        components,
        compatible: format!("nvfp4-pack-quantized, 4 bits, groups of 16, K {columns}"),
        kernel: Arc::new(SmallFloats {
            shape,
            global: Some(global_dtype),
        }),
    })
}

fn mx(
    anchor: &Anchor,
    [rows, width]: [u64; 2],
    scale: Part<'_>,
    groups: u64,
) -> std::result::Result<Layer, Reason> {
    // A group of 32 takes 16 bytes at 4 bits and 24 at 6, so the width decides.
    let bits = match width {
        w if groups.checked_mul(16) == Some(w) => 4,
        w if groups.checked_mul(24) == Some(w) => 6,
        _ => {
            return Err(reason!(
                "weight_packed has rows of {width} bytes; {groups} groups of 32 need {} (mxfp4) or {} (mxfp6)",
                groups.saturating_mul(16),
                groups.saturating_mul(24)
            ));
        }
    };
    let columns = groups
        .checked_mul(32)
        .ok_or_else(|| reason!("{groups} groups of 32 overflow 64 bits"))?;
    Ok(Layer {
        bits,
        group_size: Some(32),
        shape: [rows, columns].into(),
        exact: true,
        components: rows_join(anchor, scale),
        compatible: format!(
            "mxfp{bits}-pack-quantized, {bits} bits, groups of 32, K {columns}, {} scales",
            scale.tensor.dtype
        ),
        kernel: Arc::new(SmallFloats {
            shape: shape([rows, columns], width, bits, 32, groups),
            global: None,
        }),
    })
}

fn shape([rows, columns]: [u64; 2], width: u64, bits: u32, group: u64, groups: u64) -> Shape {
    Shape {
        rows,
        columns,
        row_bytes: width,
        layout: Layout {
            bits,
            packing: Packing::Dense,
        },
        numbers: match bits {
            4 => Numbers::E2m1,
            _ => Numbers::E2m3,
        },
        group,
        row_scales: groups,
    }
}

fn rows_join(anchor: &Anchor, scale: Part<'_>) -> Vec<Component> {
    let rows = |suffix, tensor| Component {
        suffix,
        tensor,
        join: Join::Rows,
        whole: true,
    };
    vec![
        rows("weight_packed", anchor.index),
        rows("weight_scale", scale.index),
    ]
}

/// Parts: words, scales, and for nvfp4 the global scale.
struct SmallFloats {
    shape: Shape,
    /// The global scale's dtype, if there is one.
    global: Option<Dtype>,
}

impl Kernel for SmallFloats {
    fn view(&self, parts: &[SharedView]) -> Result<SharedView> {
        let scales = match self.global {
            // U8 and F8_E8M0 are the same bytes.
            None => Scales::Stored(part(parts, 1)?.clone(), Dtype::F8_E8M0),
            Some(dtype) => Scales::Divided {
                scales: part(parts, 1)?.clone(),
                global: (part(parts, 2)?.clone(), dtype),
                table: OnceLock::new(),
            },
        };
        Ok(Arc::new(Floats(Rows {
            shape: self.shape.clone(),
            words: part(parts, 0)?.clone(),
            scales,
            zeros: Zeros::Symmetric,
            order: None,
        })))
    }
}
