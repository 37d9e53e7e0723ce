//! The JSON files beside the weights, and what they say of quantization and tying. Stale or missing
//! configs are normal, so a file that cannot be read or parsed counts as absent (and is noted).

use std::fmt;
use std::path::Path;

use serde_json::{Map, Value};

use super::{impostor, small_file};
use crate::error::Result;

/// The parsed config files of a model directory.
#[derive(Debug, Default, Clone)]
pub struct Configs {
    /// `config.json`.
    pub config: Option<Value>,
    /// `quantize_config.json` (GPTQ's older place).
    pub quantize_config: Option<Value>,
    /// `quant_config.json` (AWQ's older place).
    pub quant_config: Option<Value>,
    /// `quantization_config.json` (AutoRound's).
    pub quantization_config: Option<Value>,
    /// `hf_quant_config.json` (NVIDIA ModelOpt's).
    pub hf_quant_config: Option<Value>,
    /// A manifest's own `config` object (`default_bits`, `default_group_size`). Where this is set,
    /// the tensors come from a bin + manifest pair, and no other config counts for them.
    pub manifest: Option<Map<String, Value>>,
    /// Files that are there and were passed over.
    pub unused: Vec<Unused>,
}

/// A config file that is there and cannot be used.
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

/// Configs are small; what is larger than this is not one.
const MAX_CONFIG: u64 = 64 << 20;

impl Configs {
    /// Reads what is there in `dir`.
    pub fn new(dir: &Path) -> Configs {
        let mut unused = Vec::new();
        let mut read = |file| match read_json(&dir.join(file)) {
            Ok(value) => value,
            Err(e) => {
                let why = e.about_its_file();
                unused.push(Unused { file, why });
                None
            }
        };
        Configs {
            config: read("config.json"),
            quantize_config: read("quantize_config.json"),
            quant_config: read("quant_config.json"),
            quantization_config: read("quantization_config.json"),
            hf_quant_config: read("hf_quant_config.json"),
            manifest: None,
            unused,
        }
    }

    /// A key of `config.json`, at its root or else in its `text_config`.
    pub fn root_or_text(&self, key: &str) -> Option<&Value> {
        let config = self.config.as_ref()?;
        config
            .get(key)
            .or_else(|| config.get("text_config")?.get(key))
    }
}

/// `None` where no such file is there, which is normal.
fn read_json(path: &Path) -> Result<Option<Value>> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(None);
    }
    let bytes = small_file::read(path, MAX_CONFIG)?;
    match serde_json::from_slice(&bytes) {
        Ok(value) => Ok(Some(value)),
        // Python's json writes NaN and Infinity, which are no JSON; configs contain them now and
        // then, never in keys that matter here.
        Err(e) => serde_json::from_str(&without_nan(&String::from_utf8_lossy(&bytes)))
            .map(Some)
            .map_err(|_| impostor::not_json(path, &bytes, &e)),
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

    #[test]
    fn pythons_nan_is_read_as_null() {
        let text = r#"{"a": NaN, "b\"NaN": [-Infinity, "NaN Infinity"]}"#;
        let v: Value = serde_json::from_str(&without_nan(text)).unwrap();
        assert_eq!(
            v,
            serde_json::json!({"a": null, "b\"NaN": [null, "NaN Infinity"]})
        );
    }

    #[test]
    fn configs_that_cannot_be_used_count_as_absent_and_are_told() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("config.json"), "{").unwrap();
        std::fs::create_dir(dir.path().join("quant_config.json")).unwrap();
        let configs = Configs::new(dir.path());
        assert!(configs.config.is_none() && configs.quant_config.is_none());
        let told: Vec<String> = configs.unused.iter().map(Unused::to_string).collect();
        let [config, quant_config] = told.as_slice() else {
            panic!("{told:?}");
        };
        assert!(config.starts_with("not used: config.json: is not JSON: EOF"));
        assert_eq!(
            quant_config,
            "not used: quant_config.json: is not a regular file"
        );
    }
}
