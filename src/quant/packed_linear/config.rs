//! Reads the config files of a GPTQ or AWQ model. Only two things in them count: the convention of
//! the stored zero points (or that the tensors are something else altogether), and the group size
//! of layers without `g_idx`. Everything else follows from each layer's tensors.
//!
//! Sources: `ModelCloud/GPTQModel gptqmodel/quantization/config.py`, `casper-hansen/AutoAWQ
//! awq/models/_config.py`, `intel/auto-round auto_round/export/export_to_autoround` and
//! `auto_round/inference/backend.py`.

use serde_json::Value;

use crate::catalog::Configuration;
use crate::reason::{Reason, reason};

/// What the config files declare.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Config {
    /// `quant_method`, in lower case.
    pub method: Option<String>,
    /// How GPTQ zero points are stored, or why nothing here may be decoded.
    pub stored: Stored,
    /// The AWQ layout, if it is not GEMM.
    pub awq_layout: Option<&'static str>,
    /// Every configured group size, in order of precedence; -1 means one group.
    pub group_sizes: Vec<i64>,
}

/// What the config declares about GPTQ-shaped tensors.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) enum Stored {
    /// Zero points minus one (format `gptq`, and every file that states nothing else).
    #[default]
    LessOne,
    /// Zero points as they are (`gptq_v2`).
    AsIs,
    /// As they are for 2, 4 and 8 bits; bit planes otherwise (`gptq_p`).
    Planar,
    /// Something else, whatever the tensors look like.
    Refused {
        /// The method's name in `meta.json`.
        method: &'static str,
        /// Why.
        reason: Reason,
    },
}

/// Formats that permute the words for a GPU kernel, whichever key names them.
const PERMUTED: [&str; 3] = ["marlin", "bitblas", "qqq"];

impl Config {
    /// Reads a model's config files. For each key, the first place that has it counts.
    pub fn new(configs: &Configuration) -> Config {
        let places = places(configs);
        let text = |keys: &[&str]| first(&places, keys, |v| v.as_str().map(str::to_lowercase));
        let method = text(&["quant_method", "method"]);
        let backend = text(&["packing_format"]).or_else(|| text(&["backend"]));
        // `version` is AWQ's key; others write release numbers there, which are ignored.
        let format = first(&places, &["checkpoint_format", "format", "version"], |v| {
            v.as_str()
                .map(str::to_lowercase)
                .filter(|v| !v.is_empty() && !is_release(v))
        });
        let is_marlin = first(&places, &["is_marlin_format"], Value::as_bool) == Some(true);
        let stored = match refusal(method.as_deref(), format.as_deref(), is_marlin) {
            Some(refused) => refused,
            None => convention(method.as_deref(), format.as_deref(), backend.as_deref()),
        };
        let awq_layout = ["gemv_fast", "gemv", "llm-awq"]
            .into_iter()
            .find(|l| [&format, &backend].iter().any(|v| v.as_deref() == Some(*l)));
        let group_sizes = places
            .iter()
            .flat_map(|place| ["group_size", "q_group_size"].map(|key| place.get(key)))
            .filter_map(|size| size?.as_i64())
            .collect();
        Config {
            method,
            stored,
            awq_layout,
            group_sizes,
        }
    }

    /// Whether the `quant_method` is one that packs like GPTQ.
    pub fn says_gptq(&self) -> bool {
        self.method.as_deref().is_some_and(|m| m != "awq")
    }

    /// The configured group size of a layer with `k` inputs in `groups` groups: the first that fits.
    pub fn group_size(&self, k: u64, groups: u64) -> Option<u64> {
        self.group_sizes.iter().find_map(|&size| {
            let size = match size {
                -1 => k,
                _ => u64::try_from(size).ok().filter(|&s| s > 0)?,
            };
            (k.div_ceil(size) == groups).then_some(size)
        })
    }
}

/// The objects to search, in order.
fn places(configs: &Configuration) -> Vec<&Value> {
    // A manifest's tensors are described by the manifest alone.
    if configs.manifest.is_some() {
        return Vec::new();
    }
    let in_config = configs.places();
    let in_config = in_config.filter_map(|place| place.get("quantization_config"));
    let files = [
        &configs.quantize_config,
        &configs.quant_config,
        &configs.quantization_config,
    ];
    in_config.chain(files.into_iter().flatten()).collect()
}

/// The value in the first place that has one under any of the keys.
fn first<T>(places: &[&Value], keys: &[&str], read: impl Fn(&Value) -> Option<T>) -> Option<T> {
    places
        .iter()
        .find_map(|place| keys.iter().find_map(|&key| read(place.get(key)?)))
}

/// Whether a `version` is a release number, such as `0.2.1` or `v1`.
fn is_release(version: &str) -> bool {
    let digits = version.strip_prefix('v').unwrap_or(version);
    digits.starts_with(|c: char| c.is_ascii_digit())
}

/// Why nothing must be decoded, whatever the shapes.
fn refusal(method: Option<&str>, format: Option<&str>, is_marlin: bool) -> Option<Stored> {
    let permuted = |name: &str| PERMUTED.into_iter().find(|p| *p == name);
    if is_marlin {
        return Some(refused("marlin", "is_marlin_format is true".into()));
    }
    if let Some(method) = method {
        let known = matches!(method, "gptq" | "awq" | "gptqmodel") || method.contains("auto-round");
        if !known {
            let name = permuted(method).or((method == "paroquant").then_some("paroquant"));
            return Some(refused(
                name.unwrap_or("unknown"),
                format!("quant_method is '{method}'"),
            ));
        }
    }
    let format = format?;
    if let Some(name) = permuted(format) {
        return Some(refused(name, format!("format is '{format}'")));
    }
    let known = matches!(
        format,
        "gptq" | "gptq_v2" | "gptq_p" | "gemm" | "gemv" | "gemv_fast" | "llm-awq"
    );
    (!known).then(|| refused("unknown", format!("format is '{format}'")))
}

fn refused(method: &'static str, what: String) -> Stored {
    let reason = reason!(
        "the config's {what}, which packs weights differently from GPTQ and AWQ; not decoded, the stored tensors are served as they are"
    );
    Stored::Refused { method, reason }
}

/// How GPTQ-shaped tensors store their zero points.
fn convention(method: Option<&str>, format: Option<&str>, backend: Option<&str>) -> Stored {
    match format {
        Some("gptq_v2") => return Stored::AsIs,
        Some("gptq_p") => return Stored::Planar,
        _ => {}
    }
    // AutoRound's own packing (`auto_round:exllamav2`, `auto_round:tritonv2`; 2024, asymmetric
    // models) keeps zero points as they are; only its `…:gptq` and `…:auto_gptq` subtract one.
    let auto_round = method.is_some_and(|m| m.contains("auto-round"));
    let own = backend
        .is_some_and(|b| b.starts_with("auto_round") && !b.contains("gptq") && !b.contains("awq"));
    match auto_round && own {
        true => Stored::AsIs,
        false => Stored::LessOne,
    }
}
