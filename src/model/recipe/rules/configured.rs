//! `config.KEY`

use serde_json::Value as Json;

use super::super::evaluate::Value;
use super::super::nearest;
use super::world::shown;
use crate::catalog::Configuration;

/// The most bytes that a text may have: as many as the name of a tensor, of which it can be a part.
const MAX_TEXT: usize = 4096;

/// How many keys of an object are compared with one that it lacks.
const MOST_COMPARED: usize = 10_000;

/// `config.KEY`: a key of the configuration or of its `text_config`. Where there is none, the nearest one is
/// looked for if `may_suggest` says so.
///
/// # Errors
/// There is none; or it is not a number, text or truth value.
pub fn configured(
    config: &Configuration,
    keys: &[Box<str>],
    may_suggest: impl FnOnce() -> bool,
) -> Result<Value, String> {
    let path = shown(&keys.join("."));
    if config.config.is_none() {
        return Err(no_configuration(config, &path));
    }
    let get = |place| -> Option<&Json> {
        let found = keys
            .iter()
            .try_fold(place, |at: &Json, key| at.get(&**key))?;
        (!found.is_null()).then_some(found)
    };
    match config.places().find_map(get) {
        Some(Json::Number(number)) => match number.as_i64() {
            Some(whole) => Ok(Value::Integer(whole)),
            None => Ok(Value::Real(number.as_f64().unwrap_or(f64::NAN))),
        },
        Some(Json::String(text)) if text.len() > MAX_TEXT => Err(format!(
            "config.{path} is a text of {} bytes, at most {MAX_TEXT} are possible",
            text.len()
        )),
        Some(Json::String(text)) => Ok(Value::Text(text.as_str().into())),
        Some(Json::Bool(truth)) => Ok(Value::Bool(*truth)),
        Some(Json::Object(_)) => Err(format!("config.{path} is an object; add one of its keys")),
        Some(Json::Array(_)) => Err(format!("config.{path} is an array, not a number")),
        Some(Json::Null) | None => {
            let meant = may_suggest().then(|| nearest_key(config, keys));
            let meant = meant.unwrap_or_default();
            Err(format!("config.{path} is not in config.json{meant}"))
        }
    }
}

/// That there is no configuration, or why it is not used.
fn no_configuration(config: &Configuration, path: &str) -> String {
    let unused = config.unused.iter();
    let unused = unused.filter(|unused| unused.file == Configuration::MAIN);
    match unused.map(|unused| shown(&unused.why)).next() {
        Some(why) => format!("config.{path}: the model's config.json is not used: {why}"),
        None => format!("config.{path}: the model has no config.json"),
    }
}

/// The key that was probably meant by one that is not there.
fn nearest_key(config: &Configuration, keys: &[Box<str>]) -> String {
    let mut candidates = Vec::new();
    for place in config.places() {
        let mut at = Some(place);
        for (depth, key) in keys.iter().enumerate() {
            let Some(Json::Object(object)) = at else {
                break;
            };
            let before = keys.get(..depth).unwrap_or_default();
            if !object.contains_key(&**key) {
                let known = object.keys().take(MOST_COMPARED);
                candidates.extend(known.map(|near| [&*before.join("."), near].join(".")));
            }
            at = object.get(&**key);
        }
    }
    let candidates = candidates.iter().map(|c| c.trim_start_matches('.'));
    let meant = nearest::word(&keys.join("."), candidates);
    let meant = meant.map(|near| format!("config.{}", shown(near)));
    nearest::did_you_mean(meant.as_deref())
}
