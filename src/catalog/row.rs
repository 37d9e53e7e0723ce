//! A tensor as a container returns it.

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
    /// What `meta.json` shows of its origin besides file and offset, if anything.
    pub origin: Option<Box<RowOrigin>>,
}

/// How a container's tensor came to be, if that is more than "stored at this offset".
#[derive(Debug, Clone)]
pub struct RowOrigin {
    /// The `kind` in JSON and extended attributes, such as `strided`.
    pub kind: &'static str,
    /// Further keys of the `origin` object, after `file` and `offset`. Not a JSON map: a model may have
    /// 100,000 tensors with a key or two each.
    pub fields: Box<[(&'static str, serde_json::Value)]>,
}

/// Where the bytes of a stored tensor are.
#[derive(Clone)]
pub enum RowBytes {
    /// A contiguous range of a file: served without a copy.
    Extent {
        /// Index into the container's files.
        file: u32,
        /// First byte, counted from the start of the file.
        offset: u64,
    },
    /// Any other view of exactly [`Row::nbytes`] bytes, such as the gathered elements of a strided
    /// tensor.
    View {
        /// The bytes.
        view: SharedView,
        /// Indexes of the container's files that they come from, in ascending order.
        files: Box<[u32]>,
        /// Where the first element lies in the first of these files, counted from the file's start:
        /// what `meta.json` shows. `None` if it is not in the file as such.
        offset: Option<u64>,
    },
}

impl RowBytes {
    /// The first file that the bytes come from.
    pub fn file(&self) -> Option<u32> {
        match self {
            RowBytes::Extent { file, .. } => Some(*file),
            RowBytes::View { files, .. } => files.first().copied(),
        }
    }
}

/// What a manifest states about a tensor's packed width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ManifestBits {
    /// Bits per packed value; 0 for a tensor that is not packed.
    pub bits: u32,
    /// Whether the tensor's own entry determines it, by `bits` or by a logical shape. If not, it is
    /// a default.
    pub explicit: bool,
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;
    use crate::catalog::container::Parts;
    use crate::catalog::{Catalog, Configuration, MemoryStore, Store};
    use crate::dtype::Dtype;
    use crate::view::{Bytes, read_all};

    #[test]
    fn a_tensor_may_be_any_view() {
        let store = MemoryStore::new(&[("x", b"0123")]);
        let source = store.source(None);
        let mut parts = Parts::new(&source.store, "test", Configuration::default());
        parts
            .catalog
            .files
            .push(store.open(OsStr::new("x")).unwrap());
        let row = |name: &str, bytes| Row {
            name: name.into(),
            dtype: ElementType::Known(Dtype::U8),
            shape: [2, 1].into(),
            bytes,
            nbytes: 2,
            bits: None,
            origin: None,
        };
        let gathered = RowBytes::View {
            view: Arc::new(Bytes(b"31".as_slice().into())),
            files: [0].into(),
            offset: Some(3),
        };
        let extent = RowBytes::Extent { file: 0, offset: 1 };
        parts.rows = vec![row("b", gathered), row("a", extent)];
        let catalog = Catalog::assemble(&source.model, parts).unwrap();
        let bytes = |index| read_all(&catalog.bytes(index)).unwrap();
        assert_eq!((bytes(0), bytes(1)), (b"12".to_vec(), b"31".to_vec()));
        assert_eq!(catalog.extent(0).unwrap().offset, 1);
        assert!(catalog.extent(1).is_none());
        let first_byte = |index| catalog.first_byte(index).unwrap().1;
        assert_eq!((first_byte(0), first_byte(1)), (1, 3));
        assert!((0..2).all(|index| catalog.files_of(index).eq([0])));
    }
}
