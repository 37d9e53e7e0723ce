//! The files of a tensor, as a table with a row for each: where it is, which tensors have it, its length
//! and its bytes. A new file is a variant and a row.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use super::Top;
use super::generated::LARGE;
use crate::dtype::{Dtype, ElementType};
use crate::error::{Error, Result};
use crate::meta::meta_json;
use crate::model::{Expr, Model, Tensor, TensorId};
use crate::view::{Bytes, Deferred, SharedView};
use crate::{memory, patience, preview};

mod cast;

/// A file that tensors have. Inode numbers depend on the order: a new one comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TensorFile {
    /// The stored bytes.
    Raw,
    /// The values as binary32.
    F32,
    /// A NumPy file.
    Npy,
    /// A picture.
    Preview,
    /// What the tensor is, as JSON.
    Meta,
    /// The values as BF16.
    Bf16,
    /// The values as F16.
    F16,
}

/// Where a tensor's file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// `tensors/<tensor>/<this>`
    Inside(&'static str),
    /// `<directory>/<tensor><suffix>`: the only files in that directory.
    Beside {
        /// The directory.
        dir: Top,
        /// The end of the file's name.
        suffix: &'static str,
    },
}

/// dtype and shape of the array that a file holds.
pub struct Shown {
    /// Element type.
    pub dtype: ElementType,
    /// Sizes, outermost first; empty for a scalar.
    pub shape: Box<[u64]>,
}

/// Gives the bytes of an array, if a tensor has it.
pub type ArrayBytes = fn(&Model, TensorId) -> Result<Option<SharedView>>;

