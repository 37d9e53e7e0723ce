//! pack-quantized: integers of 1 to 8 bits in 32-bit words along the rows, with scales for groups,
//! rows or the whole tensor, and for asymmetric ones zero points packed down the columns.
//!
//! w → float(q − z) × widen(scale), one rounding. Codes are q + 2^(bits−1), zero points likewise.
//!
//! `weight_shape`, which is tensor data, holds how many values a row really has. Together with the
//! number of words in a row it determines how the words are packed: *dense* (a bit stream; since
//! mid-2026 at all widths, before that at 1, 2, 4 and 8 bits) or *padded* (whole values in each
//! word; before mid-2026 at 3, 5, 6 and 7 bits).
//!
//! Layout: `compressed_tensors/compressors/pack_quantized` of the library, and its releases up to
//! 0.12 for the padded words and `weight_g_idx`.

use std::sync::{Arc, OnceLock};

use super::Anchor;
use super::config::Weights;
use super::decode::{Layout, Numbers, Packing};
use super::header::{Granularity, Head, ORDER, SCALE, SHAPE, ZERO, ZeroPart};
use super::rows::{Rows, Shape};
use super::scales::{Order, Scales, Zeros, read_order};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::quant::g_idx::check_inputs;
use crate::quant::read::part;
use crate::quant::{Component, DeferredShape, Join, Kernel, Layer, Outcome, Recognized};
use crate::reason::{Reason, reason};
use crate::view::{Floats, SharedView};

/// The widths that a layer without a config may have, in the order in which they are tried.
const WIDTHS: &[u32] = &[4, 8, 2, 3, 5, 6, 7];

/// A layer whose words are I32. `weights`: what the config declares about it.
pub(super) fn recognize(anchor: &Anchor, weights: Option<&Weights>) -> Recognized {
    match Head::read(anchor, weights) {
        Ok(head) => {
            let mut parts = vec![head.scale, head.shape];
            parts.extend(head.zeros.map(|z| z.tensor));
            parts.extend(head.order.as_ref().map(|o| o.0));
            let deferred = DeferredShape {
                sources: vec![head.shape],
                finish: Box::new(move |data| {
                    let shape = data.first().map_or(&[][..], |d| d);
                    head.layer(shape)
                }),
            };
            anchor.found(parts, Outcome::Deferred(deferred))
        }
        Err(reason) => anchor.found(
            anchor.siblings(&[SCALE, SHAPE, ZERO, ORDER]),
            Outcome::Damaged(reason),
        ),
    }
}

impl Head {
    /// The layer, once `weight_shape`'s bytes are known.
    fn layer(&self, bytes: &[u8]) -> std::result::Result<Layer, Reason> {
        let [n, k] = self.real_shape(bytes)?;
        let layout = self.layout(n, k)?;
        let (group, row_scales) = self.groups(k)?;
        if let Some((_, _, len)) = &self.order
            && *len != k
        {
            return Err(reason!(
                "{ORDER} has {len} elements, {SHAPE} gives {k} columns"
            ));
        }
        if self.order.is_some() {
            check_inputs(ORDER, k)?;
        }
        let group_size = match self.granularity {
            Granularity::Groups(g) if g > 1 || self.group_size == Some(group) => Some(group),
            _ => None,
        };
        Ok(Layer {
            bits: layout.bits,
            group_size,
            shape: [n, k].into(),
            exact: false,
            components: self.components(layout),
            compatible: self.compatible(layout, group, k),
            kernel: Arc::new(Packed {
                shape: Shape {
                    rows: n,
                    columns: k,
                    row_bytes: self.size[1] * 4,
                    layout,
                    numbers: Numbers::Integers,
                    group,
                    row_scales,
                },
                scale_dtype: self.scale_dtype,
                zeros: self.zeros,
                order: self.order.as_ref().map(|o| o.1.clone()),
            }),
        })
    }

    fn real_shape(&self, bytes: &[u8]) -> std::result::Result<[u64; 2], Reason> {
        let numbers: Vec<i64> = match self.wide_shape {
            true => bytes
                .as_chunks()
                .0
                .iter()
                .map(|b| i64::from_le_bytes(*b))
                .collect(),
            false => {
                let words = bytes.as_chunks().0.iter();
                words.map(|b| i64::from(i32::from_le_bytes(*b))).collect()
            }
        };
        let positive = |n: i64| u64::try_from(n).ok().filter(|&n| n > 0);
        let shape = match numbers[..] {
            [n, k] => positive(n).zip(positive(k)),
            _ => None,
        };
        let (n, k) =
            shape.ok_or_else(|| reason!("{SHAPE} is {numbers:?}, needs two positive numbers"))?;
        if n != self.size[0] {
            return Err(reason!(
                "{SHAPE} gives {n} rows, weight_packed has {}",
                self.size[0]
            ));
        }
        Ok([n, k])
    }

