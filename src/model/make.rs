//! What a tensor is: worked out from headers, recipes and layers.

use std::sync::Arc;

use super::candidates::Recipe;
use super::known::Answer;
use super::tensor::f32_bytes;
use super::{Model, Origin, Tensor, TensorId, Values};
use crate::dtype::Dtype;
use crate::quant::Target;
use crate::reason::Missing;

impl Model {
    /// What the tensor is, or why there is none.
    pub(super) fn work_out(&self, id: TensorId) -> Answer<Result<Arc<Tensor>, String>> {
        let made = |answer, certain| Answer { answer, certain };
        if self.is_stored(id) {
            let (tensor, certain) = self.stored(id);
            return made(Ok(Arc::new(tensor)), certain);
        }
        let mut first_reason = None;
        for recipe in &self.entries[id as usize].recipes {
            match self.make(recipe) {
                Ok(tensor) => return made(Ok(Arc::new(tensor)), true),
                // A later recipe does not count: this one may yet be the better.
                Err(Missing::Unread(why)) => return made(Err(why.into()), false),
                Err(Missing::Reason(why)) => {
                    first_reason.get_or_insert(why);
                }
            }
        }
        made(
            Err(first_reason.map_or_else(String::new, String::from)),
            true,
        )
    }

    /// A stored tensor, and whether all about it is known.
    fn stored(&self, id: TensorId) -> (Tensor, bool) {
        let t = self.catalog.tensors.get(id);
        let numeric = t.dtype.known().filter(|d| d.has_f32()).map(|d| Values {
            shape: t.shape.into(),
            exact: d.exact_in_f32(),
        });
        let layer = self.layer_anchored_at(id);
        let mut tensor = Tensor {
            dtype: t.dtype.clone(),
            shape: t.shape.into(),
            nbytes: t.nbytes,
            values: numeric,
            remark: None,
            origin: Origin::Stored { layer },
        };
        let Some(layer) = layer else {
            return (tensor, true);
        };
        let recognized = self.recognized(layer);
        let Answer { answer, certain } = self.layer_answer(layer);
        // Where the anchor has the float weight's own name its values are the layer's, or none.
        if recognized.target == Target::Anchor {
            tensor.values = answer.ok().map(Values::of_layer);
        }
        let method = recognized.method;
        tensor.remark = answer
            .err()
            .map(|why| format!("{method} layer cannot be decoded: {why}"));
        (tensor, certain)
    }

    fn make(&self, recipe: &Recipe) -> Result<Tensor, Missing> {
        match recipe {
            Recipe::Fused {
                rule,
                prefix,
                suffix,
            } => self.fused(rule, prefix, suffix),
            Recipe::Stacked {
                rule,
                set,
                prefix,
                suffix,
                experts,
            } => self.stacked(rule.parts[*set], prefix, suffix, *experts),
            Recipe::Dequantized(layer) => {
                let layer_values = Values::of_layer(self.settled_layer(*layer)?);
                let nbytes = f32_bytes(&layer_values.shape)?;
                Ok(Tensor {
                    dtype: Dtype::F32.into(),
                    shape: layer_values.shape.clone(),
                    nbytes,
                    values: Some(layer_values),
                    origin: Origin::Dequantized { layer: *layer },
                    remark: None,
                })
            }
            Recipe::Tied { embedding } => {
                let id = embedding.clone()?;
                let id = self.id(&id).ok_or("its embedding is not there")?;
                let of = self.settled(id)?;
                Ok(Tensor {
                    origin: Origin::Tied(id),
                    remark: None,
                    ..(**of).clone()
                })
            }
        }
    }
}
