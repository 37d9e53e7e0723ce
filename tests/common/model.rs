//! Model directories, made for a test.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize_to_file};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

/// A tensor, with its bytes.
#[derive(Clone, Debug)]
pub struct T {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub data: Vec<u8>,
}

/// A tensor of noise; the same name gives the same bytes.
pub fn tensor(name: &str, dtype: Dtype, shape: &[usize]) -> T {
    let bits = shape.iter().product::<usize>() * dtype.bitsize();
    assert_eq!(bits % 8, 0, "{dtype} {shape:?} is no whole number of bytes");
    let seed = name
        .bytes()
        .fold(7u64, |h, b| h.wrapping_mul(131).wrapping_add(b.into()));
    T {
        name: name.into(),
        dtype,
        shape: shape.into(),
        data: noise(seed, bits / 8),
    }
}

/// Bytes without a pattern (xorshift64*).
pub fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        out.extend_from_slice(&x.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes());
    }
    out.truncate(len);
    out
}

/// A model directory that goes with the test. Any user may read it.
pub struct ModelDir(TempDir);

impl ModelDir {
    /// An empty one.
    pub fn new() -> ModelDir {
        let dir = TempDir::with_prefix("stfs-model-").expect("make a temporary directory");
        open_to_all(dir.path());
        ModelDir(dir)
    }

    /// One `model.safetensors` of these tensors.
    pub fn of(tensors: &[T]) -> ModelDir {
        let dir = ModelDir::new();
        dir.shard("model.safetensors", tensors);
        dir
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.join(name);
        std::fs::write(&path, bytes).expect("write a file of the model");
        path
    }

    pub fn json(&self, name: &str, value: &Value) -> PathBuf {
        self.file(name, value.to_string())
    }

    /// A shard as the safetensors library writes it.
    pub fn shard(&self, name: &str, tensors: &[T]) -> PathBuf {
        let views = tensors.iter().map(|t| {
            let view = TensorView::new(t.dtype, t.shape.clone(), &t.data).expect("a valid tensor");
            (t.name.clone(), view)
        });
        let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
        let path = self.join(name);
        serialize_to_file(views, Some(metadata), &path).expect("write a shard");
        // The library makes it for its owner alone.
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).expect("chmod");
        path
    }

    /// A shard with this text for a header, right or wrong.
    pub fn raw_shard(&self, name: &str, header: impl AsRef<[u8]>, data: &[u8]) -> PathBuf {
        let header = header.as_ref();
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header);
        bytes.extend_from_slice(data);
        self.file(name, bytes)
    }

    /// An index whose `weight_map` holds these pairs of tensor and shard.
    pub fn index<'a>(&self, name: &str, map: impl IntoIterator<Item = (&'a str, &'a str)>) {
        let map: Map<String, Value> = map
            .into_iter()
            .map(|(t, s)| (t.to_string(), s.into()))
            .collect();
        self.json(
            name,
            &json!({"metadata": {"total_size": 0}, "weight_map": map}),
        );
    }

    /// Shards, and the index that names all of their tensors.
    pub fn sharded(shards: &[(&str, &[T])]) -> ModelDir {
        let dir = ModelDir::new();
        for (name, tensors) in shards {
            dir.shard(name, tensors);
        }
        let pairs = shards
            .iter()
            .flat_map(|(shard, ts)| ts.iter().map(move |t| (t.name.as_str(), *shard)));
        dir.index("model.safetensors.index.json", pairs);
        dir
    }
}

/// Lets every user read (and for directories, search) `path`.
pub fn open_to_all(path: &Path) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("chmod");
}
