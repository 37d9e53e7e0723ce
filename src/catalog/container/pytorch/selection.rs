//! Which of a checkpoint's values are the model, and what its tensors are called.

use std::borrow::Cow;

use super::pickle::{Ref, Value};
use crate::text::{bytes, plural};

mod contents;
mod holdings;
mod key;
mod part;
mod refusal;
#[cfg(test)]
mod tests;

mod walk;

pub(super) use contents::Contents;
pub(super) use holdings::{Held, Holdings};
pub(super) use walk::{Found, MAX_DEPTH, Walk};

/// The keys under which training programs keep the model, in the order that counts. (The order is that of
/// `spandrel`, which most programs that load models for upscaling use.)
const MODEL_KEYS: [&str; 8] = [
    "model_state_dict",
    "state_dict",
    "params_ema",
    "params-ema",
    "params",
    "model",
    "module",
    "net",
];

/// What the keys of containers that are not the model begin with, in lower case.
const OTHER_KEYS: [&str; 12] = [
    "optim",
    "last_optim",
    "lr_sched",
    "sched",
    "scaler",
    "grad_scaler",
    "amp",
    "rng",
    "callbacks",
    "loops",
    "hyper_param",
    "hparams",
];

/// The most entries that are listed as left out.
const MAX_LEFT_OUT: usize = 1000;

/// The model in a checkpoint.
#[derive(Debug)]
pub(super) struct Model {
    /// Its value.
    pub value: Ref,
    /// The keys that lead to it.
    pub key: Vec<String>,
    /// Places of entries in it that are not part of it, in ascending order.
    pub without: Vec<u32>,
    /// Other entries that hold tensors.
    pub left_out: Vec<LeftOut>,
    /// How many more there are.
    pub more_left_out: u64,
}

/// An entry of the checkpoint that holds tensors and is not part of the model.
#[derive(Debug)]
pub(super) struct LeftOut {
    /// Its keys, joined with dots: the part to ask for.
    pub path: String,
    pub held: Held,
}

/// Finds the model, or the part that was asked for.
///
/// # Errors
/// Why there is none.
pub(super) fn find(
    contents: &Contents<'_>,
    holdings: &Holdings<'_, '_>,
    root: Ref,
    part: Option<&str>,
    file: &str,
) -> Result<Model, String> {
    let search = Search {
        contents,
        holdings,
        root,
        file,
    };
    match part {
        Some(part) => search.part(part),
        None => search.model(),
    }
}

/// The search for a model.
struct Search<'s, 'p> {
    contents: &'s Contents<'p>,
    holdings: &'s Holdings<'s, 'p>,
    root: Ref,
    /// The name of the file.
    file: &'s str,
}

