//! `adapter_config.json`.

use serde_json::{Map, Value};

use super::quoted;
use crate::catalog::Catalog;
use crate::regex::{Effort, Expression, Wording};
use crate::text::elide;

/// The file beside the adapter's weights.
const FILE: &str = "adapter_config.json";

/// The most bytes that are read of it: `alpha_pattern` may have an entry for each of 100,000 modules.
const MAX_CONFIG: u64 = 16 << 20;

/// The most pairs of an entry of `alpha_pattern` and a module: 16,384 entries for as many modules. 2^28 take
/// about two seconds.
const MAX_PAIRS: usize = 1 << 28;

/// `peft`'s default of `lora_alpha`.
const DEFAULT_ALPHA: f64 = 8.0;

/// Keys of adapters that are more than LoRA if they are set, and what they are called.
const REFUSED: &[(&str, &str)] = &[
    ("use_dora", "DoRA"),
    ("lora_bias", "lora_bias"),
    ("use_qalora", "QALoRA"),
    ("target_parameters", "target_parameters"),
    ("alora_invocation_tokens", "aLoRA"),
    ("use_bdlora", "BD-LoRA"),
    ("arrow_config", "Arrow"),
    ("kasa_config", "KaSA"),
    ("layer_replication", "layer_replication"),
    ("trainable_token_indices", "trainable_token_indices"),
];

/// Values of `init_lora_weights` (how they begin) with which training changed the base weights, too. Adding such
/// an adapter to the original weights would give neither model.
const CHANGED_BASE: &[&str] = &["pissa", "corda", "olora", "loftq", "lora_ga"];

/// How messages name the expressions of `alpha_pattern`.
const WORDING: Wording = Wording {
    config: FILE,
    prefix: "alpha_pattern: ",
    all: "the entries of alpha_pattern",
};

/// What a LoRA adapter's config states, as far as merging needs it. Ranks are those of the tensors.
#[derive(Debug)]
pub(super) struct Config {
    alpha: f64,
    /// Expressions, in the file's order, and their alphas.
    alpha_pattern: Vec<(String, f64)>,
    use_rslora: bool,
    /// Whether the adapted layers store their weights as `[in, out]`.
    pub fan_in_fan_out: bool,
}

impl Config {
    /// That of the adapter in the catalog's directory.
    pub fn of(adapter: &Catalog) -> Result<Config, Vec<String>> {
        let bytes = match adapter.store.read_small(FILE, MAX_CONFIG) {
            Err(e) if e.is_not_found() => {
                return Err(vec![format!(
                    "is not a PEFT adapter: {} has no {FILE}",
                    adapter.store.location()
                )]);
            }
            read => read.map_err(|e| vec![e.to_string()])?,
        };
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(config)) => Config::parse(&config),
            Ok(_) => Err(vec![format!("{FILE} is not a JSON object")]),
            Err(e) => Err(vec![format!("{FILE} is not JSON: {e}")]),
        }
    }

    /// All that is wrong, if anything is.
    fn parse(config: &Map<String, Value>) -> Result<Config, Vec<String>> {
        let mut problems = refusals(config);
        let mut noted = |result: Result<f64, String>| {
            result.unwrap_or_else(|why| {
                problems.push(why);
                0.0
            })
        };
        let alpha = noted(match config.get("lora_alpha") {
            None => Ok(DEFAULT_ALPHA),
            Some(alpha) => number("lora_alpha", alpha),
        });
        let mut alpha_pattern = Vec::new();
        match config.get("alpha_pattern") {
            None | Some(Value::Null) => {}
            Some(Value::Object(entries)) => {
                for (key, alpha) in entries {
                    let name = || format!("alpha_pattern {}", quoted(key));
                    alpha_pattern.push((key.clone(), noted(number(name(), alpha))));
                }
            }
            Some(other) => problems.push(format!(
                "{FILE}: alpha_pattern is {}, not an object",
                shown(other)
            )),
        }
        let mut flag = |key| {
            flag(config, key).unwrap_or_else(|why| {
                problems.push(why);
                false
            })
        };
        let (use_rslora, fan_in_fan_out) = (flag("use_rslora"), flag("fan_in_fan_out"));
        match problems.is_empty() {
            false => Err(problems),
            true => Ok(Config {
                alpha,
                alpha_pattern,
                use_rslora,
                fan_in_fan_out,
            }),
        }
    }

    /// What B @ A is multiplied by.
    pub fn scaling(&self, alpha: f64, r: u64) -> f64 {
        match self.use_rslora {
            true => alpha / (r as f64).sqrt(),
            false => alpha / r as f64,
        }
    }

    /// The alphas of so many modules.
    pub fn alphas(&self, modules: usize) -> Result<Alphas<'_>, String> {
        let count = self.alpha_pattern.len();
        if count.saturating_mul(modules) > MAX_PAIRS {
            return Err(format!(
                "{FILE}: alpha_pattern has {count} entries for {modules} modules; at most {MAX_PAIRS} pairs are compared"
            ));
        }
        let effort = Effort::new(WORDING);
        let patterns = self.alpha_pattern.iter();
        let patterns = patterns.map(|(key, alpha)| (Key::of(key, &effort), *alpha));
        Ok(Alphas {
            default: self.alpha,
            patterns: patterns.collect(),
            effort,
        })
    }
}

