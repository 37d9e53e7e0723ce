//! Models of a few rows in memory as the sources of a recipe, for tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::sources::{SourceModel, Sources};
use super::tensor::Derived;
use crate::catalog::{Catalog, MemoryStore, Row, RowBytes};
use crate::dtype::ElementType;
use crate::error::Result;
use crate::model::{Model, ModelOptions};
use crate::view::{SharedView, View};

/// A row of a view.
pub(crate) fn row(
    name: &str,
    dtype: impl Into<ElementType>,
    shape: &[u64],
    view: SharedView,
) -> Row {
    let bytes = RowBytes::View {
        view,
        files: [0].into(),
        offset: None,
    };
    of_bytes(name, dtype, shape, bytes)
}

/// A row of bytes.
pub(crate) fn of_bytes(
    name: &str,
    dtype: impl Into<ElementType>,
    shape: &[u64],
    bytes: RowBytes,
) -> Row {
    let dtype = dtype.into();
    Row {
        name: name.into(),
        nbytes: dtype.nbytes(shape).unwrap(),
        dtype,
        shape: shape.into(),
        bytes,
        bits: None,
        origin: None,
    }
}

/// One model per list of rows, over a file of those bytes each.
pub(crate) fn sources(models: Vec<(&str, &[u8], Vec<Row>)>) -> Sources {
    let mut all = Sources { models: Vec::new() };
    for (name, file, rows) in models {
        let store = MemoryStore::new(&[("x.test", file)]);
        let files = vec![store.object("x.test").unwrap() as _];
        let catalog = Catalog::of_rows(&store.source(None), files, rows).unwrap();
        push(&mut all, name, Model::new(catalog, ModelOptions::default()));
    }
    all
}

/// Adds a model.
pub(crate) fn push(all: &mut Sources, name: &str, model: Model) {
    let last = all.models.last();
    let (first_id, first_file) = last.map_or((0, 0), |last| {
        let files = last.model.catalog.files.len() as u32;
        (
            last.first_id + last.model.id_count(),
            last.first_file + files,
        )
    });
    all.models.push(SourceModel {
        name: name.into(),
        model: Arc::new(model),
        floats: false,
        first_id,
        first_file,
    });
}

/// The tensor of that name.
pub(crate) fn leaf(sources: &Sources, model: usize, name: &str) -> Derived {
    let id = sources.models[model].model.id(name).unwrap();
    sources.leaf(model, id).unwrap()
}

/// Bytes that are computed, and a record of what was read of them.
pub(crate) struct Counted {
    len: u64,
    pub reads: AtomicU64,
    pub bytes: AtomicU64,
}

impl Counted {
    pub fn new(len: u64) -> Arc<Counted> {
        Arc::new(Counted {
            len,
            reads: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        })
    }

    /// Reads and bytes since it was asked last.
    pub fn count(&self) -> (u64, u64) {
        (
            self.reads.swap(0, Ordering::Relaxed),
            self.bytes.swap(0, Ordering::Relaxed),
        )
    }
}

impl View for Counted {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        assert!(offset + buf.len() as u64 <= self.len);
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(buf.len() as u64, Ordering::Relaxed);
        // Small numbers in every float type.
        for (at, byte) in (offset..).zip(buf) {
            *byte = if at % 2 == 1 {
                0x3d
            } else {
                (at / 2 % 251) as u8
            };
        }
        Ok(())
    }
}
