//! What names mean where no tensor is known: in the entry of a model, and in the names of exports.

use std::collections::HashMap;

use super::evaluate::{Scope, Value};
use super::rules::configured;
use super::tensor::Derived;
use crate::catalog::Configuration;

/// Holes, parameters and the configuration.
pub struct Known<'a> {
    /// The holes of a pattern, and what they took.
    pub holes: &'a [(&'a str, &'a str)],
    /// The parameters.
    pub parameters: &'a HashMap<Box<str>, Value>,
    /// The configuration of the model that the rules start with, once it is open.
    pub config: Option<&'a Configuration>,
}

impl Scope for Known<'_> {
    fn name(&self, name: &str) -> Option<Value> {
        let hole = self.holes.iter().find(|(hole, _)| *hole == name);
        hole.map(|(_, text)| Value::Text((*text).into()))
            .or_else(|| self.parameters.get(name).cloned())
    }

    fn names(&self) -> Vec<String> {
        let holes = self.holes.iter().map(|(hole, _)| (*hole).to_string());
        let parameters = self.parameters.keys().map(ToString::to_string);
        holes.chain(parameters).collect()
    }

    fn it(&self, _: Option<&str>) -> Result<Derived, String> {
        Err("no tensor is known here".into())
    }

    fn tensor(&self, _: Option<&str>, _: &str) -> Result<Derived, String> {
        self.it(None)
    }

    fn config(&self, keys: &[Box<str>]) -> Result<Value, String> {
        match self.config {
            Some(config) => configured(config, keys, || true),
            None => Err("the configuration is not known before the model is open".into()),
        }
    }

    fn gathered(&self, _: &str) -> Option<u64> {
        None
    }
}
