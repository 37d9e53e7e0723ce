//! The table of a catalog's tensors, laid out for 100,000 of them: all names in one string, each
//! distinct shape and element type once, and about forty more bytes per tensor.

use std::collections::HashMap;
use std::hash::Hash;
use std::ops::Range;

use super::{ManifestBits, Row, RowBytes, RowOrigin};
use crate::dtype::{ElementType, numel};
use crate::names::NameTable;
use crate::view::SharedView;

/// Every tensor of a catalog, in natural order of the names.
#[derive(Default)]
pub struct Tensors {
    names: NameTable,
    rows: Vec<Fixed>,
    /// The bytes of tensors that are not an extent of a file.
    views: Vec<RowView>,
    shapes: Distinct<Box<[u64]>>,
    dtypes: Distinct<ElementType>,
    /// Only a manifest's tensors have them; empty for other containers.
    bits: Vec<Option<ManifestBits>>,
    /// Only for the tensors that have one.
    origins: HashMap<u32, Box<RowOrigin>>,
}

/// The fixed-size part of a tensor's row.
struct Fixed {
    /// First byte in the file, or index into `views`.
    offset: u64,
    nbytes: u64,
    /// Index of the file; [`VIEW`] for a view.
    file: u32,
    shape: u32,
    dtype: u32,
}

/// The fields of [`RowBytes::View`].
struct RowView {
    view: SharedView,
    files: Box<[u32]>,
    offset: Option<u64>,
}

/// Used as the file index of a tensor that is a view.
const VIEW: u32 = u32::MAX;

/// Where a tensor's bytes are.
pub(super) enum Stored<'a> {
    Extent {
        file: u32,
        offset: u64,
    },
    View {
        view: &'a SharedView,
        files: &'a [u32],
        offset: Option<u64>,
    },
}

impl Stored<'_> {
    /// The first file that the bytes come from.
    pub fn file(&self) -> Option<u32> {
        match self {
            Stored::Extent { file, .. } => Some(*file),
            Stored::View { files, .. } => files.first().copied(),
        }
    }
}

/// A tensor of a catalog.
#[derive(Debug, Clone, Copy)]
pub struct TensorRef<'a> {
    /// The name, exactly as the file has it.
    pub name: &'a str,
    /// Element type.
    pub dtype: &'a ElementType,
    /// Shape; `[]` is a scalar. For packed words the shape of the words.
    pub shape: &'a [u64],
    /// Length in bytes.
    pub nbytes: u64,
    /// A manifest's `bits` (its `config.default_bits` applied), `None` in other containers.
    pub bits: Option<ManifestBits>,
}

impl TensorRef<'_> {
    /// Number of elements as the header counts them.
    pub fn numel(&self) -> u64 {
        numel(self.shape).unwrap_or(0)
    }
}

impl Tensors {
    /// An empty table with room for this many tensors and bytes of names.
    pub(super) fn with_capacity(tensors: usize, name_bytes: usize) -> Tensors {
        Tensors {
            names: NameTable::with_capacity(tensors, name_bytes),
            rows: Vec::with_capacity(tensors),
            ..Tensors::default()
        }
    }

    /// Appends a tensor.
    ///
    /// # Errors
    /// The index of the tensor that already has this name.
    pub(super) fn push(&mut self, tensor: Row) -> Result<(), u32> {
        self.names.add(&tensor.name)?;
        if tensor.bits.is_some() {
            self.bits.resize(self.rows.len(), None);
            self.bits.push(tensor.bits);
        }
        if let Some(origin) = tensor.origin {
            self.origins.insert(self.rows.len() as u32, origin);
        }
        let (file, offset) = match tensor.bytes {
            RowBytes::Extent { file, offset } => (file, offset),
            RowBytes::View {
                view,
                files,
                offset,
            } => {
                self.views.push(RowView {
                    view,
                    files,
                    offset,
                });
                (VIEW, self.views.len() as u64 - 1)
            }
        };
        self.rows.push(Fixed {
            offset,
            nbytes: tensor.nbytes,
            file,
            shape: self.shapes.number(tensor.shape),
            dtype: self.dtypes.number(tensor.dtype),
        });
        Ok(())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The tensor of that index, which must be less than [`Tensors::len`].
    pub fn get(&self, index: u32) -> TensorRef<'_> {
        let row = &self.rows[index as usize];
        TensorRef {
            name: self.names.get(index),
            dtype: &self.dtypes.all[row.dtype as usize],
            shape: &self.shapes.all[row.shape as usize],
            nbytes: row.nbytes,
            bits: self.bits.get(index as usize).copied().flatten(),
        }
    }

    /// The element types of all tensors, each once.
    pub fn dtypes(&self) -> &[ElementType] {
        &self.dtypes.all
    }

    /// All, in order.
    pub fn iter(&self) -> Iter<'_> {
        Iter {
            tensors: self,
            left: 0..self.len() as u32,
        }
    }

    /// The index of the tensor of that name.
    pub fn find(&self, name: &str) -> Option<u32> {
        self.names.find(name)
    }

    /// What its container reports about its origin, besides file and offset.
    pub fn origin(&self, index: u32) -> Option<&RowOrigin> {
        self.origins.get(&index).map(|origin| &**origin)
    }

    /// Where the bytes of the tensor of that index are.
    pub(super) fn bytes(&self, index: u32) -> Stored<'_> {
        let Fixed { file, offset, .. } = self.rows[index as usize];
        match file {
            VIEW => {
                let stored = &self.views[offset as usize];
                Stored::View {
                    view: &stored.view,
                    files: &stored.files,
                    offset: stored.offset,
                }
            }
            _ => Stored::Extent { file, offset },
        }
    }
}

/// The tensors of a table, in order.
#[derive(Clone)]
pub struct Iter<'a> {
    tensors: &'a Tensors,
    left: Range<u32>,
}

impl<'a> Iterator for Iter<'a> {
    type Item = TensorRef<'a>;

    fn next(&mut self) -> Option<TensorRef<'a>> {
        self.left.next().map(|i| self.tensors.get(i))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.left.size_hint()
    }
}

impl ExactSizeIterator for Iter<'_> {}

/// Values of which many are equal, each kept once.
struct Distinct<T> {
    all: Vec<T>,
    numbers: HashMap<T, u32>,
}

impl<T> Default for Distinct<T> {
    fn default() -> Self {
        Distinct {
            all: Vec::new(),
            numbers: HashMap::new(),
        }
    }
}

impl<T: Clone + Eq + Hash> Distinct<T> {
    fn number(&mut self, value: T) -> u32 {
        if let Some(&number) = self.numbers.get(&value) {
            return number;
        }
        let number = self.all.len() as u32;
        self.all.push(value.clone());
        self.numbers.insert(value, number);
        number
    }
}

impl<'a> IntoIterator for &'a Tensors {
    type Item = TensorRef<'a>;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}
