//! Changes to the configuration.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::super::mistake::{Mistake, Place};
use super::{ChangedConfig, Definition};
use crate::catalog::{Configuration, MAX_CONFIG};

impl Definition<'_> {
    /// The configuration as the recipe changes it.
    ///
    /// # Errors
    /// Changes that cannot be made, with their places.
    pub fn configuration(&self) -> Result<ChangedConfig, Vec<Mistake>> {
        let Some(first) = self.sources.models.first() else {
            return Err(Vec::new());
        };
        let catalog = &first.model.catalog;
        let mut configs = catalog.configs.clone();
        let changes = &self.file.config;
        let was_quantized = first.floats && configs.forget_quantization();
        if changes.set.is_empty() && changes.remove.is_empty() && !was_quantized {
            return Ok(ChangedConfig {
                configs,
                file: None,
            });
        }
        self.check_used(&configs)?;
        let mut config = configs.config.take().unwrap_or_else(empty);
        self.change(&mut config)?;
        let file = match catalog.configs.types_tell_all {
            // A GGUF file's keys take the place of the configuration, and are not a config.json.
            true => {
                let read = catalog.store.read_small(Configuration::MAIN, MAX_CONFIG);
                let read = read
                    .ok()
                    .and_then(|bytes| serde_json::from_slice(&bytes).ok());
                let mut file = read.unwrap_or_else(empty);
                self.change(&mut file)?;
                file
            }
            false => config.clone(),
        };
        configs.config = Some(config);
        let is_there = catalog.store.exists(Configuration::MAIN) || file != empty();
        let file = is_there.then(|| text(&file));
        Ok(ChangedConfig { configs, file })
    }

    /// What could not be read cannot be changed.
    fn check_used(&self, configs: &Configuration) -> Result<(), Vec<Mistake>> {
        let changes = &self.file.config;
        let mut unused = configs.unused.iter();
        let unused = unused.find(|u| u.file == Configuration::MAIN);
        let first_change = changes.set.first().map(|(at, ..)| *at);
        let first_change = first_change.or(changes.remove.first().map(|(at, _)| *at));
        let (Some(unused), Some(at)) = (unused, first_change) else {
            return Ok(());
        };
        let what = format!("{} cannot be changed: {}", unused.file, unused.why);
        Err(vec![Mistake::at(at, what)])
    }

    fn change(&self, config: &mut Value) -> Result<(), Vec<Mistake>> {
        let mut mistakes = Vec::new();
        for (at, keys, value) in &self.file.config.set {
            mistakes.extend(set(config, *at, keys, value).err());
        }
        let mut removal = Removal::default();
        for (_, keys) in &self.file.config.remove {
            removal.add(keys);
        }
        removal.apply(config);
        match mistakes.is_empty() {
            true => Ok(()),
            false => Err(mistakes),
        }
    }
}

fn empty() -> Value {
    Value::Object(Map::new())
}

/// As programs write it.
fn text(config: &Value) -> Vec<u8> {
    let mut text = serde_json::to_vec_pretty(config).unwrap_or_default();
    text.push(b'\n');
    text
}

/// Gives a key a value. Objects on the way are made.
fn set(config: &mut Value, at: Place, keys: &[String], value: &Value) -> Result<(), Mistake> {
    let Some((last, outer)) = keys.split_last() else {
        return Ok(());
    };
    let mut place = config;
    for (depth, key) in keys.iter().enumerate() {
        let Value::Object(object) = place else {
            let path = keys.get(..depth).unwrap_or_default().join(".");
            let what = format!("'{path}' of config.json is not an object, and has no key '{key}'");
            return Err(Mistake::at(at, what));
        };
        if depth == outer.len() {
            object.insert(last.clone(), value.clone());
            return Ok(());
        }
        place = object.entry(key.clone()).or_insert_with(empty);
    }
    Ok(())
}

/// Keys that go, if they are there. All of an object go at once: in order, each one alone moves all behind it.
#[derive(Default)]
struct Removal<'a> {
    /// What is here goes.
    goes: bool,
    /// What goes of the keys within.
    within: HashMap<&'a str, Removal<'a>>,
}

impl<'a> Removal<'a> {
    fn add(&mut self, keys: &'a [String]) {
        let mut place = self;
        for key in keys {
            place = place.within.entry(key).or_default();
        }
        place.goes = true;
    }

    /// The depth of the recursion is that of the keys, which is limited.
    fn apply(&self, value: &mut Value) {
        if self.within.is_empty() {
            return;
        }
        let Value::Object(object) = value else {
            return;
        };
        object.retain(|key, value| match self.within.get(key.as_str()) {
            Some(removal) if removal.goes => false,
            Some(removal) => {
                removal.apply(value);
                true
            }
            None => true,
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn keys(path: &str) -> Vec<String> {
        path.split('.').map(String::from).collect()
    }

    #[test]
    fn keys_are_set_and_removed_at_any_depth() {
        let mut config = json!({"a": 1, "h": {"i": 1}, "b": {"c": 2, "d": 3}});
        for (path, value) in [("b.c", json!(5)), ("e.f.g", json!([1])), ("a", json!("x"))] {
            set(&mut config, Place(0), &keys(path), &value).unwrap();
        }
        let removed = ["b.d", "x.y", "a.b", "h", "h.i"].map(keys);
        let mut removal = Removal::default();
        removed.iter().for_each(|keys| removal.add(keys));
        removal.apply(&mut config);
        let want = json!({"a": "x", "b": {"c": 5}, "e": {"f": {"g": [1]}}});
        assert_eq!(config, want);
        let mistake = set(&mut config, Place(7), &keys("b.c.d"), &json!(1)).unwrap_err();
        assert_eq!(mistake.at, Place(7));
        assert!(
            mistake
                .what
                .contains("'b.c' of config.json is not an object")
        );
    }
}
