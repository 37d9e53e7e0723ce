//! PEFT adapters: what a LoRA adapter does to each tensor of its base model. Only its config and its header
//! are read here.
//!
//! Names and factors follow `peft` 0.21 (`tuners/lora/layer.py`, `utils/save_and_load.py`).

use std::collections::BTreeMap;

use super::super::TensorId;
use super::sources::SourceModel;
use crate::text::elide;
use config::Config;
use names::Role;

mod config;
mod names;
#[cfg(test)]
mod tests;

/// What an adapter does to one tensor of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    /// The tensor's name in the model.
    pub weight: String,
    /// The module, for messages.
    pub module: String,
    /// What happens to it.
    pub what: What,
}

/// What happens to a tensor. Ids are those of the adapter's own model, without
/// [`SourceModel::first_id`].
#[derive(Debug, Clone, PartialEq)]
pub enum What {
    /// `W + factor * (B @ A)`
    Add {
        /// `[r, in]`
        a: TensorId,
        /// `[out, r]`
        b: TensorId,
        /// The product is transposed, because W is `[in, out]`: embeddings, and `fan_in_fan_out`.
        transposed: bool,
        /// alpha / r, or alpha / sqrt(r), times the rule's scale: computed in binary64, rounded once.
        factor: f32,
    },
    /// It is replaced (`modules_to_save`, biases that were trained, embeddings saved whole).
    Replace(TensorId),
}

/// What the adapter does, with `scale` of the rule. Replacements come first, because peft adds to what was
/// replaced. Empty if the adapter has no tensors.
///
/// # Errors
/// The adapter cannot be used: everything that is wrong with it, naming the module.
pub fn changes(adapter: &SourceModel, scale: f64) -> Result<Vec<Change>, Vec<String>> {
    let named = |problem: String| format!("adapter '{}': {problem}", adapter.name);
    let found = Config::of(&adapter.model.catalog)
        .and_then(|config| Modules::of(adapter)?.changes(&config, scale));
    found.map_err(|problems| problems.into_iter().map(named).collect())
}

/// The name of a module or tensor as messages show it.
fn quoted(name: &str) -> String {
    format!("'{}'", elide(name, 80))
}

/// A tensor of the adapter.
#[derive(Debug, Clone)]
struct Factor {
    id: TensorId,
    shape: Vec<u64>,
}

/// The factors that belong to one module.
#[derive(Default)]
struct Pair {
    a: Option<Factor>,
    b: Option<Factor>,
}

/// The tensors of an adapter, sorted out.
#[derive(Default)]
struct Modules {
    /// By module, and whether it is an embedding.
    pairs: BTreeMap<(String, bool), Pair>,
    /// By name in the model.
    replaced: BTreeMap<String, TensorId>,
}

impl Modules {
    fn of(adapter: &SourceModel) -> Result<Modules, Vec<String>> {
        let mut modules = Modules::default();
        let mut problems = Vec::new();
        for (id, tensor) in (0..).zip(adapter.model.catalog.tensors.iter()) {
            let shape = tensor.shape.to_vec();
            if let Err(why) = modules.add(tensor.name, Factor { id, shape }) {
                problems.push(why);
            }
        }
        match problems.is_empty() {
            true => Ok(modules),
            false => Err(problems),
        }
    }

    fn add(&mut self, name: &str, factor: Factor) -> Result<(), String> {
        let id = factor.id;
        let (module, role) = names::parse(name)?;
        let before = match role {
            Role::Whole => self.replaced.insert(module, id),
            Role::Factor { is_b, is_embedding } => {
                let pair = self.pairs.entry((module, is_embedding)).or_default();
                let side = if is_b { &mut pair.b } else { &mut pair.a };
                side.replace(factor).map(|factor| factor.id)
            }
        };
        match before {
            Some(_) => Err(format!(
                "{} appears twice, with the prefix '{}' and without it",
                quoted(name),
                names::PREFIX
            )),
            None => Ok(()),
        }
    }

    fn changes(self, config: &Config, scale: f64) -> Result<Vec<Change>, Vec<String>> {
        let alphas = config.alphas(self.pairs.len()).map_err(|why| vec![why])?;
        let replaced = self.replaced.into_iter().map(|(weight, id)| Change {
            module: module_of(&weight).to_string(),
            weight,
            what: What::Replace(id),
        });
        let mut changes: Vec<Change> = replaced.collect();
        let mut problems = Vec::new();
        for ((module, is_embedding), pair) in self.pairs {
            let added = pair.checked(&module, is_embedding).and_then(|(a, b, r)| {
                Ok(What::Add {
                    a,
                    b,
                    transposed: is_embedding || config.fan_in_fan_out,
                    factor: factor(config.scaling(alphas.of(&module)?, r), scale, &module)?,
                })
            });
            match added {
                Ok(what) => changes.push(Change {
                    weight: format!("{module}.weight"),
                    module,
                    what,
                }),
                Err(why) => problems.push(why),
            }
        }
        match problems.is_empty() {
            true => Ok(changes),
            false => Err(problems),
        }
    }
}

impl Pair {
    /// The ids of A and B, and their rank r.
    fn checked(
        self,
        module: &str,
        is_embedding: bool,
    ) -> Result<(TensorId, TensorId, u64), String> {
        let module = quoted(module);
        let infix = if is_embedding { "embedding_" } else { "" };
        let (a, b) = match (self.a, self.b) {
            (Some(a), Some(b)) => (a, b),
            (Some(_), None) => {
                return Err(format!(
                    "module {module} has lora_{infix}A without lora_{infix}B"
                ));
            }
            (None, _) => {
                return Err(format!(
                    "module {module} has lora_{infix}B without lora_{infix}A"
                ));
            }
        };
        let (&[r, _], &[_, columns]) = (&*a.shape, &*b.shape) else {
            let (a, b) = (&a.shape, &b.shape);
            return Err(match a.len().max(b.len()) {
                3.. => format!(
                    "module {module} is a convolution (A {a:?}, B {b:?}), which is not merged in this version"
                ),
                _ => format!("module {module}: A {a:?} and B {b:?} are not both matrices"),
            });
        };
        if r != columns || r == 0 {
            let (a, b) = (&a.shape, &b.shape);
            return Err(format!(
                "module {module}: the rank is {r} in A {a:?} and {columns} in B {b:?}; it must be the same, and not 0"
            ));
        }
        Ok((a.id, b.id, r))
    }
}

/// What the product is multiplied by.
fn factor(scaling: f64, scale: f64, module: &str) -> Result<f32, String> {
    let factor = (scale * scaling) as f32;
    match factor.is_finite() {
        true => Ok(factor),
        false => Err(format!(
            "module {}: scale {scale} times alpha / r {scaling} is {factor} in binary32",
            quoted(module)
        )),
    }
}

/// The module that a parameter belongs to.
fn module_of(parameter: &str) -> &str {
    parameter
        .rsplit_once('.')
        .map_or(parameter, |(module, _)| module)
}
