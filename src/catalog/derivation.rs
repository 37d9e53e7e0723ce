//! What a catalog has besides files and tensors if its tensors are made from those of other models.

use serde_json::{Map, Value};

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
    pub exports: Vec<FileOfTensors>,
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

    /// The stored tensors that it is made of, each once: names of the model and of the tensor.
    fn stored_parts(&self, index: u32) -> Vec<(String, String)>;
}

/// A file that holds some of a model's tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileOfTensors {
    /// The file's name.
    pub name: Box<str>,
    /// Indexes of the tensors, in ascending order, and their names in the file if these are not their own.
    pub tensors: Vec<(u32, Option<Box<str>>)>,
}
