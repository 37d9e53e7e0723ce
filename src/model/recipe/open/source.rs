//! Opens the models that a recipe names.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::super::super::open::{Found, find};
use super::super::super::{Model, ModelOptions};
use super::super::evaluate::{self, Value};
use super::super::file::{ModelEntry, Parameter, RecipeFile};
use super::super::mistake::{Mistake, Place};
use super::super::rules::{self, Given};
use super::super::scope::Known;
use super::super::sources::{SourceModel, Sources};
use super::read::{Read, read};
use super::{Opening, Result, Stop, as_error};
use crate::catalog::{self, Catalog, Configuration, Problem, Source};
use crate::error::Error;

/// How deep recipes may be nested in the first one.
const MAX_DEPTH: usize = 8;
/// The most models that all recipes of one opening may open. Recipes that each open sixteen of the next could
/// go on for ever.
const MAX_OPENED: usize = 256;

/// Why a model that a recipe names was not opened.
enum Failed {
    Mistakes(Vec<Mistake>),
    Stop(Stop),
}

/// The same, of a model that is files.
enum Plain {
    Error(Error),
    /// Values are given for parameters, the first one there.
    NoParameters(Place),
    Listed,
}

/// The values of a recipe's parameters.
type Parameters = HashMap<Box<str>, Value>;

/// The name of a model, whether it is taken as floats, and the model, if it could be opened.
type Listed = (Box<str>, bool, Option<Arc<Model>>);

impl Opening {
    /// The models that a recipe names, and the values of its parameters.
    pub(super) fn sources(
        &mut self,
        read: &Read,
        file: &RecipeFile,
        given: &[Given],
    ) -> Result<(Arc<Sources>, Parameters)> {
        // The first model may be a recipe with parameters of its own. They may use those of this one that do not
        // need its configuration.
        let known = match file.model.set.is_empty() {
            true => HashMap::new(),
            false => rules::known_parameters(&file.set, given),
        };
        let first = self.listed(read, &file.model, &known, None)?;
        let config = first.as_ref().map(|model| &model.catalog.configs);
        let parameters = config.map(|config| rules::parameters(&file.set, given, Some(config)));
        let (parameters, mistakes) = match parameters {
            Some(Ok(parameters)) => (Some(parameters), Vec::new()),
            Some(Err(mistakes)) => (None, mistakes),
            None => (None, Vec::new()),
        };
        let none = HashMap::new();
        let known = parameters.as_ref().unwrap_or(&none);
        let mut models = vec![("model".into(), file.model.floats, first.clone())];
        for (name, entry) in &file.models {
            // Without parameters nothing is known of a model that they are given to.
            let model = match entry.set.is_empty() || parameters.is_some() {
                true => self.listed(read, entry, known, config)?,
                false => None,
            };
            models.push((name.clone(), entry.floats, model));
        }
        self.report(read, mistakes)?;
        let opened = |(name, floats, model): Listed| Some((name, floats, model?));
        let all = models.into_iter().map(opened).collect::<Option<Vec<_>>>();
        let (Some(all), Some(parameters)) = (all, parameters) else {
            return Err(Stop::Listed);
        };
        let too_many = || {
            let what = "the models together have more than 4,294,967,295 tensors";
            as_error(read, &Mistake::at(file.model.at, what))
        };
        Ok((Arc::new(numbered(all).ok_or_else(too_many)?), parameters))
    }

    /// Opens a model that a recipe names. `None` while verifying: why it could not be opened is listed.
    fn listed(
        &mut self,
        read: &Read,
        entry: &ModelEntry,
        known: &Parameters,
        config: Option<&Configuration>,
    ) -> Result<Option<Arc<Model>>> {
        match self.source(read, entry, known, config) {
            Ok(model) => Ok(Some(model)),
            Err(Failed::Stop(Stop::Listed)) => Ok(None),
            Err(Failed::Stop(stop)) => Err(stop),
            Err(Failed::Mistakes(mistakes)) => self.report(read, mistakes).map(|_| None),
        }
    }

    /// Opens a model that a recipe names.
    fn source(
        &mut self,
        read: &Read,
        entry: &ModelEntry,
        known: &Parameters,
        config: Option<&Configuration>,
    ) -> Result<Arc<Model>, Failed> {
        let here = |what: String| Failed::Mistakes(vec![Mistake::at(entry.at, what)]);
        let path = read.directory.join(&entry.path);
        let mut found = find(&path, self.audience).map_err(|e| here(e.to_string()))?;
        self.check_reach(&found.source, read).map_err(&here)?;
        found.given.extend(given(&entry.set, known, config)?);
        let key = (
            found.source.model.to_string(),
            found.given.clone(),
            self.is_own(),
        );
        if let Some(model) = self.opened.get(&key) {
            return Ok(model.clone());
        }
        self.count += 1;
        if self.count > MAX_OPENED {
            let what = format!("the recipes together open more than {MAX_OPENED} models");
            return Err(here(what));
        }
        let model = match super::super::is_recipe(&found.source) {
            true => self.nested(read, entry, &found)?,
            false => self.plain(entry, &found).map_err(|failed| match failed {
                Plain::Error(error) => here(error.to_string()),
                Plain::NoParameters(at) => {
                    let what = "is not a recipe (NAME.toml), and so has no parameters";
                    let what = format!("{}: {what}", entry.path.display());
                    Failed::Mistakes(vec![Mistake::at(at, what)])
                }
                Plain::Listed => Failed::Stop(Stop::Listed),
            })?,
        };
        let model = Arc::new(model);
        self.opened.insert(key, model.clone());
        if self.verifying {
            self.sound.push(model.clone());
        }
        Ok(model)
    }

