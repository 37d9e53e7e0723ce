//! The model: every tensor that stands under `tensors/`, stored and synthetic, each with its dtype,
//! shape and the views that show it.
//!
//! Opening makes a list of names and of *recipes* for the synthetic ones; what a tensor is, and
//! whether a synthetic one exists at all, is worked out when it is first asked for and remembered.
//! Nothing is read for that but headers, save for the formats that keep a shape in tensor data
//! ([`crate::quant::Facts`]).

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use crate::catalog::{Catalog, Stat, natural};
use crate::dtype::{Dtype, ElementType, numel};
use crate::error::{Error, Result};
use crate::quant::{self, Layer, Outcome, Recognised, Target};

mod candidates;
mod file_names;
mod fuse;
mod rules;
mod same;
mod tied;
mod views;

pub use rules::{FUSED, FusedRule, STACKED, StackedRule};

/// Identifies a tensor of a [`Model`]: stored ones first, by their index in the catalog, then the
/// names that synthetic ones might have. The same at every mount of the same files.
pub type TensorId = u32;

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

/// The binary32 values of a tensor: what `f32` shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Values {
    /// Their shape: `raw`'s own, save for packed weights, which have the real one.
    pub shape: Box<[u64]>,
    /// Whether no value of this dtype or format can have been rounded.
    pub exact: bool,
}

impl Values {
    /// Their number.
    pub fn numel(&self) -> u64 {
        numel(&self.shape).unwrap_or(0)
    }
}

