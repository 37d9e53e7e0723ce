//! The model's tensors as the formats see them: those of the catalog, but stacked layers look like
//! their first expert ([`super::stacked`]).

use std::collections::HashMap;

use crate::catalog::{Catalog, Configuration, TensorRef};

/// A view of a catalog in which some tensors are described differently.
pub struct Listing<'a> {
    catalog: &'a Catalog,
    overlay: Overlay,
}

/// The tensors that are described differently, by index.
#[derive(Default)]
pub struct Overlay {
    shown: HashMap<u32, Shown>,
    by_name: HashMap<Box<str>, u32>,
}

/// How a tensor is described instead. Its element type stays.
struct Shown {
    name: Box<str>,
    shape: Box<[u64]>,
    nbytes: u64,
}

impl Overlay {
    /// Describes the tensor `index` this way. If two then have the same name, the first keeps it.
    pub fn describe(&mut self, index: u32, name: &str, shape: &[u64], nbytes: u64) {
        self.by_name.entry(name.into()).or_insert(index);
        let shown = Shown {
            name: name.into(),
            shape: shape.into(),
            nbytes,
        };
        self.shown.insert(index, shown);
    }
}

impl<'a> Listing<'a> {
    /// The catalog with the overlay's descriptions in place of its own.
    pub fn new(catalog: &'a Catalog, overlay: Overlay) -> Listing<'a> {
        Listing { catalog, overlay }
    }

    /// The tensor of that index, which must be one of the catalog's.
    pub fn get(&self, index: u32) -> TensorRef<'_> {
        let stored = self.catalog.tensors.get(index);
        match self.overlay.shown.get(&index) {
            None => stored,
            Some(shown) => TensorRef {
                name: &shown.name,
                shape: &shown.shape,
                nbytes: shown.nbytes,
                ..stored
            },
        }
    }

    /// All, in the order of their indexes.
    pub fn iter(&self) -> impl Iterator<Item = TensorRef<'_>> {
        (0..self.catalog.tensors.len() as u32).map(|index| self.get(index))
    }

    /// The index of the tensor of that name.
    pub fn find(&self, name: &str) -> Option<u32> {
        if let Some(&index) = self.overlay.by_name.get(name) {
            return Some(index);
        }
        // A tensor that is shown under another name does not exist under its own.
        let index = self.catalog.find(name)?;
        (!self.overlay.shown.contains_key(&index)).then_some(index)
    }

    /// The config files beside the weights.
    pub fn configs(&self) -> &'a Configuration {
        &self.catalog.configs
    }

    /// Whether a manifest describes the tensors.
    pub fn is_manifest(&self) -> bool {
        self.catalog.configs.manifest.is_some()
    }

    /// Whether one shard was opened alone, so that missing tensors may be in other shards.
    pub fn is_lone_file(&self) -> bool {
        self.catalog.lone_file
    }

    /// Whether an index lists a tensor of that name in a shard that is missing.
    pub fn is_absent(&self, name: &str) -> bool {
        self.catalog.absent.contains(name)
    }

    /// Where a missing tensor may be, as the end of a reason; empty if the model is complete.
    pub fn elsewhere(&self) -> &'static str {
        if self.is_lone_file() {
            "; this is only one shard: mount the model's directory"
        } else if !self.catalog.absent.is_empty() {
            "; some shards of the model are missing"
        } else {
            ""
        }
    }
}
