//! `config`: changes to `config.json`.

use serde_json::{Map, Number, Value as Json};
use toml::de::DeValue;

use super::super::language::Located;
use super::super::mistake::Place;
use super::ConfigChanges;
use super::reader::{Reader, Table, Value};

/// Keys and values are nested no deeper, together. Readers of JSON have limits, too.
const MAX_DEPTH: usize = 64;

/// `config`.
pub fn changes<'t>(reader: &mut Reader<'t>, root: &Table<'t>) -> ConfigChanges {
    let mut changes = ConfigChanges::default();
    let Some(table) = root.get("config").and_then(|v| reader.table(v, "config")) else {
        return changes;
    };
    reader.check_keys(&table, &["set", "remove"], "config");
    if let Some(value) = table.get("set") {
        set(reader, value, &mut Vec::new(), &mut changes);
    }
    let removed = table.get("remove").and_then(|v| reader.array(v, "remove"));
    for value in removed.unwrap_or_default() {
        let Some(text) = reader.string(&value, "remove: a key") else {
            continue;
        };
        if let Some(keys) = split(reader, &text, 0) {
            changes.remove.push((text.start(), keys));
        }
    }
    changes
}

/// The entries of a table. Keys with dots, whether in quotes or not, change a part of what is there; an inline table is
/// a value as a whole.
fn set<'t>(
    reader: &mut Reader<'t>,
    value: &Value<'t>,
    above: &mut Vec<String>,
    changes: &mut ConfigChanges,
) {
    let table = reader.table(value, "set");
    for entry in table.iter().flat_map(|t| &t.entries) {
        let Some(keys) = split(reader, &entry.key, above.len()) else {
            continue;
        };
        let depth = above.len();
        above.extend(keys);
        if reader.is_dotted(&entry.value) {
            set(reader, &entry.value, above, changes);
        } else if let Some(json) = json(reader, entry.value.at(), &entry.value.value, above.len()) {
            changes.set.push((entry.at, above.clone(), json));
        }
        above.truncate(depth);
    }
}

/// The keys that a key with dots is, below so many others.
fn split(reader: &mut Reader, key: &Located, above: usize) -> Option<Vec<String>> {
    let n = above + key.text.split('.').count();
    if n > MAX_DEPTH {
        let n = crate::text::thousands(n as u64);
        let what = format!("{n} keys within one another; at most {MAX_DEPTH}");
        reader.mistake(key.start(), what);
        return None;
    }
    let keys: Vec<String> = key.text.split('.').map(String::from).collect();
    if keys.iter().any(String::is_empty) {
        reader.mistake(key.start(), "an empty key");
        return None;
    }
    Some(keys)
}

/// A value as JSON.
fn json(reader: &mut Reader, at: Place, value: &DeValue, depth: usize) -> Option<Json> {
    if depth > MAX_DEPTH {
        reader.mistake(at, format!("the value is nested deeper than {MAX_DEPTH}"));
        return None;
    }
    let within =
        |span: std::ops::Range<usize>| Place(u32::try_from(span.start).unwrap_or(u32::MAX));
    Some(match value {
        DeValue::String(text) => Json::String(text.to_string()),
        DeValue::Boolean(boolean) => Json::Bool(*boolean),
        DeValue::Integer(_) | DeValue::Float(_) => {
            let number = number(value);
            let number = number.map_err(|what| reader.mistake(at, what));
            Json::Number(number.ok()?)
        }
        DeValue::Datetime(_) => {
            reader.mistake(at, "JSON has no dates; write a string");
            return None;
        }
        DeValue::Array(array) => {
            let values = array
                .iter()
                .map(|v| json(reader, within(v.span()), v.get_ref(), depth + 1));
            let values: Vec<Option<Json>> = values.collect();
            Json::Array(values.into_iter().collect::<Option<_>>()?)
        }
        DeValue::Table(table) => {
            let mut entries: Vec<_> = table.iter().collect();
            entries.sort_by_key(|(key, _)| key.span().start);
            let mut map = Map::new();
            for (key, value) in entries {
                let json = json(reader, within(value.span()), value.get_ref(), depth + 1);
                map.insert(key.get_ref().to_string(), json?);
            }
            Json::Object(map)
        }
    })
}

/// A number, or what is wrong with it.
fn number(value: &DeValue) -> Result<Number, &'static str> {
    let (number, what) = match value {
        DeValue::Integer(number) => {
            let (text, radix) = (number.as_str(), number.radix());
            let signed = i64::from_str_radix(text, radix).ok().map(Number::from);
            let unsigned = || u64::from_str_radix(text, radix).ok().map(Number::from);
            let what = "too large: whole numbers are from -2^63 to 2^64 - 1";
            (signed.or_else(unsigned), what)
        }
        DeValue::Float(number) => {
            let number = number.as_str().parse().ok();
            (number.and_then(Number::from_f64), "not a number of JSON")
        }
        _ => (None, "not a number"),
    };
    number.ok_or(what)
}
