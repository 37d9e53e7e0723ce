//! The models that a recipe starts from, as one space of tensors.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use super::super::array::{self, Leaves};
use super::super::{Expr, Model, Tensor, TensorId};
use super::tensor::{Decoded, Derived, Label};
use crate::catalog::Extent;
use crate::error::{Error, Result};
use crate::reason::reason;
use crate::view::{Effort, SharedView};

/// A model of a recipe.
pub struct SourceModel {
    /// `model`, or its name among `models`.
    pub name: Box<str>,
    /// The model.
    pub model: Arc<Model>,
    /// Whether the recipe starts with its float tensors.
    pub floats: bool,
    /// What is added to the ids of its tensors in expressions: [`Expr::Raw`] and [`Expr::Values`] of a recipe
    /// have ids over all models.
    pub first_id: u32,
    /// What is added to the indexes of its files in the derived catalog.
    pub first_file: u32,
}

/// All models of a recipe; the first is the one that the rules start with.
pub struct Sources {
    /// The models.
    pub models: Vec<SourceModel>,
    /// What the elements of a tensor take that is made of others, by its id over all models: rules may use one of
    /// 20,000 parts a million times.
    efforts: Mutex<HashMap<TensorId, Effort>>,
}

impl Sources {
    /// Of these models.
    #[must_use]
    pub fn new(models: Vec<SourceModel>) -> Sources {
        Sources {
            models,
            efforts: Mutex::default(),
        }
    }

    /// A tensor of a model, by the model's index and the tensor's id there: its own bytes. `None` if there is no
    /// such tensor.
    pub fn leaf(&self, model: usize, id: TensorId) -> Option<Derived> {
        let source = self.models.get(model)?;
        let tensor = source.model.tensor(id).ok()?;
        let of_all = source.first_id.checked_add(id)?;
        let name = source.model.name(id);
        let label: Label = match model {
            0 => format!("'{name}'").into(),
            _ => format!("{}:'{name}'", source.name).into(),
        };
        let Effort { depth, reach } = self.effort(&source.model, of_all, &tensor.raw);
        let values = decoded(&source.model, id, of_all, &tensor);
        let exact = match &tensor.values {
            Some(own) if values.is_none() => own.exact,
            Some(_) | None if tensor.dtype.has_f32() => tensor.dtype.exact_in_f32(),
            _ => true,
        };
        Some(Derived {
            dtype: tensor.dtype.clone(),
            shape: tensor.shape.into(),
            nbytes: tensor.nbytes,
            expr: Expr::Raw(of_all),
            values,
            exact,
            depth,
            reach,
            rules: Derived::no_rules(),
            label,
        })
    }

    /// What a tensor's elements take, by its id over all models.
    fn effort(&self, model: &Model, of_all: TensorId, raw: &Expr) -> Effort {
        if raw.operands().is_empty() {
            return effort(model, raw);
        }
        let mut efforts = self.efforts.lock().unwrap_or_else(PoisonError::into_inner);
        *efforts.entry(of_all).or_insert_with(|| effort(model, raw))
    }

    /// The bytes that an expression over these models defines; `name` is the tensor's, for errors.
    ///
    /// # Errors
    /// As [`Model::raw`].
    pub fn view(&self, expr: &Expr, name: &str) -> Result<SharedView> {
        array::view(self, expr, name)
    }

    /// Where the bytes are, if they are one range of a file: its index in the derived catalog, and the first
    /// byte there.
    pub fn extent(&self, expr: &Expr) -> Option<(u32, u64)> {
        let (source, id, start) = self.stored(expr)?;
        let (_, offset) = source.model.catalog.place(id)?;
        let file = source.model.catalog.files_of(id).next()?;
        Some((source.first_file.checked_add(file)?, offset + start))
    }

    /// Indexes, in the derived catalog, of the files that the bytes come from, in ascending order. The words of
    /// a layer count for the whole of it.
    pub fn files_of(&self, expr: &Expr) -> Vec<u32> {
        let mut files = Vec::new();
        for (model, id) in self.parts(expr) {
            if let Some(source) = self.models.get(model) {
                let of_part = source.model.source_files(id).into_iter();
                files.extend(of_part.map(|file| source.first_file.saturating_add(file)));
            }
        }
        files.sort_unstable();
        files.dedup();
        files
    }

    /// The models' tensors that an expression is made of, each once, in order: index of the model, and the id
    /// there.
    pub fn parts(&self, expr: &Expr) -> Vec<(usize, TensorId)> {
        let mut parts = Parts::default();
        self.collect(expr, &mut parts);
        parts.all
    }

