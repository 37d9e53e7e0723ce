//! What names mean in the expressions of a rule.

use super::super::evaluate::{Scope, Value};
use super::super::language::{Hole, Pattern};
use super::super::tensor::Derived;
use super::gather::Gathered;
use super::matching::Found;
use super::state::{State, What};
use super::world::World;

/// What names mean for one match.
pub(super) struct MatchScope<'a> {
    pub world: &'a World<'a>,
    pub state: &'a State,
    /// What was matched, if the expression belongs to a match: the pattern, and its first tensor.
    pub found: Option<(&'a Pattern, &'a Found)>,
    /// The numbers that the match gathers. `None` in conditions, where each tensor stands for itself.
    pub gathered: Option<&'a Gathered>,
    /// The variable of `for`.
    pub each: Option<(&'a str, i64)>,
    /// Whether `dtype` and `ndim` are known.
    pub in_condition: bool,
}

impl MatchScope<'_> {
    fn hole(&self, name: &str) -> Option<Value> {
        let (pattern, found) = self.found?;
        let number = pattern.hole(name)?;
        let is_gathering = matches!(pattern.holes().nth(number), Some((_, Hole::Gather)));
        if is_gathering && self.gathered.is_some() {
            return None;
        }
        let matched = &self.state.slot(found.slot).name;
        let text = found.bindings.text(matched, number)?;
        Some(Value::Text(text.into()))
    }

    /// `dtype` and `ndim` of what was matched.
    fn property(&self, name: &str) -> Option<Value> {
        if !self.in_condition || !matches!(name, "dtype" | "ndim") {
            return None;
        }
        let slot = self.found?.1.slot;
        let value = |dtype: &str, shape: &[u64]| match name {
            "dtype" => Value::Text(dtype.into()),
            _ => Value::Integer(shape.len() as i64),
        };
        // The model answers for its own, so that a condition need not make a tensor for each of 100,000 names.
        match &self.state.slot(slot).what {
            What::Untouched { id, values: false } => {
                let model = &self.world.sources.models.first()?.model;
                let tensor = model
                    .is_stored(*id)
                    .then(|| model.catalog.tensors.get(*id))?;
                Some(value(tensor.dtype.name(), tensor.shape))
            }
            _ => {
                let tensor = self.state.tensor(slot, self.world.sources)?;
                Some(value(tensor.dtype.name(), &tensor.shape))
            }
        }
    }
}

impl Scope for MatchScope<'_> {
    fn name(&self, name: &str) -> Option<Value> {
        let each = self.each.filter(|(variable, _)| *variable == name);
        each.map(|(_, number)| Value::Integer(number))
            .or_else(|| self.hole(name))
            .or_else(|| self.property(name))
            .or_else(|| self.world.parameters.get(name).cloned())
    }

    fn names(&self) -> Vec<String> {
        let each = self.each.map(|(variable, _)| variable);
        let holes = self
            .found
            .into_iter()
            .flat_map(|(pattern, _)| pattern.holes());
        let holes = holes.map(|(name, _)| name);
        let parameters = self.world.parameters.keys().map(|name| &**name);
        let all = each.into_iter().chain(holes).chain(parameters);
        all.map(ToString::to_string).collect()
    }

    fn it(&self, model: Option<&str>) -> Result<Derived, String> {
        self.world.steps.tensor(self.in_condition)?;
        let (_, found) = self.found.ok_or("there is no 'it' here")?;
        match model {
            // Without a message: why nothing is known of it has been reported.
            None => self
                .state
                .tensor(found.slot, self.world.sources)
                .ok_or_else(String::new),
            Some(model) => self
                .world
                .tensor_of(model, &self.state.slot(found.slot).name),
        }
    }

    fn tensor(&self, model: Option<&str>, name: &str) -> Result<Derived, String> {
        self.world.steps.tensor(self.in_condition)?;
        match model {
            Some(model) => self.world.tensor_of(model, name),
            None => match self.state.find(name) {
                Some(slot) => self
                    .state
                    .tensor(slot, self.world.sources)
                    .ok_or_else(String::new),
                None => Err(self.world.not_there(self.state, name)),
            },
        }
    }

    fn config(&self, keys: &[Box<str>]) -> Result<Value, String> {
        self.world.config(keys)
    }

    fn gathered(&self, name: &str) -> Option<u64> {
        let (pattern, _) = self.found?;
        self.gathered?.count(pattern, name)
    }

    fn step(&self) -> Result<(), String> {
        self.world.steps.step(self.in_condition)
    }
}
