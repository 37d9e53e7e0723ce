//! `model` and `models`.

use std::path::PathBuf;

use super::super::mistake::quoted;
use super::super::nearest;
use super::ModelEntry;
use super::names::{Named, Names};
use super::parameters;
use super::reader::{Reader, Table, Value};

/// Further models have no more entries.
const MAX_MODELS: usize = 16;

/// `models`.
pub fn further<'t>(
    reader: &mut Reader<'t>,
    root: &Table<'t>,
    names: &mut Names,
) -> Vec<(Box<str>, ModelEntry)> {
    let table = root.get("models").and_then(|v| reader.table(v, "models"));
    let mut models = Vec::new();
    for (i, entry) in table.iter().flat_map(|t| &t.entries).enumerate() {
        if i == MAX_MODELS {
            let n = table.as_ref().map_or(0, |t| t.entries.len());
            reader.mistake(
                entry.at,
                format!("{n} models; a recipe has at most {MAX_MODELS}"),
            );
        }
        if let Err(what) = names.add(&entry.key.text, Named::Model) {
            reader.mistake(entry.at, what);
        }
        if let Some(model) = self::entry(reader, &entry.value) {
            models.push((Box::from(&*entry.key.text), model));
        }
    }
    models
}

/// A path, or a table with one.
pub fn entry<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Option<ModelEntry> {
    if value.value.is_str() {
        return path(reader, value, "a model");
    }
    if !value.value.is_table() {
        return reader.wrong(value, "a model is a path, or a table with path, as and set");
    }
    let table = reader.table(value, "a model")?;
    let are_known = reader.check_keys(&table, &["path", "as", "set"], "a model");
    let path = table.get("path").map(|value| path(reader, value, "path"));
    if path.is_none() && are_known {
        reader.mistake(table.at, "path is missing");
    }
    let floats = table
        .get("as")
        .is_some_and(|value| is_floats(reader, value));
    let set = table
        .get("set")
        .map(|value| parameters::of_model(reader, value));
    let path = path.flatten()?;
    Some(ModelEntry {
        floats,
        set: set.unwrap_or_default(),
        ..path
    })
}

fn path<'t>(reader: &mut Reader<'t>, value: &Value<'t>, what: &str) -> Option<ModelEntry> {
    let path = reader.string(value, what)?;
    if path.text.is_empty() {
        reader.mistake(path.start(), "an empty path");
        return None;
    }
    Some(ModelEntry {
        at: path.start(),
        path: PathBuf::from(&*path.text),
        floats: false,
        set: Vec::new(),
    })
}

/// `as`
fn is_floats<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> bool {
    let Some(text) = reader.string(value, "as") else {
        return false;
    };
    match &*text.text {
        "stored" => false,
        "floats" => true,
        other => {
            let nearest = nearest::word(other, ["stored", "floats"]);
            let meant = match nearest {
                Some(_) => nearest::did_you_mean(nearest),
                None => "; it is 'stored' or 'floats'".to_string(),
            };
            reader.mistake(
                text.start(),
                format!("as: {} is not known{meant}", quoted(other)),
            );
            false
        }
    }
}
