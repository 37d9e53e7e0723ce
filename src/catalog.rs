//! The catalog: which tensors a model directory stores, where, and of what dtype and shape. Made
//! from headers and JSON files alone, and validated: every extent lies inside its file.

use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

use crate::dtype::{ElementType, numel};
use crate::error::{Error, Location, Result};
use container::Parts;
use findings::Findings;
use row::{Row, RowBytes};

mod configuration;
mod container;
mod findings;
mod order;
mod row;
mod store;

pub use configuration::{Configuration, Unused};
pub(crate) use container::METADATA;
pub use container::{HeaderProblem, check_header};
pub use findings::{Problem, check};
pub use order::natural;
pub use row::ManifestBits;
pub use store::{Entry, EntryKind, FileState, LocalFile, Object, Piece, Source, Stat, Store};
#[cfg(test)]
pub(crate) use store::{MemoryObject, MemoryStore};

/// A range of bytes of a file.
#[derive(Clone)]
pub struct Extent {
    /// The file.
    pub file: Arc<dyn Object>,
    /// First byte, counted from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A tensor as a file stores it.
#[derive(Debug, Clone)]
pub struct StoredTensor {
    /// The name, exactly as the file has it.
    pub name: Arc<str>,
    /// Element type.
    pub dtype: ElementType,
    /// Shape; `[]` is a scalar. For packed words the shape of the words.
    pub shape: Box<[u64]>,
    /// Index into [`Catalog::files`].
    pub file: u32,
    /// First byte, counted from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub nbytes: u64,
    /// A manifest's `bits` (its `config.default_bits` applied), `None` in safetensors.
    pub bits: Option<ManifestBits>,
}

impl StoredTensor {
    /// Number of elements as the header counts them.
    pub fn numel(&self) -> u64 {
        numel(&self.shape).unwrap_or(0)
    }
}

/// What to tolerate when opening.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// Serve what is there of an incomplete download: shards missing or cut short.
    pub allow_missing: bool,
}

/// All stored tensors of a model, validated.
pub struct Catalog {
    /// The model directory.
    pub store: Arc<dyn Store>,
    /// What was asked for (directory or file): the mount's source.
    pub model: Location,
    /// How the weights are stored, by the name in `model.json`.
    pub format: &'static str,
    /// The weight files, in natural order of their names.
    pub files: Vec<Arc<dyn Object>>,
    /// The tensors, in natural order of their names.
    pub tensors: Vec<StoredTensor>,
    /// Names that an index promises but no file at hand holds (only with `allow_missing`).
    pub absent: BTreeSet<Arc<str>>,
    /// `__metadata__` of the shards (the first that has a key wins), or a manifest's other keys.
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// The model's configuration.
    pub configs: Configuration,
    /// Files of the directory that are weights, index or manifest: not shown under `files/`.
    pub weight_files: Vec<String>,
    /// Opened as one shard by its own path: nothing may be inferred from what is not in it.
    pub lone_file: bool,
    /// Shards are known to be missing, and not what they hold: no index says it.
    pub shards_missing: bool,
    /// Remarks for the log and `ls --why`: stale duplicates left out, shards missing.
    pub notes: Vec<String>,
    by_name: HashMap<Arc<str>, u32>,
}

impl Catalog {
    /// Opens a model: a directory or one of the files of interface section 1.
    ///
    /// # Errors
    /// Whatever is wrong with the model, naming the file, the tensor and the numbers.
    pub fn open(model: &Path, options: OpenOptions) -> Result<Catalog> {
        Catalog::read(&Source::find(model)?, options)
    }

    /// Reads a model that a store has.
    ///
    /// # Errors
    /// As [`Catalog::open`].
    pub fn read(source: &Source, options: OpenOptions) -> Result<Catalog> {
        let claim = container::claim(source)?;
        let parts = claim.read(&mut Findings::first(options))?;
        Catalog::assemble(source.model.clone(), parts)
    }

