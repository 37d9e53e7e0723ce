//! A model's declaration of MLX quantization: `quantization` in `config.json`, as mlx-lm's
//! `mlx_lm/utils.py` writes and reads it.

use std::collections::HashMap;
use std::fmt;

use serde_json::{Map, Value};

use crate::catalog::Configuration;
use crate::reason::{Reason, reason};

/// MLX's quantization modes, which determine a group's scale and how codes become numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    /// Integers with a float scale and a float bias for each group.
    Affine,
    /// OCP MXFP4: E2M1 with an E8M0 scale.
    Mxfp4,
    /// OCP MXFP8: E4M3 with an E8M0 scale.
    Mxfp8,
    /// NVIDIA's FP4: E2M1 with an E4M3 scale.
    Nvfp4,
}

impl Mode {
    /// All four, the three without biases last.
    pub(super) const ALL: [Mode; 4] = [Mode::Affine, Mode::Mxfp4, Mode::Mxfp8, Mode::Nvfp4];

    /// The name in a config.
    pub(super) fn name(self) -> &'static str {
        match self {
            Mode::Affine => "affine",
            Mode::Mxfp4 => "mxfp4",
            Mode::Mxfp8 => "mxfp8",
            Mode::Nvfp4 => "nvfp4",
        }
    }

    /// The group size and bits that apply if a config leaves them out. Modes without biases have no
    /// others.
    pub(super) fn defaults(self) -> Settings {
        let (group_size, bits) = match self {
            Mode::Affine => (64, 4),
            Mode::Mxfp4 => (32, 4),
            Mode::Mxfp8 => (32, 8),
            Mode::Nvfp4 => (16, 4),
        };
        Settings {
            mode: self,
            group_size,
            bits,
        }
    }
}

/// How a module is quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) mode: Mode,
    /// Values that share a scale.
    pub(super) group_size: u64,
    /// Bits of a value.
    pub(super) bits: u32,
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Settings {
            mode,
            group_size,
            bits,
        } = self;
        write!(f, "{}, {bits} bits, groups of {group_size}", mode.name())
    }
}

impl Settings {
    /// Reads an object of `group_size`, `bits`, `mode`. An absent (or null) key has its mode's
    /// default, and an absent mode is affine: overrides inherit nothing.
    fn parse(object: &Map<String, Value>) -> Result<Settings, Reason> {
        let given = |key: &str| object.get(key).filter(|v| !v.is_null());
        let mode = match given("mode") {
            None => Mode::Affine,
            Some(said) => Mode::ALL
                .into_iter()
                .find(|m| said.as_str() == Some(m.name()))
                .ok_or_else(|| {
                    let known = Mode::ALL.map(Mode::name).join(", ");
                    format!("config.json gives mode {said}; known modes are {known}")
                })?,
        };
        let number = |key: &str, default: u64| match given(key) {
            None => Ok(default),
            Some(v) => v
                .as_u64()
                .filter(|&n| (1..=1 << 16).contains(&n))
                .ok_or_else(|| reason!("config.json gives {key} {v}, needs a small whole number")),
        };
        let default = mode.defaults();
        Ok(Settings {
            mode,
            group_size: number("group_size", default.group_size)?,
            bits: number("bits", u64::from(default.bits))? as u32,
        })
    }
}

/// What the config states about one module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Said {
    /// The entry is `false`: it is not quantized.
    NotQuantized,
    /// No entry of its own, or `true`: the model's settings, or why they cannot be read.
    Model(Result<Settings, Reason>),
    /// Settings of its own, or why they cannot be read.
    Own(Result<Settings, Reason>),
}

/// A model's declaration of MLX quantization.
pub(super) struct Declaration<'a> {
    /// The object with the model's settings and, keyed by module path, the overrides.
    object: &'a Map<String, Value>,
    model: Result<Settings, Reason>,
    /// The overrides by module path without its `language_model` components (the first, if two are
    /// then equal): vision-language checkpoints spell tensors and keys differently.
    text_paths: HashMap<String, &'a Value>,
}

impl<'a> Declaration<'a> {
    /// The declaration in `config.json`: `quantization`, or its copy `quantization_config` if that
    /// is not another method's; at the root, then in `text_config`.
    pub(super) fn find(configs: &'a Configuration) -> Option<Self> {
        let object = configs.places().find_map(|place| {
            let named = |key: &str| place.get(key).and_then(Value::as_object);
            named("quantization")
                .or_else(|| named("quantization_config").filter(|o| is_mlx_copy(o)))
        })?;
        let overrides = object.iter().filter(|(_, v)| is_override(v));
        let mut text_paths = HashMap::new();
        for (path, said) in overrides {
            text_paths
                .entry(without_language_model(path))
                .or_insert(said);
        }
        Some(Declaration {
            object,
            model: Settings::parse(object),
            text_paths,
        })
    }

    /// What it states about the module of that path (a weight's name without `.weight`).
    pub(super) fn of(&self, module: &str) -> Said {
        let exact = self.object.get(module).filter(|v| is_override(v));
        let said = exact.or_else(|| {
            // Most configs have no overrides.
            if self.text_paths.is_empty() {
                return None;
            }
            self.text_paths
                .get(&without_language_model(module))
                .copied()
        });
        match said {
            Some(Value::Bool(false)) => Said::NotQuantized,
            Some(Value::Object(own)) => Said::Own(Settings::parse(own)),
            _ => Said::Model(self.model.clone()),
        }
    }
}