/// Why an adapter with this config is not merged.
fn refusals(config: &Map<String, Value>) -> Vec<String> {
    let mut refusals = Vec::new();
    match config.get("peft_type") {
        Some(Value::String(kind)) if kind == "LORA" => {}
        Some(kind) => {
            // The other keys mean something else there.
            let kind = shown(kind);
            return vec![format!(
                "{FILE}: its peft_type is {kind}; only \"LORA\" is merged in this version"
            )];
        }
        None => refusals.push(format!("{FILE} has no peft_type, so it is not PEFT's")),
    }
    for (key, name) in REFUSED {
        if config.get(*key).is_some_and(is_set) {
            refusals.push(format!(
                "{FILE}: {key} is set: {name} is not merged in this version; merge it with peft's merge_and_unload"
            ));
        }
    }
    let init = config.get("init_lora_weights").and_then(Value::as_str);
    let init = init.unwrap_or_default().to_ascii_lowercase();
    if CHANGED_BASE.iter().any(|kind| init.starts_with(kind)) {
        refusals.push(format!(
            "{FILE}: init_lora_weights is '{}': training changed the base weights, too; save the adapter with path_initial_model_for_weight_conversion, which makes it a plain LoRA",
            elide(&init, 80)
        ));
    }
    refusals
}

/// Whether Python would take it for true.
fn is_set(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(entries) => !entries.is_empty(),
        Value::String(text) => !text.is_empty(),
        Value::Number(n) => n.as_f64() != Some(0.0),
        Value::Bool(true) => true,
    }
}

fn number(key: impl std::fmt::Display, value: &Value) -> Result<f64, String> {
    let number = value.as_f64().filter(|n| n.is_finite());
    number.ok_or_else(|| format!("{FILE}: {key} is {}, not a number", shown(value)))
}

fn flag(config: &Map<String, Value>, key: &str) -> Result<bool, String> {
    match config.get(key) {
        None | Some(Value::Null) => Ok(false),
        Some(Value::Bool(is_set)) => Ok(*is_set),
        Some(other) => Err(format!(
            "{FILE}: {key} is {}, not true or false",
            shown(other)
        )),
    }
}

fn shown(value: &Value) -> String {
    elide(&value.to_string(), 80)
}

/// The alpha of each module.
pub(super) struct Alphas<'a> {
    default: f64,
    patterns: Vec<(Key<'a>, f64)>,
    effort: Effort,
}

impl Alphas<'_> {
    /// That of the first entry that matches the end of the module's name, else `lora_alpha`.
    pub fn of(&self, module: &str) -> Result<f64, String> {
        let found = self
            .patterns
            .iter()
            .find(|(key, _)| key.matches(module, &self.effort));
        // An expression that could not be used may be the one that was meant.
        match self.effort.notes().into_iter().next() {
            Some(why) => Err(why),
            None => Ok(found.map_or(self.default, |(_, alpha)| *alpha)),
        }
    }
}

/// A key of `alpha_pattern`: an expression of Python's `re` for the end of a name, after a dot or from the
/// start (`peft.utils.other.get_pattern_key`).
enum Key<'a> {
    /// Only letters, digits, `_`, and dots, which match any character.
    Plain(&'a str),
    Expression(Box<Expression>),
}

