//! Opens a recipe: reads it, opens the models that it names, and has its rules applied. The same walk serves
//! opening, which stops at the first mistake, and `verify`, which lists all.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::open::{Found, OpenModel, find};
use super::super::{Model, ModelOptions};
use super::derived::{self, Definition};
use super::evaluate::{self, Value};
use super::file::{self, ModelEntry, Parameter, RecipeFile};
use super::mistake::{Lines, Mistake, Place};
use super::rules::{self, Given};
use super::scope::Known;
use super::sources::{SourceModel, Sources};
use super::summary::{RuleSummary, summaries};
use crate::catalog::{self, Audience, Catalog, Object, OpenOptions, Problem, Source};
use crate::error::{Error, Location, Result};

/// The largest recipe, in bytes.
const MAX_BYTES: u64 = 1 << 20;
/// How deep recipes may be nested in the first one.
const MAX_DEPTH: usize = 8;
/// The most models that all recipes of one opening may open. Recipes that each open sixteen of the next could
/// go on for ever.
const MAX_OPENED: usize = 256;

/// Why a model was not opened.
pub enum Stop {
    /// This is wrong.
    With(Error),
    /// All that is wrong is in the list.
    Listed,
}

impl Stop {
    /// The error that ends opening.
    pub fn into_error(self) -> Error {
        match self {
            Stop::With(error) => error,
            Stop::Listed => Error::other(libc::EIO, "is not in order; 'stfs verify' lists why"),
        }
    }
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::With(error)
    }
}

/// A recipe's model, and what its rules did.
pub struct Opened {
    /// The model.
    pub model: Model,
    /// By rule.
    pub rules: Vec<RuleSummary>,
}

/// One opening of a recipe and of all that it reaches.
pub struct Opening {
    audience: Audience,
    files: OpenOptions,
    verifying: bool,
    /// The recipes that are being opened, the outermost first.
    within: Vec<Within>,
    /// What has been opened, by its location and the values that it was given.
    opened: HashMap<(String, Vec<Given>), Arc<Model>>,
    /// How many models were opened.
    count: usize,
    /// While verifying: what is wrong.
    pub problems: Vec<Problem>,
    /// While verifying: the models that could be opened.
    pub checked: Vec<Arc<Model>>,
}

/// A recipe that is being opened.
struct Within {
    /// Device and inode of its file.
    identity: (u64, u64),
    shown: PathBuf,
}

/// A recipe's file, read.
struct Read {
    text: String,
    object: Arc<dyn Object>,
    /// As messages name it.
    shown: PathBuf,
    /// The directory that relative paths begin at.
    directory: PathBuf,
}

impl Opening {
    /// Nothing is opened yet.
    pub fn new(audience: Audience, files: OpenOptions, verifying: bool) -> Opening {
        Opening {
            audience,
            files,
            verifying,
            within: Vec::new(),
            opened: HashMap::new(),
            count: 0,
            problems: Vec::new(),
            checked: Vec::new(),
        }
    }

    /// Opens the recipe that was found at `shown`.
    pub fn recipe(
        &mut self,
        found: &Found,
        shown: &Path,
        request: &OpenModel,
    ) -> std::result::Result<Opened, Stop> {
        let read = read(&found.source, shown)?;
        let file = self.parse(&read)?;
        let mut given = found.given.clone();
        // Mounted with a parameter that has been removed since: the others still count.
        given.retain(|given| file.set.iter().any(|p| *p.name == *given.name));
        for own in &request.given {
            if file.set.iter().any(|p| *p.name == *own.name) {
                given.push(own.clone());
            } else if !request.may_lack_given {
                let why = rules::unknown_parameter(&file.set, &own.name);
                return Err(Error::invalid(shown, why).into());
            }
        }
        self.opened(&read, &found.source, &file, &given, request.options)
    }

