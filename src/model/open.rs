//! Opening a MODEL, whatever it is: files in a directory, or a recipe that makes tensors of other models'.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::recipe::{self, Given, Opening, RuleSummary, Stop};
use super::{Model, ModelOptions};
use crate::catalog::{self, Audience, Catalog, OpenOptions, Problem, Source};
use crate::error::{Error, Result};
use crate::mounts::{self, Daemon};

/// How a MODEL is opened.
#[derive(Debug, Clone, Default)]
pub struct OpenModel {
    /// Who will see it.
    pub audience: Audience,
    /// What to tolerate.
    pub files: OpenOptions,
    /// What to leave out.
    pub options: ModelOptions,
    /// Values for the parameters of a recipe.
    pub given: Vec<Given>,
    /// Whether values may be given that it has no parameters for: another model may have them.
    pub may_lack_given: bool,
}

/// A model that was checked.
pub struct Checked {
    /// What is wrong with its files, and with the recipe.
    pub problems: Vec<Problem>,
    /// The models that a recipe makes it of.
    pub sources: Vec<Arc<Model>>,
    /// A recipe's model, if nothing is wrong with it.
    pub model: Option<Model>,
}

/// A MODEL argument, found.
pub(super) struct Found {
    /// Where it is.
    pub source: Source,
    /// As messages name it, if that is not the argument: what is mounted there.
    pub mounted: Option<PathBuf>,
    /// The values with which it is mounted, if a mountpoint was given.
    pub given: Vec<Given>,
}

impl Found {
    /// As messages name the argument that led here.
    pub fn shown<'a>(&'a self, argument: &'a Path) -> &'a Path {
        self.mounted.as_deref().unwrap_or(argument)
    }
}

impl OpenModel {
    /// Opens the model at a path, a mountpoint of stfs included.
    ///
    /// # Errors
    /// Whatever is wrong with it, naming the file, the tensor and the numbers; of a recipe the first mistake,
    /// with its line and column.
    pub fn open(&self, path: &Path) -> Result<Model> {
        let found = find(path, self.audience)?;
        if !recipe::is_recipe(&found.source) {
            self.refuse_given(path)?;
            let catalog = Catalog::read(&found.source, self.files)?;
            return Ok(Model::new(catalog, self.options));
        }
        let opened = self.opening(false).recipe(&found, found.shown(path), self);
        Ok(opened.map_err(Stop::into_error)?.model)
    }

    /// Lists all that is wrong with a model, not just the first: its files' structure, and of a recipe every
    /// mistake and the structure of the models that it names.
    ///
    /// # Errors
    /// There is no model at this path.
    pub fn check(&self, path: &Path) -> Result<Checked> {
        let found = find(path, self.audience)?;
        if !recipe::is_recipe(&found.source) {
            self.refuse_given(path)?;
            return Ok(Checked {
                problems: catalog::check_source(&found.source)?,
                sources: Vec::new(),
                model: None,
            });
        }
        let mut opening = self.opening(true);
        match opening.recipe(&found, found.shown(path), self) {
            Err(Stop::With(error)) => Err(error),
            Err(Stop::Listed) => Ok(opening.checked(None)),
            Ok(opened) => Ok(opening.checked(Some(opened.model))),
        }
    }

    /// What each rule of a recipe does.
    ///
    /// # Errors
    /// As [`OpenModel::open`]; or it is not a recipe.
    pub fn rules(&self, path: &Path) -> Result<Vec<RuleSummary>> {
        let found = find(path, self.audience)?;
        if !recipe::is_recipe(&found.source) {
            let problem = "is not a recipe (NAME.toml), and so has no rules";
            return Err(Error::invalid(path, problem));
        }
        let opened = self.opening(false).recipe(&found, found.shown(path), self);
        Ok(opened.map_err(Stop::into_error)?.rules)
    }

    /// The error about a value for a parameter that none of these models has.
    pub fn unknown_parameter(name: &str, models: [&Model; 2]) -> Error {
        let parameters = models.iter().filter_map(|m| m.catalog.derivation.as_ref());
        let names = parameters.flat_map(|d| d.parameters.keys().map(String::as_str));
        let meant = recipe::did_you_mean(name, names);
        Error::NotFound(format!(
            "--set {name}: neither model has such a parameter{meant}"
        ))
    }

    fn opening(&self, verifying: bool) -> Opening {
        Opening::new(self.audience, self.files, verifying)
    }

    /// Only a recipe has parameters.
    fn refuse_given(&self, path: &Path) -> Result<()> {
        match self.given.first().filter(|_| !self.may_lack_given) {
            None => Ok(()),
            Some(Given { name, value }) => Err(Error::invalid(
                path,
                format!(
                    "--set {name}={value}: is not a recipe (NAME.toml), and so has no parameters; leave --set out"
                ),
            )),
        }
    }
}

impl Model {
    /// Whether it is a recipe's, with a parameter of that name.
    pub fn has_parameter(&self, name: &str) -> bool {
        let derivation = self.catalog.derivation.as_ref();
        derivation.is_some_and(|d| d.parameters.contains_key(name))
    }

    /// Opens a model for the caller alone, without values for a recipe's parameters.
    ///
    /// # Errors
    /// As [`OpenModel::open`].
    pub fn open(path: &Path, files: OpenOptions, options: ModelOptions) -> Result<Model> {
        let request = OpenModel {
            files,
            options,
            ..OpenModel::default()
        };
        request.open(path)
    }
}

/// Finds a MODEL. A mountpoint stands for what is mounted there.
pub(super) fn find(path: &Path, audience: Audience) -> Result<Found> {
    if let Some(mounted) = mounts::model_at(path).filter(|m| recipe::is_named_so(m)) {
        return mounted_recipe(path, mounted, audience);
    }
    let source = Source::find(path, audience)?;
    let named = source.model.path().unwrap_or(path);
    if source.file.is_none() && recipe::is_named_so(named) {
        let problem =
            "is not a regular file, which a recipe (NAME.toml) is; rename it if it holds a model";
        return Err(Error::invalid(path, problem));
    }
    Ok(Found {
        source,
        mounted: None,
        given: Vec::new(),
    })
}

/// The recipe at a mountpoint, as it was read when it was mounted, and with the same parameters.
fn mounted_recipe(mountpoint: &Path, mounted: PathBuf, audience: Audience) -> Result<Found> {
    let given = given_to_mount(mountpoint, &mounted)?;
    let name = mounted.file_name().unwrap_or_default();
    let copy = mountpoint.join("files").join(name);
    let source = Source::as_mounted(&mounted, &copy, audience)?;
    Ok(Found {
        source,
        mounted: Some(mounted),
        given,
    })
}

/// The values with which the recipe at a mountpoint was mounted.
fn given_to_mount(mountpoint: &Path, mounted: &Path) -> Result<Vec<Given>> {
    let Daemon::Answers(status) = mounts::ask(mountpoint) else {
        let problem = format!(
            "is a mount of {}, and its daemon does not tell with which parameters; give the recipe itself, with --set",
            mounted.display()
        );
        return Err(Error::invalid(mountpoint, problem));
    };
    let set = status["set"].as_object().into_iter().flatten();
    let given = |(name, value): (&String, &Value)| Given {
        name: name.clone(),
        value: value.as_str().unwrap_or_default().into(),
    };
    Ok(set.map(given).collect())
}
