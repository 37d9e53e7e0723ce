//! `export/`: the whole model as one file of another kind, as a view. A plan lists which tensors the
//! file holds and where; the bytes are read lazily from the shards, whatever their size.

use std::fmt;
use std::sync::Arc;

use crate::catalog::FileOfTensors;
use crate::dtype::{Dtype, ElementType};
use crate::error::{Error, Result};
use crate::model::{Expr, Model, TensorId};
use crate::reason::Reason;
use crate::view::SharedView;

mod assembly;
mod bf16;
mod further;
mod fused;
mod gguf;
mod manifest;
mod safetensors;

pub use crate::model::float_model;
pub use assembly::{Assembly, Plan};
use assembly::{Piece, Run};

/// A file under `export/`. A tensor named `__metadata__` is in the pair of bin and manifest alone:
/// safetensors files cannot hold that name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Export {
    /// Every stored tensor, stored dtype, one safetensors file.
    Merged,
    /// The model as a float checkpoint: floats and dequantized weights as F32.
    Floats,
    /// As stored, with fused and stacked tensors in place of their parts.
    Fused,
    /// The bytes of bin + manifest.
    Bin,
    /// Its manifest.
    Manifest,
    /// A GGUF model as one file.
    Gguf,
    /// The checkpoint that a quantized model came from: dequantized weights as BF16.
    Bf16,
    /// A file that the model's own definition names, by its number there.
    Further(u32),
}

/// The number of the first file that a model's own definition names, in inode numbers: behind all that may be
/// built in one day.
const FURTHER: u32 = 1 << 16;

/// Why a model does not have an export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absent {
    /// The model cannot be written so. `ls --why` shows the reason.
    Because(Reason),
    /// The export is of models of another kind.
    OfOtherModels,
}

impl fmt::Display for Absent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Absent::Because(why) => why.fmt(f),
            Absent::OfOtherModels => f.write_str("only models of another kind have it"),
        }
    }
}

impl From<Reason> for Absent {
    fn from(why: Reason) -> Absent {
        Absent::Because(why)
    }
}

impl Export {
    /// All that are built in, in the order of the directory's listing.
    pub const ALL: [Export; 7] = [
        Export::Merged,
        Export::Floats,
        Export::Fused,
        Export::Bin,
        Export::Manifest,
        Export::Gguf,
        Export::Bf16,
    ];

    /// All of a model, in the order of the directory's listing, whether it has them or not.
    pub fn all(model: &Model) -> impl Iterator<Item = Export> {
        let count = further(model).len() as u32;
        let further = (0..count).map(Export::Further);
        Export::ALL.into_iter().chain(further)
    }

    /// The one of that name, if a model can have it.
    pub fn by_name(model: &Model, name: &str) -> Option<Export> {
        let built_in = Export::ALL.into_iter().find(|e| e.name() == name);
        let derivation = model.catalog.derivation.as_ref();
        built_in.or_else(|| Some(Export::Further(derivation?.exports.position(name)?)))
    }

    /// The file's name; empty if the model does not have it.
    pub fn file_name(self, model: &Model) -> &str {
        match self {
            Export::Further(i) => further(model).get(i as usize).map_or("", |f| &f.name),
            built_in => built_in.name(),
        }
    }

