//! The module that a tensor belongs to: its path, and the tensors beside it. Every format finds the
//! parts of its layers here.

use std::ops::Deref;

use super::listing::Listing;
use crate::catalog::TensorRef;

/// A stored tensor and its index in the catalog.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// Index into [`Catalog::tensors`](crate::catalog::Catalog::tensors).
    pub index: u32,
    /// How it is described.
    pub tensor: TensorRef<'a>,
}

impl<'a> Deref for Part<'a> {
    type Target = TensorRef<'a>;

    fn deref(&self) -> &TensorRef<'a> {
        &self.tensor
    }
}

/// A module: tensors whose names are its path, a joint and a last component.
#[derive(Clone, Copy)]
pub struct Module<'a> {
    listing: &'a Listing<'a>,
    path: &'a str,
    joint: &'static str,
}

impl<'a> Module<'a> {
    /// The module of which `name` is the weight; `None` if it is not a `….weight`.
    pub fn of_weight(listing: &'a Listing<'a>, name: &'a str) -> Option<Module<'a>> {
        Module::of(listing, name, "weight")
    }

    /// The module of which `name` is the tensor `last`. A layer that was saved by itself has no path.
    pub fn of(listing: &'a Listing<'a>, name: &'a str, last: &str) -> Option<Module<'a>> {
        let (path, joint) = match name.strip_suffix(last)? {
            "" => ("", ""),
            prefix => (prefix.strip_suffix('.')?, "."),
        };
        Some(Module {
            listing,
            path,
            joint,
        })
    }

    /// The module whose tensors are called `path`, `joint` and their last component.
    pub fn at(listing: &'a Listing<'a>, path: &'a str, joint: &'static str) -> Module<'a> {
        Module {
            listing,
            path,
            joint,
        }
    }

    /// Its path, as configs name it.
    pub fn path(&self) -> &'a str {
        self.path
    }

    /// Its tensor of that last component, such as `weight_scale`.
    pub fn part(&self, last: &str) -> Option<Part<'a>> {
        let index = self.listing.find(&self.name(last))?;
        let tensor = self.listing.get(index);
        Some(Part { index, tensor })
    }

    /// The indexes of those tensors of these last components that there are.
    pub fn indexes(&self, lasts: &[&str]) -> impl Iterator<Item = u32> {
        lasts.iter().filter_map(|last| Some(self.part(last)?.index))
    }

    /// The name of its tensor of that last component, whether or not there is one.
    pub fn name(&self, last: &str) -> String {
        [self.path, self.joint, last].concat()
    }

    /// The names of several, in the words of a reason: `m.weight_scale, scale`.
    pub fn names(&self, lasts: &[&str]) -> String {
        self.name(&lasts.join(", "))
    }

    /// Where a missing part may be, as the end of a reason.
    pub fn elsewhere(&self) -> &'static str {
        self.listing.elsewhere()
    }
}
