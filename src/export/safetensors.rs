//! Exports in the safetensors format: a header, then tensors without holes between them.

use serde::Serialize;
use serde_json::{Map, Value};

use super::{Absent, Export, Item, Plan};
use crate::catalog::METADATA;
use crate::dtype::ElementType;
use crate::model::Model;
use crate::reason::reason;
use crate::text::push_json;

/// Tensor data begins at a multiple of this: a page, so that a mapping of the file is aligned.
const DATA_ALIGN: usize = 4096;
/// What tensors are aligned to, as far as a format without holes allows.
const TENSOR_ALIGN: u64 = 64;

/// Whether the format can hold every stored tensor, save for those of a type that is `converted`. It has
/// no block types; a dtype that stfs does not know is written as plain bytes.
pub(super) fn holds(model: &Model, converted: fn(&ElementType) -> bool) -> Result<(), Absent> {
    let is_foreign =
        |dtype: &ElementType| matches!(dtype, ElementType::Block(_)) && !converted(dtype);
    let tensors = &model.catalog.tensors;
    if !tensors.dtypes().iter().any(is_foreign) {
        return Ok(());
    }
    let Some(first) = tensors.iter().find(|t| is_foreign(t.dtype)) else {
        return Ok(());
    };
    let (name, dtype) = (first.name, first.dtype);
    let why = reason!("'{name}' is {dtype}, which safetensors does not have");
    let floats = Export::Floats;
    Err(if !dtype.has_f32() {
        reason!("{why}, and has no values")
    } else if floats.exists(model).is_ok() {
        reason!("{why}; {} has its values", floats.name())
    } else {
        why
    }
    .into())
}

/// The file that holds `items` (in natural order of their names). A tensor named `__metadata__`, as
/// a manifest may have one, is left out: in this format the name means something else.
pub(super) fn plan(model: &Model, mut items: Vec<Item>) -> Plan {
    items.retain(|item| item.name(model) != METADATA);
    // Holes are not allowed, so tensors whose size keeps the next one aligned come first.
    items.sort_by_key(|i| !i.nbytes.is_multiple_of(TENSOR_ALIGN));
    let header = header(model, &items);
    let mut at = header.len() as u64;
    let mut pieces = Vec::with_capacity(items.len());
    for item in &items {
        pieces.push(item.piece(at));
        at += item.nbytes;
    }
    Plan::new(header, pieces, at)
}

/// A tensor's entry in the header.
#[derive(Serialize)]
struct Entry<'a> {
    dtype: &'a str,
    shape: &'a [u64],
    data_offsets: [u64; 2],
}

/// Length field and JSON, padded with spaces.
fn header(model: &Model, items: &[Item]) -> Vec<u8> {
    let mut out = vec![0; 8];
    out.push(b'{');
    let metadata = metadata(model);
    if !metadata.is_empty() {
        push_json(&mut out, METADATA);
        out.push(b':');
        push_json(&mut out, &metadata);
    }
    let mut at = 0u64;
    for item in items {
        if out.len() > 9 {
            out.push(b',');
        }
        push_json(&mut out, item.name(model));
        out.push(b':');
        let entry = Entry {
            dtype: item.dtype.name(),
            shape: &item.shape,
            data_offsets: [at, at + item.nbytes],
        };
        push_json(&mut out, &entry);
        at += item.nbytes;
    }
    out.push(b'}');
    out.resize(out.len().next_multiple_of(DATA_ALIGN), b' ');
    let n = out.len() as u64 - 8;
    out[..8].copy_from_slice(&n.to_le_bytes());
    out
}

/// `__metadata__`, which holds strings only: other values from a manifest are written as JSON text.
fn metadata(model: &Model) -> Map<String, Value> {
    model
        .catalog
        .metadata
        .iter()
        .map(|(k, v)| match v {
            Value::String(_) => (k.clone(), v.clone()),
            other => (k.clone(), Value::String(other.to_string())),
        })
        .collect()
}