    /// The index of the stored tensor of that name.
    pub fn find(&self, name: &str) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// Where a stored tensor's bytes lie.
    pub fn extent(&self, tensor: &StoredTensor) -> Extent {
        Extent {
            file: self.files[tensor.file as usize].clone(),
            offset: tensor.offset,
            len: tensor.nbytes,
        }
    }

    /// The same model as if its tensors were described so: names, shapes and extents may differ,
    /// their number and order not.
    pub(crate) fn described_as(&self, tensors: Vec<StoredTensor>) -> Catalog {
        let names = tensors.iter().enumerate();
        Catalog {
            store: self.store.clone(),
            model: self.model.clone(),
            format: self.format,
            files: self.files.clone(),
            absent: self.absent.clone(),
            metadata: self.metadata.clone(),
            configs: self.configs.clone(),
            weight_files: self.weight_files.clone(),
            lone_file: self.lone_file,
            shards_missing: self.shards_missing,
            notes: self.notes.clone(),
            by_name: names.map(|(i, t)| (t.name.clone(), i as u32)).collect(),
            tensors,
        }
    }

    /// Sorts the tensors, refuses a name that two files hold and more bytes than can be added up,
    /// and builds the name table.
    fn assemble(model: Location, parts: Parts) -> Result<Catalog> {
        let Parts {
            store,
            format,
            files,
            tensors,
            absent,
            metadata,
            configs,
            weight_files,
            lone_file,
            shards_missing,
            notes,
        } = parts;
        let mut tensors: Vec<StoredTensor> = tensors.into_iter().map(stored).collect();
        check_total(&model, &tensors)?;
        tensors.sort_by(|a, b| natural(&a.name, &b.name).then(a.file.cmp(&b.file)));
        let mut by_name = HashMap::with_capacity(tensors.len());
        for (i, t) in tensors.iter().enumerate() {
            if let Some(first) = by_name.insert(t.name.clone(), i as u32) {
                let (a, b) = (
                    &files[tensors[first as usize].file as usize],
                    &files[t.file as usize],
                );
                return Err(Error::invalid(
                    store.location(),
                    format!(
                        "tensor '{}' is in two files, {} and {}, and no index says which counts; remove one, or mount one file by its path",
                        t.name,
                        a.name(),
                        b.name()
                    ),
                ));
            }
        }
        Ok(Catalog {
            store,
            model,
            format,
            files,
            tensors,
            absent,
            metadata,
            configs,
            weight_files,
            lone_file,
            shards_missing,
            notes,
            by_name,
        })
    }
}

/// The most bytes that all tensors may have together: 64 PiB. Overlapping spans and files with holes
/// can promise more than 64 bits count; below this, sums over tensors need no check, even of values
/// as F32 that are packed in two bits each, and with an export's header and alignment added.
const MAX_TOTAL: u64 = 1 << 56;

/// Refuses tensors of more bytes together than can be added up.
fn check_total(model: &Location, tensors: &[StoredTensor]) -> Result<()> {
    let total: u128 = tensors.iter().map(|t| u128::from(t.nbytes)).sum();
    if total <= MAX_TOTAL.into() {
        return Ok(());
    }
    let count = tensors.len();
    Err(Error::invalid(
        model,
        format!(
            "its {count} tensors have {total} bytes together, at most {MAX_TOTAL} are served; spans that overlap this much are damage"
        ),
    ))
}

/// A container's row as the catalog keeps it.
fn stored(row: Row) -> StoredTensor {
    let (file, offset) = match row.bytes {
        RowBytes::Extent { file, offset } => (file, offset),
        RowBytes::View(_) => (0, 0),
    };
    StoredTensor {
        name: row.name,
        dtype: row.dtype,
        shape: row.shape,
        file,
        offset,
        nbytes: row.nbytes,
        bits: row.bits,
    }
}

impl Catalog {
    /// Owner, permissions and mtime for what stands for the whole model: the strictest of its files.
    pub fn stat(&self) -> Stat {
        Stat::strictest(self.files.iter().map(|f| *f.stat())).unwrap_or_else(|| self.dir_stat())
    }

    /// Owner, permissions and mtime of the model directory.
    pub fn dir_stat(&self) -> Stat {
        self.store.attributes()
    }
}
