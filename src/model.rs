//! The model: every tensor under `tensors/`, stored and synthetic, each with its dtype, its shape and
//! what its bytes are ([`Expr`]).
//!
//! Opening lists the names that exist and those that might. What a synthetic tensor is, and whether it
//! exists at all, is resolved on first use and remembered. Only headers are read for that, except for
//! the formats that keep a shape in tensor data ([`crate::quant::DeferredShape`]).

use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

use crate::catalog::{Catalog, natural};
use crate::dtype::ElementType;
use crate::error::{Error, Result};
use crate::quant::{self, Layer, Outcome, Recognized, Target};
use crate::reason::{Missing, Reason, reason};

mod array;
mod candidates;
mod cast;
mod expr;
mod facts;
mod file_names;
mod floats;
mod gather;
mod join;
mod join_shapes;
mod lazy;
mod npy;
mod open;
mod origin;
mod parameters;
mod recipe;
mod resolve;
mod rules;
mod tensor;
#[cfg(test)]
mod tests;
mod tied;

pub use cast::CastKind;
pub use expr::{Computed, Expr, Join, Operation};
pub use floats::float_model;
pub use gather::{Axis, Gather, Strided};
pub use npy::NpyKind;
pub use open::{Checked, OpenModel};
pub use origin::{Origin, Part};
pub use recipe::{Given, Made, RuleSummary};
pub use rules::{FUSED, FusedRule, Mixed, Named, STACKED, StackedRule, TIED, TiedRule, TiedWhen};
pub use tensor::{Tensor, Values};

use candidates::Candidates;
use facts::LISTING_THREADS;
use lazy::Lazy;
use resolve::Slot;

/// Identifies a tensor of a [`Model`]: stored ones first, by their index in the catalog, then the
/// names that synthetic ones might have. The same at every mount of the same files.
pub type TensorId = u32;

/// What to leave out when opening a model.
#[derive(Debug, Clone, Copy)]
pub struct ModelOptions {
    /// Whether fused, stacked, dequantized and tied tensors are made.
    pub synthetic: bool,
}

impl Default for ModelOptions {
    fn default() -> Self {
        ModelOptions { synthetic: true }
    }
}

struct LayerSlot {
    recognized: Recognized,
    /// What came of it once facts were read, if it depends on any. Most layers do not.
    deferred: Option<Box<Lazy<Layer>>>,
}

impl LayerSlot {
    fn new(recognized: Recognized) -> LayerSlot {
        let is_deferred = matches!(recognized.outcome, Outcome::Deferred(_));
        LayerSlot {
            recognized,
            deferred: is_deferred.then(|| Box::new(Lazy::new())),
        }
    }
}

/// [`Model::layer_of`] of a tensor that belongs to no layer.
const NO_LAYER: u32 = u32::MAX;

/// All tensors of a model directory.
pub struct Model {
    /// What the files store.
    pub catalog: Catalog,
    /// The names that synthetic tensors might have, and the ways to make each.
    candidates: Candidates,
    /// What each of those names turned out to be.
    slots: Box<[Slot]>,
    layers: Vec<LayerSlot>,
    /// By stored tensor: the layer that it is a part of. Empty if there are no layers.
    layer_of: Box<[u32]>,
    ready: AtomicBool,
    /// Whether [`Model::fetch_facts`] has made all its retries.
    gave_up: AtomicBool,
    listing: OnceLock<Vec<TensorId>>,
    file_names: OnceLock<file_names::FileNames>,
}

impl Model {
    /// Lists the names that exist and those that might. Uses only what the catalog holds.
    pub fn new(catalog: Catalog, options: ModelOptions) -> Model {
        let recognized = quant::recognize(&catalog);
        let candidates = match options.synthetic {
            true => Candidates::find(&catalog, &recognized),
            false => Candidates::none(),
        };
        Model::assemble(catalog, recognized, candidates)
    }

    fn assemble(catalog: Catalog, recognized: Vec<Recognized>, candidates: Candidates) -> Model {
        let has_facts = recognized
            .iter()
            .any(|r| matches!(r.outcome, Outcome::Deferred(_)));
        Model {
            layer_of: layers_of(&catalog, &recognized),
            slots: candidates.names.iter().map(|_| Slot::default()).collect(),
            layers: recognized.into_iter().map(LayerSlot::new).collect(),
            catalog,
            candidates,
            ready: AtomicBool::new(!has_facts),
            gave_up: AtomicBool::new(false),
            listing: OnceLock::new(),
            file_names: OnceLock::new(),
        }
    }

    /// The name of a tensor, exactly as the file or the rule has it.
    pub fn name(&self, id: TensorId) -> &str {
        match self.is_stored(id) {
            true => self.catalog.tensors.get(id).name,
            false => self.candidates.names.get(self.synthetic_index(id) as u32),
        }
    }

