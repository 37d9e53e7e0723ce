//! The bin + manifest export, as moeflux writes it: every tensor at a multiple of 64 bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::{Assembly, stored_ids};
use crate::dtype::Dtype;
use crate::export::assembly::Piece;
use crate::model::{Model, TensorId};
use crate::view::{Bytes, SharedView};

const ALIGN: u64 = 64;

/// Where each stored tensor stands in the `.bin`, by name, and the length of the file.
fn places(model: &Model) -> (Vec<(TensorId, u64)>, u64) {
    let mut ids: Vec<TensorId> = stored_ids(model).collect();
    // The extractor's order, so that the same model gives the same file.
    ids.sort_by(|&a, &b| model.name(a).cmp(model.name(b)));
    let mut at = 0u64;
    let places = ids
        .into_iter()
        .map(|id| {
            let start = at.next_multiple_of(ALIGN);
            at = start + model.catalog.tensors[id as usize].nbytes;
            (id, start)
        })
        .collect();
    (places, at.next_multiple_of(ALIGN))
}

/// `model_weights.bin`.
pub(super) fn bin(model: Arc<Model>) -> SharedView {
    let (places, len) = places(&model);
    let pieces = places
        .into_iter()
        .map(|(id, start)| Piece {
            start,
            len: model.catalog.tensors[id as usize].nbytes,
            id,
            as_values: false,
        })
        .collect();
    Arc::new(Assembly::new(model, Vec::new(), pieces, len))
}

/// `model_weights.json`.
pub(super) fn json(model: &Model) -> SharedView {
    let (places, _) = places(model);
    let mut tensors = Map::new();
    let mut packings: BTreeMap<(u32, Option<u64>), u32> = BTreeMap::new();
    for &(id, offset) in &places {
        let t = &model.catalog.tensors[id as usize];
        let mut entry = json!({
            "offset": offset,
            "size": t.nbytes,
            "shape": t.shape,
            "dtype": t.dtype.name(),
        });
        if t.dtype.is(Dtype::U32) {
            entry["bits"] = json!(bits(model, id, &mut packings));
        }
        tensors.insert(t.name.to_string(), entry);
    }
    let mut config = Map::new();
    if let Some(((bits, group), _)) = packings.iter().max_by_key(|(_, n)| **n) {
        config.insert("default_bits".into(), json!(bits));
        config.insert("default_group_size".into(), json!(group));
    }
    let value: Value = json!({
        "num_tensors": places.len(),
        "tensors": tensors,
        "config": config,
    });
    let mut text = serde_json::to_vec(&value).unwrap_or_default();
    text.push(b'\n');
    Arc::new(Bytes(text.into()))
}

/// Bits per value that a U32 tensor packs; 0 for plain integers.
fn bits(model: &Model, id: TensorId, packings: &mut BTreeMap<(u32, Option<u64>), u32>) -> u32 {
    let layer = model.layer_of(id).map(|l| model.layer(l));
    match layer {
        Some((recognised, Ok(layer))) if recognised.parts.first() == Some(&id) => {
            *packings.entry((layer.bits, layer.group_size)).or_default() += 1;
            layer.bits
        }
        _ => model.catalog.tensors[id as usize]
            .bits
            .map_or(0, |b| b.bits),
    }
}
