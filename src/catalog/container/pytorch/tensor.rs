//! A rebuilt tensor as a row of the catalog: checks it against its storage.

use std::sync::Arc;

use serde_json::{Value as Json, json};

use super::dtype::{Elements, TorchDtype};
use super::file::Storages;
use super::pickle::{Pickle, Rebuilt, Storage, Strided, Value};
use crate::catalog::row::{Row, RowBytes, RowOrigin};
use crate::catalog::{Extent, Object};
use crate::dtype::{Dtype, ElementType, Opaque};
use crate::reason::{Reason, reason};
use crate::view::{Gathered, StoredBytes, StridedLayout, Swap};

mod geometry;
#[cfg(test)]
mod tests;

use geometry::Geometry;

/// What becomes of a tensor.
pub(super) enum Made {
    /// It is served.
    Row(Row),
    /// It is left out, and why.
    LeftOut(Reason),
    /// Its storage is not in the file: the file is cut short, or the storage has a problem of its own.
    Lost,
}

/// Makes the rows of a checkpoint's tensors.
pub(super) struct Tensors<'a> {
    pub pickle: &'a Pickle,
    pub storages: &'a Storages,
    /// The file, and its number in the model.
    pub file: &'a Arc<dyn Object>,
    pub index: u32,
}

/// A tensor that was checked against its storage.
struct Placed<'p> {
    storage: Storage<'p>,
    dtype: &'static TorchDtype,
    /// As the catalog has it.
    element: ElementType,
    geometry: Geometry,
    /// The byte of the file where its first element lies.
    start: u64,
}

/// [`Made`], before it is a row.
enum Checked<'p> {
    Placed(Placed<'p>),
    LeftOut(Reason),
    Lost,
}

impl<'a> Tensors<'a> {
    /// Makes a tensor's row.
    ///
    /// # Errors
    /// What is wrong with it, with both numbers.
    pub fn make(&self, name: &Arc<str>, tensor: Rebuilt<'a>) -> Result<Made, Reason> {
        let (strided, placed) = match tensor {
            Rebuilt::LeftOut(why) => return Ok(Made::LeftOut(why.into())),
            Rebuilt::Malformed(why) => return Err(why.into()),
            Rebuilt::Strided(strided) => match self.place(&strided)? {
                Checked::LeftOut(why) => return Ok(Made::LeftOut(why)),
                Checked::Lost => return Ok(Made::Lost),
                Checked::Placed(placed) => (strided, placed),
            },
        };
        Ok(Made::Row(self.row(name, &strided, placed)))
    }

    /// Checks a tensor that is not served.
    ///
    /// # Errors
    /// As [`Tensors::make`].
    pub fn check(&self, tensor: Rebuilt<'a>) -> Result<(), Reason> {
        match tensor {
            Rebuilt::LeftOut(_) => Ok(()),
            Rebuilt::Malformed(why) => Err(why.into()),
            Rebuilt::Strided(strided) => self.place(&strided).map(|_| ()),
        }
    }

