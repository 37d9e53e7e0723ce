//! What does not change from rule to rule: models, parameters, the configuration; and how a name that is not
//! there is explained.

use std::cell::{Cell, OnceCell};
use std::collections::HashMap;

use serde_json::Value as Json;

use super::super::super::{TensorId, float_model};
use super::super::evaluate::Value;
use super::super::file::{RecipeFile, Rule};
use super::super::language::Pattern;
use super::super::mistake::{Lines, quoted};
use super::super::nearest;
use super::super::ops;
use super::super::sources::{SourceModel, Sources};
use super::super::tensor::Derived;
use super::state::{Gone, State};
use crate::catalog::Configuration;
use crate::text::{elide, plural, printable};

/// How many names are looked for that are near to one that is not there. Each costs a look at all names: tens of
/// milliseconds if they are 100,000.
const SUGGESTIONS: u32 = 30;

/// The same for one rule, so that some are left for others.
const SUGGESTIONS_OF_RULE: u32 = 6;

/// How many steps the expressions of all results together may take. Ranges within ranges could go on for hours; a
/// million results of several tensors each are within. A step takes some 100 ns.
const MAX_STEPS: u64 = 1 << 26;

/// Steps that a use of a tensor counts for: it is found by its name, and what is made of it takes some 200 bytes.
const STEPS_OF_TENSOR: u64 = 15;

/// The same for conditions, which make nothing: those of 500 rules on 100,000 tensors are within.
const MAX_STEPS_OF_CONDITIONS: u64 = 1 << 28;

/// Names and other text that a file determines are shown with at most this many characters.
const MOST_SHOWN: usize = 80;

/// What does not change from rule to rule.
pub(super) struct World<'a> {
    pub file: &'a RecipeFile,
    pub lines: &'a Lines<'a>,
    pub sources: &'a Sources,
    pub parameters: &'a HashMap<Box<str>, Value>,
    suggestions: Cell<u32>,
    suggestions_of_rule: Cell<u32>,
    steps: Steps,
    steps_of_conditions: Steps,
    /// By model: what its float model has, once somebody asked.
    floats: Vec<OnceCell<HashMap<TensorId, bool>>>,
}

/// Steps that have been counted, and how many there may be.
struct Steps {
    counted: Cell<u64>,
    most: u64,
}

impl Steps {
    fn up_to(most: u64) -> Steps {
        let counted = Cell::new(0);
        Steps { counted, most }
    }

    fn count(&self, steps: u64) -> Result<(), String> {
        self.counted.set(self.counted.get().saturating_add(steps));
        match self.are_spent() {
            false => Ok(()),
            true => Err(format!(
                "the expressions of all rules take more than {} steps",
                self.most
            )),
        }
    }

    fn are_spent(&self) -> bool {
        self.counted.get() > self.most
    }
}

