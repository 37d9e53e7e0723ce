//! What the configs of each method declare.

use super::*;
use serde_json::json;

fn config(quantization: Value) -> Declared {
    Declared::new(&Configuration {
        config: Some(json!({ "quantization_config": quantization })),
        ..Configuration::default()
    })
}

#[test]
fn fp8_lists_name_modules_and_all_beneath_them() {
    for key in ["modules_to_not_convert", "ignored_layers"] {
        let d = config(
            json!({"quant_method": "FP8", "weight_block_size": [128, 64],
            key: ["lm_head", "model.layers.1", "mlp.gate", "model.visual*", "", "*"]}),
        );
        assert_eq!(d.block("x", true), Some([128, 64]));
        for excluded in [
            "lm_head",
            "model.layers.1",
            "model.layers.1.self_attn.q_proj",
            "model.layers.7.mlp.gate",
            "model.visual.patch_embed",
            "language_model.lm_head",
        ] {
            assert_eq!(d.kind(excluded, true), None, "{excluded}");
        }
        for quantized in ["model.layers.10.q_proj", "model.layers.7.mlp.gate_proj", ""] {
            assert_eq!(d.kind(quantized, true), Some(Kind::Fp8), "{quantized}");
        }
    }
}

/// A file of a few hundred kilobytes must not hang the mount.
#[test]
fn a_hostile_path_is_looked_up_quickly() {
    let d = config(json!({"quant_method": "fp8",
        "ignored_layers": ["a.".repeat(10_000) + "b", "c.".repeat(300) + "c", "e.f"]}));
    let start = std::time::Instant::now();
    let path = "a.".repeat(50_000) + "c";
    assert_eq!(d.kind(&path, true), Some(Kind::Fp8));
    assert_eq!(d.kind(&(path + ".e.f.g"), true), None);
    assert!(start.elapsed().as_secs() < 5);
}

#[test]
fn fp4_experts_stand_in_either_place() {
    assert!(config(json!({"quant_method": "fp8", "expert_dtype": "fp4"})).has_fp4_experts());
    let root = Declared::new(&Configuration {
        config: Some(
            json!({"expert_dtype": "fp4", "quantization_config": {"quant_method": "fp8"}}),
        ),
        ..Configuration::default()
    });
    assert!(root.has_fp4_experts());
    assert!(!config(json!({"quant_method": "fp8"})).has_fp4_experts());
    assert!(!config(json!({"quant_method": "fbgemm_fp8"})).is_fp8_method());
}

#[test]
fn blocks_that_are_none_are_left_out() {
    for block in [
        Value::Null,
        json!([128]),
        json!([0, 128]),
        json!([-1, 1]),
        json!("128"),
    ] {
        let d = config(json!({"quant_method": "fp8", "weight_block_size": block}));
        assert_eq!(d.block("x", true), None);
    }
}

#[test]
fn modelopt_may_stand_in_either_file() {
    let q = json!({"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "group_size": 16,
        "exclude_modules": ["lm_head", "model.layers.0.self_attn*", "a[", "*router"]});
    let alone = Declared::new(&Configuration {
        hf_quant_config: Some(json!({"producer": {"name": "modelopt"}, "quantization": q})),
        ..Configuration::default()
    });
    let ours = config(json!({"quant_method": "modelopt", "quant_algo": "nvfp4",
        "ignore": ["lm_head", "model.layers.0.self_attn*", "a[", "*router"]}));
    for d in [alone, ours] {
        for excluded in [
            "lm_head",
            "model.layers.0.self_attn.q_proj",
            "a[",
            "x.router",
        ] {
            assert_eq!(d.kind(excluded, true), None, "{excluded}");
        }
        for quantized in ["x.lm_head", "model.layers.1.self_attn.q_proj"] {
            assert_eq!(d.kind(quantized, true), Some(Kind::Nvfp4), "{quantized}");
        }
    }
}

#[test]
fn modelopts_algorithms_have_their_kinds() {
    for (algorithm, kind) in [
        ("FP8", Some(Kind::Fp8)),
        ("FP8_PER_CHANNEL_PER_TOKEN", Some(Kind::Fp8)),
        ("FP8_PB_WO", Some(Kind::Fp8)),
        ("MXFP8", Some(Kind::Fp8)),
        ("NVFP4_AWQ", Some(Kind::Nvfp4)),
        ("W4A8_NVFP4_FP8", Some(Kind::Nvfp4)),
        ("W4A8_MXFP4_FP8", Some(Kind::Mxfp4)),
        ("W8A16", Some(Kind::Int8)),
        ("W8A8_SQ_PER_CHANNEL", Some(Kind::Int8)),
        ("W4A16_AWQ", Some(Kind::Awq)),
        ("W4A8_AWQ", Some(Kind::Awq)),
        ("SOMETHING", None),
    ] {
        assert_eq!(kind_of_algorithm(algorithm), kind, "{algorithm}");
    }
    let mixed = config(
        json!({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION",
        "quantized_layers": {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "NVFP4"}, "c": 1}}),
    );
    assert_eq!(mixed.kind("a", true), Some(Kind::Fp8));
    assert_eq!(mixed.kind("b", true), Some(Kind::Nvfp4));
    assert_eq!(mixed.kind("c", true), None);
    assert_eq!(mixed.kind("d", true), None);
}

#[test]
fn compressed_tensors_groups_declare_their_kinds() {
    let d = |format: &str, weights: Value| {
        config(
            json!({"quant_method": "compressed-tensors", "format": format,
            "config_groups": {"g": {"targets": ["Linear"], "weights": weights}},
            "ignore": ["lm_head"]}),
        )
    };
    let float = json!({"num_bits": 8, "type": "float", "strategy": "block",
        "block_structure": [128, 64]});
    let fp8 = d("float-quantized", float.clone());
    assert_eq!(fp8.kind("q", true), Some(Kind::Fp8));
    assert_eq!(fp8.kind("lm_head", true), None);
    assert_eq!(fp8.block("q", true), Some([128, 64]));
    assert_eq!(d("naive-quantized", float).kind("q", true), Some(Kind::Fp8));
    let int = json!({"num_bits": 8, "type": "int", "symmetric": false});
    let int8 = d("int-quantized", int.clone());
    assert_eq!(int8.kind("q", true), Some(Kind::Int8));
    assert_eq!(int8.symmetric("q", true), Some(false));
    assert_eq!(
        d("naive-quantized", int.clone()).kind("q", true),
        Some(Kind::Int8)
    );
    assert_eq!(d("pack-quantized", int).kind("q", true), None);
    // A norm is not a Linear.
    assert_eq!(int8.kind("norm", false), None);
}

#[test]
fn other_methods_declare_nothing() {
    for method in [json!("gptq"), json!(7), Value::Null] {
        let d = config(json!({ "quant_method": method }));
        assert_eq!(d.kind("q", true), None);
        assert!(matches!(d, Declared::Nothing));
    }
}

/// Without the note, every module would count as quantized for no visible reason.
#[test]
fn a_list_that_is_too_large_to_match_is_told() {
    let many: Vec<String> = (0..20_000).map(|i| format!("*a{i}*b[xy]*{i}?")).collect();
    let modelopt = |ignore: &[String]| {
        config(json!({"quant_method": "modelopt", "quant_algo": "NVFP4", "ignore": ignore}))
    };
    let notes = modelopt(&many).notes();
    assert!(
        notes[0].contains("its list of excluded modules cannot be used"),
        "{notes:?}"
    );
    assert_eq!(modelopt(&many[..100]).notes(), Vec::<String>::new());
}
