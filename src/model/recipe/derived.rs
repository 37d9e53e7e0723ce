//! The catalog of a recipe: what the rules left, as if files stored it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use serde_json::{Map, Value as Json, json};

use super::evaluate::Value;
use super::file::RecipeFile;
use super::mistake::Lines;
use super::rules::{Given, Outcome};
use super::sources::{SourceModel, Sources};
use super::tensor::Derived;
use crate::catalog::{
    Catalog, Configuration, Derivation, FileOfTensors, MadeFile, ManifestBits, Object, Overlay,
    Row, RowBytes, Store, Tensors, natural,
};
use crate::dtype::Dtype;
use crate::error::{Error, Location, Result};
use provenance::Origins;
use view::DerivedView;

mod config;
mod exports;
mod provenance;
mod view;

/// A recipe, read, and all that its rules use.
pub struct Definition<'a> {
    /// The recipe.
    pub file: &'a RecipeFile,
    /// Its text, as it was read.
    pub text: &'a str,
    /// The lines of the text.
    pub lines: &'a Lines<'a>,
    /// The directory that it is in.
    pub store: &'a Arc<dyn Store>,
    /// The file.
    pub object: &'a Arc<dyn Object>,
    /// The models.
    pub sources: &'a Arc<Sources>,
    /// The values of the parameters.
    pub parameters: &'a HashMap<Box<str>, Value>,
    /// Those that were given when it was opened.
    pub given: &'a [Given],
}

/// The catalog of what the rules left.
///
/// # Errors
/// The tensors have too many bytes together.
pub fn catalog(
    definition: &Definition<'_>,
    model: &Location,
    mut tensors: Vec<Outcome>,
    config: ChangedConfig,
    exports: Vec<FileOfTensors>,
) -> Result<Catalog> {
    let sources = definition.sources;
    let no_model = || Error::other(libc::EIO, "a recipe without a model");
    let first = sources.models.first().ok_or_else(no_model)?;
    tensors.sort_by(|a, b| natural(&a.name, &b.name));
    let (mut files, mut definitions) = files(sources);
    let file = files.len() as u32;
    files.push(definition.object.clone());
    definitions.push(file);
    let rows = tensors.iter().map(|made| row(sources, made)).collect();
    let origins = Origins::new(definition, tensors);
    let given = definition.given.iter();
    let derivation = Derivation {
        file,
        definitions,
        provenance: Box::new(origins),
        exports: exports.into(),
        parameters: parameters(definition),
        given: given.map(|g| (g.name.clone(), g.value.clone())).collect(),
    };
    let mut summary = first.model.catalog.summary.clone();
    summary.insert("recipe".into(), summary_of(definition, &derivation));
    let base = Catalog {
        store: store(definition, first, &config),
        model: model.clone(),
        files,
        summary,
        configs: config.configs,
        derivation: Some(derivation),
        ..like(sources, first)
    };
    base.with_tensors(rows)
}

/// What the catalog has of its sources as they are.
fn like(sources: &Sources, first: &SourceModel) -> Catalog {
    let of = &first.model.catalog;
    let keys = first.model.clone();
    let notes = sources.models.iter().flat_map(|source| {
        let notes = source.model.catalog.notes.iter();
        notes.map(|note| format!("{}: {note}", source.name))
    });
    Catalog {
        store: of.store.clone(),
        model: of.model.clone(),
        format: of.format,
        files: Vec::new(),
        tensors: Tensors::default(),
        absent: BTreeSet::new(),
        left_out: BTreeMap::new(),
        metadata: of.metadata.clone(),
        metadata_json: of.metadata_json.is_some().then(|| {
            let make = move || match &keys.catalog.metadata_json {
                Some(make) => make(),
                None => Err(Error::NotFound("the model has no metadata".into())),
            };
            Box::new(make) as _
        }),
        summary: Map::new(),
        configs: Configuration::default(),
        weight_files: of.weight_files.clone(),
        lone_file: of.lone_file,
        shards_missing: sources
            .models
            .iter()
            .any(|source| source.model.catalog.shards_missing),
        notes: notes.collect(),
        derivation: None,
    }
}

/// All files of the sources, and which of them are recipes.
fn files(sources: &Sources) -> (Vec<Arc<dyn Object>>, Vec<u32>) {
    let (mut files, mut definitions) = (Vec::new(), Vec::new());
    for source in &sources.models {
        // One that has two names has its files once.
        if source.first_file as usize != files.len() {
            continue;
        }
        let catalog = &source.model.catalog;
        files.extend(catalog.files.iter().cloned());
        let own = catalog.derivation.iter().flat_map(|d| &d.definitions);
        definitions.extend(own.map(|file| source.first_file + file));
    }
    (files, definitions)
}

