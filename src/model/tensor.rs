//! What a tensor of the model is, and where it comes from.

use super::TensorId;
use crate::dtype::{Dtype, ElementType, numel};
use crate::quant::Layer;

/// A tensor of the model.
#[derive(Clone)]
pub struct Tensor {
    /// Element type of `raw`.
    pub dtype: ElementType,
    /// Shape of `raw`.
    pub shape: Box<[u64]>,
    /// Length of `raw` in bytes.
    pub nbytes: u64,
    /// Its values as binary32, if it has any.
    pub values: Option<Values>,
    /// Where it comes from.
    pub origin: Origin,
    /// A remark for `ls --why`: why it is F32 and not stored words, for example.
    pub remark: Option<String>,
}

impl Tensor {
    /// Length of `f32` in bytes, if there is one.
    pub fn f32_len(&self) -> Option<u64> {
        self.values.as_ref().map(|v| v.numel() * 4)
    }
}

/// The binary32 values of a tensor: what `f32` shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Values {
    /// Their shape: `raw`'s own, save for packed weights, which have the real one.
    pub shape: Box<[u64]>,
    /// Whether no value of this dtype or format can have been rounded.
    pub exact: bool,
}

impl Values {
    pub(super) fn of_layer(layer: &Layer) -> Values {
        Values {
            shape: layer.shape.clone(),
            exact: layer.exact,
        }
    }

    /// Their number.
    pub fn numel(&self) -> u64 {
        numel(&self.shape).unwrap_or(0)
    }
}

/// Where a tensor comes from.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A file holds it. If it belongs to a quantized layer as its weight, the layer's index.
    Stored {
        /// Index for [`Model::layer`](super::Model::layer), where the tensor is the anchor of a layer.
        layer: Option<u32>,
    },
    /// Parts joined along an axis.
    Fused(Join),
    /// Experts stacked along a new first axis, each of one or more joined parts.
    Stacked(Join),
    /// The values of a quantized layer.
    Dequantized {
        /// Index for [`Model::layer`](super::Model::layer).
        layer: u32,
    },
    /// Another tensor under a second name.
    Tied(TensorId),
}

impl Origin {
    /// The `kind` in JSON and extended attributes.
    pub fn kind(&self) -> &'static str {
        match self {
            Origin::Stored { .. } => "stored",
            Origin::Fused(_) => "fused",
            Origin::Stacked(_) => "stacked",
            Origin::Dequantized { .. } => "dequantized",
            Origin::Tied(_) => "tied",
        }
    }
}

/// A join of tensors, stacked or not.
#[derive(Debug, Clone)]
pub struct Join {
    /// The groups: one, or an expert each. Within a group parts are joined along `axis`.
    pub groups: Vec<Vec<Part>>,
    /// The axis that parts of a group are joined along, counted from the front of a part's shape
    /// (for a stack: of the expert's own shape, without the new axis).
    pub axis: usize,
    /// What is joined.
    pub of: JoinOf,
}

/// What a join takes of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JoinOf {
    /// Their stored bytes.
    Raw,
    /// Their values, as binary32.
    Values,
    /// Their stored bytes, which must be equal: it is that one.
    Same,
}

/// A part of a join.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    /// Which tensor.
    pub id: TensorId,
    /// Where it begins along the axis, within its group.
    pub start: u64,
    /// Where it ends.
    pub end: u64,
}

/// Bytes of a binary32 tensor of that shape, or a reason.
pub(super) fn f32_bytes(shape: &[u64]) -> Result<u64, String> {
    numel(shape)
        .and_then(|n| Dtype::F32.bytes(n))
        .ok_or_else(|| format!("its values {shape:?} would overflow 64 bits"))
}