impl<'a> Key<'a> {
    fn of(key: &'a str, effort: &Effort) -> Key<'a> {
        let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'.';
        match key.bytes().all(is_plain) {
            true => Key::Plain(key),
            false => {
                let whole = format!(r"(.*\.)?({key})$");
                Key::Expression(Box::new(Expression::new(&whole, effort)))
            }
        }
    }

    fn matches(&self, module: &str, effort: &Effort) -> bool {
        match self {
            Key::Plain(key) => matches_end(key, module),
            Key::Expression(expression) => expression.matches(module, effort),
        }
    }
}

/// Compared from the end, where names differ most.
fn matches_end(key: &str, module: &str) -> bool {
    let mut rest = module.chars().rev();
    let end = key.bytes().rev().all(|k| {
        let c = rest.next();
        c.is_some_and(|c| c == char::from(k) || (k == b'.' && c != '\n'))
    });
    end && rest.next().is_none_or(|c| c == '.')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config(more: Value) -> Result<Config, Vec<String>> {
        let mut config = json!({"peft_type": "LORA", "lora_alpha": 16, "r": 8});
        let more = more.as_object().unwrap().clone();
        config.as_object_mut().unwrap().extend(more);
        Config::parse(config.as_object().unwrap())
    }

    /// Expected values: `peft.utils.other.get_pattern_key` of peft 0.21 on Python 3.11.
    #[test]
    fn alphas_are_those_of_the_first_entry_that_peft_finds() {
        let alpha = |patterns: Value, module: &str| {
            let config = config(json!({"alpha_pattern": patterns})).unwrap();
            config.alphas(1).unwrap().of(module).unwrap()
        };
        let q = "model.layers.10.self_attn.q_proj";
        assert_eq!(alpha(json!({}), q), 16.0);
        assert_eq!(alpha(json!({"q_proj": 1}), q), 1.0);
        assert_eq!(alpha(json!({"proj": 1}), q), 16.0);
        assert_eq!(alpha(json!({"self_attn.q_proj": 1}), q), 1.0);
        assert_eq!(alpha(json!({"self.attn.q.proj": 1}), q), 1.0);
        assert_eq!(alpha(json!({"self_attn": 1}), q), 16.0);
        assert_eq!(alpha(json!({"layers.0.self_attn.q_proj": 1}), q), 16.0);
        assert_eq!(alpha(json!({"q_proj": 1, q: 2}), q), 1.0);
        assert_eq!(alpha(json!({q: 2, "q_proj": 1}), q), 2.0);
        assert_eq!(alpha(json!({"^model.layers.10.*": 3}), q), 3.0);
        assert_eq!(alpha(json!({r"layers\.1\d\..*[qk]_proj": 3}), q), 3.0);
        assert_eq!(alpha(json!({r"^layers\.1\d\..*[qk]_proj": 3}), q), 16.0);
        assert_eq!(alpha(json!({"(q|k)_proj": 0.5}), q), 0.5);
        assert_eq!(alpha(json!({"": 3}), q), 16.0);
        assert_eq!(alpha(json!({"": 3}), "a."), 3.0);
    }

    #[test]
    fn an_expression_that_cannot_be_used_is_an_error_and_never_the_default() {
        let config = config(json!({"alpha_pattern": {"(": 1}})).unwrap();
        let why = config.alphas(1).unwrap().of("q_proj").unwrap_err();
        assert!(why.contains("is not used"), "{why}");
    }

    #[test]
    fn too_many_entries_are_refused_before_they_are_compared() {
        let patterns: Map<String, Value> =
            (0..20_000).map(|i| (format!("m{i}"), json!(1))).collect();
        let config = config(json!({"alpha_pattern": patterns})).unwrap();
        assert!(config.alphas(10_000).is_ok());
        assert!(
            config
                .alphas(100_000)
                .is_err_and(|why| why.contains("20000 entries"))
        );
    }

    #[test]
    fn what_is_more_than_lora_is_refused_by_name() {
        let why = |more: Value| config(more).unwrap_err().join("\n");
        assert!(why(json!({"use_dora": true})).contains("DoRA"));
        assert!(why(json!({"lora_bias": true})).contains("lora_bias"));
        assert!(why(json!({"use_qalora": true})).contains("QALoRA"));
        assert!(why(json!({"target_parameters": ["experts"]})).contains("target_parameters"));
        assert!(why(json!({"peft_type": "IA3"})).contains("IA3"));
        assert!(why(json!({"peft_type": null})).contains("null"));
        assert!(why(json!({"init_lora_weights": "pissa_niter_4"})).contains("pissa_niter_4"));
        assert!(why(json!({"lora_alpha": "16"})).contains("lora_alpha is \"16\""));
        assert!(why(json!({"use_rslora": 1})).contains("use_rslora is 1"));
        let both = why(json!({"use_dora": true, "use_qalora": true}));
        assert_eq!(both.lines().count(), 2);
        let plain = json!({
            "use_dora": false, "lora_bias": false, "target_parameters": [], "arrow_config": null,
            "init_lora_weights": true, "alpha_pattern": null, "trainable_token_indices": null,
        });
        assert!(config(plain).is_ok());
        assert!(config(json!({"init_lora_weights": "gaussian"})).is_ok());
    }
}
