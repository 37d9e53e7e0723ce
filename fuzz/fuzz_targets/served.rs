//! What every target asks of a model that opens, and of an error if it does not.

// Each target uses its own part of this.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use safetensors::SafeTensors;
use stfs::catalog::{Catalog, OpenOptions, check};
use stfs::export::Export;
use stfs::layout::TensorFile;
use stfs::model::{Model, ModelOptions, TensorId};
use stfs::view::{View, read_all};

/// The longest view that is read as a whole. Of longer ones, both ends are read.
const WHOLE: u64 = 64 << 10;
/// The most tensors of a model that are looked at in one execution.
const TENSORS: usize = 12;

/// A directory of this process, below `$TMPDIR`. Fastest in memory.
pub static DIRECTORY: LazyLock<PathBuf> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("stfs-fuzz-{}", std::process::id()));
    std::fs::create_dir_all(&path).unwrap();
    path
});

/// Writes the file `name`, and returns its path.
pub fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = DIRECTORY.join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Opens a model, or else the part of it that is there, and looks at what it would show. Then checks it as
/// `stfs verify` does. `seed` is any number of the input's.
pub fn examine(path: &Path, seed: usize) {
    let open = |allow_missing| Catalog::open(path, OpenOptions { allow_missing });
    let opened = open(false).or_else(|error| {
        one_line(&error.to_string());
        open(true)
    });
    match opened {
        Err(error) => one_line(&error.to_string()),
        Ok(catalog) => {
            extents(&catalog);
            files(
                &Arc::new(Model::new(catalog, ModelOptions::default())),
                seed,
            );
        }
    }
    for problem in check(path).into_iter().flatten() {
        one_line(&problem.problem);
    }
}

/// An error takes one line of a terminal, whatever names it holds, and no flood.
pub fn one_line(error: &str) {
    let shown = stfs::text::printable(error);
    assert!(!shown.contains('\n') && shown.len() < 64 << 10, "{shown}");
}

/// Every tensor that is a range of a file lies inside it.
pub fn extents(catalog: &Catalog) {
    for (i, tensor) in (0..).zip(&catalog.tensors) {
        // A strided one has no extent.
        if let Some(extent) = catalog.extent(i) {
            assert_eq!(extent.len, tensor.nbytes);
            let end = extent.offset.checked_add(extent.len).unwrap();
            assert!(extent.len == 0 || end <= extent.file.len());
        }
    }
}

/// Files of a model have the lengths that are reported, and any range of each is that range of the whole.
pub fn files(model: &Arc<Model>, seed: usize) {
    let ids = model.listing();
    for i in 0..ids.len().min(TENSORS) {
        tensor_files(model, ids[(seed + i) % ids.len()]);
    }
    for json in [stfs::meta::model_json(model), stfs::meta::index_json(model)] {
        serde_json::from_slice::<serde_json::Value>(&json).unwrap();
    }
    let _ = stfs::tree::NameTree::new(model);
    let _ = model.reasons();
    if seed % 4 == 0 {
        exports(model);
    }
}

fn exports(model: &Arc<Model>) {
    for export in Export::ALL {
        let view = match export.view(model) {
            Ok(view) => view,
            Err(error) => {
                one_line(&error.to_string());
                continue;
            }
        };
        if let Some(bytes) = ranges(&*view, 1)
            && export.name().ends_with(".safetensors")
        {
            SafeTensors::deserialize(&bytes).unwrap();
        }
    }
}

fn tensor_files(model: &Arc<Model>, id: TensorId) {
    let tensor = model.tensor(id).expect("a listed tensor exists");
    for row in TensorFile::all() {
        // A picture of noise tells nothing, and takes a millisecond.
        if row.file == TensorFile::Preview || !(row.exists)(model, id, &tensor) {
            continue;
        }
        match (row.view)(model, id) {
            Err(error) => one_line(&error.to_string()),
            Ok(view) => {
                let view = view.expect("a file that exists has bytes");
                let what = row.view_name;
                assert_eq!(view.len(), (row.len)(model, id, &tensor), "{what}");
                if let Some(bytes) = ranges(&*view, u64::from(id) + 3)
                    && row.file == TensorFile::Meta
                {
                    serde_json::from_slice::<serde_json::Value>(&bytes).unwrap();
                }
            }
        }
    }
}

/// The whole of a view, if it is short and can be read, after any of three ranges has been compared with it.
/// Of a long view, both ends are read.
pub fn ranges(view: &dyn View, seed: u64) -> Option<Vec<u8>> {
    let len = view.len();
    if len > WHOLE {
        let mut end = [0; 512];
        let _ = view.read_at(0, &mut end);
        let _ = view.read_at(len - 512, &mut end);
        return None;
    }
    let whole = match read_all(view) {
        Ok(whole) => whole,
        Err(error) => {
            one_line(&error.to_string());
            return None;
        }
    };
    for i in 1..4u64 {
        let from = seed.wrapping_mul(i).wrapping_mul(0x9E37_79B9) % (len + 1);
        let n = (seed.wrapping_add(i).wrapping_mul(0x85EB_CA6B) % 700).min(len - from);
        range(view, &whole, from, n as usize);
    }
    Some(whole)
}

/// Compares a range of a view with the same range of its bytes.
pub fn range(view: &dyn View, whole: &[u8], from: u64, len: usize) {
    let mut part = vec![0xA5; len];
    view.read_at(from, &mut part)
        .expect("a range of what was read");
    let at = from as usize;
    assert!(
        part == whole[at..at + len],
        "{len} bytes at {from} differ from the whole"
    );
}
