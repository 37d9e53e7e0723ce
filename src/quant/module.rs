//! The module that a tensor belongs to: its path, and its other tensors. All formats use it to find
//! the parts of their layers.

use std::ops::Deref;

use super::listing::Listing;
use crate::catalog::TensorRef;
use crate::reason::{Reason, reason};

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

/// A module: tensors whose names consist of its path, a joint and a last component.
#[derive(Clone, Copy)]
pub struct Module<'a> {
    listing: &'a Listing<'a>,
    path: &'a str,
    joint: &'static str,
}

impl<'a> Module<'a> {
    /// The module whose weight is `name`; `None` if that is not a `….weight`.
    pub fn of_weight(listing: &'a Listing<'a>, name: &'a str) -> Option<Module<'a>> {
        Module::of(listing, name, "weight")
    }

    /// The module whose tensor `last` is `name`. The path is empty for a layer that was saved by
    /// itself.
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

    /// The module whose tensors are named `path`, `joint` and their last component.
    pub fn at(listing: &'a Listing<'a>, path: &'a str, joint: &'static str) -> Module<'a> {
        Module {
            listing,
            path,
            joint,
        }
    }

    /// Its path, as it appears in configs.
    pub fn path(&self) -> &'a str {
        self.path
    }

    /// Its tensor with that last component, such as `weight_scale`.
    pub fn part(&self, last: &str) -> Option<Part<'a>> {
        let index = self.listing.find(&self.name(last))?;
        let tensor = self.listing.get(index);
        Some(Part { index, tensor })
    }

    /// Checks that an optional part that was not found does not exist at all.
    ///
    /// # Errors
    /// An index lists it in a shard that is missing: without it, the values would be wrong.
    pub fn check_has_no(&self, last: &str) -> Result<(), Reason> {
        let name = self.name(last);
        match self.listing.is_absent(&name) {
            true => Err(reason!(
                "{name} is not in the available files; mount the whole model"
            )),
            false => Ok(()),
        }
    }

    /// The indexes of its tensors with these last components, if they exist.
    pub fn indexes(&self, lasts: &[&str]) -> impl Iterator<Item = u32> {
        lasts.iter().filter_map(|last| Some(self.part(last)?.index))
    }

    /// The name of its tensor with that last component, whether or not it exists.
    pub fn name(&self, last: &str) -> String {
        [self.path, self.joint, last].concat()
    }

    /// The names of several tensors for a reason: `m.weight_scale, scale`.
    pub fn names(&self, lasts: &[&str]) -> String {
        self.name(&lasts.join(", "))
    }

    /// Where a missing part may be, as the end of a reason.
    pub fn elsewhere(&self) -> &'static str {
        self.listing.elsewhere()
    }
}