    /// The recipe as its file has it. While verifying, the part of it that can be checked.
    fn parse(&mut self, read: &Read) -> std::result::Result<RecipeFile, Stop> {
        file::parse(&read.text).or_else(|broken| {
            self.report(read, broken.mistakes)?;
            broken.rest.ok_or(Stop::Listed)
        })
    }

    /// Opens the models and applies the rules.
    fn opened(
        &mut self,
        read: &Read,
        source: &Source,
        file: &RecipeFile,
        given: &[Given],
        options: ModelOptions,
    ) -> std::result::Result<Opened, Stop> {
        let listed = self.problems.len();
        let stat = read.object.stat();
        self.within.push(Within {
            identity: (stat.dev, stat.ino),
            shown: read.shown.clone(),
        });
        let sources = self.sources(read, file, given);
        self.within.pop();
        let (sources, parameters) = sources?;
        let lines = Lines::new(&read.text);
        let results = rules::apply(file, &lines, &sources, &parameters);
        let rules = summaries(file, &lines, &results.applied);
        self.report(read, results.mistakes)?;
        let definition = Definition {
            file,
            lines: &lines,
            text: &read.text,
            object: &read.object,
            sources: &sources,
            parameters: &parameters,
            given,
        };
        let config = definition.configuration();
        let exports = definition.exports(&results.tensors);
        let (config, exports) = match (config, exports) {
            (Ok(config), Ok(exports)) => (config, exports),
            (config, exports) => {
                let mut mistakes = config.err().unwrap_or_default();
                mistakes.extend(exports.err().unwrap_or_default());
                self.report(read, mistakes)?;
                return Err(Stop::Listed);
            }
        };
        if self.problems.len() > listed {
            return Err(Stop::Listed);
        }
        let catalog =
            derived::catalog(&definition, &source.model, results.tensors, config, exports)?;
        let model = Model::new(catalog, options);
        Ok(Opened { model, rules })
    }

    /// The models that a recipe names, and the values of its parameters.
    fn sources(
        &mut self,
        read: &Read,
        file: &RecipeFile,
        given: &[Given],
    ) -> std::result::Result<(Arc<Sources>, HashMap<Box<str>, Value>), Stop> {
        // The first model may be a recipe with parameters of its own. They may use those of this one that do not
        // need its configuration.
        let known = match file.model.set.is_empty() {
            true => HashMap::new(),
            false => rules::known_parameters(&file.set, given),
        };
        let mut models = vec![self.listed(read, &file.model, &known, None)?];
        let first = models.first().cloned().flatten();
        let config = first.as_ref().map(|model| &model.catalog.configs);
        let parameters = config.map(|config| rules::parameters(&file.set, given, Some(config)));
        let none = HashMap::new();
        let known = match &parameters {
            Some(Ok(known)) => known,
            _ => &none,
        };
        for (_, entry) in &file.models {
            // Without parameters nothing is known of a model that they are given to.
            let can_open = entry.set.is_empty() || matches!(parameters, Some(Ok(_)));
            models.push(match can_open {
                true => self.listed(read, entry, known, config)?,
                false => None,
            });
        }
        let parameters = match parameters {
            Some(Ok(parameters)) => parameters,
            Some(Err(mistakes)) => {
                self.report(read, mistakes)?;
                return Err(Stop::Listed);
            }
            None => return Err(Stop::Listed),
        };
        let names = std::iter::once("model").chain(file.models.iter().map(|(name, _)| &**name));
        let entries = std::iter::once(&file.model).chain(file.models.iter().map(|(_, e)| e));
        let all = names.zip(entries).zip(models);
        let all = all.map(|((name, entry), model)| Some((name.into(), entry.floats, model?)));
        let all = all.collect::<Option<Vec<_>>>().ok_or(Stop::Listed)?;
        let too_many = || {
            let what = "the models together have more than 4,294,967,295 tensors";
            self.as_error(read, &Mistake::at(file.model.at, what))
        };
        Ok((Arc::new(numbered(all).ok_or_else(too_many)?), parameters))
    }

