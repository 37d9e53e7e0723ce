//! Why a checkpoint has no model that could be served.

use super::super::describe::short;
use super::super::pickle::{Ref, Value};
use super::{MODEL_KEYS, Search, describe};

/// The most keys that a message lists.
const LISTED: usize = 20;

impl Search<'_, '_> {
    /// If the model is an object, not a mapping: the refusal.
    pub(super) fn model_is_object(&self) -> Option<String> {
        if !self.contents.is_mapping(self.root) {
            return None;
        }
        let entries = self.contents.named(self.root);
        let objects = entries.filter_map(|(_, key, value)| {
            let rank = MODEL_KEYS.iter().position(|model| *model == key.name())?;
            self.is_object(value).then_some((rank, key.name(), value))
        });
        let mut objects: Vec<_> = objects.collect();
        objects.sort_by_key(|(rank, ..)| *rank);
        let mut met = self.unmet();
        let (_, key, value) = objects
            .iter()
            .find(|(_, _, value)| self.has_tensors_inside(*value, &mut met))?;
        self.object(&quoted(key), *value)
    }

    /// Nothing is left that holds tensors.
    pub(super) fn nothing(&self) -> String {
        let root = self.object("its root", self.root);
        if let Some(problem) = root {
            return problem;
        }
        let entries = || self.contents.named(self.root);
        let objects = || entries().filter(|(_, _, value)| self.is_object(*value));
        let mut met = self.unmet();
        let with = objects().find(|(_, _, value)| self.has_tensors_inside(*value, &mut met));
        if let Some((_, key, value)) = with
            && let Some(problem) = self.object(&quoted(&key.name()), value)
        {
            return problem;
        }
        if let Some((_, key, value)) = entries().find(|(_, _, value)| self.holdings.any(*value)) {
            let key = key.name();
            return format!(
                "has no model: its tensors are in {} ({}), a key that stands for something other than the model; mount {}#{key}",
                quoted(&key),
                self.holdings.of(value).text(),
                self.file,
            );
        }
        if let Some((_, key, value)) = objects().next()
            && let Some(problem) = self.object(&quoted(&key.name()), value)
        {
            return format!("has no tensors: {problem}");
        }
        format!("has no tensors: {}", self.root_holds())
    }

    /// The part that was asked for is not there, or holds nothing.
    pub(super) fn no_such_part(&self, part: &str) -> String {
        let found = super::part::find(self.contents, self.root, part, |_| true);
        let what = match &found {
            Some(way) => match self.object(&quoted(part), way.end) {
                Some(problem) => problem,
                None => format!(
                    "{} is {}, without tensors",
                    quoted(part),
                    self.contents.pickle.describe(way.end)
                ),
            },
            None => format!("has no {}", quoted(part)),
        };
        format!("{what}; {}", self.root_holds())
    }

    /// The root's keys, and what they hold.
    fn root_holds(&self) -> String {
        let mut entries = self.contents.named(self.root);
        let listed: Vec<String> = entries
            .by_ref()
            .take(LISTED)
            .map(|(_, key, value)| format!("{} ({})", quoted(&key.name()), describe(self, value)))
            .collect();
        let root = describe(self, self.root);
        if listed.is_empty() {
            return format!("its root is {root}");
        }
        let more = match entries.count() {
            0 => String::new(),
            n => format!(" and {n} more"),
        };
        format!("its root has {}{more}", listed.join(", "))
    }

    fn unmet(&self) -> Vec<bool> {
        vec![false; self.contents.pickle.len()]
    }

    fn is_object(&self, value: Ref) -> bool {
        matches!(self.contents.pickle.get(value), Value::Object(_))
    }

    /// If the value is an inert object: that it is not a state dict.
    fn object(&self, what: &str, value: Ref) -> Option<String> {
        self.is_object(value).then(|| {
            let object = self.contents.pickle.describe(value);
            format!("{what} is {object}, not a state dict; stfs builds no classes: save its state_dict()")
        })
    }

    /// Whether there are tensors in what an inert object was given, at any depth, also through other
    /// objects. Nothing that is marked in `met` is looked at again.
    fn has_tensors_inside(&self, object: Ref, met: &mut [bool]) -> bool {
        let pickle = self.contents.pickle;
        let mut open = vec![object];
        while let Some(value) = open.pop() {
            match met.get_mut(value.0 as usize) {
                Some(met) if !*met => *met = true,
                _ => continue,
            }
            match pickle.get(value) {
                Value::Tensor(_) => return true,
                Value::Tuple(items) | Value::List(items) | Value::Set(items) => {
                    open.extend_from_slice(items);
                }
                Value::Mapping(pairs) => {
                    open.extend(pairs.into_iter().flat_map(|(key, value)| [key, value]));
                }
                Value::Object(object) => {
                    open.push(object.arguments);
                    open.extend_from_slice(object.contents);
                    open.extend(object.state);
                }
                _ => {}
            }
        }
        false
    }
}

/// A key in quotes.
fn quoted(key: &str) -> String {
    format!("'{}'", short(key))
}
