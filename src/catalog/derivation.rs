//! What a catalog has besides files and tensors if its tensors are made from those of other models.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

use super::Catalog;

/// The names of the files that `export/` has of every model, or may have one day.
pub const BUILT_IN_EXPORTS: &[&str] = &[
    "model.safetensors",
    "model-f32.safetensors",
    "model-bf16.safetensors",
    "model-fused.safetensors",
    "model_weights.bin",
    "model_weights.json",
    "model.gguf",
    "model-bf16.gguf",
    "model-f16.gguf",
    "model-q8_0.gguf",
    "hf",
    "hf-f32",
    "hf-bf16",
];

/// How tensors are made from those of other models, and what comes with that.
pub struct Derivation {
    /// The index of the file that defines the tensors. It counts for the permissions and the time of each.
    pub file: u32,
    /// Indexes of all files that hold no tensors: that one, and those that define other models' tensors.
    pub definitions: Vec<u32>,
    /// Where each tensor comes from.
    pub provenance: Box<dyn Provenance>,
    /// Files of `export/` besides the built-in ones.
    pub exports: FilesOfTensors,
    /// All parameters and their values.
    pub parameters: Map<String, Value>,
    /// The parameters that were given when it was opened, as they were given. With the same ones it is the same
    /// model again.
    pub given: Vec<(String, String)>,
}

/// Where the tensors of a catalog come from, by their indexes. Computed when it is asked for: there may be a
/// million.
pub trait Provenance: Send + Sync {
    /// The `kind` in JSON and extended attributes: `derived`, or that of a tensor whose bytes a file holds.
    fn kind(&self, index: u32) -> &'static str;

    /// Further keys of the `origin` object, after `file` and `offset`.
    fn fields(&self, index: u32) -> Vec<(&'static str, Value)>;

    /// Whether a file holds the tensor as it is, under whatever name.
    fn is_as_stored(&self, index: u32) -> bool;

    /// Whether values can have been rounded when the tensor's elements were made.
    fn is_rounded(&self, index: u32) -> bool;

    /// What made the tensor, in a few words; `None` if it is as a file has it.
    fn summary(&self, index: u32) -> Option<String>;

    /// Adds the stored tensors that it is made of to `parts`, as far as they are not there yet.
    fn stored_parts(&self, index: u32, parts: &mut StoredParts);
}

/// The stored tensors that a derived one is made of, each once, in order: all are counted, and the first ones named.
#[derive(Default)]
pub struct StoredParts {
    /// How many there are.
    pub total: u64,
    /// The first ones: names of the model and of the tensor.
    pub listed: Vec<(String, String)>,
    /// How many are named.
    pub most: usize,
    /// Tensors that were met, those between included: where their catalog is in memory, and their index there.
    met: HashSet<(usize, u32)>,
}

impl StoredParts {
    /// None so far, of which at most so many are named.
    pub fn at_most(most: usize) -> StoredParts {
        StoredParts {
            most,
            ..StoredParts::default()
        }
    }

    /// Whether a tensor of a catalog has not been met yet. All catalogs must stay where they are.
    pub fn is_new(&mut self, catalog: &Catalog, index: u32) -> bool {
        let address = std::ptr::from_ref(catalog) as usize;
        self.met.insert((address, index))
    }

    /// Adds a tensor.
    pub fn add(&mut self, name: impl FnOnce() -> (String, String)) {
        self.total += 1;
        if self.listed.len() < self.most {
            self.listed.push(name());
        }
    }
}

/// Files that hold some of a model's tensors, by number and by name.
#[derive(Debug, Default)]
pub struct FilesOfTensors {
    all: Vec<FileOfTensors>,
    by_name: HashMap<Box<str>, u32>,
}

impl FilesOfTensors {
    /// All, in their order.
    pub fn all(&self) -> &[FileOfTensors] {
        &self.all
    }

    /// The number of the file of a name.
    pub fn position(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }
}

impl From<Vec<FileOfTensors>> for FilesOfTensors {
    /// No two have one name.
    fn from(all: Vec<FileOfTensors>) -> FilesOfTensors {
        let names = (0..).zip(&all).map(|(i, file)| (file.name.clone(), i));
        FilesOfTensors {
            by_name: names.collect(),
            all,
        }
    }
}

/// A file that holds some of a model's tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOfTensors {
    /// The file's name.
    pub name: Box<str>,
    /// Indexes of the tensors, in ascending order, and their names in the file if these are not their own.
    pub tensors: Vec<(u32, Option<Box<str>>)>,
}
