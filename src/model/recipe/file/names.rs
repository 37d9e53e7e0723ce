//! Which names there are, and whether expressions use only those.

use super::super::language::{
    Call, FUNCTIONS, Hole, Kind, Node, Pattern, Subscript, Template, TemplatePiece, check_name,
};
use super::super::mistake::{Mistake, Place, quoted};
use super::super::nearest;

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
#[derive(Debug, Clone, Default)]
pub struct Names {
    all: Vec<(Box<str>, Named)>,
}

impl Names {
    /// What a name is.
    pub fn get(&self, name: &str) -> Option<Named> {
        let found = self.all.iter().find(|(n, _)| **n == *name);
        Some(found?.1)
    }

    /// One more name. The error is why it cannot be.
    pub fn add(&mut self, name: &str, named: Named) -> Result<(), String> {
        let checked = check_name(name).and_then(|()| self.check_free(name));
        if checked.is_ok() || self.get(name).is_none() {
            self.all.push((name.into(), named));
        }
        checked
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
    pub fn with_holes(&self, pattern: &Pattern) -> Names {
        let mut names = self.clone();
        for (name, hole) in pattern.holes() {
            let named = match hole {
                Hole::Gather => Named::Gathering,
                _ => Named::Hole,
            };
            names.all.push((name.into(), named));
        }
        names
    }

    /// The name of a model that is nearest, for a message.
    pub fn no_model(&self, name: &str) -> String {
        let models = self.all.iter().filter(|(_, n)| *n == Named::Model);
        let models = models.map(|(name, _)| &**name).chain(["model"]);
        let meant = nearest::did_you_mean(nearest::word(name, models));
        format!("{} is not one of the models{meant}", quoted(name))
    }
}

/// Checks expressions; where a name is not known, they become [`Kind::Mistaken`].
pub struct Checked<'c> {
    names: Names,
    mistakes: &'c mut Vec<Mistake>,
    /// Whether there is an `it`.
    pub has_tensors: bool,
    /// Whether it is a condition, in which quotes are text.
    pub is_condition: bool,
    /// Names that follow only.
    pub below: &'c [Box<str>],
}

impl<'c> Checked<'c> {
    /// Expressions that may use these names, and no tensors.
    pub fn new(names: &Names, mistakes: &'c mut Vec<Mistake>) -> Checked<'c> {
        Checked {
            names: names.clone(),
            mistakes,
            has_tensors: false,
            is_condition: false,
            below: &[],
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
            // Within the call it stands for a number, whatever else has its name.
            let variable = (each.variable.clone(), Named::Variable);
            self.names.all.insert(0, variable);
        }
        call.arguments.iter_mut().for_each(|node| self.node(node));
        if call.each.is_some() {
            self.names.all.remove(0);
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
        let shown = quoted(name);
        match self.names.get(name) {
            Some(Named::Parameter | Named::Hole | Named::Variable) => return Ok(()),
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
        let of_conditions = ["dtype", "ndim"];
        if of_conditions.contains(&name) {
            return match self.is_condition {
                true => Ok(()),
                false => Err(format!("{name} is for conditions (where)")),
            };
        }
        if self.below.iter().any(|below| **below == *name) {
            return Err(format!(
                "{shown} is not known yet: a parameter may use those above it"
            ));
        }
        let usable = self.names.all.iter().filter(|(_, n)| *n != Named::Model);
        let mut known: Vec<&str> = usable.map(|(name, _)| &**name).collect();
        if self.is_condition {
            known.extend(of_conditions);
        }
        if self.has_tensors {
            known.push("it");
        }
        known.extend(FUNCTIONS.iter().map(|f| f.name));
        let meant = nearest::did_you_mean(nearest::word(name, known));
        let what = match self.has_tensors {
            true => "is not a hole, a parameter or a variable here",
            false => "is not a parameter",
        };
        Err(format!("{shown} {what}{meant}"))
    }

    fn tensor(&self, model: Option<&str>) -> Result<(), String> {
        if let Some(model) = model
            && model != "model"
            && self.names.get(model) != Some(Named::Model)
        {
            return Err(self.names.no_model(model));
        }
        match self.has_tensors {
            true => Ok(()),
            false => Err("there are no tensors here, only numbers".to_string()),
        }
    }
}
