//! The model: every tensor that stands under `tensors/`, stored and synthetic, each with its dtype,
//! shape and the views that show it.
//!
//! Opening makes a list of names and of *recipes* for the synthetic ones; what a tensor is, and
//! whether a synthetic one exists at all, is worked out when it is first asked for and remembered.
//! Nothing is read for that but headers, save for the formats that keep a shape in tensor data
//! ([`crate::quant::Facts`]).

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use crate::catalog::{Catalog, Stat, natural};
use crate::error::{Error, Result};
use crate::quant::{self, Layer, Outcome, Recognized};
use crate::reason::Missing;

mod candidates;
mod facts;
mod file_names;
mod fuse;
mod joined;
mod known;
mod make;
mod rules;
mod same;
mod tensor;
mod tied;
mod views;

pub use rules::{FUSED, FusedRule, STACKED, StackedRule};
pub use tensor::{Join, JoinOf, Origin, Part, Tensor, Values};

use facts::LISTING_THREADS;
use known::{Answer, Known};

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

/// A name under `tensors/`, or one that might be there.
struct Entry {
    name: Arc<str>,
    /// Ways to make it, best first. Empty for a stored tensor.
    recipes: Vec<candidates::Recipe>,
    tensor: Known<Arc<Tensor>>,
}

struct LayerSlot {
    recognized: Recognized,
    resolved: Known<Layer>,
}

/// All tensors of a model directory.
pub struct Model {
    /// What the files store.
    pub catalog: Catalog,
    entries: Vec<Entry>,
    by_name: HashMap<Arc<str>, TensorId>,
    layers: Vec<LayerSlot>,
    /// Stored tensor → the layer it is a part of.
    layer_of: HashMap<u32, u32>,
    ready: AtomicBool,
    /// Whether [`Model::fetch_facts`] has had its time.
    gave_up: AtomicBool,
    listing: OnceLock<Vec<TensorId>>,
    file_names: OnceLock<file_names::FileNames>,
}

impl Model {
    /// Lists the names that there are and may be. Reads nothing but what the catalog holds.
    pub fn new(catalog: Catalog, options: ModelOptions) -> Model {
        let recognized = quant::recognize(&catalog);
        let mut layer_of = HashMap::new();
        for (i, r) in recognized.iter().enumerate() {
            for &part in &r.parts {
                layer_of.entry(part).or_insert(i as u32);
            }
            // An anchor belongs to its own layer, whatever else lists it as a part.
            if let Some(&anchor) = r.parts.first() {
                layer_of.insert(anchor, i as u32);
            }
        }
        let has_facts = recognized
            .iter()
            .any(|r| matches!(r.outcome, Outcome::Facts(_)));
        let mut entries: Vec<Entry> = catalog
            .tensors
            .iter()
            .map(|t| Entry::new(t.name.into(), Vec::new()))
            .collect();
        let mut by_name: HashMap<Arc<str>, TensorId> = entries
            .iter()
            .enumerate()
            .map(|(i, e)| (e.name.clone(), i as u32))
            .collect();
        if options.synthetic {
            for (name, recipes) in candidates::generate(&catalog, &recognized) {
                by_name.insert(name.clone(), entries.len() as u32);
                entries.push(Entry::new(name, recipes));
            }
        }
        Model {
            catalog,
            entries,
            by_name,
            layers: recognized
                .into_iter()
                .map(|recognized| LayerSlot {
                    recognized,
                    resolved: Known::new(),
                })
                .collect(),
            layer_of,
            ready: AtomicBool::new(!has_facts),
            gave_up: AtomicBool::new(false),
            listing: OnceLock::new(),
            file_names: OnceLock::new(),
        }
    }

    /// Opens a model directory or file.
    ///
    /// # Errors
    /// As [`Catalog::open`].
    pub fn open(
        path: &std::path::Path,
        open: crate::catalog::OpenOptions,
        options: ModelOptions,
    ) -> Result<Model> {
        Ok(Model::new(Catalog::open(path, open)?, options))
    }

    /// The name of a tensor, exactly as the file or the rule has it.
    pub fn name(&self, id: TensorId) -> &Arc<str> {
        &self.entries[id as usize].name
    }

    /// The number of ids: stored tensors and names that might be synthetic ones.
    pub fn id_count(&self) -> u32 {
        self.entries.len() as u32
    }

    /// Whether `id` is a stored tensor.
    pub fn is_stored(&self, id: TensorId) -> bool {
        (id as usize) < self.catalog.tensors.len()
    }

    /// The id of a name. For a synthetic name the tensor need not exist: ask [`Model::tensor`].
    pub fn id(&self, name: &str) -> Option<TensorId> {
        self.by_name.get(name).copied()
    }

    /// What the tensor is, or why there is none of that name. Worked out once, unless a fact that
    /// it depends on cannot be read: then [`Model::is_settled`] says no, a stored tensor has no
    /// values for now, and the next call tries again.
    ///
    /// # Errors
    /// The reason, as a sentence for a person.
    pub fn tensor(&self, id: TensorId) -> std::result::Result<&Arc<Tensor>, &str> {
        self.answer(id).answer
    }

    fn answer(&self, id: TensorId) -> Answer<std::result::Result<&Arc<Tensor>, &str>> {
        self.entries[id as usize].tensor.get(|| self.work_out(id))
    }

    /// Whether what [`Model::tensor`] last answered stays so.
    pub fn is_settled(&self, id: TensorId) -> bool {
        self.entries[id as usize].tensor.is_certain()
    }