impl<'p> Search<'_, 'p> {
    fn part(&self, part: &str) -> Result<Model, String> {
        let found = part::find(self.contents, self.root, part, |v| self.holdings.any(v));
        match found {
            Some(way) if self.holdings.any(way.end) => Ok(self.at(way, Vec::new())),
            _ => Err(self.no_such_part(part)),
        }
    }

    fn model(&self) -> Result<Model, String> {
        let mut way = part::Way {
            steps: Vec::new(),
            key: Vec::new(),
            end: self.root,
        };
        if let Some((place, key, value)) = self.under_model_key(self.root) {
            way.go(self.root, place, key, value);
            while let Some((place, key, value)) = self.only_model_key(way.end) {
                if way.key.len() == MAX_DEPTH {
                    return Err(format!(
                        "its model is below more than {MAX_DEPTH} keys, the most that are followed; mount a part of the file"
                    ));
                }
                way.go(way.end, place, key, value);
            }
            return Ok(self.at(way, Vec::new()));
        }
        if let Some(problem) = self.model_is_object() {
            return Err(problem);
        }
        self.rest_of_root(way)
    }

    /// The first of [`MODEL_KEYS`] whose value is a mapping that holds tensors.
    fn under_model_key(&self, container: Ref) -> Option<(u32, Cow<'p, str>, Ref)> {
        if !self.contents.is_mapping(container) {
            return None;
        }
        let entries = self.contents.named(container);
        let models = entries.filter_map(|(place, key, value)| {
            let name = key.name();
            let rank = MODEL_KEYS.iter().position(|key| *key == name)?;
            let is_model = self.contents.is_mapping(value) && self.holdings.any(value);
            is_model.then_some((rank, (place, name, value)))
        });
        Some(models.min_by_key(|(rank, _)| *rank)?.1)
    }

    /// As [`Search::under_model_key`], if nothing else in the container holds tensors.
    fn only_model_key(&self, container: Ref) -> Option<(u32, Cow<'p, str>, Ref)> {
        let entries = self.contents.named(container);
        let holding = entries.filter(|(_, _, value)| self.holdings.any(*value));
        let several = holding.take(2).count() > 1;
        (!several).then(|| self.under_model_key(container))?
    }

    /// The root without what certainly is not the model, or the one mapping that is left of it.
    fn rest_of_root(&self, mut way: part::Way<'p>) -> Result<Model, String> {
        let mut without = Vec::new();
        let mut left = Vec::new();
        for (place, key, value) in self.contents.named(self.root) {
            let is_container = self.contents.places(value).is_some();
            if is_container && is_other_key(&key.name()) {
                without.push(place);
            } else if self.holdings.any(value) {
                left.push((place, key.name(), value));
            }
        }
        let is_tensor = |value| matches!(self.contents.pickle.get(value), Value::Tensor(_));
        match left.as_slice() {
            [] if is_tensor(self.root) => {}
            [] => return Err(self.nothing()),
            [(place, key, value)] if self.contents.is_mapping(*value) => {
                way.go(self.root, *place, key.clone(), *value);
                without.clear();
            }
            _ => {}
        }
        Ok(self.at(way, without))
    }

    /// The model at the end of a way.
    fn at(&self, way: part::Way<'p>, without: Vec<u32>) -> Model {
        let mut left_out = Vec::new();
        let mut more_left_out = 0;
        let mut before = String::new();
        let ends = without.iter().map(|&place| (way.end, place));
        let mut add = |before: &str, name: Cow<'_, str>, value| {
            let held = self.holdings.of(value);
            if held.tensors > 0 {
                let path = format!("{before}{name}");
                match left_out.len() < MAX_LEFT_OUT {
                    true => left_out.push(LeftOut { path, held }),
                    false => more_left_out += 1,
                }
            }
        };
        for (&(container, next), key) in way.steps.iter().zip(&way.key) {
            for (place, name, value) in self.contents.named(container) {
                if place != next {
                    add(&before, name.name(), value);
                }
            }
            before.push_str(key);
            before.push('.');
        }
        for (container, place) in ends {
            let entry = self.contents.entry(container, place);
            if let Some((Ok(key), value)) = entry.map(|e| (e.key, e.value)) {
                add(&before, key.name(), value);
            }
        }
        Model {
            value: way.end,
            key: way.key.into_iter().map(Cow::into_owned).collect(),
            without,
            left_out,
            more_left_out,
        }
    }
}

impl<'p> part::Way<'p> {
    fn go(&mut self, container: Ref, place: u32, key: Cow<'p, str>, value: Ref) {
        self.steps.push((container, place));
        self.key.push(key);
        self.end = value;
    }
}

/// Whether a container under that key is not the model.
fn is_other_key(key: &str) -> bool {
    let starts = |prefix: &str| {
        let start = key.as_bytes().get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix.as_bytes()))
    };
    OTHER_KEYS.iter().any(|prefix| starts(prefix))
}

impl Held {
    /// `402 tensors, 1.2 GB`.
    pub fn text(&self) -> String {
        format!("{}, {}", plural(self.tensors, "tensor"), bytes(self.bytes))
    }
}

/// What an entry is, and what it holds.
fn describe(search: &Search<'_, '_>, value: Ref) -> String {
    let pickle = search.contents.pickle;
    let held = search.holdings.of(value);
    match pickle.get(value) {
        Value::Tensor(_) => "a tensor".into(),
        _ if held.tensors > 0 => held.text(),
        _ => pickle.describe(value),
    }
}