impl<'a> World<'a> {
    pub fn new(
        file: &'a RecipeFile,
        lines: &'a Lines<'a>,
        sources: &'a Sources,
        parameters: &'a HashMap<Box<str>, Value>,
    ) -> World<'a> {
        World {
            file,
            lines,
            sources,
            parameters,
            suggestions: Cell::new(SUGGESTIONS),
            suggestions_of_rule: Cell::new(0),
            steps: Steps::up_to(MAX_STEPS),
            steps_of_conditions: Steps::up_to(MAX_STEPS_OF_CONDITIONS),
            floats: sources.models.iter().map(|_| OnceCell::new()).collect(),
        }
    }

    /// The names that the rules start with.
    pub fn start(&self) -> State {
        let Some(source) = self.sources.models.first() else {
            return State::new(std::iter::empty());
        };
        let model = &source.model;
        match source.floats {
            true => {
                let ids = float_model(model).into_iter();
                State::new(ids.map(|(id, values)| (model.name(id), id, values)))
            }
            false => {
                let ids = 0..model.catalog.tensors.len() as TensorId;
                State::new(ids.map(|id| (model.name(id), id, false)))
            }
        }
    }

    /// The line of a rule.
    pub fn line(&self, rule: usize) -> usize {
        let at = self.file.rules.get(rule).map(|rule| rule.at);
        at.map_or(0, |at| self.lines.line(at))
    }

    /// A tensor of a model, as the model has it: `model:'x'`, `NAME:'x'`.
    pub fn tensor_of(&self, model: &str, name: &str) -> Result<Derived, String> {
        let index = match model {
            "model" => Some(0),
            _ => self.sources.models.iter().position(|m| *m.name == *model),
        };
        let found = index.and_then(|i| Some((i, self.sources.models.get(i)?)));
        let (index, source) = found.ok_or_else(|| self.unknown_model(model))?;
        let label = format!("{model}:{}", quoted(name));
        let Some(id) = source.model.id(name) else {
            let names = (0..source.model.id_count()).map(|id| source.model.name(id));
            let meant = self.nearest(name, names);
            return Err(format!("{label} is not there{meant}"));
        };
        let leaf = self.sources.leaf(index, id);
        let tensor = leaf.ok_or_else(|| match source.model.tensor(id) {
            Err(why) => format!("{label} is not there: {why}"),
            Ok(_) => format!("{label} cannot be read"),
        })?;
        let tensor = match self.is_float(index, source, id) {
            true => ops::values(&tensor)?,
            false => tensor,
        };
        Ok(Derived {
            label: format!("{model}:'{name}'").into(),
            ..tensor
        })
    }

    /// Whether a model is opened as floats and the tensor is one of them.
    fn is_float(&self, index: usize, source: &SourceModel, id: TensorId) -> bool {
        if !source.floats {
            return false;
        }
        let Some(floats) = self.floats.get(index) else {
            return false;
        };
        let floats = floats.get_or_init(|| float_model(&source.model).into_iter().collect());
        match floats.get(&id) {
            Some(values) => *values,
            // Made of such: tied, fused or stacked.
            None => {
                let tensor = source.model.tensor(id);
                tensor.is_ok_and(|t| t.dtype.is_float() && t.values.is_some())
            }
        }
    }

    pub fn unknown_model(&self, name: &str) -> String {
        let names = self.sources.models.iter().map(|m| &*m.name);
        let meant = nearest::did_you_mean(nearest::word(name, names));
        format!("there is no model {}{meant}", quoted(name))
    }

    /// Another rule begins.
    pub fn next_rule(&self) {
        self.suggestions_of_rule.set(SUGGESTIONS_OF_RULE);
    }

    /// Counts a step of an expression.
    ///
    /// # Errors
    /// There have been too many.
    pub fn step(&self, in_condition: bool) -> Result<(), String> {
        match in_condition {
            true => self.steps_of_conditions.count(1),
            false => self.steps.count(1),
        }
    }

    /// Counts a use of a tensor.
    ///
    /// # Errors
    /// As [`World::step`].
    pub fn tensor_step(&self, in_condition: bool) -> Result<(), String> {
        match in_condition {
            true => self.steps_of_conditions.count(1),
            false => self.steps.count(STEPS_OF_TENSOR),
        }
    }

    /// Whether there have been too many steps.
    pub fn is_exhausted(&self) -> bool {
        self.steps.are_spent() || self.steps_of_conditions.are_spent()
    }

    /// Whether there may be one more suggestion.
    fn may_suggest(&self) -> bool {
        let (all, of_rule) = (&self.suggestions, &self.suggestions_of_rule);
        let may = all.get() > 0 && of_rule.get() > 0;
        if may {
            all.set(all.get() - 1);
            of_rule.set(of_rule.get() - 1);
        }
        may
    }

    /// `; did you mean '…'?` of a name that is not there, as long as not many were asked for.
    fn nearest<'n>(&self, name: &str, among: impl Iterator<Item = &'n str>) -> String {
        if !self.may_suggest() {
            return String::new();
        }
        match nearest::name(name, among) {
            Some(near) => nearest::did_you_mean(Some(&shown(near))),
            None => String::new(),
        }
    }

    /// That a name is not there, and why, or what was probably meant.
    pub fn not_there(&self, state: &State, name: &str) -> String {
        if state.is_unsure {
            return String::new();
        }
        let why = match state.gone(name) {
            Some(Gone::Taken(rule)) => format!(" any more: line {} took it", self.line(rule)),
            Some(Gone::Dropped(rule)) => format!(" any more: line {} dropped it", self.line(rule)),
            None => self.elsewhere(name).unwrap_or_else(|| {
                let names = state.live().map(|(_, slot)| &*slot.name);
                self.nearest(name, names)
            }),
        };
        format!("{} is not there{why}", quoted(name))
    }

    /// A name that the rules do not start with, but that the starting model has.
    fn elsewhere(&self, name: &str) -> Option<String> {
        let model = &self.sources.models.first()?.model;
        let id = model.id(name)?;
        let found = model.tensor(id).is_ok();
        found.then(|| format!("; the model has it besides: model:{}", quoted(name)))
    }

    /// Why a rule matches nothing.
    pub fn matches_nothing(&self, state: &State, rule: &Rule, patterns: &[Pattern]) -> String {
        const UNLESS: &str = "optional = true if that may be";
        let all: Vec<String> = patterns.iter().take(4).map(|p| quoted(&p.text)).collect();
        let all = all.join(" or ");
        let is_like = |name: &str| patterns.iter().any(|p| p.matches(name).is_some());
        let like = match &rule.condition {
            Some(_) => state.live().filter(|(_, s)| is_like(&s.name)).count() as u64,
            None => 0,
        };
        if like > 0 {
            let names = plural(like, "name");
            return format!(
                "matches nothing: 'where' holds for none of {names} like {all}; {UNLESS}"
            );
        }
        let names = state.live().map(|(_, slot)| &*slot.name);
        let piece = || nearest::piece(patterns.first()?, names);
        let near = self.may_suggest().then(piece).flatten();
        let near = near.map_or(String::new(), |(wanted, near)| {
            format!(" (nearest to {}: {})", quoted(&wanted), quoted(&near))
        });
        format!("matches nothing: no name is like {all}{near}; {UNLESS}")
    }
}

