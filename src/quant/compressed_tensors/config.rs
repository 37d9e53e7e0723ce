//! What a compressed-tensors config declares about a module: its group, its format, whether it is
//! ignored.

use std::cell::RefCell;

use serde_json::Value;

use super::targets::Targets;
use crate::catalog::Configuration;
use crate::regex::{Effort, Wording};

/// How remarks name its expressions.
const WORDING: Wording = Wording {
    config: "compressed-tensors config",
    prefix: "re:",
    all: "'re:' targets",
};

/// A model's compressed-tensors config.
pub struct Config {
    /// The model's format name, such as `pack-quantized` or `mixed-precision`.
    format: Option<String>,
    groups: Vec<Group>,
    /// Target → index of the group that names it. If two groups name a target, the later one has
    /// it.
    targets: Targets,
    ignore: Targets,
    effort: Effort,
    /// The last answer of [`Config::group`], cached because formats ask for the same module several
    /// times in a row.
    last: RefCell<Option<(String, bool, Option<usize>)>>,
}

/// One entry of `config_groups`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// Its own format name, if it has one (as in `mixed-precision` models).
    pub format: Option<String>,
    /// How its weights are quantized, as far as it states; `None` if they are not.
    pub weights: Option<Weights>,
}

/// The `weights` of a group: what a config leaves out is `None`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Weights {
    /// Bits per value.
    pub bits: Option<u32>,
    /// Whether the values are floats (`type: float`) rather than integers.
    pub float: Option<bool>,
    /// Whether it has no zero points.
    pub symmetric: Option<bool>,
    /// Values of a row that share a scale (strategies `group` and `tensor_group`).
    pub group_size: Option<u64>,
    /// Rows and columns of a block (strategy `block`).
    pub block_structure: Option<[u64; 2]>,
}

/// What the config declares about one module.
#[derive(Debug, Clone, Copy)]
pub struct Scheme<'a> {
    /// The group whose target fits best. `None` if no target fits, or `ignore` names the module: then
    /// it is not quantized, whatever group it is in.
    pub group: Option<&'a Group>,
    /// The format of its tensors: the group's own, else the model's. `None` if the config leaves it
    /// open.
    pub format: Option<&'a str>,
}

impl<'a> Scheme<'a> {
    /// How its weights are quantized, if the config declares it.
    pub fn weights(&self) -> Option<&'a Weights> {
        self.group?.weights.as_ref()
    }
}

impl Config {
    /// The config of a model, from `quantization_config` or (older) `compression_config` of
    /// config.json or its `text_config`. `None` if neither belongs to compressed-tensors.
    pub fn new(configs: &Configuration) -> Option<Config> {
        // A manifest's tensors are described by the manifest alone.
        if configs.manifest.is_some() {
            return None;
        }
        let keys = ["quantization_config", "compression_config"];
        configs
            .places()
            .flat_map(|place| keys.iter().filter_map(|key| Some((*key, place.get(key)?))))
            .find(|(key, value)| is_ours(key, value))
            .map(|(_, value)| Config::parse(value))
    }

    fn parse(value: &Value) -> Config {
        // The library's own objects nest the quantization part; most files on disk do not.
        let quantization = match value.get("quantization_config") {
            Some(inner) if value.get("config_groups").is_none() => inner,
            _ => value,
        };
        let mut config = Config {
            format: string(quantization, "format"),
            groups: Vec::new(),
            targets: Targets::default(),
            ignore: Targets::default(),
            effort: Effort::new(WORDING),
            last: RefCell::default(),
        };
        let groups = quantization.get("config_groups").and_then(Value::as_object);
        for group in groups.into_iter().flat_map(|groups| groups.values()) {
            let index = config.groups.len();
            // A list of targets means the preset of that name. Its bits and groups are then derived
            // from the tensors.
            let targets = group.get("targets").unwrap_or(group);
            for target in strings(targets) {
                config.targets.add(target, index, &config.effort);
            }
            config.groups.push(Group {
                format: string(group, "format"),
                weights: group.get("weights").and_then(Weights::parse),
            });
        }
        for target in quantization.get("ignore").into_iter().flat_map(strings) {
            config.ignore.add(target, 0, &config.effort);
        }
        for (list, targets) in [("targets", &config.targets), ("ignore", &config.ignore)] {
            targets.note_left_out(list, &config.effort);
        }
        config
    }

