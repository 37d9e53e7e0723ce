//! Opens a recipe: reads it, opens the models that it names, and has its rules applied. The same walk serves
//! opening, which stops at the first mistake, and `verify`, which lists all.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::open::{Checked, Found, OpenModel};
use super::super::{Model, ModelOptions};
use super::derived::{self, ChangedConfig, Definition};
use super::file::{self, RecipeFile};
use super::mistake::{Lines, Mistake};
use super::rules::{self, Given, Outcome};
use super::summary::{RuleSummary, summaries};
use crate::catalog::{Audience, FileOfTensors, MAX_TOTAL, OpenOptions, Problem, Source};
use crate::error::{Error, Location};
use read::{Read, position, read};

mod read;
mod source;

/// The most tensors that all recipes of one opening leave: they are in memory together, and a recipe that is opened
/// with other parameters is another one.
const MAX_TENSORS: usize = 1 << 21;

type Result<T, E = Stop> = std::result::Result<T, E>;

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
    opened: HashMap<Key, Arc<Model>>,
    /// How many models were opened.
    count: usize,
    /// How many tensors all recipes left.
    tensors: usize,
    /// While verifying: what is wrong.
    problems: Vec<Problem>,
    /// While verifying: the models that could be opened.
    sound: Vec<Arc<Model>>,
}

/// The location of a model, the values that it was given, and whether all that names it is the user's own.
type Key = (String, Vec<Given>, bool);

