//! Which names there are, and whether expressions use only those.

use std::collections::{BTreeMap, HashSet};

use super::super::language::{
    Call, FUNCTIONS, Hole, Kind, Node, Pattern, Subscript, Template, TemplatePiece, check_name,
};
use super::super::mistake::{Mistake, Place, quoted};
use super::super::nearest;

/// Names that conditions know.
const OF_CONDITIONS: [&str; 2] = ["dtype", "ndim"];

/// How many mistakes come with what was probably meant: the search is linear in the names.
const MAX_SUGGESTIONS: usize = 30;

/// What a name is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// `models.NAME`
    Model,
    /// `set.NAME`
    Parameter,
    /// A hole of a pattern.
    Hole,
    /// A hole that gathers numbers.
    Gathering,
    /// A variable of `for`.
    Variable,
}

impl Named {
    fn what(self) -> &'static str {
        match self {
            Named::Model => "a model",
            Named::Parameter => "a parameter",
            Named::Hole | Named::Gathering => "a hole",
            Named::Variable => "a variable",
        }
    }
}

/// Names that are known at some place.
#[derive(Debug, Default)]
pub struct Names<'a> {
    /// Those that are known everywhere.
    outer: Option<&'a Names<'a>>,
    own: BTreeMap<Box<str>, Named>,
}

impl<'a> Names<'a> {
    /// What a name is.
    pub fn get(&self, name: &str) -> Option<Named> {
        let own = self.own.get(name).copied();
        own.or_else(|| self.outer?.get(name))
    }

    /// One more name. The error is why it cannot be.
    pub fn add(&mut self, name: &str, named: Named) -> Result<(), String> {
        check_name(name).and_then(|()| self.check_free(name))?;
        self.own.insert(name.into(), named);
        Ok(())
    }

    /// Whether nothing has that name. The error is what has.
    pub fn check_free(&self, name: &str) -> Result<(), String> {
        match self.get(name) {
            Some(other) => Err(format!(
                "{} is {} already; choose another name",
                quoted(name),
                other.what()
            )),
            None => Ok(()),
        }
    }

    /// The holes of a pattern, too.
    pub fn with_holes(&'a self, pattern: Option<&Pattern>) -> Names<'a> {
        let holes = pattern.iter().flat_map(|pattern| pattern.holes());
        let own = holes.map(|(name, hole)| {
            let named = match hole {
                Hole::Gather => Named::Gathering,
                _ => Named::Hole,
            };
            (name.into(), named)
        });
        Names {
            own: own.collect(),
            outer: Some(self),
        }
    }

    /// All names but those of models.
    fn of_values(&self) -> Vec<&str> {
        let own = self.own.iter().filter(|(_, n)| **n != Named::Model);
        let own = own.map(|(name, _)| &**name);
        let outer = self.outer.map_or(Vec::new(), Names::of_values);
        own.chain(outer).collect()
    }

    fn of_models(&self) -> Vec<&str> {
        let own = self.own.iter().filter(|(_, n)| **n == Named::Model);
        let own = own.map(|(name, _)| &**name);
        let outer = self.outer.map_or(Vec::new(), Names::of_models);
        own.chain(outer).collect()
    }

    /// There is no model of that name; the nearest one, unless there are too many mistakes already.
    pub fn no_model(&self, name: &str, mistakes: &[Mistake]) -> String {
        let models = || self.of_models().into_iter().chain(["model"]);
        let may_suggest = mistakes.len() < MAX_SUGGESTIONS;
        let nearest = may_suggest.then(|| nearest::word(name, models()));
        let meant = nearest::did_you_mean(nearest.flatten());
        format!("{} is not one of the models{meant}", quoted(name))
    }
}

/// Checks expressions; where a name is not known, they become [`Kind::Mistaken`].
pub struct Checked<'c> {
    names: &'c Names<'c>,
    /// Variables of the calls around this place.
    variables: Vec<Box<str>>,
    mistakes: &'c mut Vec<Mistake>,
    /// Whether there is an `it`.
    pub has_tensors: bool,
    /// Whether it is a condition, in which quotes are text.
    pub is_condition: bool,
    /// Names that follow only.
    pub below: Option<&'c HashSet<Box<str>>>,
}

