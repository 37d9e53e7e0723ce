//! The catalog: which tensors a model directory stores, where, and with what dtype and shape. It is
//! built from headers and JSON files alone, and validated: every extent lies inside its file.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Location, Result};
use crate::reason::Reason;
use crate::view::{Effort, SharedView, StoredBytes};
use container::Parts;
use findings::Findings;

mod configuration;
mod container;
mod derivation;
mod findings;
#[cfg(test)]
#[path = "../tests/common/gguf.rs"]
pub(crate) mod gguf_file;
mod order;
mod row;
mod store;
mod tensors;

pub(crate) use configuration::MAX_CONFIG;
pub use configuration::{Configuration, Unused};
pub(crate) use container::METADATA;
pub(crate) use container::gguf;
pub use container::{check_gguf, check_header, check_pickle};
pub use derivation::{BUILT_IN_EXPORTS, Derivation, FileOfTensors, Provenance, StoredParts};
pub use findings::{HeaderProblem, Problem, check, check_source};
pub use order::natural;
pub use row::{ManifestBits, Row, RowBytes, RowOrigin};
pub use store::{
    ACL_XATTR, Acl, Audience, Entry, EntryKind, FileState, LocalFile, Look, MadeFile, Object,
    Overlay, Piece, Source, Stat, Store, steady,
};
#[cfg(test)]
pub(crate) use store::{MemoryObject, MemoryStore};
use tensors::Stored;
pub use tensors::{TensorRef, Tensors};

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

/// What to tolerate when opening.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenOptions {
    /// Serve the part of an incomplete download that has arrived: shards may be missing or cut
    /// short.
    pub allow_missing: bool,
}

/// Makes the bytes of a JSON file from a source.
///
/// # Errors
/// The source cannot be read, or is no longer what it was.
pub type MakeJson = Box<dyn Fn() -> Result<Vec<u8>> + Send + Sync>;

/// All stored tensors of a model, validated.
pub struct Catalog {
    /// The model directory.
    pub store: Arc<dyn Store>,
    /// What was asked for (directory or file): the mount's source.
    pub model: Location,
    /// How the weights are stored, by the name in `model.json`.
    pub format: &'static str,
    /// The weight files, in natural order of their names; then, of derived tensors, the files that define them.
    pub files: Vec<Arc<dyn Object>>,
    /// The tensors, in natural order of their names.
    pub tensors: Tensors,
    /// Names that an index lists but no available file holds (only with `allow_missing`).
    pub absent: BTreeSet<Arc<str>>,
    /// Tensors that the files hold but that cannot be served (sparse ones of PyTorch), and why.
    pub left_out: BTreeMap<Arc<str>, Reason>,
    /// `__metadata__` of the shards (the first that has a key wins), a manifest's other keys, or those of
    /// a GGUF file.
    pub metadata: serde_json::Map<String, serde_json::Value>,
    /// Makes `metadata.json`: every key of the container, in full. `None` if the container has no keys
    /// besides [`Catalog::metadata`].
    pub metadata_json: Option<MakeJson>,
    /// Further keys of `model.json` that the container has.
    pub summary: serde_json::Map<String, serde_json::Value>,
    /// The model's configuration.
    pub configs: Configuration,
    /// Files of the directory that are weights, index or manifest: not shown under `files/`.
    pub weight_files: Vec<String>,
    /// Opened as one shard by its own path: nothing may be inferred from tensors that it lacks.
    pub lone_file: bool,
    /// Shards are known to be missing, and no index lists what they hold.
    pub shards_missing: bool,
    /// Remarks for the log and `ls --why`: stale duplicates left out, shards missing.
    pub notes: Vec<String>,
    /// If the tensors are made from those of other models: how, and what comes with it.
    pub derivation: Option<Derivation>,
}

impl Catalog {
    /// Opens a model for the caller alone: a directory or one of the files of interface section 1.
    ///
    /// # Errors
    /// Whatever is wrong with the model, naming the file, the tensor and the numbers.
    pub fn open(model: &Path, options: OpenOptions) -> Result<Catalog> {
        Catalog::read(&Source::find(model, Audience::Caller)?, options)
    }