    /// Checks a tensor against its storage.
    fn place(&self, strided: &Strided<'_>) -> Result<Checked<'a>, Reason> {
        let (storage, dtype) = elements(self.pickle, strided)?;
        let mut geometry = Geometry::read(self.pickle, strided, dtype.bytes)?;
        let element = match dtype.elements {
            Elements::Plain(dtype) => ElementType::Known(dtype),
            Elements::Opaque(name) => match Opaque::from_name(name) {
                Some(opaque) => ElementType::Opaque(opaque),
                None => ElementType::Other(name.into()),
            },
            Elements::Pairs(pairs) => {
                if !geometry.double_last()? {
                    return Ok(Checked::LeftOut(reason!(
                        "a scalar of torch.{}, which has no last dimension to count its pairs of values in",
                        dtype.name
                    )));
                }
                ElementType::Known(pairs)
            }
            Elements::Quantized => {
                return Ok(Checked::LeftOut(reason!(
                    "quantized: torch.{}, without a scheme",
                    dtype.name
                )));
            }
        };
        let Some(range) = self.storages.of.get(storage.key) else {
            return Ok(Checked::Lost);
        };
        let has = range.end.saturating_sub(range.start);
        let window = window(&storage, has)?;
        let what = || {
            let key = super::describe::short(&String::from_utf8_lossy(storage.key)).into_owned();
            match storage.window {
                None => format!("storage {key}"),
                Some(_) => format!("its window of storage {key}"),
            }
        };
        let inside = geometry.first_byte(window.len, what)?;
        if self.storages.big_endian && strided.dtype.is_some() && dtype.bytes > 1 {
            return Ok(Checked::LeftOut(reason!(
                "torch.{} rebuilt by _rebuild_tensor_v3 in a big-endian file: PyTorch does not swap the bytes of such elements",
                dtype.name
            )));
        }
        let start = range.start.saturating_add(window.start + inside);
        Ok(Checked::Placed(Placed {
            storage,
            dtype,
            element,
            geometry,
            start,
        }))
    }

    fn row(&self, name: &Arc<str>, strided: &Strided<'_>, placed: Placed<'_>) -> Row {
        let Placed {
            storage,
            dtype,
            element,
            geometry,
            start,
        } = placed;
        let group = match self.storages.big_endian {
            true => swap_group(dtype),
            false => 1,
        };
        let nbytes = geometry.nbytes;
        let swapped = group > 1 && nbytes > 0;
        let mut fields: Vec<(&'static str, Json)> =
            vec![("storage", String::from_utf8_lossy(storage.key).into())];
        let (kind, bytes) = if geometry.is_contiguous() && !swapped {
            let (file, offset) = (self.index, start);
            ("stored", RowBytes::Extent { file, offset })
        } else {
            fields.push(("strides", json!(geometry.strides)));
            let source = StoredBytes(Extent {
                file: self.file.clone(),
                offset: start,
                len: geometry.hull,
            });
            let layout = StridedLayout {
                element: dtype.bytes,
                shape: geometry.sizes.as_slice().into(),
                strides: geometry.strides.as_slice().into(),
                swap: match group {
                    1 => Swap::Nothing,
                    group => Swap::Groups(group),
                },
            };
            let view = RowBytes::View {
                view: Arc::new(Gathered::new(Arc::new(source), layout)),
                files: [self.index].into(),
                offset: Some(start),
            };
            ("strided", view)
        };
        if storage.location != "cpu" {
            fields.push(("device", storage.location.into()));
        }
        if let Some(class) = strided.class {
            fields.push(("class", class.into()));
        }
        if swapped {
            fields.push(("byteorder", "big".into()));
        }
        Row {
            name: name.clone(),
            dtype: element,
            shape: geometry.shape().into(),
            bytes,
            nbytes,
            bits: None,
            origin: Some(Box::new(RowOrigin {
                kind,
                fields: fields.into(),
            })),
        }
    }
}

/// The storage of a tensor, and the dtype that its numbers count in.
fn elements<'p>(
    pickle: &'p Pickle,
    strided: &Strided<'_>,
) -> Result<(Storage<'p>, &'static TorchDtype), Reason> {
    let Value::Storage(storage) = pickle.get(strided.storage) else {
        let kind = pickle.describe(strided.storage);
        return Err(reason!("its storage is {kind}, not a storage"));
    };
    let dtype = strided.dtype.or(storage.dtype);
    // PyTorch takes an untyped storage for one of bytes.
    let dtype = dtype.or_else(|| TorchDtype::all().find(|d| d.name == "uint8"));
    let dtype = dtype.ok_or("its storage has no dtype")?;
    Ok((storage, dtype))
}

/// The part of a storage that a tensor may use, in bytes.
struct Window {
    start: u64,
    len: u64,
}

fn window(storage: &Storage<'_>, has: u64) -> Result<Window, Reason> {
    let Some((offset, len)) = storage.window else {
        return Ok(Window { start: 0, len: has });
    };
    let element = u128::from(storage.dtype.map_or(1, |dtype| dtype.bytes));
    let (start, len) = (u128::from(offset) * element, u128::from(len) * element);
    let end = start + len;
    let inside = u64::try_from(start).ok().zip(u64::try_from(len).ok());
    match inside.filter(|_| end <= u128::from(has)) {
        Some((start, len)) => Ok(Window { start, len }),
        None => Err(reason!(
            "its window of storage {} needs {end} bytes, the storage has {has}",
            super::describe::short(&String::from_utf8_lossy(storage.key))
        )),
    }
}

/// How many bytes of an element trade places when the byte order changes: those of a number. A complex
/// number is two.
fn swap_group(dtype: &TorchDtype) -> u32 {
    let complex = match dtype.elements {
        Elements::Plain(dtype) => dtype == Dtype::C64,
        Elements::Opaque(name) => matches!(name, "C128" | "C32" | "BC32"),
        Elements::Pairs(_) | Elements::Quantized => false,
    };
    match complex {
        true => dtype.bytes / 2,
        false => dtype.bytes,
    }
}

/// The bytes of a tensor's elements, unchecked: 0 if it has no data or makes no sense, at most
/// 2^64 − 1.
pub(super) fn bytes(pickle: &Pickle, tensor: &Rebuilt<'_>) -> u64 {
    let Rebuilt::Strided(strided) = tensor else {
        return 0;
    };
    let Ok((_, dtype)) = elements(pickle, strided) else {
        return 0;
    };
    geometry::numel(pickle, strided.size).saturating_mul(dtype.bytes.into())
}
