//! A tensor's values as a narrower float.

use super::{Model, Tensor, TensorId};
use crate::dtype::Dtype;
use crate::error::Result;
use crate::view::{Narrow, SharedView};

/// A tensor's values, cast to a float type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CastKind<'a> {
    /// Shape of the values.
    pub shape: &'a [u64],
    /// Length in bytes.
    pub nbytes: u64,
    /// Whether no value can have been rounded.
    pub exact: bool,
    /// Whether it is `raw` itself: the elements are of that type already.
    pub is_raw: bool,
}

impl<'a> Tensor<'a> {
    /// What the tensor's values are as `dtype` (F32, F16, BF16, F8_E4M3 or F8_E5M2), if it has values.
    pub fn cast(&self, dtype: Dtype) -> Option<CastKind<'a>> {
        let values = self.values.as_ref()?;
        let of_elements = !self.is_dequantized();
        let is_held = self.dtype.known().is_some_and(|own| dtype.holds(own));
        Some(CastKind {
            shape: values.shape,
            nbytes: dtype.bytes(values.numel())?,
            exact: match dtype {
                Dtype::F32 => values.exact,
                _ => values.exact && of_elements && is_held,
            },
            is_raw: of_elements && self.dtype.is(dtype),
        })
    }
}

impl Model {
    /// The values as `dtype` (F32, F16, BF16, F8_E4M3 or F8_E5M2), rounded to nearest, ties to even, from
    /// binary32. Of a tensor of that very type `raw` itself.
    ///
    /// # Errors
    /// As [`Model::raw`].
    pub fn cast(&self, id: TensorId, dtype: Dtype) -> Result<Option<SharedView>> {
        match self.described(id)?.cast(dtype) {
            None => Ok(None),
            Some(cast) if cast.is_raw => self.raw(id).map(Some),
            Some(_) => Ok(self.f32(id)?.and_then(|values| Narrow::view(values, dtype))),
        }
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use crate::dtype::Dtype;
    use crate::quant::testing::{TestModel, stored};
    use crate::view::read_all;

    #[test]
    fn a_cast_to_its_own_type_is_raw_and_others_are_rounded() {
        let f32s = [1.0f32, 1.003_906_3, -0.0, 1e-45];
        let bf16s = [0x3f80u16, 0x7fa1, 0xffff, 0x8000];
        let tensors = [
            stored(
                "b",
                Dtype::BF16,
                &[2, 2],
                bf16s.map(u16::to_le_bytes).as_flattened(),
            ),
            stored("c", Dtype::C64, &[1], [0; 8]),
            stored(
                "f",
                Dtype::F32,
                &[4],
                f32s.map(f32::to_le_bytes).as_flattened(),
            ),
            stored("i", Dtype::I8, &[2], [0x80, 0x7f]),
            stored("j", Dtype::I16, &[1], [1, 1]),
        ];
        let model = TestModel::safetensors(&tensors, serde_json::Value::Null);
        let model = crate::model::Model::new(model.catalog, Default::default());
        let cast = |name: &str, dtype: Dtype| {
            let (id, tensor) = model.find(name).unwrap();
            let bytes = model
                .cast(id, dtype)
                .unwrap()
                .map(|v| read_all(&*v).unwrap());
            let kind = tensor.cast(dtype);
            assert_eq!(
                bytes.as_ref().map(|b| b.len() as u64),
                kind.map(|k| k.nbytes)
            );
            (bytes, kind.map(|k| (k.exact, k.is_raw)))
        };
        // NaN with all its bits.
        let raw = bf16s.map(u16::to_le_bytes).as_flattened().to_vec();
        assert_eq!(cast("b", Dtype::BF16), (Some(raw), Some((true, true))));
        assert_eq!(cast("b", Dtype::F16).1, Some((false, false)));
        assert_eq!(cast("c", Dtype::BF16), (None, None));
        let rounded = f32s
            .map(|v| bf16::from_f32(v).to_le_bytes())
            .as_flattened()
            .to_vec();
        assert_eq!(
            cast("f", Dtype::BF16),
            (Some(rounded), Some((false, false)))
        );
        let halves = vec![0x00, 0xd8, 0xf0, 0x57];
        assert_eq!(cast("i", Dtype::F16), (Some(halves), Some((true, false))));
        assert_eq!(cast("j", Dtype::F16).1, Some((false, false)));
    }
}
