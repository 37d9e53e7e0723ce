//! The JSON that the mount and the commands show: `meta.json`, `index.json`, `model.json`.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};

use crate::catalog::gguf;
use crate::dtype::ElementType;
use crate::model::{Model, Part, Tensor, TensorId};
use crate::quant::Target;
use crate::text::push_json;

/// A tensor's `meta.json`, pretty-printed, with a newline at its end. `views` describes its files.
pub fn meta_json(model: &Model, id: TensorId, views: Map<String, Value>) -> Vec<u8> {
    let Ok(tensor) = model.tensor(id) else {
        return Vec::new();
    };
    let mut meta = json!({
        "name": model.name(id),
        "dtype": tensor.dtype.name(),
        "shape": tensor.shape,
        "numel": crate::dtype::numel(tensor.shape),
        "nbytes": tensor.nbytes,
        "views": views,
        "origin": origin_json(model, &tensor),
    });
    if let Some(q) = quantization_json(model, &tensor) {
        meta["quantization"] = q;
    }
    pretty(&meta)
}

/// The `origin` object of `meta.json`.
fn origin_json(model: &Model, tensor: &Tensor<'_>) -> Value {
    let origin = model.origin(&tensor.raw);
    let mut object = Map::new();
    object.insert("kind".into(), json!(origin.kind));
    if let Some((file, offset)) = origin.place {
        object.insert("file".into(), json!(file.name()));
        object.insert("offset".into(), json!(offset));
    }
    if let Some(Value::Object(layer)) = origin.layer.map(|l| layer_json(model, l)) {
        object.extend(layer);
    }
    if let Some(axis) = origin.axis {
        object.insert("axis".into(), json!(axis));
        let parts = origin.parts.iter().map(part_json);
        object.insert("parts".into(), parts.collect());
    } else if !origin.parts.is_empty() {
        let names = origin.parts.iter().map(|part| part.name);
        object.insert("parts".into(), names.collect());
    }
    let more = origin.more.iter();
    object.extend(more.map(|(key, value)| ((*key).into(), value.clone())));
    Value::Object(object)
}

fn part_json(part: &Part<'_>) -> Value {
    let mut object = json!({"name": part.name});
    if let Some(index) = part.index {
        object["index"] = json!(index);
    }
    if let Some(range) = part.range {
        object["range"] = json!(range);
    }
    object
}

fn layer_json(model: &Model, layer: u32) -> Value {
    let (recognized, resolved) = model.layer(layer);
    let parts: Vec<&str> = recognized.parts.iter().map(|&p| model.name(p)).collect();
    match resolved {
        Ok(layer) => json!({
            "method": recognized.method,
            "bits": layer.bits,
            "group_size": layer.group_size,
            "parts": parts,
        }),
        Err(why) => json!({"method": recognized.method, "error": why.as_str()}),
    }
}

/// The `quantization` object of a stored tensor's `meta.json`: of a weight whose `f32` is
/// dequantized, and of the anchor of any layer that should have values and has none.
fn quantization_json(model: &Model, tensor: &Tensor<'_>) -> Option<Value> {
    let layer = model.layer_of_anchor(tensor.raw.stored()?)?;
    let (recognized, resolved) = model.layer(layer);
    (recognized.target == Target::Anchor || resolved.is_err()).then(|| layer_json(model, layer))
}

/// `index.json`: every name in `tensors/`. Waits for facts.
pub fn index_json(model: &Model) -> Vec<u8> {
    // Written by hand, entry by entry: at 100,000 tensors a tree of values would take ten times
    // the memory of the text.
    let mut out = b"{".to_vec();
    for (i, &id) in model.listing().iter().enumerate() {
        let Ok(tensor) = model.tensor(id) else {
            continue;
        };
        out.extend_from_slice(if i == 0 { b"\n" } else { b",\n" });
        push_json(&mut out, model.name(id));
        out.extend_from_slice(b": ");
        push_json(&mut out, &index_entry(model, id, &tensor));
    }
    out.extend_from_slice(b"\n}\n");
    out
}

/// One tensor's object in `index.json`. `file` and `offset` are there if the tensor is stored: where its
/// first element lies.
pub fn index_entry(model: &Model, id: TensorId, tensor: &Tensor<'_>) -> Value {
    let mut entry = json!({
        "dtype": tensor.dtype.name(),
        "shape": tensor.shape,
        "nbytes": tensor.nbytes,
        "origin": model.kind(&tensor.raw),
        "path": format!("tensors/{}", model.file_name(id)),
    });
    let stored = tensor.raw.stored();
    if let Some((file, offset)) = stored.and_then(|index| model.catalog.shown_place(index)) {
        entry["file"] = json!(file.name());
        entry["offset"] = json!(offset);
    }
    entry
}

/// The totals of a model, over its stored tensors only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelSummary {
    /// Stored tensors.
    pub tensors: u64,
    /// Weights: packed words count what they pack, scales and indexes nothing.
    pub parameters: u64,
    /// Bytes of tensor data.
    pub bytes: u64,
    /// dtype → (tensors, bytes).
    pub dtypes: BTreeMap<String, (u64, u64)>,
}

impl ModelSummary {
    /// Adds up the stored tensors.
    pub fn of(model: &Model) -> ModelSummary {
        let mut s = ModelSummary {
            tensors: model.catalog.tensors.len() as u64,
            parameters: 0,
            bytes: 0,
            dtypes: BTreeMap::new(),
        };
        for (id, t) in model.catalog.tensors.iter().enumerate() {
            s.parameters = s.parameters.saturating_add(model.parameters(id as u32));
            s.bytes += t.nbytes;
            let d = s.dtypes.entry(t.dtype.name().to_string()).or_default();
            d.0 += 1;
            d.1 += t.nbytes;
        }
        s
    }