    /// The name of a file that is built in.
    pub fn name(self) -> &'static str {
        match self {
            Export::Merged => "model.safetensors",
            Export::Floats => "model-f32.safetensors",
            Export::Fused => "model-fused.safetensors",
            Export::Bin => "model_weights.bin",
            Export::Manifest => "model_weights.json",
            Export::Gguf => "model.gguf",
            Export::Bf16 => "model-bf16.safetensors",
            Export::Further(_) => "",
        }
    }

    /// Its number: the same at every mount of the same files.
    pub fn number(self) -> u32 {
        match self {
            Export::Further(i) => FURTHER.saturating_add(i),
            built_in => {
                let at = Export::ALL.iter().position(|e| *e == built_in);
                at.map_or(u32::MAX, |at| at as u32)
            }
        }
    }

    /// The file of that number, if it can be one; a model may not have it.
    pub fn from_number(number: u32) -> Option<Export> {
        match number.checked_sub(FURTHER) {
            Some(i) => Some(Export::Further(i)),
            None => Export::ALL.get(number as usize).copied(),
        }
    }

    /// Its place among [`Export::all`].
    pub fn position(self) -> usize {
        match self {
            Export::Further(i) => Export::ALL.len() + i as usize,
            built_in => built_in.number() as usize,
        }
    }

    /// Whether a model has this file. The catalog decides, so the answer never changes.
    ///
    /// # Errors
    /// Why it does not.
    pub fn exists(self, model: &Model) -> std::result::Result<(), Absent> {
        match self {
            Export::Merged | Export::Fused => safetensors::holds(model, |_| false),
            Export::Floats => safetensors::holds(model, ElementType::has_f32),
            Export::Bin | Export::Manifest => Ok(()),
            Export::Gguf => gguf::exists(model),
            Export::Bf16 => bf16::exists(model),
            Export::Further(i) => match further(model).get(i as usize) {
                Some(file) => further::exists(model, file),
                None => Err(Absent::OfOtherModels),
            },
        }
    }

    /// What is where in the file. Waits for facts if the set of tensors depends on them.
    ///
    /// # Errors
    /// The model does not have the file, or what it has to read of the model's files cannot be read.
    pub fn plan(self, model: &Model) -> Result<Plan> {
        if let Err(absent) = self.exists(model) {
            return Err(Error::NotFound(format!(
                "no {}: {absent}",
                self.file_name(model)
            )));
        }
        Ok(match self {
            Export::Merged => safetensors::plan(model, merged(model)),
            Export::Floats => safetensors::plan(model, floats(model)),
            Export::Fused => safetensors::plan(model, fused::items(model)),
            Export::Bin => manifest::bin(model),
            Export::Manifest => manifest::json(model),
            Export::Gguf => return gguf::plan(model),
            Export::Bf16 => safetensors::plan(model, bf16::items(model)),
            Export::Further(i) => {
                let file = further(model).get(i as usize);
                safetensors::plan(
                    model,
                    file.map_or_else(Vec::new, |f| further::items(model, f)),
                )
            }
        })
    }

    /// The file's bytes, from a new plan.
    ///
    /// # Errors
    /// As [`Export::plan`].
    pub fn view(self, model: &Arc<Model>) -> Result<SharedView> {
        Ok(Arc::new(Arc::new(self.plan(model)?).view(model.clone())))
    }

    /// The files that a model might be expected to have but does not, each with the reason.
    pub fn reasons(model: &Model) -> Vec<(Export, Reason)> {
        let why = |export: Export| match export.exists(model) {
            Err(Absent::Because(why)) => Some((export, why)),
            Err(Absent::OfOtherModels) | Ok(()) => None,
        };
        Export::all(model).filter_map(why).collect()
    }
}

/// The files that the model's own definition names.
fn further(model: &Model) -> &[FileOfTensors] {
    let derivation = model.catalog.derivation.as_ref();
    derivation.map_or(&[], |derivation| derivation.exports.all())
}

/// A tensor of an export.
#[derive(Debug, Clone)]
struct Item {
    id: TensorId,
    /// Its values, as elements of `dtype`, rather than its stored bytes.
    as_values: bool,
    dtype: Dtype,
    shape: Box<[u64]>,
    nbytes: u64,
    /// Its name in the file, if that is not its own.
    name: Option<Box<str>>,
}

impl Item {
    /// A tensor's own bytes. If stfs does not know the dtype, they are exported as plain bytes; one that
    /// stfs knows and safetensors does not have is left out, and [`Model::remark`] says so.
    fn raw(model: &Model, id: TensorId) -> Option<Item> {
        let tensor = model.tensor(id).ok()?;
        let (dtype, shape) = match tensor.dtype {
            ElementType::Known(d) => (*d, tensor.shape.into()),
            ElementType::Opaque(_) => return None,
            ElementType::Block(_) | ElementType::Other(_) => (Dtype::U8, [tensor.nbytes].into()),
        };
        Some(Item {
            id,
            as_values: false,
            dtype,
            shape,
            nbytes: tensor.nbytes,
            name: None,
        })
    }

    /// A tensor's values, as `dtype`.
    fn values(model: &Model, id: TensorId, dtype: Dtype) -> Option<Item> {
        let cast = model.tensor(id).ok()?.cast(dtype)?;
        Some(Item {
            id,
            as_values: true,
            dtype,
            shape: cast.shape.into(),
            nbytes: cast.nbytes,
            name: None,
        })
    }

    /// Its name in the file.
    fn name<'a>(&'a self, model: &'a Model) -> &'a str {
        self.name.as_deref().unwrap_or_else(|| model.name(self.id))
    }

    fn piece(&self, start: u64) -> Piece {
        Piece {
            start,
            len: self.nbytes,
            of: match self.as_values {
                true => Run::Values(self.id, self.dtype),
                false => Run::Raw(self.id),
            },
        }
    }
}

fn stored_ids(model: &Model) -> std::ops::Range<TensorId> {
    0..model.catalog.tensors.len() as TensorId
}

fn merged(model: &Model) -> Vec<Item> {
    stored_ids(model)
        .filter_map(|id| Item::raw(model, id))
        .collect()
}

fn floats(model: &Model) -> Vec<Item> {
    float_model(model)
        .into_iter()
        .filter_map(|(id, values)| match values {
            true => Item::values(model, id, Dtype::F32),
            false => Item::raw(model, id),
        })
        .collect()
}

/// The parts of a join that takes stored bytes only, of stored tensors; `None` for anything else.
fn joined_stored_bytes(model: &Model, expr: &Expr) -> Option<Vec<TensorId>> {
    let parts = expr.parts().filter(|_| expr.is_joined_raw())?;
    parts.iter().all(|&id| model.is_stored(id)).then_some(parts)
}
