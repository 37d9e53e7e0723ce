//! Changes to the configuration.

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
        let unused = configs
            .unused
            .iter()
            .find(|u| u.file == Configuration::MAIN);
        let first_change = changes.set.first().map(|(at, ..)| *at);
        let first_change = first_change.or(changes.remove.first().map(|(at, _)| *at));
        if let (Some(unused), Some(at)) = (unused, first_change) {
            let what = format!("{} cannot be changed: {}", unused.file, unused.why);
            return Err(vec![Mistake::at(at, what)]);
        }
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

    fn change(&self, config: &mut Value) -> Result<(), Vec<Mistake>> {
        let mut mistakes = Vec::new();
        for (at, keys, value) in &self.file.config.set {
            mistakes.extend(set(config, *at, keys, value).err());
        }
        for (_, keys) in &self.file.config.remove {
            remove(config, keys);
        }
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

/// Removes a key, if it is there.
fn remove(config: &mut Value, keys: &[String]) {
    let Some((last, outer)) = keys.split_last() else {
        return;
    };
    let place = outer
        .iter()
        .try_fold(config, |place, key| place.get_mut(key));
    if let Some(Value::Object(object)) = place {
        object.shift_remove(last);
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
        let mut config = json!({"a": 1, "b": {"c": 2, "d": 3}});
        for (path, value) in [("b.c", json!(5)), ("e.f.g", json!([1])), ("a", json!("x"))] {
            set(&mut config, Place(0), &keys(path), &value).unwrap();
        }
        for path in ["b.d", "x.y", "a.b"] {
            remove(&mut config, &keys(path));
        }
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
