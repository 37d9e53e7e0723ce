//! What the configs declare about weights that keep their own name: which module is FP8, int8,
//! NVFP4 …
//!
//! The tensors decide what a layer is. A config is used for only two things: the block of a scale
//! grid, and whether a weight without scales should have them (in a damaged checkpoint, whose codes
//! are meaningless) or is a plain tensor that was not quantized.
//!
//! Sources: huggingface/transformers `quantizers/quantizers_utils.py` (`should_convert_module`) and
//! `utils/quantization_config.py`; NVIDIA/TensorRT-Model-Optimizer
//! `modelopt/torch/export/convert_hf_config.py`.

use std::collections::{HashMap, HashSet};

use globset::{Glob, GlobSet, GlobSetBuilder};
use serde_json::Value;

use super::compressed_tensors::config;
use crate::catalog::Configuration;

/// The most components and bytes of an entry that names modules which were not quantized. Longer
/// ones, which no model has, are ignored: their lookups would take hours for a hostile path.
const MOST_COMPONENTS: usize = 32;
const MOST_BYTES: usize = 512;

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
    /// ModelOpt's AWQ: pairs of signed nibbles, two rows per byte.
    Awq,
}

/// What the configs of a model declare.
pub enum Declared {
    /// Nothing about such weights.
    Nothing,
    /// `quant_method` `fp8` or `fbgemm_fp8`.
    Fp8(Fp8),
    /// `quant_method: compressed-tensors`.
    CompressedTensors(Box<config::Config>),
    /// NVIDIA ModelOpt, in config.json or hf_quant_config.json.
    ModelOpt(Box<ModelOpt>),
}

/// An FP8 config as transformers defines it.
pub struct Fp8 {
    method: String,
    block: Option<[u64; 2]>,
    fp4_experts: bool,
    /// Modules that were not quantized, each including everything below it, wherever they occur in
    /// a path.
    skipped: HashSet<String>,
}

/// A ModelOpt config.
pub struct ModelOpt {
    file: &'static str,
    algorithm: String,
    /// For mixed precision: module → its own algorithm. Other modules are not quantized.
    layers: Option<HashMap<String, String>>,
    excluded: GlobSet,
    /// Why nothing is excluded, if the list could not be used.
    note: Option<String>,
}

impl Declared {
    /// Reads a model's configs. config.json has precedence over hf_quant_config.json.
    pub fn new(configs: &Configuration) -> Declared {
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

    /// What the module `path` is declared to be. `matrix`: whether its weight has two dimensions.
    /// `None`: not quantized, or of a kind that does not keep the weight's name.
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
                config.scheme(path, matrix).weights()?.block_structure
            }
            Declared::Nothing | Declared::ModelOpt(_) => None,
        }
    }

    /// Whether it is symmetric, if the config declares that.
    pub fn symmetric(&self, path: &str, matrix: bool) -> Option<bool> {
        match self {
            Declared::CompressedTensors(config) => config.scheme(path, matrix).weights()?.symmetric,
            _ => None,
        }
    }

    /// Whether the method is transformers' FP8, whose experts may be FP4 pairs in I8.
    pub fn is_fp8_method(&self) -> bool {
        matches!(self, Declared::Fp8(fp8) if fp8.method == "fp8")
    }

    /// Whether it declares that experts are FP4.
    pub fn has_fp4_experts(&self) -> bool {
        matches!(self, Declared::Fp8(fp8) if fp8.fp4_experts)
    }

    /// The compressed-tensors config, if it is one.
    pub fn compressed_tensors(&self) -> Option<&config::Config> {
        match self {
            Declared::CompressedTensors(config) => Some(config),
            _ => None,
        }
    }

    /// Remarks about the config: which of its entries are not used.
    pub fn notes(&self) -> Vec<String> {
        match self {
            Declared::CompressedTensors(config) => config.notes(),
            Declared::ModelOpt(opt) => opt.note.iter().cloned().collect(),
            Declared::Nothing | Declared::Fp8(_) => Vec::new(),
        }
    }

    /// Which file declares it, for reasons: `config.json (quant_method fp8)`.
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
    let scheme = config.scheme(path, matrix);
    scheme.group?;
    let float = scheme.weights().and_then(|w| w.float);
    match scheme.format {
        Some("float-quantized" | "mxfp8-quantized") => Some(Kind::Fp8),
        Some("int-quantized") => Some(Kind::Int8),
        Some("naive-quantized") if float == Some(true) => Some(Kind::Fp8),
        Some("naive-quantized") => Some(Kind::Int8),
        _ => None,
    }
}

impl Fp8 {
    fn new(configs: &Configuration, object: &Value, method: &str) -> Fp8 {
        let lists = ["modules_to_not_convert", "ignored_layers", "ignore"];
        let entries = lists.iter().flat_map(|key| strings(object, key));
        // A star at either end adds nothing: everything below a module is included anyway.
        let skipped = entries.map(|entry| entry.trim_matches('*').trim_matches('.').to_string());
        let usable = |entry: &String| {
            (1..=MOST_BYTES).contains(&entry.len()) && entry.split('.').count() <= MOST_COMPONENTS
        };
        let experts = object
            .get("expert_dtype")
            .or_else(|| configs.root_or_text("expert_dtype"));
        Fp8 {
            method: method.to_string(),
            block: object.get("weight_block_size").and_then(block_size),
            fp4_experts: experts.and_then(Value::as_str) == Some("fp4"),
            skipped: skipped.filter(usable).collect(),
        }
    }

    /// Whether an entry names the module `path` or one that contains it: its components are
    /// consecutive components of the path. Each run of the path's components that could be an entry
    /// is looked up, because the list of entries can be long.
    fn skips(&self, path: &str) -> bool {
        let starts = [0]
            .into_iter()
            .chain(path.match_indices('.').map(|(i, _)| i + 1));
        let mut rests = starts.map(|i| &path[i..]);
        rests.any(|rest| {
            let ends = rest.match_indices('.').map(|(i, _)| i).chain([rest.len()]);
            let mut ends = ends
                .take(MOST_COMPONENTS)
                .take_while(|&end| end <= MOST_BYTES);
            ends.any(|end| self.skipped.contains(&rest[..end]))
        })
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
                // A pattern that is not a valid glob counts as a plain name.
                if let Ok(glob) =
                    Glob::new(pattern).or_else(|_| Glob::new(&globset::escape(pattern)))
                {
                    excluded.add(glob);
                }
            }
        }
        let excluded = excluded.build();
        let note = excluded
            .as_ref()
            .err()
            .map(|e| format!("{file}: its list of excluded modules cannot be used: {e}"));
        Some(ModelOpt {
            file,
            algorithm: algorithm.to_ascii_uppercase(),
            layers,
            excluded: excluded.unwrap_or_default(),
            note,
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

/// The kind of weights for one of ModelOpt's `quant_algo`.
fn kind_of_algorithm(name: &str) -> Option<Kind> {
    let name = name.to_ascii_uppercase();
    // The first word that the name contains wins, so that NVFP4_AWQ is NVFP4 and W4A8_MXFP4_FP8 is
    // MXFP4.
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
mod tests;
