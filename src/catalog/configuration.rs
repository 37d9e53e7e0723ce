//! A model's configuration: what it states about quantization and tying. Most models keep it in
//! JSON files beside the weights; a manifest has its own, and a GGUF file's keys take its place. The
//! layers above ask for keys, not files.
//!
//! Stale or missing files are normal, so a file that cannot be read or parsed counts as absent (and
//! is noted).

use std::fmt;

use serde_json::{Map, Value};

use super::container::not_json;
use super::store::Store;
use crate::error::Result;

/// A model's configuration, from every source that it has.
#[derive(Debug, Default, Clone)]
pub struct Configuration {
    /// `config.json`, or the container's own metadata that takes its place.
    pub config: Option<Value>,
    /// `quantize_config.json` (GPTQ's older place).
    pub quantize_config: Option<Value>,
    /// `quant_config.json` (AWQ's older place).
    pub quant_config: Option<Value>,
    /// `quantization_config.json` (AutoRound's).
    pub quantization_config: Option<Value>,
    /// `hf_quant_config.json` (NVIDIA ModelOpt's).
    pub hf_quant_config: Option<Value>,
    /// A manifest's own `config` object (`default_bits`, `default_group_size`). If this is set, the
    /// tensors come from a bin + manifest pair, and no other configuration of quantization counts.
    pub manifest: Option<Map<String, Value>>,
    /// Whether element types say everything about values, as in GGUF: then tensors are what they are
    /// stored as, and no quantized layers are looked for.
    pub types_tell_all: bool,
    /// Files that exist but were not used.
    pub unused: Vec<Unused>,
}

/// A config file that exists but cannot be used.
#[derive(Debug, Clone)]
pub struct Unused {
    /// Its name in the model directory.
    pub file: &'static str,
    /// Why.
    pub why: String,
}

impl fmt::Display for Unused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not used: {}: {}", self.file, self.why)
    }
}

/// The JSON files that may be beside the weights, in the order of the fields.
const FILES: [&str; 5] = [
    "config.json",
    "quantize_config.json",
    "quant_config.json",
    "quantization_config.json",
    "hf_quant_config.json",
];

/// Largest config file that is read, in bytes. Configs are small; anything larger is something
/// else.
pub(crate) const MAX_CONFIG: u64 = 64 << 20;

/// The keys of a `config.json` that are about quantization.
const OF_QUANTIZATION: [&str; 3] = ["quantization_config", "quantization", "compression_config"];

impl Configuration {
    /// The file that has most of it.
    pub const MAIN: &str = "config.json";

    /// Whether a file of that name is about nothing but quantization.
    pub fn is_about_quantization(name: &str) -> bool {
        name != Configuration::MAIN && FILES.contains(&name)
    }

    /// Makes it that of a model that is not quantized. Returns whether `config.json` has changed.
    pub fn forget_quantization(&mut self) -> bool {
        self.quantize_config = None;
        self.quant_config = None;
        self.quantization_config = None;
        self.hf_quant_config = None;
        self.manifest = None;
        self.unused
            .retain(|unused| unused.file == Configuration::MAIN);
        let Some(Value::Object(root)) = &mut self.config else {
            return false;
        };
        let forget = |object: &mut Map<String, Value>| {
            let keys = OF_QUANTIZATION.iter();
            keys.filter(|key| object.shift_remove(**key).is_some())
                .count()
                > 0
        };
        let of_root = forget(root);
        let text = root.get_mut("text_config").and_then(Value::as_object_mut);
        text.is_some_and(forget) || of_root
    }

    /// Reads the JSON files in `store`.
    pub fn beside(store: &dyn Store) -> Configuration {
        store.prefetch(&FILES);
        let mut unused = Vec::new();
        let [
            config,
            quantize_config,
            quant_config,
            quantization_config,
            hf_quant_config,
        ] = FILES.map(|file| {
            read_json(store, file).unwrap_or_else(|e| {
                let why = e.without_location();
                unused.push(Unused { file, why });
                None
            })
        });
        Configuration {
            config,
            quantize_config,
            quant_config,
            quantization_config,
            hf_quant_config,
            manifest: None,
            types_tell_all: false,
            unused,
        }
    }

    /// One that consists of a `config.json`, for tests.
    #[cfg(test)]
    pub(crate) fn of_config(config: Value) -> Configuration {
        Configuration {
            config: Some(config),
            ..Configuration::default()
        }
    }

    /// Where the model's config may have a key: its root, then its `text_config`.
    pub fn places(&self) -> impl Iterator<Item = &Value> {
        let root = self.config.as_ref();
        let text = root.and_then(|root| root.get("text_config"));
        root.into_iter().chain(text)
    }

