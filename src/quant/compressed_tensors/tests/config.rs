//! What configs declare about modules.

use serde_json::{Value, json};

use crate::catalog::Configuration;
use crate::quant::compressed_tensors::config::{Config, Weights};

fn config(value: Value) -> Config {
    let configs = Configuration {
        config: Some(value),
        ..Configuration::default()
    };
    Config::new(&configs).expect("a compressed-tensors config")
}

fn groups(groups: Value, ignore: Value) -> Config {
    config(json!({"quantization_config": {
        "quant_method": "compressed-tensors", "format": "pack-quantized",
        "config_groups": groups, "ignore": ignore}}))
}

fn bits(config: &Config, path: &str) -> Option<u32> {
    config.scheme(path, true).weights()?.bits
}

#[test]
fn an_exact_path_wins_over_an_expression_over_a_class() {
    let c = groups(
        json!({
            "a": {"targets": ["Linear"], "weights": {"num_bits": 4}},
            "b": {"targets": ["re:.*down_proj"], "weights": {"num_bits": 8}},
            "c": {"targets": ["m.1.down_proj"], "weights": {"num_bits": 3}},
        }),
        json!(["lm_head", "re:.*gate$"]),
    );
    assert_eq!(bits(&c, "m.0.q_proj"), Some(4));
    assert_eq!(bits(&c, "m.0.down_proj"), Some(8));
    assert_eq!(bits(&c, "m.1.down_proj"), Some(3));
    for ignored in ["lm_head", "m.0.gate"] {
        assert!(c.scheme(ignored, true).group.is_none());
    }
    assert_eq!(bits(&c, "m.0.gate_proj"), Some(4));
    assert_eq!(bits(&c, "m.lm_head"), Some(4));
    assert!(c.scheme("m.0.norm", false).group.is_none());
    let not_a_matrix = c.scheme("m.0.down_proj", false);
    assert_eq!(not_a_matrix.weights().unwrap().bits, Some(8));
}

#[test]
fn expressions_match_from_the_start_as_pythons_re_match() {
    let c = groups(
        json!({"g": {"targets": [r"re:model\.layers\.[0-3]\.", "re:(?!vision).*fc1$"],
                     "weights": {"num_bits": 4}}}),
        Value::Null,
    );
    // Anchored at the start only: the end is free, the front is not.
    assert_eq!(bits(&c, "model.layers.2.q_proj"), Some(4));
    assert_eq!(bits(&c, "x.model.layers.2.q_proj"), None);
    // Lookahead, which the linear-time engines do not have.
    assert_eq!(bits(&c, "text.fc1"), Some(4));
    assert_eq!(bits(&c, "vision.fc1"), None);
    // The anchor covers both alternatives.
    let c = groups(
        json!({"g": {"targets": ["Linear"], "weights": {"num_bits": 4}}}),
        json!([r"re:mtp|draft"]),
    );
    assert_eq!(bits(&c, "draft.0"), None);
    assert_eq!(bits(&c, "a.draft"), Some(4));
}

#[test]
fn of_several_expressions_the_first_by_text_wins_and_the_later_group_has_a_shared_one() {
    let c = groups(
        json!({
            "a": {"targets": ["re:.*proj", "re:.*b"], "weights": {"num_bits": 8}},
            "b": {"targets": ["re:.*k_proj", "re:.*b"], "weights": {"num_bits": 4}},
        }),
        Value::Null,
    );
    assert_eq!(bits(&c, "0.k_proj"), Some(4));
    assert_eq!(bits(&c, "0.q_proj"), Some(8));
    assert_eq!(bits(&c, "0.b"), Some(4));
}

#[test]
fn expressions_that_cannot_be_used_match_nothing_and_never_hang() {
    let c = groups(
        json!({"g": {"targets": ["re:(", r"re:(?=(a+)+$)a+b"], "weights": {"num_bits": 4}}}),
        Value::Null,
    );
    let start = std::time::Instant::now();
    let path = "a".repeat(64) + "c";
    for _ in 0..10_000 {
        assert!(c.scheme(&path, true).group.is_none());
    }
    assert!(start.elapsed().as_secs() < 5);
}

#[test]
fn class_names_tell_embeddings_from_other_matrices() {
    let c = groups(
        json!({
            "a": {"targets": ["Embedding"], "weights": {"num_bits": 8}},
            "b": {"targets": ["Linear"], "weights": {"num_bits": 4}},
        }),
        json!(["LlamaDecoderLayer"]),
    );
    assert_eq!(bits(&c, "model.embed_tokens"), Some(8));
    assert_eq!(bits(&c, "model.layers.0.q_proj"), Some(4));
    let lm_head = groups(
        json!({"a": {"targets": ["lm_head"], "weights": {"num_bits": 8}}}),
        json!([]),
    );
    assert_eq!(bits(&lm_head, "lm_head"), Some(8));
    assert_eq!(bits(&lm_head, "q_proj"), None);
    let all = json!({"a": {"targets": ["re:.*"]}});
    let ignored = groups(all, json!(["Linear"]));
    assert!(ignored.scheme("q_proj", true).group.is_none());
    assert!(ignored.scheme("norm", false).group.is_some());
}

