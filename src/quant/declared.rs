//! What the configs declare of weights that keep their own name: which module is FP8, int8, NVFP4 …
//!
//! The tensors decide what a layer is. A config is asked for two things only: the block of a scale
//! grid, and whether a weight that lacks its scales should have them (a torn checkpoint, whose codes
//! are no numbers) or was left alone (then it is plain).
//!
//! Sources: huggingface/transformers `quantizers/quantizers_utils.py` (`should_convert_module`) and
//! `utils/quantization_config.py`; NVIDIA/TensorRT-Model-Optimizer
//! `modelopt/torch/export/convert_hf_config.py`.

use std::collections::HashMap;

use globset::{Glob, GlobSet, GlobSetBuilder};
use serde_json::Value;

use super::compressed_tensors::config;
use crate::catalog::Configs;

/// What a weight under its own name can be declared as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// F8 codes.
    Fp8,
    /// I8 codes.
    Int8,
    /// Pairs of E2M1 codes with E4M3 scales and a second scale.
    Nvfp4,
    /// Pairs of E2M1 codes with E8M0 scales.
    Mxfp4,
    /// ModelOpt's AWQ: pairs of signed nibbles, two rows a byte.
    Awq,
}

/// What the configs of a model declare.
pub enum Declared {
    /// Nothing that concerns such weights.
    Nothing,
    /// `quant_method` `fp8` or `fbgemm_fp8`.
    Fp8(Fp8),
    /// `quant_method: compressed-tensors`.
    CompressedTensors(Box<config::Config>),
    /// NVIDIA ModelOpt, in config.json or hf_quant_config.json.
    ModelOpt(Box<ModelOpt>),
}

/// An FP8 config as transformers has it.
pub struct Fp8 {
    method: String,
    block: Option<[u64; 2]>,
    fp4_experts: bool,
    /// Modules that stayed as they were, each with all beneath it, wherever in a path they stand.
    skipped: Vec<String>,
}

/// A ModelOpt config.
pub struct ModelOpt {
    file: &'static str,
    algorithm: String,
    /// With mixed precision: module → its own algorithm. Others are not quantised.
    layers: Option<HashMap<String, String>>,
    excluded: GlobSet,
}

impl Declared {
    /// Reads a model's configs. config.json has precedence over hf_quant_config.json.
    pub fn new(configs: &Configs) -> Declared {
        if configs.manifest.is_some() {
            return Declared::Nothing;
        }
        if let Some(config) = config::Config::new(configs) {
            return Declared::CompressedTensors(Box::new(config));
        }
        let object = configs.root_or_text("quantization_config");
        let method = object.and_then(|o| text(o, "quant_method"));
        match (object, method.as_deref()) {
            (Some(object), Some(method @ ("fp8" | "fbgemm_fp8"))) => {
                return Declared::Fp8(Fp8::new(configs, object, method));
            }
            (Some(object), Some(method)) if method.starts_with("modelopt") => {
                if let Some(opt) = ModelOpt::new("config.json", object) {
                    return Declared::ModelOpt(Box::new(opt));
                }
            }
            _ => {}
        }
        let other = configs.hf_quant_config.as_ref();
        other
            .and_then(|c| ModelOpt::new("hf_quant_config.json", c.get("quantization")?))
            .map_or(Declared::Nothing, |opt| Declared::ModelOpt(Box::new(opt)))
    }

    /// What the module `path` is declared to be; `matrix`: whether its weight has two dimensions.
    /// `None`: not quantised, or of a kind that does not keep the weight's name.
    pub fn kind(&self, path: &str, matrix: bool) -> Option<Kind> {
        match self {
            Declared::Nothing => None,
            Declared::Fp8(fp8) => (!fp8.skips(path)).then_some(Kind::Fp8),
            Declared::CompressedTensors(config) => kind_in_groups(config, path, matrix),
            Declared::ModelOpt(opt) => opt.kind(path),
        }
    }

    /// The block declared for the module's scales: rows and columns.
    pub fn block(&self, path: &str, matrix: bool) -> Option<[u64; 2]> {
        match self {
            Declared::Fp8(fp8) => fp8.block,
            Declared::CompressedTensors(config) => {
                config.module(path, matrix).weights()?.block_structure
            }
            Declared::Nothing | Declared::ModelOpt(_) => None,
        }
    }

    /// Whether it is symmetric, where the config says.
    pub fn symmetric(&self, path: &str, matrix: bool) -> Option<bool> {
        match self {
            Declared::CompressedTensors(config) => config.module(path, matrix).weights()?.symmetric,
            _ => None,
        }
    }

    /// Whether the method is transformers' FP8, whose experts may be FP4 pairs in I8.
    pub fn is_fp8_method(&self) -> bool {
        matches!(self, Declared::Fp8(fp8) if fp8.method == "fp8")
    }

    /// Whether it says that experts are FP4.
    pub fn has_fp4_experts(&self) -> bool {
        matches!(self, Declared::Fp8(fp8) if fp8.fp4_experts)
    }

    /// Who says so, for reasons: `config.json (quant_method fp8)`.
    pub fn source(&self) -> String {
        match self {
            Declared::Nothing => "no config".into(),
            Declared::Fp8(fp8) => format!("config.json (quant_method {})", fp8.method),
            Declared::CompressedTensors(config) => format!(
                "config.json (compressed-tensors, {})",
                config.format().unwrap_or("no format")
            ),
            Declared::ModelOpt(opt) => format!("{} (quant_algo {})", opt.file, opt.algorithm),
        }
    }
}

