//! The module that a weight belongs to: its path, and the tensors beside it.

use crate::catalog::{Catalog, TensorRef};

/// A module of the model, by the name of its `weight`.
#[derive(Clone, Copy)]
pub struct Module<'a> {
    catalog: &'a Catalog,
    /// The weight's name without `weight`: empty, or with the dot at its end.
    prefix: &'a str,
}

impl<'a> Module<'a> {
    /// The module of which `name` is the weight; `None` if it is no `….weight`.
    pub fn of_weight(catalog: &'a Catalog, name: &'a str) -> Option<Module<'a>> {
        Module::of(catalog, name, "weight")
    }

    /// The module of which `name` is the tensor of that last name.
    pub fn of(catalog: &'a Catalog, name: &'a str, last: &str) -> Option<Module<'a>> {
        let prefix = name.strip_suffix(last)?;
        (prefix.is_empty() || prefix.ends_with('.')).then_some(Module { catalog, prefix })
    }

    /// Its path, as configs name it.
    pub fn path(&self) -> &'a str {
        self.prefix.trim_end_matches('.')
    }

    /// The index of its stored tensor of that last name, such as `weight_scale`.
    pub fn find(&self, last: &str) -> Option<u32> {
        self.catalog.find(&[self.prefix, last].concat())
    }

    /// As [`Module::find`], with the tensor.
    pub fn get(&self, last: &str) -> Option<(u32, TensorRef<'a>)> {
        let index = self.find(last)?;
        Some((index, self.catalog.tensors.get(index)))
    }

    /// Names of that last component, in the words of a reason: `m.weight_scale, scale`.
    pub fn names(&self, last: &[&str]) -> String {
        [self.prefix, &last.join(", ")].concat()
    }
}

/// Where a missing tensor may be, as the end of a reason; empty if all of the model is at hand.
pub fn elsewhere(catalog: &Catalog) -> &'static str {
    if catalog.lone_file {
        "; this is one shard alone: mount the model's directory"
    } else if !catalog.absent.is_empty() {
        "; not all shards of the model are here"
    } else {
        ""
    }
}