/// One of a tensor's files.
pub struct Row {
    /// Which one.
    pub file: TensorFile,
    /// Where it is.
    pub place: Place,
    /// Whether listings contain it. A file that is not listed can still be opened.
    pub listed: bool,
    /// Its name for `stfs cat --view`, and among the `views` of `meta.json`.
    pub view_name: &'static str,
    /// Its description in `stfs cat --help`.
    pub help: &'static str,
    /// For the error about a tensor without this file: what the tensor lacks.
    pub lacks: &'static str,
    /// Whether the header alone decides that it exists: facts in tensor data do not matter.
    pub by_header: bool,
    /// Whether its bytes come from the source files' data, rather than from what is in memory.
    pub reads_sources: bool,
    /// Whether its bytes are kept in memory, so that all who have it open should share one view.
    pub is_shared: bool,
    /// Whether its length is worth remembering, because the file must be generated to measure it.
    pub remember_len: bool,
    /// Whether a tensor has it.
    pub exists: fn(&Model, TensorId, &Tensor<'_>) -> bool,
    /// The array that it holds; `None` for a document.
    pub shown: fn(&Model, TensorId, &Tensor<'_>) -> Option<Shown>,
    /// Its length in bytes, of a tensor that has it.
    pub len: fn(&Model, TensorId, &Tensor<'_>) -> u64,
    /// Its object among the `views` of `meta.json`, if it has one.
    pub describe: fn(&Model, TensorId, &Tensor<'_>) -> Option<Value>,
    /// What the array is made of; `None` for a document.
    pub made_of: fn(&Model, TensorId, &Tensor<'_>) -> Option<Expr>,
    /// The bytes of the array alone, if that is not the whole file.
    pub array: Option<ArrayBytes>,
    /// Its bytes; `None` for a tensor that does not have it.
    pub view: fn(&Arc<Model>, TensorId) -> Result<Option<SharedView>>,
}

/// All files of a tensor, in the order of their variants: that of listings and of `meta.json`.
static ROWS: [Row; TensorFile::COUNT] = [
    Row {
        file: TensorFile::Raw,
        place: Place::Inside("raw"),
        listed: true,
        view_name: "raw",
        help: "The stored bytes",
        lacks: "bytes",
        by_header: true,
        reads_sources: true,
        is_shared: false,
        remember_len: false,
        exists: |_, _, _| true,
        shown: |_, _, tensor| shown(tensor.dtype.clone(), tensor.shape),
        len: |_, _, tensor| tensor.nbytes,
        describe: |_, _, tensor| {
            let dtype = tensor.dtype.name();
            Some(json!({"dtype": dtype, "shape": tensor.shape, "nbytes": tensor.nbytes}))
        },
        made_of: |_, _, tensor| Some(tensor.raw.clone()),
        array: None,
        view: |model, id| model.raw(id).map(Some),
    },
    Row {
        file: TensorFile::F32,
        place: Place::Inside("f32"),
        listed: true,
        view_name: "f32",
        help: "The values as little-endian binary32",
        lacks: "values, and so no f32",
        by_header: false,
        reads_sources: true,
        is_shared: false,
        remember_len: false,
        exists: |_, _, tensor| tensor.values.is_some(),
        shown: |_, _, tensor| shown(Dtype::F32.into(), tensor.values.as_ref()?.shape),
        len: |_, _, tensor| tensor.f32_len().unwrap_or(0),
        describe: |_, _, tensor| {
            let values = tensor.values.as_ref()?;
            let (shape, nbytes) = (values.shape, tensor.f32_len());
            Some(json!({"dtype": "F32", "shape": shape, "nbytes": nbytes, "exact": values.exact}))
        },
        made_of: |_, _, tensor| Some(tensor.f32_expr().clone()),
        array: None,
        view: |model, id| model.f32(id),
    },
    Row {
        file: TensorFile::Npy,
        place: Place::Beside {
            dir: Top::Npy,
            suffix: ".npy",
        },
        listed: true,
        view_name: "npy",
        help: "A NumPy file",
        lacks: ".npy: NumPy lacks its dtype",
        by_header: false,
        reads_sources: true,
        is_shared: false,
        remember_len: false,
        exists: |_, _, tensor| tensor.npy_kind().is_some(),
        shown: |_, _, tensor| {
            let kind = tensor.npy_kind()?;
            let dtype = match kind.of_values {
                true => Dtype::F32.into(),
                false => tensor.dtype.clone(),
            };
            shown(dtype, kind.shape)
        },
        len: |_, _, tensor| tensor.npy_len().unwrap_or(0),
        describe: |_, _, tensor| {
            let (kind, nbytes) = (tensor.npy_kind()?, tensor.npy_len()?);
            Some(json!({"descr": kind.descr, "shape": kind.shape, "nbytes": nbytes}))
        },
        made_of: |_, _, tensor| {
            Some(match tensor.npy_kind()?.of_values {
                true => tensor.f32_expr().clone(),
                false => tensor.raw.clone(),
            })
        },
        array: Some(|model, id| model.npy_array(id)),
        view: |model, id| model.npy(id),
    },
    Row {
        file: TensorFile::Preview,
        place: Place::Beside {
            dir: Top::Preview,
            suffix: ".png",
        },
        listed: true,
        view_name: "png",
        help: "A picture of the weights",
        lacks: "values, and so no picture",
        by_header: false,
        reads_sources: true,
        is_shared: true,
        remember_len: false,
        exists: |_, _, tensor| tensor.values.is_some(),
        shown: |_, _, _| None,
        len: |_, _, tensor| picture_len(tensor).unwrap_or(0),
        describe: |_, _, _| None,
        made_of: |_, _, _| None,
        array: None,
        view: picture,
    },
    Row {
        file: TensorFile::Meta,
        place: Place::Inside("meta.json"),
        listed: true,
        view_name: "meta",
        help: "meta.json",
        lacks: "description",
        by_header: false,
        reads_sources: false,
        is_shared: true,
        remember_len: true,
        exists: |_, _, _| true,
        shown: |_, _, _| None,
        len: |model, id, _| document(model, id).len() as u64,
        describe: |_, _, _| None,
        made_of: |_, _, _| None,
        array: None,
        view: |model, id| Ok(Some(Arc::new(Bytes(document(model, id).into())))),
    },
    cast::BF16,
    cast::F16,
];

impl TensorFile {
    /// The number of rows: the last variant has the last row.
    pub const COUNT: usize = TensorFile::F16 as usize + 1;

    /// Its row of the table.
    pub fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// All of them, in the order of the table.
    pub fn all() -> impl Iterator<Item = &'static Row> {
        ROWS.iter()
    }

    /// The file of that name in a tensor's directory.
    pub fn inside(name: &str) -> Option<TensorFile> {
        TensorFile::all()
            .find(|row| matches!(row.place, Place::Inside(own) if own == name))
            .map(|row| row.file)
    }

    /// The tensors' file that the directory `in_dir` holds, and the end of its name.
    pub fn beside(in_dir: Top) -> Option<(TensorFile, &'static str)> {
        TensorFile::all().find_map(|row| match row.place {
            Place::Beside { dir, suffix } if dir == in_dir => Some((row.file, suffix)),
            _ => None,
        })
    }
}

fn shown(dtype: ElementType, shape: &[u64]) -> Option<Shown> {
    Some(Shown {
        dtype,
        shape: shape.into(),
    })
}

/// To describe more parts than this takes too long for a thread that others wait for.
const MANY_PARTS: usize = 1000;

/// A tensor's `meta.json`. Empty if it would take long and the thread must not: then the attempt is void.
pub(crate) fn document(model: &Model, id: TensorId) -> Vec<u8> {
    let mut views = Map::new();
    if let Ok(tensor) = model.tensor(id) {
        let is_long = tensor.raw.operands().len() > MANY_PARTS;
        if is_long && patience::take_long().is_err() {
            return Vec::new();
        }
        for row in TensorFile::all() {
            let view = (row.describe)(model, id, &tensor);
            views.extend(view.map(|view| (row.view_name.to_string(), view)));
        }
    }
    let document = meta_json(model, id, views);
    if document.len() as u64 > LARGE {
        memory::give_back();
    }
    document
}

fn picture_len(tensor: &Tensor<'_>) -> Option<u64> {
    let values = tensor.values.as_ref()?;
    Some(preview::png_len(values.shape))
}

/// A tensor's picture, rendered on first read.
fn picture(model: &Arc<Model>, id: TensorId) -> Result<Option<SharedView>> {
    let Some(len) = model.tensor(id).ok().and_then(|t| picture_len(&t)) else {
        return Ok(None);
    };
    let model = model.clone();
    let picture = Deferred::new(len, move || {
        let subject = preview::Subject::of(&model, id)?
            .ok_or_else(|| Error::NotFound(format!("'{}' has no values", model.name(id))))?;
        preview::render(&subject)
    });
    Ok(Some(Arc::new(picture)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_at_their_variants_and_no_two_at_one_place() {
        for (i, row) in TensorFile::all().enumerate() {
            assert_eq!(row.file as usize, i);
            assert!(std::ptr::eq(row.file.row(), row));
            let found = match row.place {
                Place::Inside(name) => TensorFile::inside(name),
                Place::Beside { dir, suffix } => TensorFile::beside(dir)
                    .filter(|found| found.1 == suffix)
                    .map(|f| f.0),
            };
            assert_eq!(found, Some(row.file));
            let names = TensorFile::all().filter(|r| r.view_name == row.view_name);
            assert_eq!(names.count(), 1);
        }
        assert_eq!(TensorFile::inside("x"), None);
        assert_eq!(TensorFile::beside(Top::Files), None);
    }
}