    /// The codes' width and packing: the first combination with which rows and zero points have the
    /// right number of words.
    fn layout(&self, n: u64, k: u64) -> std::result::Result<Layout, Reason> {
        let words = self.size[1];
        let widths = match &self.bits {
            Some(bits) => std::slice::from_ref(bits),
            None => WIDTHS,
        };
        let ways = widths.iter().flat_map(|&bits| {
            [Packing::Dense, Packing::Padded].map(|packing| Layout { bits, packing })
        });
        let fitting: Vec<Layout> = ways.filter(|l| l.words(k) == Some(words)).collect();
        let zero_rows = self.zeros.and_then(|z| z.packed_rows);
        let right = fitting
            .iter()
            .find(|l| zero_rows.is_none_or(|rows| l.words(n) == Some(rows)));
        if let Some(layout) = right {
            return Ok(*layout);
        }
        let count = |bits, packing| Layout { bits, packing }.words(k).unwrap_or(u64::MAX);
        Err(match (fitting.first(), self.bits) {
            (Some(layout), _) => reason!(
                "{ZERO} has {} rows, {n} zero points of {} bits need {}",
                zero_rows.unwrap_or(0),
                layout.bits,
                layout.words(n).unwrap_or(u64::MAX)
            ),
            (None, Some(bits)) => reason!(
                "weight_packed has rows of {words} words, {k} values of {bits} bits need {} (dense) or {} (padded)",
                count(bits, Packing::Dense),
                count(bits, Packing::Padded)
            ),
            (None, None) => reason!(
                "weight_packed has rows of {words} words, but {k} values of 2 to 8 bits never need that many"
            ),
        })
    }

    /// The columns that share a scale, and the scales of a row (0: one for the tensor).
    fn groups(&self, k: u64) -> std::result::Result<(u64, u64), Reason> {
        let count = match self.granularity {
            Granularity::Tensor => return Ok((k, 0)),
            Granularity::Groups(count) => count,
        };
        if count == 0 || !k.is_multiple_of(count) {
            return Err(reason!(
                "{SCALE} has {count} groups, which do not divide {k} columns"
            ));
        }
        // Ragged last groups would look like this and be decoded incorrectly.
        match self.group_size {
            Some(size) if count > 1 && size != k / count => Err(reason!(
                "{SCALE} has {count} groups, which makes {} of {k} columns each; the config declares {size}",
                k / count
            )),
            _ => Ok((k / count, count)),
        }
    }

    /// The tensors that fuse. `weight_shape` is left out on purpose: words, scales and zero points
    /// are enough to read the joined rows, and no file holds the fused shape. So a fused layer has
    /// no `weight_shape`, which does not prevent the other tensors from joining.
    fn components(&self, layout: Layout) -> Vec<Component> {
        let with_scale = |suffix, tensor, whole| Component {
            suffix,
            tensor,
            join: match self.scalar {
                true => Join::Never("each part has one scale for the whole tensor"),
                false => Join::Rows,
            },
            whole,
        };
        let mut all = vec![
            Component {
                suffix: "weight_packed",
                tensor: self.packed,
                join: Join::Rows,
                whole: true,
            },
            with_scale(SCALE, self.scale, true),
        ];
        if let Some(zeros) = self.zeros {
            let whole = zeros.packed_rows.is_none() || layout.fills_words(self.size[0]);
            all.push(with_scale(ZERO, zeros.tensor, whole));
        }
        if let Some((tensor, ..)) = self.order {
            all.push(Component {
                suffix: ORDER,
                tensor,
                join: Join::Same,
                whole: true,
            });
        }
        all
    }

    fn compatible(&self, layout: Layout, group: u64, k: u64) -> String {
        let packing = match layout.packing {
            Packing::Dense => "",
            Packing::Padded => " padded",
        };
        let granularity = match self.granularity {
            Granularity::Tensor => "one scale".to_string(),
            Granularity::Groups(1) => "scales of rows".to_string(),
            Granularity::Groups(_) => format!("groups of {group}"),
        };
        let zeros = match self.zeros {
            None => "symmetric",
            Some(ZeroPart {
                packed_rows: Some(_),
                ..
            }) => "packed zero points",
            Some(_) => "I8 zero points",
        };
        let order = if self.order.is_some() { ", g_idx" } else { "" };
        format!(
            "pack-quantized, {}{packing} bits, {granularity}, K {k}, {} scales, {zeros}{order}",
            layout.bits, self.scale_dtype
        )
    }
}

/// Parts: words, scales, `weight_shape`, then zero points and order if there are any.
struct Packed {
    shape: Shape,
    scale_dtype: Dtype,
    zeros: Option<ZeroPart>,
    /// The name of `weight_g_idx`.
    order: Option<Arc<str>>,
}

impl Packed {
    fn order_part<'a>(&self, parts: &'a [SharedView]) -> Result<&'a SharedView> {
        part(parts, 3 + usize::from(self.zeros.is_some()))
    }
}

impl Kernel for Packed {
    fn view(&self, parts: &[SharedView]) -> Result<SharedView> {
        let zeros = match self.zeros {
            None => Zeros::Symmetric,
            Some(ZeroPart {
                packed_rows: Some(_),
                ..
            }) => Zeros::Packed(part(parts, 3)?.clone()),
            Some(_) => Zeros::Bytes(part(parts, 3)?.clone()),
        };
        let order = match self.order.clone() {
            None => None,
            Some(name) => Some(Order {
                name,
                view: self.order_part(parts)?.clone(),
                groups: OnceLock::new(),
            }),
        };
        Ok(Arc::new(Floats(Rows {
            shape: self.shape.clone(),
            words: part(parts, 0)?.clone(),
            scales: Scales::Stored(part(parts, 1)?.clone(), self.scale_dtype),
            zeros,
            order,
        })))
    }

    fn check(&self, parts: &[SharedView]) -> Vec<String> {
        if self.order.is_none() {
            return Vec::new();
        }
        let count = self.shape.row_scales.max(1);
        let order = self.order_part(parts);
        match order.and_then(|view| read_order(&**view, count)) {
            Ok(Ok(_)) => Vec::new(),
            Ok(Err(problem)) => vec![format!("{ORDER}: {problem}")],
            Err(e) => vec![e.to_string()],
        }
    }
}