/// A recipe that is being opened.
struct Within {
    /// Device and inode of its file.
    identity: (u64, u64),
    shown: PathBuf,
    /// Whether nobody but root and the user that opens it decides what it says, and where its relative paths begin.
    is_own: bool,
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
            tensors: 0,
            problems: Vec::new(),
            sound: Vec::new(),
        }
    }

    /// All that is wrong, the mistakes of a recipe in the order of their places.
    pub fn checked(self, model: Option<Model>) -> Checked {
        let mut problems = self.problems;
        // Of equal ones, and those of a model that is files, the order stays.
        let mut order: HashMap<String, usize> = HashMap::new();
        for problem in &problems {
            let next = order.len();
            order.entry(problem.file.clone()).or_insert(next);
        }
        problems.sort_by_key(|p| (order.get(&p.file).copied(), p.position));
        let sources = self.sound;
        Checked {
            problems,
            sources,
            model,
        }
    }

    /// Opens the recipe that was found at `shown`.
    pub fn recipe(&mut self, found: &Found, shown: &Path, request: &OpenModel) -> Result<Opened> {
        let recipe = self.parse(read(&found.source, shown)?)?;
        let mut given = recipe.known(&found.given);
        for own in &request.given {
            if recipe.has_parameter(&own.name) {
                given.push(own.clone());
            } else if !request.may_lack_given {
                let why = rules::unknown_parameter(&recipe.file.set, &own.name);
                return Err(Error::invalid(shown, why).into());
            }
        }
        self.opened(&recipe, &found.source, &given, request.options)
    }

    /// The recipe as its file has it. While verifying, the part of it that can be checked.
    fn parse(&mut self, read: Read) -> Result<Recipe> {
        let (file, is_whole) = match file::parse(&read.text) {
            Ok(file) => (file, true),
            Err(broken) => {
                self.report(&read, broken.mistakes)?;
                (broken.rest.map(|rest| *rest).ok_or(Stop::Listed)?, false)
            }
        };
        Ok(Recipe {
            read,
            file,
            is_whole,
        })
    }

    /// Opens the models and applies the rules.
    fn opened(
        &mut self,
        recipe: &Recipe,
        source: &Source,
        given: &[Given],
        options: ModelOptions,
    ) -> Result<Opened> {
        let Recipe { read, file, .. } = recipe;
        let stat = read.object.stat();
        self.within.push(Within {
            identity: (stat.dev, stat.ino),
            shown: read.shown.clone(),
            is_own: is_own(read, source),
        });
        let sources = self.sources(read, file, given);
        self.within.pop();
        let (sources, parameters) = sources?;
        let lines = Lines::new(&read.text);
        let results = rules::apply(file, &lines, &sources, &parameters);
        let rules = summaries(file, &lines, &results.applied);
        let is_sound = self.report(read, results.mistakes)? && recipe.is_whole;
        let definition = Definition {
            file,
            lines: &lines,
            text: &read.text,
            store: &source.store,
            object: &read.object,
            sources: &sources,
            parameters: &parameters,
            given,
        };
        let (config, exports) = self.further(read, &definition, &results.tensors)?;
        self.check_budget(recipe, results.tensors.len())?;
        let is_sound = self.check_total(recipe, &results.tensors)? && is_sound;
        if !is_sound {
            return Err(Stop::Listed);
        }
        let catalog =
            derived::catalog(&definition, &source.model, results.tensors, config, exports)?;
        let model = Model::new(catalog, options);
        Ok(Opened { model, rules })
    }

    /// Refuses what recipes within recipes leave many times over.
    fn check_budget(&mut self, recipe: &Recipe, tensors: usize) -> Result<()> {
        self.tensors += tensors;
        if self.tensors <= MAX_TENSORS {
            return Ok(());
        }
        let what =
            format!("the recipes that were opened leave more than {MAX_TENSORS} tensors together");
        self.report(&recipe.read, vec![Mistake::at(recipe.file.model.at, what)])?;
        Err(Stop::Listed)
    }

    /// Refuses tensors that have more bytes together than are served.
    fn check_total(&mut self, recipe: &Recipe, tensors: &[Outcome]) -> Result<bool> {
        let total: u128 = tensors.iter().map(|t| u128::from(t.tensor.nbytes)).sum();
        if total <= MAX_TOTAL.into() {
            return Ok(true);
        }
        let count = tensors.len();
        let what = format!(
            "the rules leave {count} tensors of {total} bytes together; at most {MAX_TOTAL} are served"
        );
        let at = recipe.file.model.at;
        self.report(&recipe.read, vec![Mistake::at(at, what)])
    }

    /// The configuration as it is changed, and further exports.
    fn further(
        &mut self,
        read: &Read,
        definition: &Definition<'_>,
        tensors: &[Outcome],
    ) -> Result<(ChangedConfig, Vec<FileOfTensors>)> {
        match (definition.configuration(), definition.exports(tensors)) {
            (Ok(config), Ok(exports)) => Ok((config, exports)),
            (config, exports) => {
                let mut mistakes = config.err().unwrap_or_default();
                mistakes.extend(exports.err().unwrap_or_default());
                self.report(read, mistakes)?;
                Err(Stop::Listed)
            }
        }
    }

    /// Lists mistakes while verifying; otherwise the first of them ends opening. Returns whether there are
    /// none.
    fn report(&mut self, read: &Read, mistakes: Vec<Mistake>) -> Result<bool> {
        let mut is_sound = true;
        for mistake in mistakes {
            is_sound = false;
            // What follows from another one has no message.
            if mistake.what.is_empty() {
                continue;
            }
            if !self.verifying {
                return Err(as_error(read, &mistake));
            }
            let file = read.shown.display().to_string();
            let problem = Problem {
                position: Some(position(&read.text, &mistake)),
                ..Problem::of_file(&file, mistake.what)
            };
            // Of a recipe that is opened twice, with other parameters.
            if !self.problems.contains(&problem) {
                self.problems.push(problem);
            }
        }
        Ok(is_sound)
    }
}

/// A recipe, read and parsed.
struct Recipe {
    read: Read,
    file: RecipeFile,
    /// Whether it has no mistakes so far.
    is_whole: bool,
}

impl Recipe {
    fn has_parameter(&self, name: &str) -> bool {
        self.file.set.iter().any(|p| *p.name == *name)
    }

    /// Those of the values that it has parameters for: a mount's recipe may have been edited since.
    fn known(&self, given: &[Given]) -> Vec<Given> {
        let known = given.iter().filter(|given| self.has_parameter(&given.name));
        known.cloned().collect()
    }
}

/// Whether a recipe and its directory belong to the user that opens it, or to root. The directory counts, because
/// others could have put a link to any recipe into theirs, and what its relative paths name beside it.
fn is_own(read: &Read, source: &Source) -> bool {
    let user = rustix::process::geteuid().as_raw();
    [user, 0].contains(&read.object.stat().uid) && source.store.is_own()
}

fn as_error(read: &Read, mistake: &Mistake) -> Stop {
    let at = Location::from(&read.shown).at(position(&read.text, mistake));
    Stop::With(Error::invalid(at, &*mistake.what))
}
