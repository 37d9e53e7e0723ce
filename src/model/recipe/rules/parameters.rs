//! Parameters: numbers, or expressions over the configuration and the parameters above them.

use std::cell::Cell;
use std::collections::HashMap;

use super::super::evaluate::{self, Scope, Value};
use super::super::file::{self, Parameter};
use super::super::mistake::{Mistake, Place};
use super::super::nearest;
use super::super::tensor::Derived;
use super::configured::configured;
use super::world::{SUGGESTIONS, shown};
use crate::catalog::Configuration;

/// How many steps the expressions of all parameters may take: ranges within ranges could go on for hours.
const MAX_STEPS: u32 = 1 << 20;

/// A value that was given on the command line or in the entry of a model: NAME and VALUE of `--set NAME=VALUE`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Given {
    /// The parameter.
    pub name: String,
    /// A number or an expression, as it is written.
    pub value: String,
}

/// The values of a recipe's parameters, in the order of its file: each may use the configuration and those above
/// it. `given` replaces the values of the file, also for the parameters below that use them. `config` is
/// that of the model which the rules start with; `None` if it is not known yet.
///
/// # Errors
/// All mistakes. One in a given value stands where the file has the parameter, and names it as `--set`; one
/// about a parameter that there is not, at the beginning of the file's first one.
pub fn parameters(
    set: &[Parameter],
    given: &[Given],
    config: Option<&Configuration>,
) -> Result<HashMap<Box<str>, Value>, Vec<Mistake>> {
    let mut mistakes = Vec::new();
    for unknown in given
        .iter()
        .filter(|g| set.iter().all(|p| *p.name != g.name))
    {
        let at = set.first().map_or(Place(0), |p| p.at);
        mistakes.push(Mistake::at(at, unknown_parameter(set, &unknown.name)));
    }
    let (values, found) = evaluated(set, given, config);
    mistakes.extend(found);
    match mistakes.is_empty() && values.len() == set.len() {
        true => Ok(values),
        false => Err(mistakes),
    }
}

/// The values of those parameters that do not need the configuration.
pub fn known_parameters(set: &[Parameter], given: &[Given]) -> HashMap<Box<str>, Value> {
    evaluated(set, given, None).0
}

/// The values that there are, and what is wrong with the others.
fn evaluated(
    set: &[Parameter],
    given: &[Given],
    config: Option<&Configuration>,
) -> (HashMap<Box<str>, Value>, Vec<Mistake>) {
    let mut mistakes = Vec::new();
    let mut scope = ParameterScope {
        values: HashMap::new(),
        unknown: Vec::new(),
        used_unknown: Cell::new(false),
        steps: Cell::new(0),
        suggestions: Cell::new(SUGGESTIONS),
        config,
    };
    for parameter in set {
        scope.used_unknown.set(false);
        // Of several values for one name the last one counts, as with other options.
        let given = given.iter().rev().find(|g| *parameter.name == g.name);
        let value = match given {
            Some(given) => given_value(parameter, given, &scope),
            None => evaluate::expression(&parameter.value, &scope),
        };
        match value.and_then(|value| checked(parameter, value)) {
            Ok(value) => {
                scope.values.insert(parameter.name.clone(), value);
            }
            Err(mistake) => {
                scope.unknown.push(&parameter.name);
                // What is wrong with one above is not listed again.
                let is_new = !mistake.what.is_empty() && !scope.used_unknown.get();
                mistakes.extend(is_new.then_some(mistake));
            }
        }
    }
    (scope.values, mistakes)
}

/// `--set NAME=…` of a recipe without that parameter.
pub fn unknown_parameter(set: &[Parameter], name: &str) -> String {
    let names = set.iter().map(|p| &*p.name);
    let meant = nearest::did_you_mean(nearest::word(name, names.clone()));
    let name = shown(name);
    match (set.is_empty(), meant.is_empty()) {
        (true, _) => format!("--set {name}: the recipe has no parameters"),
        (false, false) => format!("--set {name}: there is no such parameter{meant}"),
        (false, true) => {
            let all: Vec<&str> = names.take(20).collect();
            let all = all.join(", ");
            format!("--set {name}: there is no such parameter; the recipe has {all}")
        }
    }
}

fn given_value(
    parameter: &Parameter,
    given: &Given,
    scope: &ParameterScope,
) -> Result<Value, Mistake> {
    let value = file::parse_parameter(&given.name, &given.value)
        .and_then(|parsed| evaluate::expression(&parsed.value, scope));
    value.map_err(|mistake| {
        let (name, value) = (&given.name, shown(&given.value));
        let what = match mistake.what.is_empty() {
            true => String::new(),
            false => format!("--set {name}={value}: {}", mistake.what),
        };
        Mistake::at(parameter.at, what)
    })
}

/// A parameter is a number, a text or a truth value of the configuration.
fn checked(parameter: &Parameter, value: Value) -> Result<Value, Mistake> {
    match value {
        Value::Tensor(_) => Err(Mistake::at(
            parameter.at,
            format!(
                "parameter '{}' is a tensor; it can be a number",
                parameter.name
            ),
        )),
        value => Ok(value),
    }
}

/// What parameters may use.
struct ParameterScope<'a> {
    values: HashMap<Box<str>, Value>,
    /// Those above that have no value because of a mistake.
    unknown: Vec<&'a str>,
    /// Whether the expression at hand uses one of those.
    used_unknown: Cell<bool>,
    steps: Cell<u32>,
    suggestions: Cell<u32>,
    config: Option<&'a Configuration>,
}

impl ParameterScope<'_> {
    /// Whether the nearest key may be looked for once more.
    fn may_suggest(&self) -> bool {
        let left = self.suggestions.get().checked_sub(1);
        self.suggestions.set(left.unwrap_or(0));
        left.is_some()
    }
}

impl Scope for ParameterScope<'_> {
    fn name(&self, name: &str) -> Option<Value> {
        if self.unknown.contains(&name) {
            self.used_unknown.set(true);
        }
        self.values.get(name).cloned()
    }

    fn names(&self) -> Vec<String> {
        self.values.keys().map(ToString::to_string).collect()
    }

    fn it(&self, _model: Option<&str>) -> Result<Derived, String> {
        Err("a parameter is the same for all tensors, and cannot depend on one".into())
    }

    fn tensor(&self, _model: Option<&str>, _name: &str) -> Result<Derived, String> {
        self.it(None)
    }

    fn config(&self, keys: &[Box<str>]) -> Result<Value, String> {
        match self.config {
            Some(config) => configured(config, keys, || self.may_suggest()),
            None => Err("the configuration is not known before the model is open".into()),
        }
    }

    fn gathered(&self, _name: &str) -> Option<u64> {
        None
    }

    fn step(&self) -> Result<(), String> {
        self.steps.set(self.steps.get().saturating_add(1));
        match self.steps.get() <= MAX_STEPS {
            true => Ok(()),
            false => Err(format!(
                "all parameters together take more than {MAX_STEPS} steps"
            )),
        }
    }
}