impl<'c> Checked<'c> {
    /// Expressions that may use these names, and no tensors.
    pub fn new(names: &'c Names<'c>, mistakes: &'c mut Vec<Mistake>) -> Checked<'c> {
        Checked {
            names,
            variables: Vec::new(),
            mistakes,
            has_tensors: false,
            is_condition: false,
            below: None,
        }
    }

    /// An expression. The depth of the recursion is that of the tree, which is limited.
    pub fn node(&mut self, node: &mut Node) {
        let checked = match &mut node.kind {
            Kind::Name(name) => self.name(name),
            Kind::It(model) => self.tensor(model.as_deref()),
            Kind::Quoted { model, name } => {
                self.template(name);
                match self.is_condition && model.is_none() {
                    true => Ok(()),
                    false => self.tensor(model.as_deref()),
                }
            }
            Kind::Call(call) => return self.call(call),
            Kind::Index(of, subscripts) => {
                self.node(of);
                subscripts.iter_mut().for_each(|s| self.subscript(s));
                Ok(())
            }
            Kind::Negative(a) | Kind::Not(a) => return self.node(a),
            Kind::Binary(_, both) | Kind::And(both) | Kind::Or(both) => {
                return both.iter_mut().for_each(|a| self.node(a));
            }
            Kind::Compare(first, others) => {
                self.node(first);
                others.iter_mut().for_each(|(_, a)| self.node(a));
                Ok(())
            }
            Kind::Integer(_) | Kind::Real(_) | Kind::Config(_) | Kind::Mistaken => Ok(()),
        };
        if let Err(what) = checked {
            self.mistakes.push(Mistake::at(node.at, what));
            node.kind = Kind::Mistaken;
        }
    }

    /// A name with holes.
    pub fn template(&mut self, template: &mut Template) {
        for piece in &mut template.pieces {
            if let TemplatePiece::Value(node) = piece {
                self.node(node);
            }
        }
    }

    /// `a..b` of a `for`.
    pub fn range(&mut self, range: &mut [Node; 2]) {
        range.iter_mut().for_each(|node| self.node(node));
    }

    fn subscript(&mut self, subscript: &mut Subscript) {
        match subscript {
            Subscript::Index(node) => self.node(node),
            Subscript::Slice {
                start, stop, step, ..
            } => {
                let ends = [start, stop, step].into_iter().flatten();
                ends.for_each(|node| self.node(node));
            }
        }
    }

    fn call(&mut self, call: &mut Call) {
        if let Some(each) = &mut call.each {
            if let Some(range) = &mut each.range {
                self.range(range);
            }
            self.variable(each.at, &each.variable, each.range.is_some());
            self.variables.push(each.variable.clone());
        }
        call.arguments.iter_mut().for_each(|node| self.node(node));
        if call.each.is_some() {
            self.variables.pop();
        }
        if let Some(axis) = &mut call.axis {
            self.node(axis);
        }
    }

    /// The variable of a `for` in a call.
    fn variable(&mut self, at: Place, name: &str, has_range: bool) {
        let is_gathering = self.names.get(name) == Some(Named::Gathering);
        let checked = match (has_range, is_gathering) {
            (false, true) => Ok(()),
            _ if self.variables.iter().any(|v| **v == *name) => Err(format!(
                "{} is a variable already; choose another name",
                quoted(name)
            )),
            (true, _) => check_name(name).and_then(|()| self.names.check_free(name)),
            (false, false) => Err(format!(
                "{} is not a hole that gathers numbers, such as {{e#}}; give its numbers, as in for e in 0..4",
                quoted(name),
            )),
        };
        if let Err(what) = checked {
            self.mistakes.push(Mistake::at(at, what));
        }
    }

    fn name(&self, name: &str) -> Result<(), String> {
        if self.variables.iter().any(|variable| **variable == *name) {
            return Ok(());
        }
        let shown = quoted(name);
        match self.names.get(name) {
            Some(Named::Parameter | Named::Hole | Named::Variable) => return Ok(()),
            // A condition is about one name, before names are gathered.
            Some(Named::Gathering) if self.is_condition => return Ok(()),
            Some(Named::Gathering) => {
                return Err(format!(
                    "{shown} gathers: it is a number only where a function repeats its argument 'for {name}'"
                ));
            }
            Some(Named::Model) => {
                return Err(format!(
                    "{shown} is a model; its tensors are {name}:'NAME' and {name}:it"
                ));
            }
            None => {}
        }
        if OF_CONDITIONS.contains(&name) {
            return match self.is_condition {
                true => Ok(()),
                false => Err(format!("{name} is for conditions (where)")),
            };
        }
        if self.below.is_some_and(|below| below.contains(name)) {
            return Err(format!(
                "{shown} is not known yet: a parameter may use those above it"
            ));
        }
        let meant = nearest::did_you_mean(self.nearest(name));
        let what = match self.has_tensors {
            true => "is not a hole, a parameter or a variable here",
            false => "is not a parameter",
        };
        Err(format!("{shown} {what}{meant}"))
    }

    /// What was probably meant by a name, unless there are too many mistakes already.
    fn nearest(&self, name: &str) -> Option<&str> {
        if self.mistakes.len() >= MAX_SUGGESTIONS {
            return None;
        }
        let mut known = self.names.of_values();
        known.extend(self.variables.iter().map(|name| &**name));
        if self.is_condition {
            known.extend(OF_CONDITIONS);
        }
        if self.has_tensors {
            known.push("it");
        }
        known.extend(FUNCTIONS.iter().map(|f| f.name));
        nearest::word(name, known)
    }

    fn tensor(&self, model: Option<&str>) -> Result<(), String> {
        if let Some(model) = model
            && model != "model"
            && self.names.get(model) != Some(Named::Model)
        {
            return Err(self.names.no_model(model, self.mistakes));
        }
        match self.has_tensors {
            true => Ok(()),
            false => Err("there are no tensors here, only numbers".to_string()),
        }
    }
}