    /// Opens a model that a recipe names. `None` while verifying: why it could not be opened is listed.
    fn listed(
        &mut self,
        read: &Read,
        entry: &ModelEntry,
        known: &HashMap<Box<str>, Value>,
        config: Option<&catalog::Configuration>,
    ) -> std::result::Result<Option<Arc<Model>>, Stop> {
        match self.source(read, entry, known, config) {
            Ok(model) => Ok(Some(model)),
            Err(Failed::Stop(Stop::Listed)) => Ok(None),
            Err(Failed::Stop(stop)) => Err(stop),
            Err(Failed::Mistakes(mistakes)) => self.report(read, mistakes).map(|()| None),
        }
    }

    /// Opens a model that a recipe names.
    fn source(
        &mut self,
        read: &Read,
        entry: &ModelEntry,
        known: &HashMap<Box<str>, Value>,
        config: Option<&catalog::Configuration>,
    ) -> std::result::Result<Arc<Model>, Failed> {
        let here = |what: String| Failed::Mistakes(vec![Mistake::at(entry.at, what)]);
        let path = read.directory.join(&entry.path);
        let mut found = find(&path, self.audience).map_err(|e| here(e.to_string()))?;
        self.check_reach(&found.source, read).map_err(&here)?;
        found.given.extend(given(&entry.set, known, config)?);
        let key = (found.source.model.to_string(), found.given.clone());
        if let Some(model) = self.opened.get(&key) {
            return Ok(model.clone());
        }
        self.count += 1;
        if self.count > MAX_OPENED {
            let what = format!("the recipes together open more than {MAX_OPENED} models");
            return Err(here(what));
        }
        let model = match super::is_recipe(&found.source) {
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
            self.checked.push(model.clone());
        }
        Ok(model)
    }

    fn nested(
        &mut self,
        outer: &Read,
        entry: &ModelEntry,
        found: &Found,
    ) -> std::result::Result<Model, Failed> {
        let here = |what: String| Failed::Mistakes(vec![Mistake::at(entry.at, what)]);
        let shown = outer.shown.parent().unwrap_or(Path::new(""));
        let shown = shown.join(&entry.path);
        let read = read(&found.source, &shown).map_err(|e| here(e.to_string()))?;
        let stat = read.object.stat();
        let identity = (stat.dev, stat.ino);
        if let Some(at) = self.within.iter().position(|w| w.identity == identity) {
            let circle = self.within.get(at..).unwrap_or_default().iter();
            let circle = circle.map(|within| &*within.shown).chain([&*shown]);
            let circle: Vec<String> = circle.map(|path| path.display().to_string()).collect();
            let what = format!("the recipe reaches itself: {}", circle.join(" → "));
            return Err(here(what));
        }
        if self.within.len() > MAX_DEPTH {
            let what = format!("recipes within recipes are more than {MAX_DEPTH} deep here");
            return Err(here(what));
        }
        let file = self.parse(&read).map_err(Failed::Stop)?;
        let names = |name: &str| file.set.iter().any(|p| *p.name == *name);
        if let Some(unknown) = entry.set.iter().find(|p| !names(&p.name)) {
            let what = rules::unknown_parameter(&file.set, &unknown.name);
            let what = what.trim_start_matches("--set ").to_string();
            return Err(Failed::Mistakes(vec![Mistake::at(unknown.at, what)]));
        }
        let mut given = found.given.clone();
        given.retain(|given| names(&given.name));
        let options = ModelOptions::default();
        let opened = self.opened(&read, &found.source, &file, &given, options);
        Ok(opened.map_err(Failed::Stop)?.model)
    }