fn row(sources: &Arc<Sources>, made: &Outcome) -> Row {
    let tensor = &made.tensor;
    let bytes = match sources.extent(&tensor.expr) {
        Some((file, offset)) => RowBytes::Extent { file, offset },
        None => RowBytes::View {
            files: sources.files_of(&tensor.expr).into(),
            offset: provenance::first_byte(sources, &tensor.expr),
            view: Arc::new(DerivedView::new(sources, made)),
        },
    };
    Row {
        name: made.name.clone(),
        dtype: tensor.dtype.clone(),
        shape: tensor.shape.iter().copied().collect(),
        bytes,
        nbytes: tensor.nbytes,
        bits: bits(sources, tensor),
        origin: None,
    }
}

/// What a manifest states about the packed width, if it states the same about everything that a tensor is
/// made of.
fn bits(sources: &Sources, tensor: &Derived) -> Option<ManifestBits> {
    // Only manifests state it, and then about every tensor.
    let has_bits = |source: &SourceModel| source.model.catalog.configs.manifest.is_some();
    if !tensor.dtype.is(Dtype::U32) || !sources.models.iter().any(has_bits) {
        return None;
    }
    let mut bits = sources.parts(&tensor.expr).into_iter().map(|(model, id)| {
        let model = &sources.models.get(model)?.model;
        model
            .is_stored(id)
            .then(|| model.catalog.tensors.get(id).bits)?
    });
    let first = bits.next()??;
    bits.all(|other| other == Some(first)).then_some(first)
}

/// What the configuration becomes.
pub struct ChangedConfig {
    /// The configuration.
    pub configs: Configuration,
    /// `config.json`, if it is not the one that is beside the model.
    pub file: Option<Vec<u8>>,
}

/// The directory of the first model, with the configuration as it is changed and the recipe in it, and without
/// what is not true of the tensors any more.
fn store(
    definition: &Definition<'_>,
    first: &SourceModel,
    config: &ChangedConfig,
) -> Arc<dyn Store> {
    let behind = &first.model.catalog.store;
    let recipe = definition.object;
    let names = behind.list().unwrap_or_default().into_iter();
    let names = names.filter_map(|entry| entry.name.into_string().ok());
    let hidden = names.filter(|name| {
        let is_index = name.ends_with(".index.json");
        is_index || first.floats && Configuration::is_about_quantization(name)
    });
    let hidden = hidden.collect();
    let mut files: BTreeMap<String, Arc<dyn Object>> = BTreeMap::new();
    if let Some(bytes) = &config.file {
        let name = Configuration::MAIN;
        let original = behind.open(name.as_ref()).ok();
        let from = original.into_iter().chain([recipe.clone()]).collect();
        let file = MadeFile::new(behind.location().join(name), bytes.clone(), from);
        files.insert(name.into(), Arc::new(file));
    }
    let text = definition.text.as_bytes().to_vec();
    let file = MadeFile::new(recipe.location().clone(), text, vec![recipe.clone()]);
    files.insert(recipe.name().into(), Arc::new(file));
    let others = definition.sources.models.iter().skip(1);
    let others = others.map(|source| &source.model.catalog.store);
    Arc::new(Overlay {
        behind: behind.clone(),
        files,
        hidden,
        beside: others.chain([definition.store]).cloned().collect(),
    })
}

/// All parameters, in the order of the file.
fn parameters(definition: &Definition<'_>) -> Map<String, Json> {
    let all = definition.file.set.iter().filter_map(|parameter| {
        let value = match definition.parameters.get(&parameter.name)? {
            Value::Integer(n) => json!(n),
            Value::Real(n) => json!(n),
            Value::Text(text) => json!(**text),
            Value::Bool(truth) => json!(truth),
            Value::Tensor(_) => return None,
        };
        Some((parameter.name.to_string(), value))
    });
    all.collect()
}

/// The `recipe` of `model.json`.
fn summary_of(definition: &Definition<'_>, derivation: &Derivation) -> Json {
    let models = definition.sources.models.iter();
    let models = models.map(|source| {
        let path = source.model.catalog.model.to_string();
        (source.name.to_string(), json!(path))
    });
    json!({
        "file": definition.object.name(),
        "set": derivation.parameters,
        "models": models.collect::<Map<String, Json>>(),
    })
}
