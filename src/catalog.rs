//! The catalog: which tensors a model directory stores, where, and of what dtype and shape. Made
//! from headers and JSON files alone, and validated: every extent lies inside its file.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::dtype::ElementType;
use crate::error::{Error, Result};
use crate::view::{SharedView, StoredBytes};
use source::Source;

mod check;
mod config;
mod impostor;
mod manifest;
mod mapped_file;
mod numbered;
mod order;
mod regular_file;
mod safetensors;
mod shards;
mod small_file;
mod source;
mod tensors;
mod weight_map;

pub use check::{Problem, check};
pub use config::{Configs, Unused};
pub use mapped_file::{MappedSlice, SourceFile, Stat};
pub use order::natural;
pub(crate) use safetensors::METADATA;
pub use safetensors::{HeaderProblem, check_header};
pub use tensors::{TensorRef, Tensors};

/// A range of bytes of a file.
#[derive(Clone)]
pub struct Extent {
    /// The file.
    pub file: Arc<SourceFile>,
    /// First byte, counted from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub len: u64,
}

/// A tensor as a container hands it over.
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

/// What a manifest says of a tensor's packed width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManifestBits {
    /// Bits per packed value; 0 for a tensor that packs nothing.
    pub bits: u32,
    /// Whether the tensor's own entry tells it, by `bits` or by a shape that counts the values (else
    /// it is a default).
    pub explicit: bool,
}

/// How the weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// One or more safetensors files.
    Safetensors,
    /// A `.bin` and its JSON manifest.
    Manifest,
}

impl Format {
    /// The name in `model.json`.
    pub fn name(self) -> &'static str {
        match self {
            Format::Safetensors => "safetensors",
            Format::Manifest => "manifest",
        }
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
    /// The model directory, absolute.
    pub dir: PathBuf,
    /// What was asked for (directory or file), absolute: the mount's source.
    pub model: PathBuf,
    /// How the weights are stored.
    pub format: Format,
    /// The weight files, in natural order of their names.
    pub files: Vec<Arc<SourceFile>>,
    /// The tensors, in natural order of their names.
    pub tensors: Tensors,
    /// Names that an index promises but no file at hand holds (only with `allow_missing`).
    pub absent: BTreeSet<Arc<str>>,
    /// `__metadata__` of the shards (the first that has a key wins), or a manifest's other keys.
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// The config files beside the weights.
    pub configs: Configs,
    /// Files of the directory that are weights, index or manifest: not shown under `files/`.
    pub weight_files: Vec<String>,
    /// Opened as one shard by its own path: nothing may be inferred from what is not in it.
    pub lone_file: bool,
    /// Shards are known to be missing, and not what they hold: no index says it.
    pub shards_missing: bool,
    /// Remarks for the log and `ls --why`: stale duplicates left out, shards missing.
    pub notes: Vec<String>,
}

impl Catalog {
    /// Opens a model: a directory or one of the files of interface section 1.
    ///
    /// # Errors
    /// Whatever is wrong with the model, naming the file, the tensor and the numbers.
    pub fn open(model: &Path, options: OpenOptions) -> Result<Catalog> {
        let model = source::absolute(model)?;
        match Source::find(&model)? {
            Source::Shards { dir, names, lone } => {
                Catalog::assemble(model, shards::open_all(&dir, &names, lone, options)?)
            }
            Source::Indexed { dir, index } => {
                Catalog::assemble(model, shards::open_indexed(&dir, &index, options)?)
            }
            Source::Manifest(manifest) => {
                let (parts, config) = manifest.open(options)?;
                let mut catalog = Catalog::assemble(model, parts)?;
                catalog.configs.manifest = Some(config);
                Ok(catalog)
            }
            Source::Unreadable { error, .. } => Err(error),
        }
    }

    /// The index of the stored tensor of that name.
    pub fn find(&self, name: &str) -> Option<u32> {
        self.tensors.find(name)
    }

    /// Where the tensor of that index lies; `None` if it is not one run of one file.
    pub fn extent(&self, index: u32) -> Option<Extent> {
        let (file, offset) = self.tensors.place(index);
        Some(Extent {
            file: self.files[file as usize].clone(),
            offset,
            len: self.tensors.get(index).nbytes,
        })
    }