    /// Opens a model that is files.
    fn plain(&mut self, entry: &ModelEntry, found: &Found) -> std::result::Result<Model, Plain> {
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

    /// Refuses a model that not every user of the mount could have reached, if somebody else wrote the recipe that
    /// names it. What the user names on the command line, or in a recipe of its own, is its own decision.
    fn check_reach(&self, source: &Source, read: &Read) -> std::result::Result<(), String> {
        let is_own = read.object.stat().uid == rustix::process::geteuid().as_raw();
        let Some(closed) = source.store.closed_above().filter(|_| !is_own) else {
            return Ok(());
        };
        let is_on_the_way = closed.path().is_some_and(|c| read.directory.starts_with(c));
        if is_on_the_way {
            return Ok(());
        }
        Err(format!(
            "{}: not every user may search {closed}, and another user wrote this recipe; with --allow-other everyone would read the model through it: let others search that directory ('chmod a+x'), or mount without --allow-other",
            source.model
        ))
    }

    /// Lists mistakes while verifying; otherwise the first of them ends opening.
    fn report(&mut self, read: &Read, mistakes: Vec<Mistake>) -> std::result::Result<(), Stop> {
        let mistakes = mistakes
            .into_iter()
            .filter(|mistake| !mistake.what.is_empty());
        for mistake in mistakes {
            let error = self.as_error(read, &mistake);
            if !self.verifying {
                return Err(error);
            }
            let (line, column) = position(&read.text, &mistake);
            let file = read.shown.display().to_string();
            self.problems.push(Problem {
                position: Some((line, column)),
                ..Problem::of_file(&file, mistake.what)
            });
        }
        Ok(())
    }

    fn as_error(&self, read: &Read, mistake: &Mistake) -> Stop {
        let (line, column) = position(&read.text, mistake);
        let at = Location::from(&read.shown).at(line, column);
        Stop::With(Error::invalid(at, &*mistake.what))
    }
}

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

/// Line and column of a mistake; only the line if it is about a whole rule.
fn position(text: &str, mistake: &Mistake) -> (usize, Option<usize>) {
    let (line, column) = Lines::new(text).position(mistake.at);
    (line, (!mistake.of_line).then_some(column))
}

/// Reads a recipe, once.
fn read(source: &Source, shown: &Path) -> Result<Read> {
    let name = source.file.as_deref().unwrap_or_default();
    if let Some(part) = &source.part {
        let problem = format!(
            "is a recipe, which has no parts: leave out '{}{part}' (only PyTorch checkpoints have parts)",
            crate::error::PART
        );
        return Err(Error::invalid(shown, problem));
    }
    let object = source.store.open(name.as_ref())?;
    if object.len() > MAX_BYTES {
        let problem = format!(
            "has {} bytes; a recipe has at most {MAX_BYTES}",
            object.len()
        );
        return Err(Error::invalid(shown, problem));
    }
    let mut bytes = vec![0; object.len() as usize];
    object.read_at(0, &mut bytes)?;
    let text = String::from_utf8(bytes).map_err(|e| not_text(shown, &e))?;
    let directory = source.store.location().path().unwrap_or(Path::new("."));
    Ok(Read {
        text,
        object,
        shown: shown.to_path_buf(),
        directory: directory.to_path_buf(),
    })
}

/// The error about bytes that are not text, with their place.
fn not_text(shown: &Path, error: &std::string::FromUtf8Error) -> Error {
    let valid = error.utf8_error().valid_up_to();
    let before = error.as_bytes().get(..valid).unwrap_or_default();
    let before = String::from_utf8_lossy(before);
    let at = Place(u32::try_from(valid).unwrap_or(u32::MAX));
    let (line, column) = Lines::new(&before).position(at);
    let at = Location::from(shown).at(line, Some(column));
    Error::invalid(at, "is not valid UTF-8; a recipe is TOML")
}

/// The values that an entry gives to its model's parameters.
fn given(
    set: &[Parameter],
    known: &HashMap<Box<str>, Value>,
    config: Option<&catalog::Configuration>,
) -> std::result::Result<Vec<Given>, Failed> {
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
    Some(Sources { models: numbered })
}
