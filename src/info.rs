//! What a model is, at a glance: architecture, sizes, parts, what stands beside the stored tensors.
//! Everything comes from headers and the configuration.

use serde_json::{Map, Value, json};

use crate::meta::{self, ModelSummary};
use crate::model::Model;

mod config;
mod parts;

pub use config::{Number, Numbers};
pub use parts::Part;

/// A model at a glance.
pub struct Info {
    /// What the model calls its architecture, if it does.
    pub architecture: Option<String>,
    /// The numbers of its configuration.
    pub config: Numbers,
    /// Totals over stored tensors.
    pub summary: ModelSummary,
    /// Weights that one token visits: all but those of the experts that it is not sent to. `None` if the
    /// configuration does not have the numbers.
    pub active_parameters: Option<u64>,
    /// What the parts hold, in the order of [`Part::ALL`].
    pub parts: [PartSum; Part::ALL.len()],
    /// Names of tensors that are another one's bytes.
    pub tied: Vec<String>,
    /// How many tensors are fused or stacked from others.
    pub fused: u64,
    /// How many names could be expected but are not there; `ls --why` has the reasons.
    pub left_out: u64,
}

/// What a part of a model holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PartSum {
    /// Stored tensors.
    pub tensors: u64,
    /// Weights.
    pub parameters: u64,
    /// Bytes as stored.
    pub bytes: u64,
}

impl Info {
    /// Looks at a model. Waits for facts.
    pub fn of(model: &Model) -> Info {
        let configs = &model.catalog.configs;
        let architecture = config::architecture(configs);
        let mut config = Numbers::of(configs, architecture);
        config.or(Number::Vocab, || gguf_vocabulary(model));
        let summary = ModelSummary::of(model);
        let parts = parts_of(model);
        let mut info = Info {
            architecture: architecture.map(String::from),
            active_parameters: active(&config, summary.parameters, parts[Part::Experts as usize]),
            config,
            summary,
            parts,
            tied: Vec::new(),
            fused: 0,
            left_out: 0,
        };
        info.count_synthetic(model);
        info
    }

    fn count_synthetic(&mut self, model: &Model) {
        for id in 0..model.id_count() {
            let Ok(tensor) = model.tensor(id) else {
                self.left_out += 1;
                continue;
            };
            match model.kind(&tensor.raw) {
                "tied" => self.tied.push(model.name(id).into()),
                "fused" | "stacked" => self.fused += 1,
                _ => {}
            }
        }
        let catalog = &model.catalog;
        self.left_out += (catalog.absent.len() + catalog.left_out.len()) as u64;
    }

    /// Bytes that the model takes as stored, as BF16 and as F32.
    pub fn memory(&self) -> [(&'static str, u64); 3] {
        let weights = self.summary.parameters;
        [
            ("stored", self.summary.bytes),
            ("bf16", weights.saturating_mul(2)),
            ("f32", weights.saturating_mul(4)),
        ]
    }

    /// As JSON.
    pub fn json(&self, model: &Model) -> Value {
        let parts = Part::ALL.iter().zip(&self.parts);
        let parts = parts.filter(|(_, sum)| sum.tensors > 0).map(|(part, sum)| {
            json!({
                "name": part.name(),
                "tensors": sum.tensors,
                "parameters": sum.parameters,
                "bytes": sum.bytes,
            })
        });
        let memory = self.memory().into_iter();
        let memory: Map<String, Value> = memory.map(|(k, n)| (k.into(), json!(n))).collect();
        json!({
            "architecture": self.architecture,
            "config": self.config.json(),
            "format": model.catalog.format,
            "tensors": self.summary.tensors,
            "parameters": self.summary.parameters,
            "active_parameters": self.active_parameters,
            "bytes": self.summary.bytes,
            "memory": memory,
            "dtypes": meta::dtypes_json(&self.summary),
            "parts": parts.collect::<Value>(),
            "quantization": meta::model_quantization(model),
            "files": meta::files_json(model),
            "metadata": model.catalog.metadata,
            "tied": self.tied,
            "fused": self.fused,
            "left_out": self.left_out,
        })
    }
}

/// The rows of GGUF's embedding. (Its list of tokens is too long for the configuration.)
fn gguf_vocabulary(model: &Model) -> Option<u64> {
    let id = model.catalog.find("token_embd.weight")?;
    let tensor = model.catalog.tensors.get(id);
    tensor.shape.first().copied()
}

fn parts_of(model: &Model) -> [PartSum; Part::ALL.len()] {
    let mut parts = [PartSum::default(); Part::ALL.len()];
    for (id, tensor) in (0..).zip(&model.catalog.tensors) {
        let sum = &mut parts[Part::of(tensor.name) as usize];
        sum.tensors += 1;
        sum.parameters = sum.parameters.saturating_add(model.parameters(id));
        sum.bytes += tensor.nbytes;
    }
    parts
}

/// The weights that a token visits.
fn active(config: &Numbers, all: u64, experts: PartSum) -> Option<u64> {
    if experts.parameters == 0 {
        return Some(all);
    }
    let count = config.get(Number::Experts).filter(|&n| n > 0)?;
    let used = config.get(Number::ExpertsPerToken)?.min(count);
    let idle = u128::from(experts.parameters) * u128::from(count - used) / u128::from(count);
    Some(all - idle as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::Configuration;

    #[test]
    fn only_the_experts_that_a_token_visits_are_active() {
        let experts = PartSum {
            parameters: 800,
            ..PartSum::default()
        };
        let active = |config: Value, experts| {
            let configs = Configuration::of_config(config);
            super::active(&Numbers::of(&configs, None), 1000, experts)
        };
        let mixtral = json!({"num_local_experts": 8, "num_experts_per_tok": 2});
        assert_eq!(active(mixtral, experts), Some(400));
        assert_eq!(active(json!({"num_local_experts": 8}), experts), None);
        let odd = json!({"num_experts": 0, "num_experts_per_tok": 2});
        assert_eq!(active(odd, experts), None);
        assert_eq!(active(json!({}), PartSum::default()), Some(1000));
    }
}