    /// The file that holds the tensor of that index, and its first byte there.
    pub(crate) fn place(&self, index: u32) -> (&Arc<SourceFile>, u64) {
        let (file, offset) = self.tensors.place(index);
        (&self.files[file as usize], offset)
    }

    /// The bytes of the tensor of that index.
    pub fn bytes(&self, index: u32) -> SharedView {
        let (file, offset) = self.tensors.place(index);
        Arc::new(StoredBytes(Extent {
            file: self.files[file as usize].clone(),
            offset,
            len: self.tensors.get(index).nbytes,
        }))
    }

    /// Indexes of the files that the tensor of that index lies in.
    pub fn files_of(&self, index: u32) -> impl Iterator<Item = u32> {
        std::iter::once(self.tensors.place(index).0)
    }

    /// Sorts the tensors, refuses a name that two files hold and more bytes than can be added up,
    /// and builds the name table.
    fn assemble(model: PathBuf, parts: Parts) -> Result<Catalog> {
        let Parts {
            dir,
            format,
            files,
            mut tensors,
            absent,
            metadata,
            weight_files,
            lone_file,
            shards_missing,
            notes,
        } = parts;
        check_total(&model, &tensors)?;
        tensors.sort_by(|a, b| natural(&a.name, &b.name).then(a.file.cmp(&b.file)));
        let name_bytes = tensors.iter().map(|t| t.name.len()).sum();
        let mut table = Tensors::with_capacity(tensors.len(), name_bytes);
        for tensor in tensors {
            let (name, file) = (tensor.name.clone(), tensor.file);
            if let Err(first) = table.push(tensor) {
                let (a, b) = (&files[table.place(first).0 as usize], &files[file as usize]);
                return Err(Error::invalid(
                    &dir,
                    format!(
                        "tensor '{name}' is in two files, {} and {}, and no index says which counts; remove one, or mount one file by its path",
                        a.name, b.name
                    ),
                ));
            }
        }
        let configs = Configs::new(&dir);
        Ok(Catalog {
            dir,
            model,
            format,
            files,
            tensors: table,
            absent,
            metadata,
            configs,
            weight_files,
            lone_file,
            shards_missing,
            notes,
        })
    }
}

/// The most bytes that all tensors may have together: 64 PiB. Overlapping spans and files with holes
/// can promise more than 64 bits count; below this, sums over tensors need no check, even of values
/// as F32 that are packed in two bits each, and with an export's header and alignment added.
const MAX_TOTAL: u64 = 1 << 56;

/// Refuses tensors of more bytes together than can be added up.
fn check_total(model: &Path, tensors: &[StoredTensor]) -> Result<()> {
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

/// What a reader of one format hands over for [`Catalog::assemble`].
struct Parts {
    dir: PathBuf,
    format: Format,
    /// In natural order of their names.
    files: Vec<Arc<SourceFile>>,
    tensors: Vec<StoredTensor>,
    absent: BTreeSet<Arc<str>>,
    metadata: serde_json::Map<String, serde_json::Value>,
    weight_files: Vec<String>,
    lone_file: bool,
    shards_missing: bool,
    notes: Vec<String>,
}

impl Parts {
    /// Nothing yet of a model in `dir`.
    fn new(dir: &Path, format: Format) -> Parts {
        Parts {
            dir: dir.to_path_buf(),
            format,
            files: Vec::new(),
            tensors: Vec::new(),
            absent: BTreeSet::new(),
            metadata: serde_json::Map::new(),
            weight_files: Vec::new(),
            lone_file: false,
            shards_missing: false,
            notes: Vec::new(),
        }
    }
}

impl Catalog {
    /// Owner, permissions and mtime for what stands for the whole model: the strictest of its files.
    pub fn stat(&self) -> Stat {
        Stat::strictest(self.files.iter().map(|f| f.stat)).unwrap_or_else(|| self.dir_stat())
    }

    /// Owner, permissions and mtime of the model directory.
    pub fn dir_stat(&self) -> Stat {
        std::fs::metadata(&self.dir).map_or(
            Stat {
                len: 0,
                uid: 0,
                gid: 0,
                mode: 0o555,
                mtime: (0, 0),
                ino: 0,
            },
            |m| Stat::of(&m),
        )
    }
}
