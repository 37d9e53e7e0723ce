//! Which joins replace their parts in `model-fused.safetensors`.

use std::collections::{HashMap, HashSet};

use super::{Item, joined_stored_bytes, stored_ids};
use crate::model::{Model, TensorId};
use crate::names::module;

/// The tensors of the export, in natural order of their names.
pub(super) fn items(model: &Model) -> Vec<Item> {
    let mut consumed: HashSet<TensorId> = HashSet::new();
    let mut joins: HashSet<TensorId> = HashSet::new();
    let (stacked, fused) = candidates(model);
    // The outermost join first: a stack of experts wins over each expert's own fusion.
    for group in whole_modules(model, stacked).chain(whole_modules(model, fused)) {
        let parts: Vec<TensorId> = group.iter().flat_map(|(_, parts)| parts).copied().collect();
        if parts.iter().any(|p| consumed.contains(p)) {
            continue;
        }
        consumed.extend(parts);
        joins.extend(group.iter().map(|(id, _)| id));
    }
    model
        .listing()
        .iter()
        .filter(|id| joins.contains(id) || model.is_stored(**id) && !consumed.contains(id))
        .filter_map(|&id| Item::raw(model, id))
        .collect()
}

/// A join and its parts.
type Candidate = (TensorId, Vec<TensorId>);

/// Joins of stored bytes: stacks, and fusions.
fn candidates(model: &Model) -> (Vec<Candidate>, Vec<Candidate>) {
    let (mut stacked, mut fused) = (Vec::new(), Vec::new());
    for &id in model.listing() {
        let Ok(tensor) = model.tensor(id) else {
            continue;
        };
        let Some(parts) = joined_stored_bytes(model, &tensor.raw) else {
            continue;
        };
        match tensor.raw.is_stack() {
            true => stacked.push((id, parts)),
            false => fused.push((id, parts)),
        }
    }
    (stacked, fused)
}

/// Groups the joins by the modules they join, and keeps the groups that cover every stored tensor of
/// those modules: a layer that has only some of its biases, or scales that do not join, stays as it
/// is.
fn whole_modules(
    model: &Model,
    candidates: Vec<Candidate>,
) -> impl Iterator<Item = Vec<Candidate>> {
    let mut members: HashMap<&str, usize> = HashMap::new();
    for id in stored_ids(model) {
        *members.entry(module(model.name(id))).or_default() += 1;
    }
    let mut order: Vec<Vec<&str>> = Vec::new();
    let mut groups: HashMap<Vec<&str>, Vec<Candidate>> = HashMap::new();
    for (id, parts) in candidates {
        let modules: Vec<&str> = parts.iter().map(|&p| module(model.name(p))).collect();
        let group = groups.entry(modules.clone()).or_insert_with(|| {
            order.push(modules);
            Vec::new()
        });
        group.push((id, parts));
    }
    let kept: Vec<Vec<Candidate>> = order
        .into_iter()
        .filter_map(|modules| {
            let group = groups.remove(&modules)?;
            let whole = modules.iter().all(|m| members.get(m) == Some(&group.len()));
            whole.then_some(group)
        })
        .collect();
    kept.into_iter()
}
