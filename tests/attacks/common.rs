//! Model directories made of bytes, and checks of the errors from opening them.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use serde_json::Value;
use stfs::catalog::{Catalog, OpenOptions};

/// A directory for one attack.
pub struct Dir(tempfile::TempDir);

impl Dir {
    pub fn new() -> Dir {
        Dir(tempfile::tempdir().unwrap())
    }

    /// A directory of these files.
    pub fn of(files: &[(&str, &[u8])]) -> Dir {
        let dir = Dir::new();
        for (name, bytes) in files {
            std::fs::write(dir.join(name), bytes).unwrap();
        }
        dir
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A FIFO without a writer: a blocking open for reading would wait forever.
    pub fn fifo(&self, name: &str) {
        let path = std::ffi::CString::new(self.join(name).to_str().unwrap()).unwrap();
        // SAFETY: `path` is a string that ends in NUL and outlives the call.
        assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0);
    }
}

/// The bytes of a safetensors file: this header and `data` bytes of data.
pub fn shard(header: &str, data: usize) -> Vec<u8> {
    raw_shard(header.len() as u64, header.as_bytes(), data)
}

/// The same, with any length field.
pub fn raw_shard(length: u64, header: &[u8], data: usize) -> Vec<u8> {
    let mut file = length.to_le_bytes().to_vec();
    file.extend_from_slice(header);
    file.resize(file.len() + data, 0x5A);
    file
}

/// A shard of F32 tensors [1] of these names.
pub fn good(names: &[&str]) -> Vec<u8> {
    let entries = names.iter().enumerate().map(|(i, name)| {
        let offsets = [4 * i, 4 * i + 4];
        (
            name.to_string(),
            serde_json::json!({"dtype": "F32", "shape": [1], "data_offsets": offsets}),
        )
    });
    let header = Value::Object(entries.collect()).to_string();
    shard(&header, 4 * names.len())
}

/// Opens a model, within a minute.
pub fn open(model: &Path, options: OpenOptions) -> Result<Catalog, stfs::Error> {
    let (done, wait) = mpsc::channel();
    let path = model.to_path_buf();
    std::thread::spawn(move || {
        let _ = done.send(Catalog::open(&path, options));
    });
    wait.recv_timeout(Duration::from_secs(60))
        .expect("opening neither hangs nor panics")
}

/// Opens `model`, which must fail with an error that contains all of `parts`.
#[track_caller]
pub fn refused(model: &Path, parts: &[&str]) {
    match open(model, OpenOptions::default()) {
        Ok(catalog) => panic!(
            "{} opened: {} tensors",
            model.display(),
            catalog.tensors.len()
        ),
        Err(error) => {
            let said = error.to_string();
            for part in parts {
                assert!(said.contains(part), "no '{part}' in: {said}");
            }
        }
    }
}

/// Opens a directory of these files, which must fail with an error that contains all of `parts`.
#[track_caller]
pub fn refused_files(files: &[(&str, &[u8])], parts: &[&str]) {
    refused(Dir::of(files).path(), parts);
}

/// The same for a single `model.safetensors`; the error must also contain that name.
#[track_caller]
pub fn refused_shard(bytes: &[u8], parts: &[&str]) {
    let mut parts = parts.to_vec();
    parts.push("model.safetensors");
    refused_files(&[("model.safetensors", bytes)], &parts);
}
