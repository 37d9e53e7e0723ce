//! The model's tensors as the formats are shown them: the catalog's, save that stacked layers look
//! like their first expert ([`super::stacked`]).

use std::collections::HashMap;

use crate::catalog::{Catalog, Configuration, TensorRef};

/// A view of a catalog in which some tensors are described otherwise.
pub struct Listing<'a> {
    catalog: &'a Catalog,
    overlay: Overlay,
}

/// What is described otherwise, by index.
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
    /// Describes the tensor `index` so. Of two that then have one name the first keeps it.
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
    /// The catalog, but for what the overlay describes.
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
        // A tensor that is shown under another name is not there under its own.
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

    /// Whether one shard was opened alone, so that others may hold what is missing.
    pub fn is_lone_file(&self) -> bool {
        self.catalog.lone_file
    }

    /// Whether a tensor of that name is promised by an index, in a shard that is not there.
    pub fn is_absent(&self, name: &str) -> bool {
        self.catalog.absent.contains(name)
    }

    /// Where a missing tensor may be, as the end of a reason; empty if all of the model is at hand.
    pub fn elsewhere(&self) -> &'static str {
        if self.is_lone_file() {
            "; this is one shard alone: mount the model's directory"
        } else if !self.catalog.absent.is_empty() {
            "; not all shards of the model are here"
        } else {
            ""
        }
    }
}
