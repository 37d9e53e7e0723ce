//! What does not change from rule to rule: models, parameters, the configuration; and how a name that is not
//! there is explained.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::HashMap;
use std::sync::LazyLock;

use super::super::super::{TensorId, float_model};
use super::super::evaluate::Value;
use super::super::file::{RecipeFile, Rule};
use super::super::language::Pattern;
use super::super::mistake::{Lines, quoted};
use super::super::nearest;
use super::super::ops;
use super::super::sources::{SourceModel, Sources};
use super::super::tensor::Derived;
use super::configured::configured;
use super::state::{Gone, State};
use super::steps::Steps;
use crate::text::{elide, plural, printable};

/// How many names are looked for that are near to one that is not there. Each costs a look at all names: tens of
/// milliseconds if they are 100,000.
pub(super) const SUGGESTIONS: u32 = 30;

/// The same for one rule, so that some are left for others.
const SUGGESTIONS_OF_RULE: u32 = 6;

/// Names and other text that a file determines are shown with at most this many characters.
const MOST_SHOWN: usize = 80;

/// The keys of `config.KEY`, in order.
type Keys = Box<[Box<str>]>;

/// What does not change from rule to rule.
pub(super) struct World<'a> {
    pub file: &'a RecipeFile,
    pub lines: &'a Lines<'a>,
    pub sources: &'a Sources,
    pub parameters: &'a HashMap<Box<str>, Value>,
    suggestions: Cell<u32>,
    suggestions_of_rule: Cell<u32>,
    /// What the rules have taken so far.
    pub steps: Steps,
    /// Values of `config.KEY`, which are the same for all tensors.
    configured: RefCell<HashMap<Keys, Result<Value, String>>>,
    /// By model: what its float model has, once it is needed.
    floats: Vec<OnceCell<HashMap<TensorId, bool>>>,
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
            steps: Steps::default(),
            configured: RefCell::default(),
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

    /// Whether the model that the rules start with has such a tensor only once it is opened as floats.
    pub fn only_floats_have(&self, name: &str) -> bool {
        let Some(source) = self.sources.models.first() else {
            return false;
        };
        let id = source.model.id(name).filter(|_| !source.floats);
        id.is_some_and(|id| !source.model.is_stored(id) && self.floats(0, source).contains_key(&id))
    }

    /// The tensors of a model's float model, each with whether its values are meant.
    fn floats(&self, index: usize, source: &SourceModel) -> &HashMap<TensorId, bool> {
        static NONE: LazyLock<HashMap<TensorId, bool>> = LazyLock::new(HashMap::new);
        let all = || float_model(&source.model).into_iter().collect();
        let floats = self.floats.get(index);
        floats.map_or(&NONE, |floats| floats.get_or_init(all))
    }

    /// Whether a model is opened as floats and the tensor is one of them.
    fn is_float(&self, index: usize, source: &SourceModel, id: TensorId) -> bool {
        if !source.floats {
            return false;
        }
        match self.floats(index, source).get(&id) {
            Some(values) => *values,
            // Made of such: tied, fused or stacked.
            None => {
                let tensor = source.model.tensor(id);
                tensor.is_ok_and(|t| t.dtype.is_float() && t.values.is_some())
            }
        }
    }

    /// `config.KEY`.
    pub fn config(&self, keys: &[Box<str>]) -> Result<Value, String> {
        if let Some(known) = self.configured.borrow().get(keys) {
            return known.clone();
        }
        let Some(source) = self.sources.models.first() else {
            return Err(String::new());
        };
        let is_of_quantization = keys.first().is_some_and(|k| **k == *"quantization_config");
        let value = match source.floats && is_of_quantization {
            true => Err("config.quantization_config: a model as \"floats\" has none".into()),
            false => {
                let config = &source.model.catalog.configs;
                configured(config, keys, || self.may_suggest())
            }
        };
        let mut known = self.configured.borrow_mut();
        known.insert(keys.into(), value.clone());
        value
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