    /// What it declares about the module `path` (a tensor's name without `.weight…`). `matrix`:
    /// whether its weight has two dimensions, because class names such as `Linear` are assumed to
    /// mean matrices.
    pub fn scheme(&self, path: &str, matrix: bool) -> Scheme<'_> {
        let group = self.group(path, matrix);
        let group = group.and_then(|index| self.groups.get(index));
        let own = group.and_then(|g| g.format.as_deref());
        let format = own.or(self.format.as_deref());
        Scheme {
            group,
            format: format.filter(|f| *f != "mixed-precision"),
        }
    }

    fn group(&self, path: &str, matrix: bool) -> Option<usize> {
        let mut last = self.last.borrow_mut();
        if let Some((of, m, group)) = &*last
            && of == path
            && *m == matrix
        {
            return *group;
        }
        let ignored = self.ignore.find(path, &self.effort).is_some()
            || matrix && self.ignore.classes.find(path, false).is_some();
        let named = || {
            let named = self.targets.find(path, &self.effort);
            named.or_else(|| self.targets.classes.find(path, true).filter(|_| matrix))
        };
        let group = if ignored { None } else { named() };
        *last = Some((path.to_string(), matrix, group));
        group
    }

    /// Remarks about its expressions: which are not used, and why.
    pub fn notes(&self) -> Vec<String> {
        self.effort.notes()
    }

    /// The model's format name, `mixed-precision` included.
    pub fn format(&self) -> Option<&str> {
        self.format.as_deref()
    }
}

/// Whether a config object belongs to compressed-tensors, which was named `sparseml` until early
/// 2024.
fn is_ours(key: &str, value: &Value) -> bool {
    match value.get("quant_method").and_then(Value::as_str) {
        Some(method) => matches!(method, "compressed-tensors" | "sparseml"),
        None => {
            value.get("config_groups").is_some() || key == "compression_config" && value.is_object()
        }
    }
}

fn string(value: &Value, key: &str) -> Option<String> {
    Some(value.get(key)?.as_str()?.to_string())
}

fn strings(value: &Value) -> impl Iterator<Item = &str> {
    value
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

impl Weights {
    pub(super) fn parse(value: &Value) -> Option<Weights> {
        let object = value.as_object()?;
        let text = |key: &str| Some(object.get(key)?.as_str()?.to_ascii_lowercase());
        Some(Weights {
            bits: object
                .get("num_bits")
                .and_then(Value::as_u64)
                .and_then(|bits| u32::try_from(bits).ok()),
            float: text("type").map(|t| t == "float"),
            symmetric: object.get("symmetric").and_then(Value::as_bool),
            // Negative ones mean a whole row.
            group_size: object
                .get("group_size")
                .and_then(Value::as_u64)
                .filter(|&g| g > 0),
            block_structure: object.get("block_structure").and_then(block_structure),
        })
    }
}

/// Parses `[128, 128]`, or `"128x128"` in older files.
fn block_structure(value: &Value) -> Option<[u64; 2]> {
    let sides: Vec<u64> = match value {
        Value::String(s) => s.split('x').map(|n| n.trim().parse().ok()).collect(),
        Value::Array(a) => a.iter().map(Value::as_u64).collect(),
        _ => None,
    }?;
    let sides: [u64; 2] = sides.try_into().ok()?;
    sides.iter().all(|&n| n > 0).then_some(sides)
}
