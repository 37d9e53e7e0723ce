//! Files in the safetensors format that a model's own definition names: some of its tensors, perhaps under other
//! names.

use super::{Absent, Item};
use crate::catalog::FileOfTensors;
use crate::dtype::ElementType;
use crate::model::Model;
use crate::reason::reason;

/// Whether the format can hold every tensor of the file.
pub(super) fn exists(model: &Model, file: &FileOfTensors) -> Result<(), Absent> {
    let tensors = file.tensors.iter().map(|(id, _)| *id);
    let mut tensors = tensors.map(|id| model.catalog.tensors.get(id));
    match tensors.find(|t| matches!(t.dtype, ElementType::Block(_))) {
        None => Ok(()),
        Some(t) => {
            let (name, dtype) = (t.name, t.dtype);
            Err(reason!("'{name}' is {dtype}, which safetensors does not have").into())
        }
    }
}

/// The tensors of the file, in natural order of their names in the model.
pub(super) fn items(model: &Model, file: &FileOfTensors) -> Vec<Item> {
    let item = |(id, name): &(u32, Option<Box<str>>)| {
        let item = Item::raw(model, *id)?;
        let name = name.clone();
        Some(Item { name, ..item })
    };
    file.tensors.iter().filter_map(item).collect()
}