    /// The number of ids: stored tensors and names that might be synthetic ones.
    pub fn id_count(&self) -> u32 {
        (self.catalog.tensors.len() + self.slots.len()) as u32
    }

    /// Whether `id` is a stored tensor.
    pub fn is_stored(&self, id: TensorId) -> bool {
        (id as usize) < self.catalog.tensors.len()
    }

    fn synthetic_index(&self, id: TensorId) -> usize {
        id as usize - self.catalog.tensors.len()
    }

    /// The id of a name. For a synthetic name the tensor need not exist: ask [`Model::tensor`].
    pub fn id(&self, name: &str) -> Option<TensorId> {
        let first = self.catalog.tensors.len() as u32;
        let synthetic = || self.candidates.names.find(name).map(|i| first + i);
        self.catalog.find(name).or_else(synthetic)
    }

    /// What the tensor is, or why there is none of that name. Resolved once, unless a fact that it
    /// depends on cannot be read: then [`Model::is_settled`] is false, a stored tensor has no values
    /// for now, and the next call tries again.
    ///
    /// # Errors
    /// The reason, as text for the user.
    pub fn tensor(&self, id: TensorId) -> std::result::Result<Tensor<'_>, Reason> {
        match self.is_stored(id) {
            true => Ok(self.stored(id).0),
            false => match self.synthetic(id) {
                Ok(made) => Ok(made.tensor()),
                Err(why) => Err(why.reason().clone()),
            },
        }
    }

    /// A stored tensor; and why it lacks its layer's values, if it does.
    fn stored(&self, id: TensorId) -> (Tensor<'_>, Option<Missing>) {
        let t = self.catalog.tensors.get(id);
        let mut tensor = Tensor {
            dtype: t.dtype,
            shape: t.shape,
            nbytes: t.nbytes,
            values: t.dtype.has_f32().then(|| Values {
                shape: t.shape,
                exact: t.dtype.exact_in_f32() && !self.catalog.is_rounded(id),
                decoded: None,
            }),
            raw: Expr::Stored(id),
        };
        let Some(index) = self.layer_of_anchor(id) else {
            return (tensor, None);
        };
        let layer = self.settled_layer(index);
        // If the anchor has the float weight's own name its values are the layer's, or none.
        if self.recognized(index).target == Target::Anchor {
            tensor.values = layer.as_ref().ok().map(|layer| Values {
                shape: &layer.shape,
                exact: layer.exact,
                decoded: Some(Expr::Layer(index)),
            });
        }
        (tensor, layer.err())
    }

    /// A remark on a tensor that exists, for `ls --why`: why it has no values or no stored words, or is
    /// not in exports.
    pub fn remark(&self, id: TensorId) -> Option<Reason> {
        if !self.is_stored(id) {
            return self.synthetic(id).ok()?.remark.clone();
        }
        if let dtype @ ElementType::Opaque(_) = self.catalog.tensors.get(id).dtype {
            return Some(reason!(
                "safetensors does not have {dtype}, so exports in that format leave the tensor out"
            ));
        }
        let method = self.recognized(self.layer_of_anchor(id)?).method;
        let why = self.stored(id).1?;
        Some(
            why.reason()
                .within(format_args!("{method} layer cannot be decoded")),
        )
    }

    /// Whether the last answer of [`Model::tensor`] is final.
    pub fn is_settled(&self, id: TensorId) -> bool {
        match self.is_stored(id) {
            true => self
                .layer_of_anchor(id)
                .is_none_or(|l| self.is_layer_settled(l)),
            false => self.slots[self.synthetic_index(id)].is_certain(),
        }
    }

    fn is_layer_settled(&self, index: u32) -> bool {
        let deferred = &self.layers[index as usize].deferred;
        deferred.as_ref().is_none_or(|layer| layer.is_certain())
    }

    /// The tensor, if all that it depends on could be read.
    fn settled(&self, id: TensorId) -> std::result::Result<Tensor<'_>, Missing> {
        if !self.is_stored(id) {
            return self.synthetic(id).map(|made| made.tensor());
        }
        match self.stored(id) {
            (_, Some(why @ Missing::Unread(_))) => Err(why),
            (tensor, _) => Ok(tensor),
        }
    }

    /// The tensor of that name.
    ///
    /// # Errors
    /// [`Error::NotFound`], with the reason if there is one; EIO if it is not known for now.
    pub fn find(&self, name: &str) -> Result<(TensorId, Tensor<'_>)> {
        let unknown = || match self.catalog.left_out.get(name) {
            Some(why) => Error::NotFound(format!("tensor '{name}' is left out: {why}")),
            None => Error::NotFound(format!("no tensor '{name}'; 'stfs ls' lists them")),
        };
        let id = self.id(name).ok_or_else(unknown)?;
        self.described(id).map(|tensor| (id, tensor))
    }

    /// The tensor, or the error for a caller that needs its bytes.
    fn described(&self, id: TensorId) -> Result<Tensor<'_>> {
        if self.is_stored(id) {
            return Ok(self.stored(id).0);
        }
        let made = self.synthetic(id).map_err(|why| match why {
            Missing::Reason(why) => {
                Error::NotFound(format!("no tensor '{}': {why}", self.name(id)))
            }
            Missing::Unread(why) => Error::other(libc::EIO, format!("'{}': {why}", self.name(id))),
        })?;
        Ok(made.tensor())
    }

    /// The ids of all tensors that exist, in natural order of their names. Waits for facts; a
    /// synthetic tensor whose facts still cannot be read after all retries is left out.
    pub fn listing(&self) -> &[TensorId] {
        self.listing.get_or_init(|| {
            self.fetch_facts(LISTING_THREADS);
            let mut ids: Vec<TensorId> = (0..self.id_count())
                .filter(|&id| self.is_stored(id) || self.synthetic(id).is_ok())
                .collect();
            // Stored ids are in natural order already, and the sort makes use of such runs.
            ids.sort_by(|&a, &b| natural(self.name(a), self.name(b)));
            ids
        })
    }

    /// Whether [`Model::listing`] has been made, and answers at once.
    pub fn is_listed(&self) -> bool {
        self.listing.get().is_some()
    }

    /// Every name that a user might expect but that does not exist, with the reason; and remarks on
    /// tensors that do exist.
    pub fn reasons(&self) -> Vec<(&str, Reason)> {
        let why = |id| match self.tensor(id) {
            Err(why) => Some(why),
            Ok(_) => self.remark(id),
        };
        let mut out: Vec<(&str, Reason)> = (0..self.id_count())
            .filter_map(|id| Some((self.name(id), why(id)?)))
            .collect();
        out.sort_by(|a, b| natural(a.0, b.0));
        out
    }

    /// A recognized layer, decodable or not.
    pub fn layer(&self, index: u32) -> (&Recognized, std::result::Result<&Layer, Reason>) {
        let layer = self.settled_layer(index);
        (
            self.recognized(index),
            layer.map_err(|why| why.reason().clone()),
        )
    }

    /// The layer, or why there is none: final, or only for now.
    fn settled_layer(&self, index: u32) -> std::result::Result<&Layer, Missing> {
        let slot = &self.layers[index as usize];
        match (&slot.recognized.outcome, &slot.deferred) {
            (Outcome::Layer(layer), _) => Ok(layer),
            (Outcome::Damaged(why), _) => Err(why.clone().into()),
            (Outcome::Deferred(_), deferred) => {
                let deferred = deferred
                    .as_ref()
                    .ok_or("has no place to be remembered in")?;
                deferred.get(|| slot.recognized.resolve(&self.catalog))
            }
        }
    }

    /// A recognized layer, without asking whether it can be decoded (which may read facts).
    pub fn recognized(&self, index: u32) -> &Recognized {
        &self.layers[index as usize].recognized
    }

    /// How many layers were recognized.
    pub fn layer_count(&self) -> u32 {
        self.layers.len() as u32
    }

    /// The layer that a stored tensor is a part of.
    pub fn layer_of(&self, stored: TensorId) -> Option<u32> {
        let layer = self.layer_of.get(stored as usize).copied();
        layer.filter(|&layer| layer != NO_LAYER)
    }

    /// The layer whose anchor `id` is.
    pub fn layer_of_anchor(&self, id: TensorId) -> Option<u32> {
        let layer = self.layer_of(id)?;
        let parts = &self.layers[layer as usize].recognized.parts;
        (parts.first() == Some(&id)).then_some(layer)
    }
}

/// By stored tensor: the layer that it is a part of, or [`NO_LAYER`].
fn layers_of(catalog: &Catalog, recognized: &[Recognized]) -> Box<[u32]> {
    if recognized.is_empty() {
        return Box::default();
    }
    let mut layer_of = vec![NO_LAYER; catalog.tensors.len()];
    for (layer, recognized) in (0..).zip(recognized) {
        for &part in &recognized.parts {
            let slot = &mut layer_of[part as usize];
            if *slot == NO_LAYER {
                *slot = layer;
            }
        }
    }
    // An anchor belongs to its own layer, whatever else lists it as a part.
    for (layer, recognized) in (0..).zip(recognized) {
        if let Some(&anchor) = recognized.parts.first() {
            layer_of[anchor as usize] = layer;
        }
    }
    layer_of.into()
}
