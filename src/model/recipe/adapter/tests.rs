//! Whole adapters in memory.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::*;
use crate::catalog::{Catalog, MemoryStore, OpenOptions};
use crate::model::{Model, ModelOptions};

/// An adapter of F32 tensors of these shapes.
fn adapter(config: Option<Value>, tensors: &[(&str, &[u64])]) -> SourceModel {
    let mut header = Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let start = end;
        end += 4 * shape.iter().product::<u64>();
        let entry = json!({"dtype": "F32", "shape": shape, "data_offsets": [start, end]});
        header.insert(name.to_string(), entry);
    }
    let header = Value::from(header).to_string();
    let mut weights = (header.len() as u64).to_le_bytes().to_vec();
    weights.extend(header.as_bytes());
    weights.resize(weights.len() + end as usize, 0);
    let config = config.map(|config| config.to_string());
    let mut files = vec![("adapter_model.safetensors", &*weights)];
    files.extend(config.iter().map(|c| ("adapter_config.json", c.as_bytes())));
    let source = MemoryStore::new(&files).source(None);
    let catalog = Catalog::read(&source, OpenOptions::default()).unwrap();
    SourceModel {
        name: "ad".into(),
        model: Arc::new(Model::new(catalog, ModelOptions::default())),
        floats: false,
        first_id: 100,
        first_file: 0,
    }
}

fn config(more: Value) -> Option<Value> {
    let mut config = json!({"peft_type": "LORA", "lora_alpha": 16, "r": 8});
    let more = more.as_object().unwrap().clone();
    config.as_object_mut().unwrap().extend(more);
    Some(config)
}

fn why(adapter: &SourceModel) -> String {
    changes(adapter, 1.0).unwrap_err().join("\n")
}

const Q: &str = "base_model.model.model.layers.0.q_proj";

#[test]
fn each_module_gets_its_product_and_its_factor() {
    let (a, b) = (
        &*format!("{Q}.lora_A.weight"),
        &*format!("{Q}.lora_B.weight"),
    );
    let tensors: &[(&str, &[u64])] = &[
        (a, &[3, 6]),
        (b, &[5, 3]),
        ("base_model.model.wte.lora_embedding_A", &[2, 9]),
        ("base_model.model.wte.lora_embedding_B", &[4, 2]),
        ("base_model.model.wte.base_layer.weight", &[9, 4]),
        ("base_model.model.score.weight", &[2, 4]),
    ];
    let ad = adapter(config(json!({"alpha_pattern": {"wte": 5}})), tensors);
    let id = |name: &str| ad.model.id(name).unwrap();
    let found = changes(&ad, 0.5).unwrap();
    let names: Vec<_> = found.iter().map(|c| (&*c.weight, &*c.module)).collect();
    let expected = [
        ("score.weight", "score"),
        ("wte.weight", "wte"),
        ("model.layers.0.q_proj.weight", "model.layers.0.q_proj"),
        ("wte.weight", "wte"),
    ];
    assert_eq!(names, expected);
    assert_eq!(
        found[1].what,
        What::Replace(id("base_model.model.wte.base_layer.weight"))
    );
    let add = |a, b, transposed, factor| What::Add {
        a: id(a),
        b: id(b),
        transposed,
        factor,
    };
    // 0.5 * (16 / 3), rounded once.
    assert_eq!(found[2].what, add(a, b, false, 2.666_666_7));
    let (a, b) = (tensors[2].0, tensors[3].0);
    assert_eq!(found[3].what, add(a, b, true, 1.25));
}

#[test]
fn rslora_divides_by_the_root_and_fan_in_fan_out_transposes() {
    let tensors: &[(&str, &[u64])] = &[("q.lora_A.weight", &[2, 6]), ("q.lora_B.weight", &[5, 2])];
    let more = json!({"use_rslora": true, "fan_in_fan_out": true, "rank_pattern": {"q": 64}});
    let found = changes(&adapter(config(more), tensors), 1.0).unwrap();
    let What::Add {
        transposed, factor, ..
    } = found[0].what
    else {
        panic!("{found:?}");
    };
    // 16 / sqrt(2) in binary64 is 11.313708498984761.
    assert!(
        transposed && factor.to_bits() == 11.313_708_f32.to_bits(),
        "{factor}"
    );
}

#[test]
fn an_adapter_that_cannot_be_used_is_refused_with_its_module() {
    let a: (&str, &[u64]) = ("q.lora_A.weight", &[2, 6]);
    let of = |b: (&str, &[u64])| why(&adapter(config(json!({})), &[a, b]));
    let rank = of(("q.lora_B.weight", &[5, 3]));
    assert!(
        rank.starts_with("adapter 'ad': module 'q': the rank is 2 in A [2, 6] and 3"),
        "{rank}"
    );
    assert!(of(("k.weight", &[1])).contains("module 'q' has lora_A without lora_B"));
    assert!(of(("q.lora_B.weight", &[5, 2, 1, 1])).contains("'q' is a convolution"));
    assert!(of(("q.lora_B.weight", &[5])).contains("are not both matrices"));
    assert!(of(("base_model.model.q.lora_A.weight", &[2, 6])).contains("appears twice"));
    let none = why(&adapter(None, &[a]));
    assert!(none.contains("memory has no adapter_config.json"), "{none}");
    let list = why(&adapter(Some(json!([])), &[a]));
    assert!(
        list.contains("adapter_config.json is not a JSON object"),
        "{list}"
    );
}

#[test]
fn a_factor_that_binary32_does_not_have_is_refused() {
    let tensors: &[(&str, &[u64])] = &[("q.lora_A.weight", &[1, 6]), ("q.lora_B.weight", &[5, 1])];
    let huge = adapter(config(json!({"lora_alpha": 1e39})), tensors);
    assert!(why(&huge).contains("module 'q'"), "{}", why(&huge));
    assert!(changes(&huge, 0.1).is_ok());
    let none = adapter(config(json!({})), &[]);
    assert_eq!(changes(&none, 1.0), Ok(Vec::new()));
}