fn kind_in_groups(config: &config::Config, path: &str, matrix: bool) -> Option<Kind> {
    let module = config.module(path, matrix);
    module.group?;
    let float = module.weights().and_then(|w| w.float);
    match module.format {
        Some("float-quantized" | "mxfp8-quantized") => Some(Kind::Fp8),
        Some("int-quantized") => Some(Kind::Int8),
        Some("naive-quantized") if float == Some(true) => Some(Kind::Fp8),
        Some("naive-quantized") => Some(Kind::Int8),
        _ => None,
    }
}

impl Fp8 {
    fn new(configs: &Configs, object: &Value, method: &str) -> Fp8 {
        let lists = ["modules_to_not_convert", "ignored_layers", "ignore"];
        let skipped = lists.iter().flat_map(|key| strings(object, key));
        let experts = object
            .get("expert_dtype")
            .or_else(|| configs.root_or_text("expert_dtype"));
        Fp8 {
            method: method.to_string(),
            block: object.get("weight_block_size").and_then(block_size),
            fp4_experts: experts.and_then(Value::as_str) == Some("fp4"),
            skipped: skipped.map(str::to_string).collect(),
        }
    }

    fn skips(&self, path: &str) -> bool {
        self.skipped.iter().any(|entry| names(entry, path))
    }
}

/// `[rows, columns]`, both at least 1.
fn block_size(value: &Value) -> Option<[u64; 2]> {
    let [rows, cols] = value.as_array()?.as_slice() else {
        return None;
    };
    let sides = [rows.as_u64()?, cols.as_u64()?];
    (!sides.contains(&0)).then_some(sides)
}

/// Whether an entry of `modules_to_not_convert` names the module `path` or one around it: its
/// components are some of the path's, in a row. A star at either end says no more than that.
fn names(entry: &str, path: &str) -> bool {
    let entry = entry.trim_matches('*').trim_matches('.');
    let whole = |(at, _): (usize, &str)| {
        let (before, after) = (&path[..at], &path[at + entry.len()..]);
        (before.is_empty() || before.ends_with('.')) && (after.is_empty() || after.starts_with('.'))
    };
    !entry.is_empty() && path.match_indices(entry).any(whole)
}

impl ModelOpt {
    /// `None` without `quant_algo`.
    fn new(file: &'static str, object: &Value) -> Option<ModelOpt> {
        let algorithm = text(object, "quant_algo")?;
        let layers = object.get("quantized_layers").and_then(Value::as_object);
        let layers = layers.map(|layers| {
            let own =
                |(path, layer): (&String, &Value)| Some((path.clone(), text(layer, "quant_algo")?));
            layers.iter().filter_map(own).collect()
        });
        let mut excluded = GlobSetBuilder::new();
        for key in ["exclude_modules", "ignore"] {
            for pattern in strings(object, key) {
                // One that is no glob counts as a plain name.
                if let Ok(glob) =
                    Glob::new(pattern).or_else(|_| Glob::new(&globset::escape(pattern)))
                {
                    excluded.add(glob);
                }
            }
        }
        Some(ModelOpt {
            file,
            algorithm: algorithm.to_ascii_uppercase(),
            layers,
            excluded: excluded.build().unwrap_or_default(),
        })
    }

    fn kind(&self, path: &str) -> Option<Kind> {
        if self.excluded.is_match(path) {
            return None;
        }
        match &self.layers {
            Some(layers) => kind_of_algorithm(layers.get(path)?),
            None => kind_of_algorithm(&self.algorithm),
        }
    }
}

/// What weights are under one of ModelOpt's `quant_algo`.
fn kind_of_algorithm(name: &str) -> Option<Kind> {
    let name = name.to_ascii_uppercase();
    // The first that the name contains, so that NVFP4_AWQ is NVFP4 and W4A8_MXFP4_FP8 is MXFP4.
    let words = [
        ("NVFP4", Kind::Nvfp4),
        ("MXFP4", Kind::Mxfp4),
        ("W4A16_AWQ", Kind::Awq),
        ("W4A8_AWQ", Kind::Awq),
        ("W8A", Kind::Int8),
        ("INT8", Kind::Int8),
        ("FP8", Kind::Fp8),
    ];
    words
        .iter()
        .find(|(word, _)| name.contains(word))
        .map(|(_, kind)| *kind)
}

fn text(object: &Value, key: &str) -> Option<String> {
    let value = object.get(key)?.as_str()?;
    Some(match key {
        "quant_method" => value.to_ascii_lowercase(),
        _ => value.to_string(),
    })
}

fn strings<'a>(object: &'a Value, key: &str) -> impl Iterator<Item = &'a str> {
    let list = object.get(key).and_then(Value::as_array);
    list.into_iter().flatten().filter_map(Value::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(quantization: Value) -> Declared {
        Declared::new(&Configs {
            config: Some(json!({ "quantization_config": quantization })),
            ..Configs::default()
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
            for quantised in ["model.layers.10.q_proj", "model.layers.7.mlp.gate_proj", ""] {
                assert_eq!(d.kind(quantised, true), Some(Kind::Fp8), "{quantised}");
            }
        }
    }

    #[test]
    fn fp4_experts_stand_in_either_place() {
        assert!(config(json!({"quant_method": "fp8", "expert_dtype": "fp4"})).has_fp4_experts());
        let root = Declared::new(&Configs {
            config: Some(
                json!({"expert_dtype": "fp4", "quantization_config": {"quant_method": "fp8"}}),
            ),
            ..Configs::default()
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
        let alone = Declared::new(&Configs {
            hf_quant_config: Some(json!({"producer": {"name": "modelopt"}, "quantization": q})),
            ..Configs::default()
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
            for quantised in ["x.lm_head", "model.layers.1.self_attn.q_proj"] {
                assert_eq!(d.kind(quantised, true), Some(Kind::Nvfp4), "{quantised}");
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
        // Norms are no Linear.
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
}
