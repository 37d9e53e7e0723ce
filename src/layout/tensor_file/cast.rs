//! The files of a tensor that hold its values as a narrower float.

use serde_json::json;

use super::{Place, Row, TensorFile, shown};
use crate::dtype::Dtype;

/// The row of a cast. A listing does not contain it: `find`, `du` and `cp -r` would otherwise take twice as long
/// over a model's tensors.
macro_rules! row {
    ($file:ident, $name:literal, $dtype:ident, $help:literal) => {
        Row {
            file: TensorFile::$file,
            place: Place::Inside($name),
            listed: false,
            view_name: $name,
            help: $help,
            lacks: concat!("values, and so no ", $name),
            by_header: false,
            reads_sources: true,
            is_shared: false,
            remember_len: false,
            exists: |_, _, tensor| tensor.values.is_some(),
            shown: |_, _, tensor| shown(Dtype::$dtype.into(), tensor.values.as_ref()?.shape),
            len: |_, _, tensor| tensor.cast(Dtype::$dtype).map_or(0, |cast| cast.nbytes),
            describe: |_, _, tensor| {
                let (dtype, cast) = (Dtype::$dtype.name(), tensor.cast(Dtype::$dtype)?);
                let (shape, nbytes, exact) = (cast.shape, cast.nbytes, cast.exact);
                Some(json!({"dtype": dtype, "shape": shape, "nbytes": nbytes, "exact": exact}))
            },
            made_of: |_, _, tensor| {
                Some(match tensor.cast(Dtype::$dtype)?.is_raw {
                    true => tensor.raw.clone(),
                    false => tensor.f32_expr().clone(),
                })
            },
            array: None,
            view: |model, id| model.cast(id, Dtype::$dtype),
        }
    };
}

pub(super) const BF16: Row = row!(
    Bf16,
    "bf16",
    BF16,
    "The values as little-endian BF16, rounded to nearest even"
);
pub(super) const F16: Row = row!(
    F16,
    "f16",
    F16,
    "The values as little-endian F16, rounded to nearest even"
);