/// Where a tensor comes from.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A file holds it. If it belongs to a quantised layer as its weight, the layer's index.
    Stored {
        /// Index for [`Model::layer`], where the tensor is the anchor of a layer.
        layer: Option<u32>,
    },
    /// Parts joined along an axis.
    Fused(Join),
    /// Experts stacked along a new first axis, each of one or more joined parts.
    Stacked(Join),
    /// The values of a quantised layer.
    Dequantized {
        /// Index for [`Model::layer`].
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

/// What to leave out when opening a model.
#[derive(Debug, Clone, Copy)]
pub struct ModelOptions {
    /// Whether fused, stacked, dequantised and tied tensors are made.
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
    tensor: OnceLock<std::result::Result<Arc<Tensor>, String>>,
}

struct LayerSlot {
    recognised: Recognised,
    resolved: OnceLock<std::result::Result<Layer, String>>,
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
    has_facts: bool,
    ready: AtomicBool,
    listing: OnceLock<Vec<TensorId>>,
    file_names: OnceLock<file_names::FileNames>,
}

impl Model {
    /// Lists the names that there are and may be. Reads nothing but what the catalog holds.
    pub fn new(catalog: Catalog, options: ModelOptions) -> Model {
        let recognised = quant::recognise(&catalog);
        let mut layer_of = HashMap::new();
        for (i, r) in recognised.iter().enumerate() {
            for &part in &r.parts {
                layer_of.entry(part).or_insert(i as u32);
            }
            // An anchor belongs to its own layer, whatever else lists it as a part.
            if let Some(&anchor) = r.parts.first() {
                layer_of.insert(anchor, i as u32);
            }
        }
        let has_facts = recognised
            .iter()
            .any(|r| matches!(r.outcome, Outcome::Facts(_)));
        let mut entries: Vec<Entry> = catalog
            .tensors
            .iter()
            .map(|t| Entry::new(t.name.clone(), Vec::new()))
            .collect();
        let mut by_name: HashMap<Arc<str>, TensorId> = entries
            .iter()
            .enumerate()
            .map(|(i, e)| (e.name.clone(), i as u32))
            .collect();
        if options.synthetic {
            for (name, recipes) in candidates::generate(&catalog, &recognised) {
                by_name.insert(name.clone(), entries.len() as u32);
                entries.push(Entry::new(name, recipes));
            }
        }
        Model {
            catalog,
            entries,
            by_name,
            layers: recognised
                .into_iter()
                .map(|recognised| LayerSlot {
                    recognised,
                    resolved: OnceLock::new(),
                })
                .collect(),
            layer_of,
            has_facts,
            ready: AtomicBool::new(!has_facts),
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

    /// What the tensor is, or why there is none of that name. Worked out once.
    ///
    /// # Errors
    /// The reason, as a sentence for a person.
    pub fn tensor(&self, id: TensorId) -> std::result::Result<&Arc<Tensor>, &str> {
        let entry = &self.entries[id as usize];
        entry
            .tensor
            .get_or_init(|| self.work_out(id).map(Arc::new))
            .as_ref()
            .map_err(String::as_str)
    }

    /// The tensor of that name.
    ///
    /// # Errors
    /// [`Error::NotFound`], with the reason where there is one.
    pub fn find(&self, name: &str) -> Result<(TensorId, &Arc<Tensor>)> {
        let id = self
            .id(name)
            .ok_or_else(|| Error::NotFound(format!("no tensor '{name}'; 'stfs ls' lists them")))?;
        match self.tensor(id) {
            Ok(t) => Ok((id, t)),
            Err(why) => Err(Error::NotFound(format!("no tensor '{name}': {why}"))),
        }
    }

    /// The ids of all tensors that exist, in natural order of their names. Waits for facts.
    pub fn listing(&self) -> &[TensorId] {
        self.listing.get_or_init(|| {
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

    /// A recognised layer, decodable or not.
    pub fn layer(&self, index: u32) -> (&Recognised, std::result::Result<&Layer, &str>) {
        let slot = &self.layers[index as usize];
        let resolved = slot
            .resolved
            .get_or_init(|| slot.recognised.resolve(&self.catalog));
        (&slot.recognised, resolved.as_ref().map_err(String::as_str))
    }

    /// A recognised layer, without asking whether it can be decoded (which may read facts).
    pub fn recognised(&self, index: u32) -> &Recognised {
        &self.layers[index as usize].recognised
    }

    /// How many layers were recognised.
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
        let parts = &self.layers[layer as usize].recognised.parts;
        (parts.first() == Some(&stored)).then_some(layer)
    }

    /// Whether everything is known without reading tensor data (any more).
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Whether [`Model::tensor`] answers for `id` without reading tensor data.
    pub fn is_immediate(&self, id: TensorId) -> bool {
        if self.is_ready() || self.entries[id as usize].tensor.get().is_some() {
            return true;
        }
        self.is_stored(id)
            && self.layer_of(id).is_none_or(|l| {
                let slot = &self.layers[l as usize];
                slot.resolved.get().is_some()
                    || !matches!(slot.recognised.outcome, Outcome::Facts(_))
            })
    }

    /// Fetches the facts that lie in tensor data, on `threads` threads, and returns when all are
    /// known. To be run in the background; requests that need one earlier fetch it themselves.
    pub fn fetch_facts(&self, threads: usize) {
        if self.has_facts && !self.is_ready() {
            let next = std::sync::atomic::AtomicU32::new(0);
            std::thread::scope(|scope| {
                for _ in 0..threads.max(1) {
                    scope.spawn(|| {
                        loop {
                            let i = next.fetch_add(1, Ordering::Relaxed);
                            if i >= self.layer_count() {
                                break;
                            }
                            let _ = self.layer(i).1;
                        }
                    });
                }
            });
        }
        self.ready.store(true, Ordering::Release);
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
            for &p in &self.recognised(l).parts {
                out.push(self.catalog.tensors[p as usize].file);
            }
        };
        match &tensor.origin {
            Origin::Stored { layer: Some(l) } => layer(*l),
            Origin::Stored { layer: None } => {
                out.push(self.catalog.tensors[id as usize].file);
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

    fn work_out(&self, id: TensorId) -> std::result::Result<Tensor, String> {
        if self.is_stored(id) {
            return Ok(self.stored(id));
        }
        let mut first_reason = None;
        for recipe in &self.entries[id as usize].recipes {
            match self.make(recipe) {
                Ok(tensor) => return Ok(tensor),
                Err(why) => {
                    first_reason.get_or_insert(why);
                }
            }
        }
        Err(first_reason.unwrap_or_default())
    }

    fn stored(&self, id: TensorId) -> Tensor {
        let t = &self.catalog.tensors[id as usize];
        let layer = self.layer_anchored_at(id);
        let numeric = t.dtype.known().filter(|d| d.has_f32()).map(|d| Values {
            shape: t.shape.clone(),
            exact: d.exact_in_f32(),
        });
        // Where the anchor has the float weight's own name its values are the layer's, or none.
        let anchored =
            layer.filter(|&l| self.layers[l as usize].recognised.target == Target::Anchor);
        let values = match anchored {
            None => numeric,
            Some(l) => self.layer(l).1.ok().map(Values::of_layer),
        };
        Tensor {
            dtype: t.dtype.clone(),
            shape: t.shape.clone(),
            nbytes: t.nbytes,
            values,
            remark: layer.and_then(|l| self.layer(l).1.err()).map(|why| {
                format!(
                    "{} layer cannot be decoded: {why}",
                    self.layers[layer.unwrap_or(0) as usize].recognised.method
                )
            }),
            origin: Origin::Stored { layer },
        }
    }

    fn make(&self, recipe: &candidates::Recipe) -> std::result::Result<Tensor, String> {
        use candidates::Recipe;
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
                let (_, resolved) = self.layer(*layer);
                let layer_values = Values::of_layer(resolved.map_err(str::to_string)?);
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
                let of = self.tensor(id).map_err(str::to_string)?;
                Ok(Tensor {
                    origin: Origin::Tied(id),
                    remark: None,
                    ..(**of).clone()
                })
            }
        }
    }
}

impl Entry {
    fn new(name: Arc<str>, recipes: Vec<candidates::Recipe>) -> Entry {
        Entry {
            name,
            recipes,
            tensor: OnceLock::new(),
        }
    }
}

impl Values {
    fn of_layer(layer: &Layer) -> Values {
        Values {
            shape: layer.shape.clone(),
            exact: layer.exact,
        }
    }
}

/// Bytes of a binary32 tensor of that shape, or a reason.
fn f32_bytes(shape: &[u64]) -> std::result::Result<u64, String> {
    numel(shape)
        .and_then(|n| Dtype::F32.bytes(n))
        .ok_or_else(|| format!("its values {shape:?} would overflow 64 bits"))
}