#[test]
fn the_format_is_the_groups_own_where_it_has_one() {
    let c = config(json!({"text_config": {"quantization_config": {
        "quant_method": "compressed-tensors", "format": "mixed-precision",
        "config_groups": {
            "a": {"targets": ["re:.*mlp"], "format": "nvfp4-pack-quantized"},
            "b": {"targets": ["Linear"]}}}}}));
    assert_eq!(c.scheme("0.mlp", true).format, Some("nvfp4-pack-quantized"));
    assert_eq!(c.scheme("0.q", true).format, None);
    assert_eq!(c.format(), Some("mixed-precision"));
    let plain = groups(json!({}), json!([]));
    assert_eq!(plain.scheme("q", true).format, Some("pack-quantized"));
}

#[test]
fn older_places_and_spellings_are_read() {
    let c = config(json!({"compression_config": {
        "config_groups": {
            "W4A16": ["re:preset"],
            "b": {"targets": ["Linear"], "weights": {
                "num_bits": 8, "type": "FLOAT", "strategy": "Block",
                "block_structure": "64x128", "symmetric": true}}}}}));
    let w = c.scheme("q", true).weights().unwrap();
    assert_eq!(w.block_structure, Some([64, 128]));
    assert_eq!((w.float, w.symmetric), (Some(true), Some(true)));
    assert!(c.scheme("preset", true).group.is_some());
    assert!(c.scheme("preset", true).weights().is_none());
    let group_size = |g: Value| {
        Weights::parse(&json!({"group_size": g}))
            .unwrap()
            .group_size
    };
    assert_eq!(group_size(json!(128)), Some(128));
    for none in [json!(-1), json!(0), json!(128.5), json!("128"), Value::Null] {
        assert_eq!(group_size(none), None);
    }
}

#[test]
fn other_methods_configs_are_not_ours() {
    let configs = |v: Value| Configuration {
        config: Some(v),
        ..Configuration::default()
    };
    let fp8 = json!({"quantization_config": {"quant_method": "fp8"}});
    assert!(Config::new(&configs(fp8)).is_none());
    assert!(Config::new(&configs(json!({"quantization_config": 7}))).is_none());
    let odd = json!({"quantization_config": {"quant_method": "compressed-tensors",
        "config_groups": {"a": {"targets": [7, null], "weights": {"num_bits": -1,
        "group_size": "x", "block_structure": [0, 1]}}}, "ignore": {"a": 1}}});
    let c = Config::new(&configs(odd)).unwrap();
    assert!(c.scheme("a", true).group.is_none());
}

/// A hostile config of a few hundred kilobytes must not hang the mount: neither many expressions,
/// nor large ones, nor many class names.
#[test]
fn expressions_beyond_the_limit_are_left_out_and_named() {
    let many: Vec<String> = (0..20_000)
        .map(|i| format!(r"re:.*\.x{i}\.(q|k)_proj$"))
        .collect();
    let c = groups(
        json!({"g": {"targets": ["Linear"], "weights": {"num_bits": 4}}}),
        json!(many),
    );
    for layer in 0..100 {
        let path = format!("model.layers.{layer}.mlp.experts.{layer}.down_proj");
        assert_eq!(bits(&c, &path), Some(4));
    }
    assert_eq!(bits(&c, "a.x999.q_proj"), None);
    assert_eq!(bits(&c, "a.x1000.q_proj"), Some(4));
    let notes = c.notes();
    assert!(
        notes[0].contains("of 20000 're:' entries in ignore only the first 1000"),
        "{notes:?}"
    );
}

#[test]
fn what_honest_models_write_compiles_and_what_is_huge_does_not() {
    let honest = [
        r"re:(?:model\.)?\w+\.\d+\.\w+\.(q|k|v)_proj$",
        "re:.*self_attn.*",
        r"re:^(?!.*vision)[\w.]+\.\d+\.mlp\..*",
        "re:model.layers.[0-9]+.mlp.experts.*(gate|up|down)_proj",
    ];
    let c = groups(json!({"g": {"targets": honest}}), Value::Null);
    assert_eq!(c.notes(), Vec::<String>::new());
    assert!(
        c.scheme("model.layers.7.self_attn.q_proj", true)
            .group
            .is_some()
    );

    let huge = groups(
        json!({"g": {"targets": [r"re:(\w{100}){100}"]}}),
        Value::Null,
    );
    assert!(
        huge.notes()[0].contains("is not used"),
        "{:?}",
        huge.notes()
    );
    assert_eq!(huge.notes().len(), 1);
}