    /// A key of the model's config, in the first place that has it and is not null.
    pub fn root_or_text(&self, key: &str) -> Option<&Value> {
        let mut values = self.places().filter_map(|place| place.get(key));
        values.find(|value| !value.is_null())
    }
}

/// `None` if there is no such file, which is normal.
fn read_json(store: &dyn Store, file: &str) -> Result<Option<Value>> {
    let bytes = match store.read_small(file, MAX_CONFIG) {
        Err(e) if e.is_not_found() => return Ok(None),
        read => read?,
    };
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok(Some(value)),
        // Python's json writes NaN and Infinity, which are not JSON. Some configs contain them, but
        // never in keys that matter here.
        Err(e) => std::str::from_utf8(&bytes)
            .ok()
            .and_then(|text| serde_json::from_str(&without_nan(text)).ok())
            .map(Some)
            .ok_or_else(|| not_json(&store.location().join(file), &bytes, &e)),
    }
}

/// Replaces Python's bare `NaN`, `Infinity` and `-Infinity` outside strings with `null`.
fn without_nan(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut in_string = false;
    while let Some(c) = rest.chars().next() {
        if in_string && c == '\\' {
            let n = 1 + rest[1..].chars().next().map_or(0, char::len_utf8);
            out.push_str(&rest[..n]);
            rest = &rest[n..];
            continue;
        }
        if c == '"' {
            in_string = !in_string;
        }
        let word = ["-Infinity", "Infinity", "NaN"]
            .into_iter()
            .find(|w| !in_string && rest.starts_with(w));
        match word {
            Some(w) => {
                out.push_str("null");
                rest = &rest[w.len()..];
            }
            None => {
                out.push(c);
                rest = &rest[c.len_utf8()..];
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{Catalog, MemoryStore, OpenOptions};

    #[test]
    fn keys_are_found_whatever_store_they_are_in() {
        let config = br#"{"text_config": {"a": 1, "b": 2, "n": 4}, "a": 3, "n": null}"#;
        let store = MemoryStore::new(&[("config.json", config), ("quant_config.json", b"[NaN]")]);
        let configs = Configuration::beside(&*store);
        assert_eq!(configs.root_or_text("a"), Some(&3.into()));
        assert_eq!(configs.root_or_text("b"), Some(&2.into()));
        assert_eq!(configs.root_or_text("c"), None);
        assert_eq!(configs.root_or_text("n"), Some(&4.into()));
        assert_eq!(configs.quant_config, Some(serde_json::json!([null])));
        assert!(configs.unused.is_empty() && configs.hf_quant_config.is_none());
        assert_eq!(*store.prefetched.lock().unwrap(), FILES);
    }

    #[test]
    fn pythons_nan_is_read_as_null() {
        let text = r#"{"a": NaN, "b\"NaN": [-Infinity, "NaN Infinity"]}"#;
        let v: Value = serde_json::from_str(&without_nan(text)).unwrap();
        assert_eq!(
            v,
            serde_json::json!({"a": null, "b\"NaN": [null, "NaN Infinity"]})
        );
    }

    /// As in Python, whose readers refuse such a file.
    #[test]
    fn text_that_is_not_utf_8_is_not_read() {
        for config in [&b"{\"a\": \"\xff\"}"[..], b"{\"a\": \"\xff\", \"b\": NaN}"] {
            let configs = Configuration::beside(&*MemoryStore::new(&[("config.json", config)]));
            assert!(configs.config.is_none());
            assert_eq!(configs.unused.len(), 1);
        }
    }

    #[test]
    fn configs_that_cannot_be_used_count_as_absent_and_are_reported() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), "{").unwrap();
        let weights = [&2u64.to_le_bytes()[..], b"{}"].concat();
        std::fs::write(dir.path().join("model.safetensors"), weights).unwrap();
        std::fs::create_dir(dir.path().join("quant_config.json")).unwrap();
        let configs = Catalog::open(dir.path(), OpenOptions::default())
            .unwrap()
            .configs;
        assert!(configs.config.is_none() && configs.quant_config.is_none());
        let notes: Vec<String> = configs.unused.iter().map(Unused::to_string).collect();
        let [config, quant_config] = notes.as_slice() else {
            panic!("{notes:?}");
        };
        assert!(config.starts_with("not used: config.json: is not JSON: EOF"));
        assert_eq!(
            quant_config,
            "not used: quant_config.json: is not a regular file"
        );
    }
}
