//! How many weights a model has.

use super::{Model, TensorId};
use crate::catalog::TensorRef;
use crate::dtype::Dtype;
use crate::quant;

impl Model {
    /// How many weights a stored tensor holds: packed words count what they pack, a layer's scales
    /// and indexes nothing.
    pub fn parameters(&self, stored: TensorId) -> u64 {
        let tensor = &self.catalog.tensors.get(stored);
        match self.layer_of(stored) {
            None => {
                let last = tensor.name.rsplit('.').next().unwrap_or_default();
                match self.layer_count() > 0 && quant::is_sibling(last) {
                    true => 0,
                    false => self.packed(tensor),
                }
            }
            Some(layer) => {
                let recognized = self.recognized(layer);
                match recognized.parts.first() == Some(&stored) {
                    true => recognized.parameters.unwrap_or_else(|| self.packed(tensor)),
                    false => 0,
                }
            }
        }
    }

    /// How many values a tensor's elements pack, by what a manifest declares: its words pack
    /// `32 / bits` each, even if there are no scales to decode them. If nothing in the manifest
    /// declares it, they are integers.
    fn packed(&self, tensor: &TensorRef<'_>) -> u64 {
        let defaults = self.catalog.configs.manifest.as_ref();
        let is_declared = defaults.is_some_and(|c| c.contains_key("default_bits"));
        match tensor.bits {
            Some(b)
                if tensor.dtype.is(Dtype::U32)
                    && (1..=32).contains(&b.bits)
                    && (b.explicit || is_declared) =>
            {
                tensor.numel() * 32 / u64::from(b.bits)
            }
            _ => tensor.numel(),
        }
    }
}