    /// The tensor, if all that it depends on could be read.
    fn settled(&self, id: TensorId) -> std::result::Result<&Arc<Tensor>, Missing> {
        let Answer { answer, certain } = self.answer(id);
        match (certain, answer) {
            (true, answer) => answer.map_err(Missing::from),
            (false, Ok(tensor)) => Err(Missing::Unread(
                tensor.remark.clone().unwrap_or_default().into(),
            )),
            (false, Err(why)) => Err(Missing::Unread(why.into())),
        }
    }

    /// The tensor of that name.
    ///
    /// # Errors
    /// [`Error::NotFound`], with the reason where there is one; EIO where that is not known.
    pub fn find(&self, name: &str) -> Result<(TensorId, &Arc<Tensor>)> {
        let id = self
            .id(name)
            .ok_or_else(|| Error::NotFound(format!("no tensor '{name}'; 'stfs ls' lists them")))?;
        self.described(id).map(|tensor| (id, tensor))
    }

    /// The tensor, or the error of whoever wants its bytes.
    fn described(&self, id: TensorId) -> Result<&Arc<Tensor>> {
        let Answer { answer, certain } = self.answer(id);
        answer.map_err(|why| match certain {
            true => Error::NotFound(format!("no tensor '{}': {why}", self.name(id))),
            false => Error::other(libc::EIO, format!("'{}': {why}", self.name(id))),
        })
    }

    /// The ids of all tensors that exist, in natural order of their names. Waits for facts; a
    /// synthetic tensor whose facts cannot be read, not even after a while, is not among them.
    pub fn listing(&self) -> &[TensorId] {
        self.listing.get_or_init(|| {
            self.fetch_facts(LISTING_THREADS);
            let mut ids: Vec<TensorId> = (0..self.id_count())
                .filter(|&id| self.is_stored(id) || self.tensor(id).is_ok())
                .collect();
            // Stored ids are in natural order already, which sorting in runs makes use of.
            ids.sort_by(|&a, &b| natural(self.name(a), self.name(b)));
            ids
        })
    }

    /// Whether [`Model::listing`] has been made, and answers at once.
    pub fn is_listed(&self) -> bool {
        self.listing.get().is_some()
    }

    /// Every name that one might look for and that is not there, with the reason; and remarks on
    /// those that are.
    pub fn reasons(&self) -> Vec<(Arc<str>, String)> {
        let mut out = Vec::new();
        for id in 0..self.id_count() {
            match self.tensor(id) {
                Err(why) => out.push((self.name(id).clone(), why.to_string())),
                Ok(t) => {
                    if let Some(remark) = &t.remark {
                        out.push((self.name(id).clone(), remark.clone()));
                    }
                }
            }
        }
        out.sort_by(|a, b| natural(&a.0, &b.0));
        out
    }

    /// A recognized layer, decodable or not.
    pub fn layer(&self, index: u32) -> (&Recognized, std::result::Result<&Layer, &str>) {
        (self.recognized(index), self.layer_answer(index).answer)
    }

    fn layer_answer(&self, index: u32) -> Answer<std::result::Result<&Layer, &str>> {
        let slot = &self.layers[index as usize];
        slot.resolved.get(|| {
            let resolved = slot.recognized.resolve(&self.catalog);
            Answer {
                certain: !matches!(resolved, Err(Missing::Unread(_))),
                answer: resolved.map_err(|why| why.to_string()),
            }
        })
    }

    /// The layer, or whether it is for good that there is none.
    fn settled_layer(&self, index: u32) -> std::result::Result<&Layer, Missing> {
        let Answer { answer, certain } = self.layer_answer(index);
        answer.map_err(|why| match certain {
            true => Missing::Reason(why.into()),
            false => Missing::Unread(why.into()),
        })
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
        self.layer_of.get(&stored).copied()
    }

    /// The layer whose anchor `stored` is.
    fn layer_anchored_at(&self, stored: TensorId) -> Option<u32> {
        let layer = self.layer_of(stored)?;
        let parts = &self.layers[layer as usize].recognized.parts;
        (parts.first() == Some(&stored)).then_some(layer)
    }

    /// Owner, permissions and mtime of a tensor's files: its source's, or the strictest of several.
    pub fn stat(&self, id: TensorId) -> Stat {
        let mut files = Vec::new();
        self.source_files(id, &mut files);
        files.sort_unstable();
        files.dedup();
        Stat::strictest(files.iter().map(|&f| self.catalog.files[f as usize].stat))
            .unwrap_or_else(|| self.catalog.stat())
    }

    /// Indexes of the files that a tensor's bytes or values come from.
    pub fn source_files(&self, id: TensorId, out: &mut Vec<u32>) {
        let Ok(tensor) = self.tensor(id) else { return };
        let mut layer = |l: u32| {
            for &p in &self.recognized(l).parts {
                out.extend(self.catalog.files_of(p));
            }
        };
        match &tensor.origin {
            Origin::Stored { layer: Some(l) } => layer(*l),
            Origin::Stored { layer: None } => {
                out.extend(self.catalog.files_of(id));
            }
            Origin::Dequantized { layer: l } => layer(*l),
            Origin::Fused(join) | Origin::Stacked(join) => {
                for part in join.groups.iter().flatten() {
                    self.source_files(part.id, out);
                }
            }
            Origin::Tied(of) => self.source_files(*of, out),
        }
    }
}

impl Entry {
    fn new(name: Arc<str>, recipes: Vec<candidates::Recipe>) -> Entry {
        Entry {
            name,
            recipes,
            tensor: Known::new(),
        }
    }
}
