//! What a tensor of the model is.

use super::Expr;
use crate::dtype::{Dtype, ElementType, numel};
use crate::quant::Layer;
use crate::reason::{Reason, reason};

/// A tensor of the model, built on each request from what the catalog or the model holds.
#[derive(Debug, Clone)]
pub struct Tensor<'a> {
    /// Element type of `raw`.
    pub dtype: &'a ElementType,
    /// Shape of `raw`.
    pub shape: &'a [u64],
    /// Length of `raw` in bytes.
    pub nbytes: u64,
    /// What `raw` is.
    pub raw: Expr,
    /// Its values as binary32, if it has any.
    pub values: Option<Values<'a>>,
}

/// The binary32 values of a tensor: what `f32` shows.
#[derive(Debug, Clone)]
pub struct Values<'a> {
    /// Their shape: `raw`'s own, or for packed weights that of the unpacked matrix.
    pub shape: &'a [u64],
    /// Whether no value of this dtype or format can have been rounded.
    pub exact: bool,
    /// What they are, if they are decoded from quantized layers. `None`: the elements of `raw`, widened.
    pub decoded: Option<Expr>,
}

impl Tensor<'_> {
    /// Length of `f32` in bytes, if there is one.
    pub fn f32_len(&self) -> Option<u64> {
        self.values.as_ref().map(|v| v.numel() * 4)
    }

    /// What the values are, if they are decoded rather than widened from `raw`.
    pub fn decoded(&self) -> Option<&Expr> {
        self.values.as_ref()?.decoded.as_ref()
    }

    /// Whether the `f32` holds dequantized values rather than the tensor's own elements, widened.
    pub fn is_dequantized(&self) -> bool {
        self.decoded().is_some()
    }

    /// Whether its elements have the type and the shape of its values.
    pub fn is_values(&self) -> bool {
        let values = self.values.as_ref();
        self.dtype.is(Dtype::F32) && values.is_some_and(|values| values.shape == self.shape)
    }

    /// What the values are made of: [`Tensor::decoded`], or else `raw`.
    pub fn f32_expr(&self) -> &Expr {
        self.decoded().unwrap_or(&self.raw)
    }
}

impl Values<'_> {
    /// Their number.
    pub fn numel(&self) -> u64 {
        numel(self.shape).unwrap_or(0)
    }
}

/// A synthetic tensor, as it is kept.
pub(super) struct Made {
    pub dtype: ElementType,
    pub shape: Box<[u64]>,
    pub nbytes: u64,
    pub raw: Expr,
    pub values: Option<MadeValues>,
    /// For `ls --why`: why it is F32 and not stored words, for example.
    pub remark: Option<Reason>,
}

pub(super) struct MadeValues {
    pub shape: Box<[u64]>,
    pub exact: bool,
    pub decoded: Option<Expr>,
}

impl Made {
    /// F32 values of that shape, under a name of their own: `raw` is `f32`.
    pub fn of_values(shape: Box<[u64]>, exact: bool, expr: Expr) -> Result<Made, Reason> {
        Ok(Made {
            dtype: Dtype::F32.into(),
            nbytes: f32_bytes(&shape)?,
            values: Some(MadeValues {
                shape: shape.clone(),
                exact,
                decoded: Some(expr.clone()),
            }),
            shape,
            raw: expr,
            remark: None,
        })
    }

    /// The values of a layer.
    pub fn of_layer(index: u32, layer: &Layer) -> Result<Made, Reason> {
        Made::of_values(layer.shape.clone(), layer.exact, Expr::Layer(index))
    }

    pub fn tensor(&self) -> Tensor<'_> {
        Tensor {
            dtype: &self.dtype,
            shape: &self.shape,
            nbytes: self.nbytes,
            raw: self.raw.clone(),
            values: self.values.as_ref().map(|v| Values {
                shape: &v.shape,
                exact: v.exact,
                decoded: v.decoded.clone(),
            }),
        }
    }
}

/// Bytes of a binary32 tensor of that shape.
fn f32_bytes(shape: &[u64]) -> Result<u64, Reason> {
    numel(shape)
        .and_then(|n| Dtype::F32.bytes(n))
        .ok_or_else(|| reason!("its values {shape:?} would overflow 64 bits"))
}