    /// Reads a model from a store.
    ///
    /// # Errors
    /// As [`Catalog::open`].
    pub fn read(source: &Source, options: OpenOptions) -> Result<Catalog> {
        let claim = container::claim(source)?;
        let parts = claim.read(&mut Findings::first(options))?;
        Catalog::assemble(&source.model, parts)
    }

    /// A catalog of rows that lie in one file, for tests.
    #[cfg(test)]
    pub(crate) fn of_rows(
        source: &Source,
        files: Vec<Arc<dyn Object>>,
        rows: Vec<Row>,
    ) -> Result<Catalog> {
        let mut parts = Parts::new(&source.store, "test", Configuration::default());
        parts.catalog.files = files;
        parts.rows = rows;
        Catalog::assemble(&source.model, parts)
    }

    /// The index of the stored tensor of that name.
    pub fn find(&self, name: &str) -> Option<u32> {
        self.tensors.find(name)
    }

    /// Where the tensor of that index lies; `None` if it is not a contiguous range of one file.
    pub fn extent(&self, index: u32) -> Option<Extent> {
        let (file, offset) = self.place(index)?;
        Some(Extent {
            file: file.clone(),
            offset,
            len: self.tensors.get(index).nbytes,
        })
    }

    /// As [`Catalog::extent`]: the file, and the first byte there.
    pub(crate) fn place(&self, index: u32) -> Option<(&Arc<dyn Object>, u64)> {
        match self.tensors.bytes(index) {
            Stored::Extent { file, offset } => Some((&self.files[file as usize], offset)),
            Stored::View { .. } => None,
        }
    }

    /// The file that holds the first element of the tensor of that index, and its first byte there; also
    /// of a tensor that is not contiguous.
    pub(crate) fn first_byte(&self, index: u32) -> Option<(&Arc<dyn Object>, u64)> {
        match self.tensors.bytes(index) {
            Stored::View { files, offset, .. } => {
                let file = self.files.get(*files.first()? as usize)?;
                Some((file, offset?))
            }
            Stored::Extent { .. } => self.place(index),
        }
    }

    /// The bytes of the tensor of that index.
    pub fn bytes(&self, index: u32) -> SharedView {
        match self.tensors.bytes(index) {
            Stored::View { view, .. } => view.opened().unwrap_or_else(|| view.clone()),
            Stored::Extent { file, offset } => Arc::new(StoredBytes(Extent {
                file: self.files[file as usize].clone(),
                offset,
                len: self.tensors.get(index).nbytes,
            })),
        }
    }

    /// What one of the elements of the tensor of that index takes to compute.
    pub(crate) fn effort(&self, index: u32) -> Effort {
        match self.tensors.bytes(index) {
            Stored::View { view, .. } => view.effort(),
            Stored::Extent { .. } => Effort::default(),
        }
    }

    /// Indexes of the files that the tensor of that index lies in.
    pub fn files_of(&self, index: u32) -> impl Iterator<Item = u32> {
        let (one, several) = match self.tensors.bytes(index) {
            Stored::Extent { file, .. } => (Some(file), &[][..]),
            Stored::View { files, .. } => (None, files),
        };
        one.into_iter().chain(several.iter().copied())
    }

    /// Sorts the tensors and builds the name table. Refuses a name that two files hold, and a total
    /// size that could overflow.
    fn assemble(model: &Location, Parts { mut catalog, rows }: Parts) -> Result<Catalog> {
        catalog.model = model.clone();
        catalog.with_tensors(rows)
    }

    /// The same with these tensors, in any order, instead of its own.
    ///
    /// # Errors
    /// Two have one name, or their total size could overflow.
    pub(crate) fn with_tensors(mut self, rows: Vec<Row>) -> Result<Catalog> {
        check_total(&self.model, &rows)?;
        self.tensors = self.in_order(rows)?;
        Ok(self)
    }