/// Whether this is mlx-lm's copy of `quantization` under the name that transformers uses for every
/// method.
fn is_mlx_copy(object: &Map<String, Value>) -> bool {
    let own = match object.get("quant_method") {
        None | Some(Value::Null) => true,
        Some(method) => method.as_str() == Some("mlx"),
    };
    own && (object.contains_key("bits") || object.contains_key("group_size"))
}

fn is_override(value: &Value) -> bool {
    value.is_object() || value.is_boolean()
}

fn without_language_model(path: &str) -> String {
    let kept: Vec<&str> = path.split('.').filter(|c| *c != "language_model").collect();
    kept.join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn affine(group_size: u64, bits: u32) -> Settings {
        Settings {
            mode: Mode::Affine,
            group_size,
            bits,
        }
    }

    #[test]
    fn absent_keys_have_their_modes_defaults() {
        for (mode, group_size, bits) in [
            (json!("affine"), 64, 4),
            (json!("mxfp4"), 32, 4),
            (json!("mxfp8"), 32, 8),
            (json!("nvfp4"), 16, 4),
            (Value::Null, 64, 4),
        ] {
            let c = Configuration::of_config(json!({"quantization": {"mode": mode}}));
            let Said::Model(Ok(s)) = Declaration::find(&c).unwrap().of("a") else {
                panic!("{mode}");
            };
            assert_eq!((s.group_size, s.bits), (group_size, bits), "{mode}");
        }
    }

    #[test]
    fn an_override_inherits_nothing() {
        let c = Configuration::of_config(json!({"quantization": {
            "mode": "mxfp4", "group_size": 32, "bits": 4,
            "a.router": {"bits": 8},
            "a.experts": {"mode": "mxfp8"},
            "b": true, "c": false,
        }}));
        let d = Declaration::find(&c).unwrap();
        assert_eq!(d.of("a.router"), Said::Own(Ok(affine(64, 8))));
        assert_eq!(d.of("a.experts"), Said::Own(Ok(Mode::Mxfp8.defaults())));
        assert_eq!(d.of("b"), Said::Model(Ok(Mode::Mxfp4.defaults())));
        assert_eq!(d.of("x"), Said::Model(Ok(Mode::Mxfp4.defaults())));
        assert_eq!(d.of("c"), Said::NotQuantized);
    }

    #[test]
    fn spellings_differ_by_language_model_alone() {
        let c = Configuration::of_config(json!({"quantization": {
            "language_model.model.layers.0.mlp": {"bits": 8},
            "model.language_model.layers.1.mlp": {"bits": 6},
            "model.layers.2.mlp": {"bits": 5},
            "language_model.model.layers.3.mlp": {"bits": 3},
            "model.layers.3.mlp": {"bits": 2},
        }}));
        let d = Declaration::find(&c).unwrap();
        for (module, bits) in [
            ("model.language_model.layers.0.mlp", 8),
            ("model.layers.0.mlp", 8),
            ("language_model.model.layers.1.mlp", 6),
            ("language_model.model.layers.2.mlp", 5),
            // The exact name takes precedence over any other match.
            ("language_model.model.layers.3.mlp", 3),
            ("model.layers.3.mlp", 2),
            ("model.layers.4.mlp", 4),
            ("vision_tower.layers.0.mlp", 4),
        ] {
            let (Said::Own(Ok(s)) | Said::Model(Ok(s))) = d.of(module) else {
                panic!("{module}");
            };
            assert_eq!(s.bits, bits, "{module}");
        }
    }

    #[test]
    fn quantization_comes_before_its_copy_and_the_root_before_text_config() {
        let bits = |config: Value| match Declaration::find(&Configuration::of_config(config)) {
            Some(d) => match d.of("a") {
                Said::Model(Ok(s)) => Some(s.bits),
                other => panic!("{other:?}"),
            },
            None => None,
        };
        let (four, eight) = (json!({"bits": 4}), json!({"bits": 8}));
        assert_eq!(
            bits(json!({"quantization_config": four, "quantization": eight})),
            Some(8)
        );
        assert_eq!(
            bits(json!({"text_config": {"quantization": four}, "quantization_config": eight})),
            Some(8)
        );
        assert_eq!(
            bits(json!({"text_config": {"quantization_config": eight}})),
            Some(8)
        );
        // Null, or another method's, is not a declaration.
        assert_eq!(
            bits(json!({"quantization": null, "quantization_config": eight})),
            Some(8)
        );
        assert_eq!(
            bits(json!({"quantization_config": {"quant_method": "gptq", "bits": 4}})),
            None
        );
        assert_eq!(
            bits(json!({"quantization_config": {"quant_method": "mlx", "bits": 5}})),
            Some(5)
        );
        assert_eq!(
            bits(json!({"quantization_config": {"mode": "affine"}})),
            None
        );
        assert_eq!(bits(json!({"quantization": {}})), Some(4));
        assert_eq!(bits(json!([1])), None);
    }

    #[test]
    fn what_cannot_be_read_is_a_reason() {
        for (object, part) in [
            (json!({"mode": "mxfp5"}), "mxfp5"),
            (json!({"mode": 4}), "mode 4"),
            (json!({"bits": "4"}), "bits \"4\""),
            (json!({"bits": -4}), "bits -4"),
            (json!({"group_size": 1e99}), "group_size 1e+99"),
        ] {
            let c = Configuration::of_config(json!({"quantization": object}));
            let Said::Model(Err(why)) = Declaration::find(&c).unwrap().of("a") else {
                panic!("{object}");
            };
            assert!(why.contains(part), "{why}");
        }
    }
}
