//! Small model directories for the tests of the formats, and a comparison of a view with values
//! that are computed one by one.

use serde_json::{Map, Value, json};

use super::{Layer, Recognized, Target, recognize};
use crate::catalog::{Catalog, OpenOptions};
use crate::dtype::Dtype;
use crate::simd;
use crate::view::{SharedView, View, read_all};

/// A tensor to be written.
pub(crate) struct Stored {
    pub(crate) name: String,
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

/// A tensor to be written.
pub(crate) fn stored(name: &str, dtype: Dtype, shape: &[u64], bytes: impl Into<Vec<u8>>) -> Stored {
    Stored {
        name: name.into(),
        dtype,
        shape: shape.into(),
        bytes: bytes.into(),
    }
}

/// A model directory and its catalog.
pub(crate) struct TestModel {
    pub(crate) catalog: Catalog,
    pub(crate) _dir: tempfile::TempDir,
}

impl TestModel {
    /// `model.safetensors` without any padding, so that data begin at odd addresses, and
    /// `config.json`, unless `config` is null.
    pub(crate) fn safetensors(tensors: &[Stored], config: Value) -> TestModel {
        TestModel::with_configs(tensors, &[("config.json", config)])
    }

    /// The same with any JSON files, except those that are null.
    pub(crate) fn with_configs(tensors: &[Stored], configs: &[(&str, Value)]) -> TestModel {
        let mut header = Map::new();
        let mut data = Vec::new();
        for t in tensors {
            let start = data.len();
            data.extend_from_slice(&t.bytes);
            header.insert(
                t.name.clone(),
                json!({"dtype": t.dtype.name(), "shape": t.shape, "data_offsets": [start, data.len()]}),
            );
        }
        let mut header = Value::from(header).to_string();
        if header.len().is_multiple_of(2) {
            header.push(' ');
        }
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        file.extend_from_slice(&data);
        TestModel::of(&[("model.safetensors", &file)], configs)
    }

    /// A sparse `model.safetensors` of zeros, which takes no space on disk, however large.
    pub(crate) fn sparse(tensors: &[(&str, Dtype, &[u64])], config: Value) -> TestModel {
        let mut header = Map::new();
        let mut end = 0;
        for &(name, dtype, shape) in tensors {
            let start = end;
            end += dtype.bytes(shape.iter().product()).unwrap();
            header.insert(
                name.into(),
                json!({"dtype": dtype.name(), "shape": shape, "data_offsets": [start, end]}),
            );
        }
        let header = Value::from(header).to_string();
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(header.as_bytes());
        let len = file.len() as u64 + end;
        TestModel::of_len(
            &[("model.safetensors", &file)],
            &[("config.json", config)],
            len,
        )
    }

    /// The same as one shard, with an index that lists `absent` in another, which is missing.
    pub(crate) fn partial(tensors: &[Stored], absent: &str, config: Value) -> TestModel {
        let model = TestModel::safetensors(tensors, config);
        let shard = |number| format!("model-0000{number}-of-00002.safetensors");
        let here = tensors.iter().map(|t| (&*t.name, shard(1)));
        let map = here.chain([(absent, shard(2))]);
        let map: Map<String, Value> = map.map(|(name, file)| (name.into(), json!(file))).collect();
        let index = json!({"metadata": {}, "weight_map": map}).to_string();
        let dir = model._dir.path();
        std::fs::rename(dir.join("model.safetensors"), dir.join(shard(1))).unwrap();
        std::fs::write(dir.join("model.safetensors.index.json"), index).unwrap();
        let options = OpenOptions {
            allow_missing: true,
        };
        TestModel {
            catalog: Catalog::open(dir, options).unwrap(),
            ..model
        }
    }

    /// `model_weights.bin` and `.json`: tensors with the `bits` of their entries, the manifest's
    /// `config`, and a `config.json`, unless null.
    pub(crate) fn manifest(
        tensors: &[(Stored, Option<u32>)],
        defaults: Value,
        config: Value,
    ) -> TestModel {
        let mut entries = Map::new();
        let mut data = Vec::new();
        for (t, bits) in tensors {
            data.resize(data.len().next_multiple_of(64), 0xAA);
            let mut entry = json!({
                "offset": data.len(), "size": t.bytes.len(),
                "shape": t.shape, "dtype": t.dtype.name(),
            });
            if let Some(bits) = bits {
                entry["bits"] = json!(bits);
            }
            data.extend_from_slice(&t.bytes);
            entries.insert(t.name.clone(), entry);
        }
        let manifest = json!({"tensors": entries, "config": defaults}).to_string();
        TestModel::of(
            &[
                ("model_weights.bin", &data),
                ("model_weights.json", manifest.as_bytes()),
            ],
            &[("config.json", config)],
        )
    }

