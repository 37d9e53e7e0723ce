//! bin + manifest, as moeflux and flash-moe write it: `<stem>.bin` holds the bytes, `<stem>.json`
//! says where. Gaps and overlaps are normal; every span must lie inside the `.bin`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::{Map, Value};

use super::source::name_of;
use super::{
    Format, ManifestBits, OpenOptions, Parts, SourceFile, StoredTensor, impostor, small_file,
};
use crate::dtype::{Dtype, ElementType, numel};
use crate::error::{Error, Result};

/// What U32 tensors hold where nothing says otherwise.
const DEFAULT_BITS: u32 = 4;

/// A manifest, parsed, and where it was found.
pub(super) struct Manifest {
    /// The model directory.
    pub dir: PathBuf,
    /// The manifest itself.
    pub json: PathBuf,
    /// The file with the bytes.
    pub bin: PathBuf,
    contents: Map<String, Value>,
}

impl Manifest {
    /// Parses `json` as a manifest if it is one: an object whose `tensors` is an object.
    ///
    /// # Errors
    /// It cannot be read, or is no JSON.
    pub fn parse(dir: &Path, json: &Path, bin: &Path) -> Result<Option<Manifest>> {
        let bytes = small_file::read(json, small_file::MAX_INDEX)?;
        match serde_json::from_slice(&bytes) {
            Ok(Value::Object(contents))
                if contents.get("tensors").is_some_and(Value::is_object) =>
            {
                Ok(Some(Manifest {
                    dir: dir.into(),
                    json: json.into(),
                    bin: bin.into(),
                    contents,
                }))
            }
            Ok(_) => Ok(None),
            Err(e) => Err(impostor::not_json(json, &bytes, &e)),
        }
    }

    /// Its tensors, each by itself.
    pub fn entries(&self) -> impl Iterator<Item = (&String, &Value)> {
        let entries = self.contents.get("tensors").and_then(Value::as_object);
        entries.into_iter().flatten()
    }

    /// Its `config`.
    pub fn config(&self) -> Map<String, Value> {
        match self.contents.get("config") {
            Some(Value::Object(c)) => c.clone(),
            _ => Map::new(),
        }
    }

    /// Reads the pair. With `allow_missing` a `.bin` may lack its end: what does not lie wholly in it
    /// is set aside, and noted.
    ///
    /// # Errors
    /// A span outside the file, a size that disagrees with shape × dtype, a field that is missing or
    /// no number: each names the tensor and both numbers.
    pub fn open(self, options: OpenOptions) -> Result<(Parts, Map<String, Value>)> {
        let file = SourceFile::open(&self.bin, &name_of(&self.bin))?;
        let config = self.config();
        let default_bits = default_bits(&config).map_err(|e| Error::invalid(&self.json, e))?;
        let (mut tensors, mut absent, mut notes) = (Vec::new(), BTreeSet::new(), Vec::new());
        let mut needs = 0;
        for (name, entry) in self.entries() {
            let explain =
                |problem| Error::invalid(&self.json, format!("tensor '{name}': {problem}"));
            let t = tensor(name, entry, default_bits).map_err(explain)?;
            let Err(problem) = check_end(&t, &file) else {
                tensors.push(t);
                continue;
            };
            if absent.is_empty() {
                // Of a file that is something else nothing is there.
                impostor::check(&file)?;
            }
            if !options.allow_missing {
                return Err(explain(problem));
            }
            needs = needs.max(t.offset + t.nbytes);
            absent.insert(t.name);
        }
        if !absent.is_empty() {
            let (n, has) = (absent.len(), file.len());
            notes.push(format!(
                "left out: {n} of the tensors, as {} is cut short: needs {needs} bytes, has {has}",
                file.name
            ));
        }
        let mut metadata = self.contents;
        metadata.remove("tensors");
        let parts = Parts {
            files: vec![file],
            tensors,
            absent,
            notes,
            metadata,
            weight_files: vec![name_of(&self.json), name_of(&self.bin)],
            ..Parts::new(&self.dir, Format::Manifest)
        };
        Ok((parts, config))
    }
}

