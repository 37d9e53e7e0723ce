//! Rules with `lora`: an adapter is added to the tensors that it is for.

use super::super::adapter::{self, Change, What as Changed};
use super::super::evaluate::{self, Value};
use super::super::file::Rule;
use super::super::language::Node;
use super::super::mistake::{Mistake, Place};
use super::super::ops::{self, Arithmetic, Made, Operand};
use super::make::kind;
use super::scope::MatchScope;
use super::staged::Staged;
use super::state::What;
use super::world::shown;
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
                    let adapter = shown(adapter);
                    let what = format!("matches nothing: adapter '{adapter}' changes no tensor");
                    self.mistakes.add(Mistake::of_line(rule.at, what));
                }
                for change in &changes {
                    self.change(&mut staged, rule, at, (model, adapter), change);
                    if self.is_stopped {
                        return;
                    }
                }
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

    fn change(
        &mut self,
        staged: &mut Staged,
        rule: &Rule,
        at: Place,
        (model, adapter): (usize, &str),
        change: &Change,
    ) {
        let Some(slot) = self.state.find(&change.weight) else {
            let why = match self.mistakes.is_full(at) {
                true => String::from("it is not there"),
                false => self.world.not_there(&self.state, &change.weight),
            };
            if !why.is_empty() {
                let (adapter, module) = (shown(adapter), shown(&change.module));
                let what = format!("adapter '{adapter}', module '{module}': {why}");
                self.mistakes.add(Mistake::at(at, what));
            }
            return;
        };
        if staged.take(slot, slot).is_some() {
            return;
        }
        let what = match self.changed(model, slot, change) {
            Some(Ok(tensor)) => self.finished(staged, tensor, 0),
            Some(Err(why)) => {
                let (adapter, module) = (shown(adapter), shown(&change.module));
                let what = format!("adapter '{adapter}', module '{module}': {why}");
                self.mistakes.add(Mistake::at(at, what));
                What::Unknown
            }
            None => What::Unknown,
        };
        let name = self.state.slot(slot).name.clone();
        self.stage(staged, rule, name, what, slot);
    }

    /// The changed tensor; `None` if it is not known because of an earlier mistake.
    fn changed(&self, model: usize, slot: u32, change: &Change) -> Option<Made> {
        let sources = self.world.sources;
        let weight = self.state.tensor(slot, sources)?;
        let part = |id| {
            let part = sources.leaf(model, id);
            part.ok_or_else(|| "a part of the adapter cannot be read".to_string())
        };
        Some(match &change.what {
            Changed::Replace(id) => part(*id),
            Changed::Add {
                a,
                b,
                transposed,
                factor,
            } => part(*a).and_then(|a| {
                let product = ops::product(&part(*b)?, &a)?;
                let product = match transposed {
                    true => ops::permute(&product, &[1, 0])?,
                    false => product,
                };
                let product = Operand::Tensor(product);
                let scaled =
                    ops::arithmetic(Arithmetic::Multiply, Operand::Number(*factor), product)?;
                ops::arithmetic(
                    Arithmetic::Add,
                    Operand::Tensor(weight),
                    Operand::Tensor(scaled),
                )
            }),
        })
    }
}