    fn of(files: &[(&str, &[u8])], configs: &[(&str, Value)]) -> TestModel {
        TestModel::of_len(files, configs, 0)
    }

    /// Pads every file with zeros to at least `len` bytes.
    fn of_len(files: &[(&str, &[u8])], configs: &[(&str, Value)], len: u64) -> TestModel {
        let dir = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            let path = dir.path().join(name);
            std::fs::write(&path, bytes).unwrap();
            let file = std::fs::OpenOptions::new().write(true).open(path).unwrap();
            file.set_len(len.max(bytes.len() as u64)).unwrap();
        }
        for (name, config) in configs.iter().filter(|(_, config)| !config.is_null()) {
            std::fs::write(dir.path().join(name), config.to_string()).unwrap();
        }
        TestModel {
            catalog: Catalog::open(dir.path(), OpenOptions::default()).unwrap(),
            _dir: dir,
        }
    }

    /// The layer recognized under that name: an anchor with its own values, or a synthetic tensor.
    pub(crate) fn recognized(&self, name: &str) -> Option<Recognized> {
        recognize(&self.catalog).into_iter().find(|r| {
            let anchor = self.catalog.tensors.get(r.parts[0]).name;
            match &r.target {
                Target::Anchor => anchor == name,
                Target::Named(target) => target == name,
            }
        })
    }

    /// The layer of that name.
    pub(crate) fn layer(&self, name: &str) -> Layer {
        let recognized = self.recognized(name).expect("recognized");
        recognized.resolve(&self.catalog).expect("a layer")
    }

    /// Why there is no layer of that name.
    pub(crate) fn reason(&self, name: &str) -> String {
        let recognized = self.recognized(name).expect("recognized");
        match recognized.resolve(&self.catalog) {
            Ok(layer) => panic!("{name} is a layer: {}", layer.compatible),
            Err(reason) => reason.to_string(),
        }
    }

    /// The values of the layer of that name.
    pub(crate) fn view(&self, name: &str) -> SharedView {
        let recognized = self.recognized(name).expect("recognized");
        let layer = recognized.resolve(&self.catalog).expect("a layer");
        let parts = recognized.raw_parts(&self.catalog);
        layer.kernel.view(&parts).unwrap()
    }

    /// All values of the layer of that name.
    pub(crate) fn values(&self, name: &str) -> Vec<f32> {
        floats(&read_all(&*self.view(name)).unwrap())
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let words = bytes.as_chunks::<4>().0;
    words.iter().map(|w| f32::from_le_bytes(*w)).collect()
}

/// Whether two values have the same bits; all NaN are equal.
pub(crate) fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

/// Checks that `view` has the values `want`: read whole, with this machine's instructions and with
/// plain ones, and in pieces of odd sizes at random offsets, which `seed` chooses.
pub(crate) fn assert_values(view: &dyn View, want: &[f32], mut seed: u64) {
    assert_eq!(view.len(), want.len() as u64 * 4);
    let all = read_all(view).unwrap();
    let plain = simd::plainly(|| read_all(view).unwrap());
    for (i, &want) in want.iter().enumerate() {
        for (how, bytes) in [("", &all), (" plainly", &plain)] {
            let got = bytes.as_chunks::<4>().0[i];
            let got = f32::from_le_bytes(got);
            assert!(same(got, want), "element {i}{how}: {got:e}, not {want:e}");
        }
    }
    for size in [1, 2, 7, 64, 100, 4096, 70_000] {
        let len = all.len().min(size);
        let start = random(&mut seed) as usize % (all.len() - len + 1);
        // Every other size uses a buffer at an odd address.
        let mut piece = vec![0xAA; len + 1];
        let skew = size % 2;
        let piece = &mut piece[skew..][..len];
        view.read_at(start as u64, piece).unwrap();
        assert!(*piece == all[start..][..len], "{len} bytes from {start}");
    }
}

/// The next of a sequence of random numbers (splitmix64).
pub(crate) fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let z = (*seed ^ (*seed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// That many random bytes.
pub(crate) fn random_bytes(seed: &mut u64, len: usize) -> Vec<u8> {
    (0..len).map(|_| random(seed) as u8).collect()
}