    fn collect(&self, expr: &Expr, into: &mut Parts) {
        if let Some(id) = expr.alias() {
            if let Some((model, of)) = self.local(id)
                && into.known.insert(id)
            {
                into.all.push((model, of));
            }
            return;
        }
        // What has several operands may have the same ones many times over.
        let node = match expr {
            Expr::Join(join) => Arc::as_ptr(join).addr(),
            Expr::Computed(computed) => Arc::as_ptr(computed).addr(),
            _ => 0,
        };
        if expr.operands().len() < 2 || into.nodes.insert(node) {
            let operands = expr.operands().iter();
            operands.for_each(|operand| self.collect(operand, into));
        }
    }

    /// The model of an id, and the id there.
    fn local(&self, id: TensorId) -> Option<(usize, TensorId)> {
        let behind = self.models.partition_point(|model| model.first_id <= id);
        let index = behind.checked_sub(1)?;
        let source = self.models.get(index)?;
        let of = id - source.first_id;
        (of < source.model.id_count()).then_some((index, of))
    }

    /// The stored tensor that has these bytes in a row, and how many lie before them in it.
    fn stored(&self, expr: &Expr) -> Option<(&SourceModel, TensorId, u64)> {
        match expr {
            Expr::Raw(id) => {
                let (model, of) = self.local(*id)?;
                let source = self.models.get(model)?;
                Some((source, stored(&source.model, of)?, 0))
            }
            Expr::Gather(gather) => {
                let range = gather.strided.range()?;
                let (source, id, start) = self.stored(&gather.of)?;
                Some((source, id, start.checked_add(range.start)?))
            }
            _ => None,
        }
    }
}

/// Parts that have been found.
#[derive(Default)]
struct Parts {
    all: Vec<(usize, TensorId)>,
    /// Their ids over all models.
    known: HashSet<TensorId>,
    /// Addresses of the expressions that were looked through.
    nodes: HashSet<usize>,
}

impl Leaves for Sources {
    fn leaf(&self, expr: &Expr) -> Result<SharedView> {
        let unknown = || Error::other(libc::EIO, "an expression names a tensor of no model");
        let id = expr.alias().ok_or_else(unknown)?;
        let (model, of) = self.local(id).ok_or_else(unknown)?;
        let model = &self.models.get(model).ok_or_else(unknown)?.model;
        match expr {
            Expr::Values(_) => model.leaf(&Expr::Values(of)),
            _ => model.raw(of),
        }
    }

    fn extent(&self, expr: &Expr) -> Option<Extent> {
        let (source, id, start) = self.stored(expr)?;
        let whole = source.model.catalog.extent(id)?;
        let len = match expr {
            Expr::Gather(gather) => gather.strided.nbytes(),
            _ => whole.len,
        };
        Some(Extent {
            offset: whole.offset.checked_add(start)?,
            len,
            ..whole
        })
    }

    fn was_changed(&self, expr: &Expr) -> bool {
        let of_all = |source: &SourceModel| {
            let files = &source.model.catalog.files;
            files.iter().any(|file| file.was_changed())
        };
        self.models.iter().any(of_all)
            && self.parts(expr).into_iter().any(|(model, id)| {
                let source = self.models.get(model);
                source.is_some_and(|source| source.model.was_changed(&Expr::Raw(id)))
            })
    }
}

/// The stored tensor that `id` is, perhaps under a second name.
fn stored(model: &Model, id: TensorId) -> Option<TensorId> {
    if model.is_stored(id) {
        return Some(id);
    }
    match model.tensor(id).ok()?.raw {
        Expr::Raw(of) if model.is_stored(of) => Some(of),
        _ => None,
    }
}

/// The values of a tensor, if they are not its elements: decoded from a layer, or none of a layer that is
/// damaged.
fn decoded(
    model: &Model,
    id: TensorId,
    of_all: TensorId,
    tensor: &Tensor<'_>,
) -> Option<Arc<Decoded>> {
    let decoded = match &tensor.values {
        // A dequantized tensor's elements are its values.
        Some(_) if tensor.decoded().is_none() || !model.is_stored(id) && tensor.is_values() => {
            return None;
        }
        Some(values) => Decoded {
            shape: values.shape.into(),
            expr: Ok(Expr::Values(of_all)),
            exact: values.exact,
        },
        None if tensor.dtype.has_f32() => Decoded {
            shape: tensor.shape.into(),
            expr: Err(model.remark(id).unwrap_or_else(|| reason!("it has none"))),
            exact: false,
        },
        None => return None,
    };
    Some(Arc::new(decoded))
}

/// What a tensor's elements take: that of the hardest of the stored ones that it is made of.
fn effort(model: &Model, expr: &Expr) -> Effort {
    let mut most = Effort::default();
    model.leaves(expr, &mut |index| {
        let of_part = model.catalog.effort(index);
        most.depth = most.depth.max(of_part.depth);
        most.reach = most.reach.max(of_part.reach);
    });
    most
}