    /// The table of a container's rows, in natural order of their names.
    fn in_order(&self, mut rows: Vec<Row>) -> Result<Tensors> {
        rows.sort_by(|a, b| natural(&a.name, &b.name).then(a.bytes.file().cmp(&b.bytes.file())));
        let name_bytes = rows.iter().map(|row| row.name.len()).sum();
        let mut table = Tensors::with_capacity(rows.len(), name_bytes);
        for row in rows {
            let (name, file) = (row.name.clone(), row.bytes.file());
            if let Err(first) = table.push(row) {
                let of = |file: Option<u32>| file.map_or("", |f| self.files[f as usize].name());
                let (a, b) = (of(table.bytes(first).file()), of(file));
                return Err(Error::invalid(
                    self.store.location(),
                    format!(
                        "tensor '{name}' is in two files, {a} and {b}, and no index decides between them; remove one, or mount one file by its path"
                    ),
                ));
            }
        }
        Ok(table)
    }

    /// The files that hold tensors.
    pub fn shards(&self) -> impl Iterator<Item = &Arc<dyn Object>> {
        let definitions = self.derivation.as_ref().map_or(&[][..], |d| &d.definitions);
        let is_shard = |(index, _): &(u32, _)| !definitions.contains(index);
        let files = (0..).zip(&self.files).filter(is_shard);
        files.map(|(_, file)| file)
    }

    /// What the tensor of that index came to be by, in one word: `stored`, or a word of its container's.
    pub fn kind(&self, index: u32) -> &'static str {
        if let Some(derivation) = &self.derivation {
            return derivation.provenance.kind(index);
        }
        self.tensors.origin(index).map_or("stored", |own| own.kind)
    }

    /// What else `meta.json` shows of the origin of the tensor of that index.
    pub fn origin(&self, index: u32) -> Cow<'_, [(&'static str, serde_json::Value)]> {
        if let Some(derivation) = &self.derivation {
            return derivation.provenance.fields(index).into();
        }
        let own = self.tensors.origin(index);
        own.map_or(&[][..], |own| &own.fields).into()
    }

    /// Whether values of the tensor of that index can have been rounded when its elements were made.
    pub fn is_rounded(&self, index: u32) -> bool {
        let derivation = self.derivation.as_ref();
        derivation.is_some_and(|d| d.provenance.is_rounded(index))
    }

    /// The file that holds the first element of the tensor of that index, and its first byte there, as the
    /// tensor's origin shows it. `None` if what lies there is not the tensor as the file has it.
    pub fn shown_place(&self, index: u32) -> Option<(&Arc<dyn Object>, u64)> {
        let is_as_stored = self.is_as_stored(index);
        is_as_stored.then(|| self.first_byte(index)).flatten()
    }

    /// Whether a file has the tensor of that index as it is, under whatever name.
    pub fn is_as_stored(&self, index: u32) -> bool {
        let derivation = self.derivation.as_ref();
        derivation.is_none_or(|d| d.provenance.is_as_stored(index))
    }

    /// What made the tensor of that index, in a few words; `None` if a file has it as it is.
    pub fn derived_by(&self, index: u32) -> Option<String> {
        self.derivation.as_ref()?.provenance.summary(index)
    }

    /// Owner, permissions and mtime for files that represent the whole model: the strictest of its
    /// files.
    pub fn stat(&self) -> Stat {
        Stat::strictest(self.files.iter().map(|f| f.stat().clone()))
            .unwrap_or_else(|| self.dir_stat())
    }

    /// What the user that mounts the model for everyone should know.
    pub fn caution(&self) -> Option<String> {
        let closed = self.store.closed_above()?;
        Some(format!(
            "{closed}: not every user may search this directory, but with --allow-other all of them reach the model in it through the mount, as far as the permissions of the model's own files and directory allow"
        ))
    }

    /// Owner, permissions and mtime of the model directory.
    pub fn dir_stat(&self) -> Stat {
        self.store.attributes()
    }
}

/// The most bytes that all tensors may have together: 64 PiB. Overlapping spans and files with holes
/// can promise more than 64 bits count; below this, sums over tensors need no check, even of values
/// as F32 that are stored in one bit each, and with an export's header and alignment added.
pub(crate) const MAX_TOTAL: u64 = 1 << 56;

/// Refuses tensors that have more than [`MAX_TOTAL`] bytes together.
fn check_total(model: &Location, tensors: &[Row]) -> Result<()> {
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