/// Text of a file, short and without control characters.
pub(super) fn shown(text: &str) -> String {
    elide(&printable(text), MOST_SHOWN)
}

/// `config.KEY`: a key of the configuration or of its `text_config`.
///
/// # Errors
/// There is none, with the nearest key; or it is not a number, text or truth value.
pub fn configured(config: &Configuration, keys: &[Box<str>]) -> Result<Value, String> {
    let path = keys.join(".");
    let path = shown(&path);
    if config.config.is_none() {
        return Err(format!("config.{path}: the model has no config.json"));
    }
    let get = |place: &'_ Json| -> Option<Json> {
        let found = keys.iter().try_fold(place, |at, key| at.get(&**key))?;
        (!found.is_null()).then(|| found.clone())
    };
    let Some(found) = config.places().find_map(get) else {
        return Err(not_configured(config, keys, &path));
    };
    match &found {
        Json::Number(number) => match number.as_i64() {
            Some(whole) => Ok(Value::Integer(whole)),
            None => Ok(Value::Real(number.as_f64().unwrap_or(f64::NAN))),
        },
        Json::String(text) => Ok(Value::Text(text.as_str().into())),
        Json::Bool(truth) => Ok(Value::Bool(*truth)),
        Json::Object(_) => Err(format!("config.{path} is an object; add one of its keys")),
        Json::Array(_) => Err(format!("config.{path} is an array, not a number")),
        Json::Null => Err(not_configured(config, keys, &path)),
    }
}

/// That the configuration lacks a key, with the nearest one.
fn not_configured(config: &Configuration, keys: &[Box<str>], path: &str) -> String {
    let mut candidates = Vec::new();
    for place in config.places() {
        let mut at = Some(place);
        for (depth, key) in keys.iter().enumerate() {
            let Some(Json::Object(object)) = at else {
                break;
            };
            let before = keys.get(..depth).unwrap_or_default();
            if !object.contains_key(&**key) {
                let known = object.keys().take(10_000);
                candidates.extend(known.map(|near| [&*before.join("."), near].join(".")));
            }
            at = object.get(&**key);
        }
    }
    let candidates = candidates.iter().map(|c| c.trim_start_matches('.'));
    let meant = nearest::word(&keys.join("."), candidates);
    let meant = meant.map(|near| format!("config.{}", shown(near)));
    let meant = nearest::did_you_mean(meant.as_deref());
    format!("config.{path} is not in config.json{meant}")
}