    fn nested(&mut self, outer: &Read, entry: &ModelEntry, found: &Found) -> Result<Model, Failed> {
        let here = |what: String| Failed::Mistakes(vec![Mistake::at(entry.at, what)]);
        let shown = outer.shown.parent().unwrap_or(Path::new(""));
        let shown = shown.join(&entry.path);
        let shown = found.shown(&shown);
        let read = read(&found.source, shown).map_err(|e| here(e.to_string()))?;
        let stat = read.object.stat();
        let identity = (stat.dev, stat.ino);
        if let Some(at) = self.within.iter().position(|w| w.identity == identity) {
            // It ends as it begins, even if the path here is another one of the same file.
            let circle = self.within.get(at..).unwrap_or_default();
            let circle = circle.iter().chain(circle.first());
            let circle = circle.map(|within| &*within.shown);
            let circle: Vec<String> = circle.map(|path| path.display().to_string()).collect();
            let what = format!("the recipe reaches itself: {}", circle.join(" → "));
            return Err(here(what));
        }
        if self.within.len() > MAX_DEPTH {
            let what = format!("recipes within recipes are more than {MAX_DEPTH} deep here");
            return Err(here(what));
        }
        let recipe = self.parse(read).map_err(Failed::Stop)?;
        if let Some(unknown) = entry.set.iter().find(|p| !recipe.has_parameter(&p.name)) {
            let what = rules::unknown_parameter(&recipe.file.set, &unknown.name);
            let what = what.trim_start_matches("--set ").to_string();
            return Err(Failed::Mistakes(vec![Mistake::at(unknown.at, what)]));
        }
        let given = recipe.known(&found.given);
        let options = ModelOptions::default();
        let opened = self.opened(&recipe, &found.source, &given, options);
        Ok(opened.map_err(Failed::Stop)?.model)
    }

    /// Opens a model that is files.
    fn plain(&mut self, entry: &ModelEntry, found: &Found) -> Result<Model, Plain> {
        if let Some(parameter) = entry.set.first() {
            return Err(Plain::NoParameters(parameter.at));
        }
        let listed = self.problems.len();
        if self.verifying {
            let problems = catalog::check_source(&found.source).map_err(Plain::Error)?;
            let directory = found.source.store.location();
            self.problems
                .extend(problems.into_iter().map(|problem| Problem {
                    file: directory.join(&problem.file).to_string(),
                    ..problem
                }));
        }
        match Catalog::read(&found.source, self.files) {
            Ok(catalog) => Ok(Model::new(catalog, ModelOptions::default())),
            Err(_) if self.problems.len() > listed => Err(Plain::Listed),
            Err(error) => Err(Plain::Error(error)),
        }
    }

    /// Whether all recipes that are being opened are the user's own.
    fn is_own(&self) -> bool {
        self.within.iter().all(|recipe| recipe.is_own)
    }

    /// Refuses a model that not every user of the mount could have reached, if another user decides that it is
    /// named: by a recipe, or by what is at a path. What the user names on the command line, and in recipes of
    /// its own one after another, is its own decision.
    fn check_reach(&self, source: &Source, read: &Read) -> Result<(), String> {
        let Some(closed) = source.store.closed_from(&read.directory) else {
            return Ok(());
        };
        let Some(other) = self.within.iter().find(|recipe| !recipe.is_own) else {
            return Ok(());
        };
        Err(format!(
            "{}: not every user may search {closed}, and another user wrote this recipe or can change what is in a directory on the way to it ({}); with --allow-other everyone would read the model through it: let others search that directory ('chmod a+x'), put the recipe where only you can write, or mount without --allow-other",
            source.model,
            other.shown.display()
        ))
    }
}

/// The values that an entry gives to its model's parameters.
fn given(
    set: &[Parameter],
    known: &Parameters,
    config: Option<&Configuration>,
) -> Result<Vec<Given>, Failed> {
    let scope = Known {
        holes: &[],
        parameters: known,
        config,
    };
    let (mut all, mut mistakes) = (Vec::new(), Vec::new());
    for parameter in set {
        let name = parameter.name.to_string();
        match evaluate::expression(&parameter.value, &scope) {
            Ok(Value::Integer(n)) => all.push(Given {
                name,
                value: n.to_string(),
            }),
            Ok(Value::Real(n)) => all.push(Given {
                name,
                value: format!("{n:?}"),
            }),
            Ok(_) => mistakes.push(Mistake::at(
                parameter.at,
                format!("'{name}' is given to a recipe, and must be a number"),
            )),
            Err(mistake) => mistakes.push(mistake),
        }
    }
    match mistakes.is_empty() {
        true => Ok(all),
        false => Err(Failed::Mistakes(mistakes)),
    }
}

/// The models with their ids and files in one space. One that has two names has its files once.
fn numbered(models: Vec<(Box<str>, bool, Arc<Model>)>) -> Option<Sources> {
    let mut numbered: Vec<SourceModel> = Vec::new();
    let (mut next_id, mut next_file) = (0u32, 0u32);
    for (name, floats, model) in models {
        let (first_id, ids) = (next_id, model.id_count());
        next_id = next_id.checked_add(ids)?;
        let same = numbered
            .iter()
            .find(|other| Arc::ptr_eq(&other.model, &model));
        let first_file = match same {
            Some(same) => same.first_file,
            None => {
                let first = next_file;
                next_file =
                    next_file.checked_add(u32::try_from(model.catalog.files.len()).ok()?)?;
                first
            }
        };
        numbered.push(SourceModel {
            name,
            model,
            floats,
            first_id,
            first_file,
        });
    }
    Some(Sources::new(numbered))
}
