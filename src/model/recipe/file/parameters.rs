//! `set`: parameters.

use std::collections::HashSet;

use toml::de::DeValue;

use super::super::language::{Kind, Located, Node, check_name, parse_expression};
use super::super::mistake::Mistake;
use super::Parameter;
use super::names::{Checked, Named, Names};
use super::reader::{Entry, Reader, Table, Value};

/// The recipe's own parameters.
pub fn all<'t>(reader: &mut Reader<'t>, root: &Table<'t>, names: &mut Names) -> Vec<Parameter> {
    let table = root.get("set").and_then(|v| reader.table(v, "set"));
    let entries = table.iter().flat_map(|t| &t.entries);
    let below: HashSet<Box<str>> = entries.clone().map(|e| Box::from(&*e.key.text)).collect();
    let mut parameters = Vec::new();
    for entry in entries {
        let mut parameter = parameter(reader, entry);
        // It may use those above alone.
        let mut checked = Checked::new(names, &mut reader.mistakes);
        checked.below = Some(&below);
        checked.node(&mut parameter.value);
        if let Err(what) = names.add(&entry.key.text, Named::Parameter) {
            reader.mistake(entry.at, what);
        }
        parameters.push(parameter);
    }
    parameters
}

/// Parameters that are given to a model that is a recipe. What their expressions may use is that recipe's
/// matter.
pub fn of_model<'t>(reader: &mut Reader<'t>, value: &Value<'t>) -> Vec<Parameter> {
    let table = reader.table(value, "set");
    let mut parameters = Vec::new();
    for entry in table.iter().flat_map(|t| &t.entries) {
        if let Err(what) = check_name(&entry.key.text) {
            reader.mistake(entry.at, what);
        }
        parameters.push(parameter(reader, entry));
    }
    parameters
}

/// One of `--set`.
pub fn overriding(name: &str, value: &Located) -> Result<Parameter, Mistake> {
    check_name(name).map_err(|what| value.mistake(0, what))?;
    Ok(Parameter {
        at: value.start(),
        name: name.into(),
        value: parse_expression(value)?,
        text: Box::from(&*value.text),
    })
}

fn parameter<'t>(reader: &mut Reader<'t>, entry: &Entry<'t>) -> Parameter {
    let (value, text) = expression(reader, &entry.value, "a parameter");
    Parameter {
        at: value.at,
        name: Box::from(&*entry.key.text),
        value,
        text,
    }
}

/// A number, or a string that is an expression; and how it is written.
pub fn expression<'t>(reader: &mut Reader<'t>, value: &Value<'t>, what: &str) -> (Node, Box<str>) {
    let at = value.at();
    let written = Box::from(reader.written(value));
    let kind = match &value.value {
        DeValue::String(_) => {
            let text = reader.string(value, what);
            return text.map_or((mistaken(at), written), |text| {
                let node = reader.keep(parse_expression(&text));
                let node = node.unwrap_or_else(|| mistaken(text.start()));
                (node, Box::from(&*text.text))
            });
        }
        DeValue::Integer(number) => {
            let number = i64::from_str_radix(number.as_str(), number.radix());
            number.ok().map(Kind::Integer)
        }
        DeValue::Float(number) => number.as_str().parse().ok().map(Kind::Real),
        _ => {
            reader.wrong::<()>(value, &format!("{what} must be a number or an expression"));
            return (mistaken(at), written);
        }
    };
    if kind.is_none() {
        reader.mistake(at, "too large: whole numbers are from -2^63 to 2^63 - 1");
    }
    let kind = kind.unwrap_or(Kind::Mistaken);
    (Node { at, kind }, written)
}

fn mistaken(at: super::Place) -> Node {
    let kind = Kind::Mistaken;
    Node { at, kind }
}