    /// The dtype that most of the bytes have.
    pub fn main_dtype(&self) -> Option<&str> {
        self.dtypes
            .iter()
            .max_by_key(|(_, (_, bytes))| *bytes)
            .map(|(name, _)| name.as_str())
    }
}

/// `model.json`. Waits for facts.
pub fn model_json(model: &Model) -> Vec<u8> {
    let s = ModelSummary::of(model);
    let mut value = json!({
        "format": model.catalog.format,
        "files": files_json(model),
        "tensors": s.tensors,
        "parameters": s.parameters,
        "bytes": s.bytes,
        "dtypes": dtypes_json(&s),
        "quantization": model_quantization(model),
        "metadata": model.catalog.metadata,
    });
    for (key, more) in &model.catalog.summary {
        value[key] = more.clone();
    }
    pretty(&value)
}

/// The weight files, in JSON.
pub fn files_json(model: &Model) -> Value {
    // Recipes may reach one file in several ways.
    let mut known = HashSet::new();
    let files = model.catalog.shards();
    files
        .filter(|f| known.insert(f.location().to_string()))
        .map(|f| json!({"name": f.name(), "bytes": f.len()}))
        .collect()
}

/// Tensors and bytes of each dtype, in JSON.
pub fn dtypes_json(summary: &ModelSummary) -> Map<String, Value> {
    let dtypes = summary.dtypes.iter();
    dtypes
        .map(|(name, (tensors, bytes))| (name.clone(), json!({"tensors": tensors, "bytes": bytes})))
        .collect()
}

/// What most of the quantized layers are. If a model has none but has tensors of block types, only the
/// method: their dtypes have the rest. `null` for a model that has neither.
pub fn model_quantization(model: &Model) -> Value {
    let mut counts: BTreeMap<(&str, Option<u32>, Option<u64>), u32> = BTreeMap::new();
    for i in 0..model.layer_count() {
        let (recognized, layer) = model.layer(i);
        let layer = layer.ok();
        let key = (
            recognized.method,
            layer.map(|l| l.bits),
            layer.and_then(|l| l.group_size),
        );
        *counts.entry(key).or_default() += 1;
    }
    // All block types are those of GGUF.
    let is_block = |dtype: &ElementType| matches!(dtype, ElementType::Block(_));
    let has_blocks = model.catalog.tensors.dtypes().iter().any(is_block);
    // Layers that can be decoded take precedence over damaged ones.
    let most = counts
        .into_iter()
        .max_by_key(|((_, bits, _), n)| (bits.is_some(), *n))
        .map(|(key, _)| key)
        .or(has_blocks.then_some((gguf::NAME, None, None)));
    most.map_or(
        Value::Null,
        |(method, bits, group)| json!({"method": method, "bits": bits, "group_size": group}),
    )
}

/// JSON for people: objects over several lines, small flat objects and arrays on one.
fn pretty(value: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    write_pretty(value, 0, &mut out);
    out.push(b'\n');
    out
}

/// The longest flat object or array that is written on one line, in bytes.
const ONE_LINE: usize = 160;

fn write_pretty(value: &Value, indent: usize, out: &mut Vec<u8>) {
    let nested = |v: &Value| {
        v.as_array()
            .is_some_and(|a| a.iter().any(|x| !is_scalar(x)))
            || v.is_object()
    };
    let mut line = Vec::new();
    push_json(&mut line, value);
    let (open, close, items): (u8, u8, Vec<(Option<&String>, &Value)>) = match value {
        Value::Object(m) if indent == 0 || m.values().any(nested) || line.len() > ONE_LINE => {
            (b'{', b'}', m.iter().map(|(k, v)| (Some(k), v)).collect())
        }
        Value::Array(a) if a.iter().any(|x| !is_scalar(x)) || line.len() > ONE_LINE => {
            (b'[', b']', a.iter().map(|v| (None, v)).collect())
        }
        _ => return write_one_line(value, out),
    };
    out.push(open);
    for (i, (key, item)) in items.iter().enumerate() {
        out.extend_from_slice(if i == 0 { b"\n" } else { b",\n" });
        out.resize(out.len() + 2 * (indent + 1), b' ');
        if let Some(key) = key {
            push_json(out, key);
            out.extend_from_slice(b": ");
        }
        write_pretty(item, indent + 1, out);
    }
    if !items.is_empty() {
        out.push(b'\n');
        out.resize(out.len() + 2 * indent, b' ');
    }
    out.push(close);
}

fn is_scalar(v: &Value) -> bool {
    !v.is_array() && !v.is_object()
}

/// With a space after each colon and comma.
fn write_one_line(value: &Value, out: &mut Vec<u8>) {
    let (open, close) = match value {
        Value::Object(_) => (b'{', b'}'),
        Value::Array(_) => (b'[', b']'),
        scalar => return push_json(out, scalar),
    };
    out.push(open);
    let mut first = true;
    let mut comma = |out: &mut Vec<u8>| {
        if !std::mem::take(&mut first) {
            out.extend_from_slice(b", ");
        }
    };
    match value {
        Value::Object(m) => {
            for (k, v) in m {
                comma(out);
                push_json(out, k);
                out.extend_from_slice(b": ");
                write_one_line(v, out);
            }
        }
        Value::Array(a) => {
            for v in a {
                comma(out);
                write_one_line(v, out);
            }
        }
        _ => {}
    }
    out.push(close);
}
