//! Which tensors the float checkpoint has that a quantized model came from.

use std::collections::HashSet;

use super::{Model, TensorId};
use crate::names::module;
use crate::quant::{self, Target};

/// Ids of the tensors that a float model has, in natural order of their names, each with whether
/// it is taken as values: stored floats and dequantized weights (values); integers, BOOL and C64
/// outside decoded layers, and damaged layers (as stored). Nothing fused, stacked or tied, and no
/// scales of activations in a model that has decoded layers. Waits for facts.
pub fn float_model(model: &Model) -> Vec<(TensorId, bool)> {
    let mut out = Vec::new();
    let (decoded, damaged) = quantized_modules(model);
    for &id in model.listing() {
        let Ok(tensor) = model.tensor(id) else {
            continue;
        };
        if tensor.raw.is_decoded() {
            out.push((id, true));
        } else if tensor.raw.stored().is_some() && !is_left_out(model, id, &decoded, &damaged) {
            out.extend(as_float(model, id).map(|values| (id, values)));
        }
    }
    out
}

/// Whether a float model lacks a stored tensor: it has neither the rest of a decoded layer (scales, zero
/// points, indexes) nor the scales of activations.
fn is_left_out(
    model: &Model,
    id: TensorId,
    decoded: &HashSet<&str>,
    damaged: &HashSet<&str>,
) -> bool {
    let name = model.name(id);
    let of_decoded = model.layer_of(id).is_none()
        && model.parameters(id) == 0
        && model.catalog.tensors.get(id).numel() > 0
        && decoded.contains(module(name));
    let of_activations =
        quant::is_of_activations(name) && !decoded.is_empty() && !damaged.contains(module(name));
    of_decoded || of_activations
}

/// The modules whose weights are decoded, and those whose weights should be but cannot be.
fn quantized_modules(model: &Model) -> (HashSet<&str>, HashSet<&str>) {
    let (mut decoded, mut damaged) = (HashSet::new(), HashSet::new());
    for layer in 0..model.layer_count() {
        let (recognized, resolved) = model.layer(layer);
        let modules = match resolved {
            Ok(_) => &mut decoded,
            Err(_) => &mut damaged,
        };
        let anchor = recognized.parts.first().map(|&a| model.name(a));
        modules.extend(anchor.map(|anchor| match recognized.target {
            // Stacked experts have their module's name.
            Target::Anchor if !anchor.ends_with("weight") => anchor,
            _ => module(anchor),
        }));
    }
    (decoded, damaged)
}

/// Whether a stored tensor is in a float model (`None`: it is not), and as values or as stored.
fn as_float(model: &Model, id: TensorId) -> Option<bool> {
    let stored = model.catalog.tensors.get(id);
    if let Some(layer) = model.layer_of(id) {
        let (recognized, resolved) = model.layer(layer);
        return match (resolved, &recognized.target) {
            (Err(_), _) => Some(false),
            (Ok(_), Target::Anchor) if recognized.parts.first() == Some(&id) => Some(true),
            (Ok(_), _) => None,
        };
    }
    Some(stored.dtype.is_float())
}