/// The bits of a U32 tensor that does not give its own.
pub(super) fn default_bits(config: &Map<String, Value>) -> std::result::Result<u32, String> {
    match config.get("default_bits") {
        None | Some(Value::Null) => Ok(DEFAULT_BITS),
        Some(v) => whole(v, "config.default_bits").and_then(|n| {
            u32::try_from(n).map_err(|_| format!("config.default_bits is {n}, too large"))
        }),
    }
}

fn whole(v: &Value, what: &str) -> std::result::Result<u64, String> {
    v.as_u64()
        .ok_or_else(|| format!("{what} is {v}, not a whole number from 0 up"))
}

/// An entry of the manifest, or what is wrong with it.
pub(super) fn tensor(
    name: &str,
    entry: &Value,
    default_bits: u32,
) -> std::result::Result<StoredTensor, String> {
    let field = |key: &str| match entry.get(key) {
        Some(v) => whole(v, key),
        None => Err(format!("has no {key}")),
    };
    let (offset, size) = (field("offset")?, field("size")?);
    if offset.checked_add(size).is_none() {
        return Err(format!("offset {offset} + size {size} overflows 64 bits"));
    }
    let dtype_name = entry
        .get("dtype")
        .and_then(Value::as_str)
        .ok_or("has no dtype")?;
    let dtype = match Dtype::from_name(dtype_name) {
        Some(d) => ElementType::Known(d),
        None => ElementType::Other(dtype_name.into()),
    };
    let shape: Vec<u64> = entry
        .get("shape")
        .and_then(Value::as_array)
        .and_then(|a| a.iter().map(Value::as_u64).collect())
        .ok_or("shape is not an array of whole numbers from 0 up")?;
    let is_u32 = dtype.is(Dtype::U32);
    let explicit = match entry.get("bits") {
        None | Some(Value::Null) => None,
        Some(v) => Some(u32::try_from(whole(v, "bits")?).map_err(|_| "bits is too large")?),
    };
    let bits = explicit.unwrap_or(if is_u32 { default_bits } else { 0 });
    let given = shape.clone();
    let shape = packed_shape(&dtype, shape, size, bits)?;
    let bits = ManifestBits {
        bits,
        explicit: explicit.is_some() || shape != given,
    };
    Ok(StoredTensor {
        name: Arc::from(name),
        dtype,
        shape: shape.into(),
        file: 0,
        offset,
        nbytes: size,
        bits: Some(bits),
    })
}

/// Whether the tensor lies inside the `.bin`, or what is wrong.
pub(super) fn check_end(
    tensor: &StoredTensor,
    bin: &SourceFile,
) -> std::result::Result<(), String> {
    let (end, has) = (tensor.offset + tensor.nbytes, bin.len());
    match end <= has {
        true => Ok(()),
        false => Err(format!(
            "goes past the end of the .bin: needs {end} bytes, has {has}; if the file is cut short download it again, or mount with --allow-missing"
        )),
    }
}

/// The shape of what is stored. For U32 a manifest may give the logical shape instead, so that
/// size = values × bits / 8: then the last dimension is packed.
fn packed_shape(
    dtype: &ElementType,
    mut shape: Vec<u64>,
    size: u64,
    bits: u32,
) -> std::result::Result<Vec<u64>, String> {
    let n = numel(&shape).ok_or_else(|| format!("shape {shape:?} overflows 64 bits"))?;
    let Some(known) = dtype.known() else {
        return Ok(shape);
    };
    let needs = known.bytes(n);
    if needs == Some(size) {
        return Ok(shape);
    }
    if known == Dtype::U32
        && bits > 0
        && n.checked_mul(u64::from(bits)) == size.checked_mul(8)
        && let Some(last) = shape.last_mut()
        && (*last * u64::from(bits)) % 32 == 0
    {
        *last = *last * u64::from(bits) / 32;
        return Ok(shape);
    }
    Err(match needs {
        Some(needs) => format!("{known} {shape:?} needs {needs} bytes, size is {size}"),
        None => format!("{known} {shape:?} is no whole number of bytes, size is {size}"),
    })
}
