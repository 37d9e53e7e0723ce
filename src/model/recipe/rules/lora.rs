//! Rules with `lora`: an adapter is added to the tensors that it is for.

use std::collections::HashMap;

use super::super::adapter::{self, Change};
use super::super::evaluate::{self, Value};
use super::super::file::Rule;
use super::super::language::Node;
use super::super::mistake::{Mistake, Place, quoted};
use super::super::ops::{self, Arithmetic, Made, Operand, shape_text};
use super::super::tensor::Derived;
use super::make::kind;
use super::mistakes::Mistakes;
use super::scope::MatchScope;
use super::staged::Staged;
use super::state::What;
use super::{Applied, Run};

impl Run<'_> {
    pub(super) fn lora(
        &mut self,
        number: usize,
        rule: &Rule,
        at: Place,
        adapter: &str,
        scale: Option<&Node>,
    ) {
        let mut staged = Staged::new(number, true);
        match self.changes(at, adapter, scale) {
            Ok((model, changes)) => {
                if changes.is_empty() && !rule.optional {
                    let adapter = quoted(adapter);
                    let what = format!("matches nothing: adapter {adapter} changes no tensor");
                    self.mistakes.add(Mistake::of_line(rule.at, what));
                }
                let mut changed = Changed::default();
                for change in &changes {
                    self.change(&mut changed, at, (model, adapter), change);
                }
                self.stage_changed(&mut staged, rule, changed);
            }
            Err(mistakes) => {
                staged.is_unsure = true;
                mistakes.into_iter().for_each(|m| self.mistakes.add(m));
            }
        }
        let first = staged.example();
        self.applied.push(Applied {
            rule: number,
            matches: staged.added.len() as u64,
            example: first.map(|first| (first.name.clone(), Some(first))),
        });
        self.commit(rule, staged);
    }

    /// What was changed takes its own place.
    fn stage_changed(&mut self, staged: &mut Staged, rule: &Rule, changed: Changed) {
        for (slot, tensor) in changed.all {
            staged.take(slot, slot);
            let made = tensor.map(|tensor| self.finished(staged, tensor, 0));
            let name = self.state.slot(slot).name.clone();
            self.stage(staged, rule, name, made.unwrap_or(What::Unknown), slot);
        }
    }

    /// What the adapter changes, and its number among the models.
    fn changes(
        &self,
        at: Place,
        adapter: &str,
        scale: Option<&Node>,
    ) -> Result<(usize, Vec<Change>), Vec<Mistake>> {
        let models = &self.world.sources.models;
        // The model that the rules start with has no name here.
        let index = models.iter().skip(1).position(|m| *m.name == *adapter);
        let found = index.and_then(|i| Some((i + 1, models.get(i + 1)?)));
        let Some((index, source)) = found else {
            let what = self.world.unknown_model(adapter);
            return Err(vec![Mistake::at(at, what)]);
        };
        let scale = scale.map_or(Ok(1.0), |node| self.scale(node));
        let scale = scale.map_err(|mistake| vec![mistake])?;
        let changes = adapter::changes(source, scale);
        let all = |what: Vec<String>| what.into_iter().map(|w| Mistake::at(at, w)).collect();
        changes.map(|changes| (index, changes)).map_err(all)
    }

    /// `scale = …`
    fn scale(&self, node: &Node) -> Result<f64, Mistake> {
        let scope = MatchScope {
            world: self.world,
            state: &self.state,
            found: None,
            gathered: None,
            each: None,
            in_condition: false,
        };
        match evaluate::expression(node, &scope)? {
            Value::Integer(number) => Ok(number as f64),
            Value::Real(number) => Ok(number),
            other => {
                let what = format!("'scale' is a number, and this is {}", kind(&other));
                Err(Mistake::at(node.at, what))
            }
        }
    }

    /// Applies one change, perhaps to what an earlier one made of the tensor.
    fn change(
        &mut self,
        changed: &mut Changed,
        at: Place,
        (model, adapter): (usize, &str),
        change: &Change,
    ) {
        let report = |mistakes: &mut Mistakes, why: &str| {
            if !why.is_empty() {
                let (adapter, module) = (quoted(adapter), quoted(&change.module));
                let what = format!("adapter {adapter}: module {module}: {why}");
                mistakes.add(Mistake::at(at, what));
            }
        };
        let Some(slot) = self.state.find(&change.weight) else {
            let why = match self.mistakes.is_full(at) {
                true => String::from("its weight is not there"),
                false => self.no_weight(&change.weight),
            };
            return report(&mut self.mistakes, &why);
        };
        let tensor = changed.tensor(slot, || self.state.tensor(slot, self.world.sources));
        let Some(before) = tensor else {
            return;
        };
        match self.made(model, before, &change.what) {
            Ok(made) => *before = made,
            Err(why) => {
                *tensor = None;
                report(&mut self.mistakes, &why);
            }
        }
    }

    /// That a weight is not there. A quantized layer has none as it is stored.
    fn no_weight(&self, weight: &str) -> String {
        match self.world.only_floats_have(weight) && self.state.gone(weight).is_none() {
            true => format!(
                "{} is not there: the model is quantized, and has it once it is opened as floats: as = \"floats\"",
                quoted(weight)
            ),
            false => self.world.not_there(&self.state, weight),
        }
    }

    /// A tensor after a change.
    fn made(&self, model: usize, before: &Derived, what: &adapter::What) -> Made {
        let part = |id| {
            let part = self.world.sources.leaf(model, id);
            part.ok_or_else(|| "a part of the adapter cannot be read".to_string())
        };
        match what {
            adapter::What::Replace(id) => part(*id),
            adapter::What::Add {
                a,
                b,
                transposed,
                factor,
            } => {
                let product = ops::product(&part(*b)?, &part(*a)?)?;
                let product = match transposed {
                    true => ops::permute(&product, &[1, 0])?,
                    false => product,
                };
                check_shape(before, &product)?;
                let number = Operand::Number(*factor);
                let scaled = Operand::Tensor(product);
                let scaled = ops::arithmetic(Arithmetic::Multiply, number, scaled)?;
                let (weight, scaled) = (before.clone(), Operand::Tensor(scaled));
                ops::arithmetic(Arithmetic::Add, Operand::Tensor(weight), scaled)
            }
        }
    }
}

/// That a product has the shape of the weight that it is added to: one element alone is not added to all others, and
/// does not become as many.
fn check_shape(weight: &Derived, product: &Derived) -> Result<(), String> {
    let of = ops::values(weight)?.shape;
    match of == product.shape {
        true => Ok(()),
        false => Err(format!(
            "B @ A is {}, and {} is {}: the adapter of another base, or the weight was changed above",
            shape_text(&product.shape),
            weight.label,
            shape_text(&of)
        )),
    }
}

/// Tensors that an adapter has changed so far; `None` if there was a mistake.
#[derive(Default)]
struct Changed {
    all: Vec<(u32, Option<Derived>)>,
    index: HashMap<u32, usize>,
}

impl Changed {
    /// A tensor after the changes so far.
    fn tensor(
        &mut self,
        slot: u32,
        before: impl FnOnce() -> Option<Derived>,
    ) -> &mut Option<Derived> {
        let index = *self.index.entry(slot).or_insert_with(|| {
            self.all.push((slot, before()));
            self.all.len() - 1
        });
        &mut self.all[index].1
    }
}
