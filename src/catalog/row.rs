//! A tensor as a container hands it over.

use std::sync::Arc;

use crate::dtype::ElementType;
use crate::view::SharedView;

/// A stored tensor: bytes of a known length, dtype and shape.
#[derive(Clone)]
pub struct Row {
    /// The name, exactly as the container has it.
    pub name: Arc<str>,
    /// Element type.
    pub dtype: ElementType,
    /// Shape; `[]` is a scalar. For packed words the shape of the words.
    pub shape: Box<[u64]>,
    /// Where its bytes are.
    pub bytes: RowBytes,
    /// Length in bytes.
    pub nbytes: u64,
    /// A manifest's `bits` (its `config.default_bits` applied), `None` in other containers.
    pub bits: Option<ManifestBits>,
}

/// Where the bytes of a stored tensor are.
#[derive(Clone)]
pub enum RowBytes {
    /// One run of a file's bytes: served without a copy.
    Extent {
        /// Index into the container's files.
        file: u32,
        /// First byte, counted from the start of the file.
        offset: u64,
    },
    /// Anything else that gives exactly [`Row::nbytes`] bytes, such as the elements of a strided
    /// tensor, gathered.
    View(SharedView),
}

/// What a manifest states about a tensor's packed width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManifestBits {
    /// Bits per packed value; 0 for a tensor that packs nothing.
    pub bits: u32,
    /// Whether the tensor's own entry gives it, by `bits` or by a shape that counts the values (else
    /// it is a default).
    pub explicit: bool,
}
