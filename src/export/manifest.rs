//! The bin + manifest export, as moeflux writes it: every tensor at a multiple of 64 bytes.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::{Map, json};

use super::{Piece, Plan, Run, stored_ids};
use crate::dtype::Dtype;
use crate::model::{Model, TensorId};
use crate::text::push_json;

const ALIGN: u64 = 64;

/// The offset of each stored tensor in the `.bin`, sorted by name, and the length of the file.
fn places(model: &Model) -> (Vec<(TensorId, u64)>, u64) {
    let mut ids: Vec<TensorId> = stored_ids(model).collect();
    // The extractor's order, so that the same model gives the same file.
    ids.sort_by(|&a, &b| model.name(a).cmp(model.name(b)));
    let mut at = 0u64;
    let places = ids
        .into_iter()
        .map(|id| {
            let start = at.next_multiple_of(ALIGN);
            at = start + model.catalog.tensors.get(id).nbytes;
            (id, start)
        })
        .collect();
    (places, at.next_multiple_of(ALIGN))
}

/// `model_weights.bin`.
pub(super) fn bin(model: &Model) -> Plan {
    let (places, len) = places(model);
    let pieces = places
        .into_iter()
        .map(|(id, start)| Piece {
            start,
            len: model.catalog.tensors.get(id).nbytes,
            of: Run::Raw(id),
        })
        .collect();
    Plan::new(Vec::new(), pieces, len)
}

/// A tensor's entry in the manifest.
#[derive(Serialize)]
struct Entry<'a> {
    offset: u64,
    size: u64,
    shape: &'a [u64],
    dtype: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    bits: Option<u32>,
}

/// `model_weights.json`. Written entry by entry: a tree of JSON values takes many times its text.
pub(super) fn json(model: &Model) -> Plan {
    let (places, _) = places(model);
    let mut packings: BTreeMap<(u32, Option<u64>), u32> = BTreeMap::new();
    let mut text = format!("{{\"num_tensors\":{},\"tensors\":{{", places.len()).into_bytes();
    for (i, &(id, offset)) in places.iter().enumerate() {
        let t = model.catalog.tensors.get(id);
        if i > 0 {
            text.push(b',');
        }
        push_json(&mut text, t.name);
        text.push(b':');
        let entry = Entry {
            offset,
            size: t.nbytes,
            shape: t.shape,
            dtype: t.dtype.name(),
            bits: t
                .dtype
                .is(Dtype::U32)
                .then(|| bits(model, id, &mut packings)),
        };
        push_json(&mut text, &entry);
    }
    text.extend_from_slice(b"},\"config\":");
    let mut config = Map::new();
    if let Some(((bits, group), _)) = packings.iter().max_by_key(|(_, n)| **n) {
        config.insert("default_bits".into(), json!(bits));
        config.insert("default_group_size".into(), json!(group));
    }
    push_json(&mut text, &config);
    text.extend_from_slice(b"}\n");
    let len = text.len() as u64;
    Plan::new(text, Vec::new(), len)
}

/// Bits per value that a U32 tensor packs; 0 for plain integers.
fn bits(model: &Model, id: TensorId, packings: &mut BTreeMap<(u32, Option<u64>), u32>) -> u32 {
    let layer = model.layer_of(id).map(|l| model.layer(l));
    match layer {
        Some((recognized, Ok(layer))) if recognized.parts.first() == Some(&id) => {
            *packings.entry((layer.bits, layer.group_size)).or_default() += 1;
            layer.bits
        }
        _ => model.catalog.tensors.get(id).bits.map_or(0, |b| b.bits),
    }
}
