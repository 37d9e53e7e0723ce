//! The models, their mounts, and the bytes of their files, computed without the program.

use std::collections::BTreeMap;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use serde_json::json;

use crate::common::gguf::{Gguf, Q4_0, Q8_0, s};
use crate::common::pytorch::{Py, Strided, legacy_file, text, zip_file};
use crate::common::{DTYPES, ModelDir, Mounted, T, naive, noise, tensor};
use crate::numbers::Numbers;
use crate::readers::{Danger, File};

/// Files of a mount whose bytes are known beforehand, by their path below it.
type Known = BTreeMap<String, Vec<u8>>;

/// All mounts, and their files.
pub struct Scene {
    /// Upper mounts come first, so that they are unmounted first.
    mounts: Vec<Mounted>,
    pub files: Vec<File>,
    /// A mount on which a shard of another mount's model lies.
    pub below: Mounted,
    /// Weight files to which things may happen that no reader notices.
    pub harmless: Vec<PathBuf>,
    /// Weight files that may be cut and restored.
    pub cut: Vec<PathBuf>,
    dirs: Vec<ModelDir>,
}

impl Scene {
    pub fn new(seed: u64) -> Scene {
        let mut numbers = Numbers::new(seed);
        let lower = ModelDir::of(&[tensor("a", Dtype::U8, &[1])]);
        let stalled = vec![
            tensor("far", Dtype::BF16, &[1000, 700]),
            tensor("far.i8", Dtype::I8, &[90_001]),
        ];
        lower.shard("far.safetensors", &stalled);
        let below = Mounted::new(lower.path());
        let mut scene = Scene {
            mounts: Vec::new(),
            files: Vec::new(),
            below,
            harmless: Vec::new(),
            cut: Vec::new(),
            dirs: vec![lower],
        };
        scene.sharded();
        scene.truncated();
        scene.on_another_mount(&stalled);
        scene.gptq();
        scene.gguf();
        scene.checkpoints();
        scene.golden(&mut numbers);
        scene
    }

    /// The mountpoints.
    pub fn mounts(&self) -> Vec<&Path> {
        self.mounts.iter().map(Mounted::root).collect()
    }

    /// Mounts a directory, or a file in it. Its files have the bytes that are known, and others those of now. A file whose path
    /// contains one of `dangers` is in that danger.
    fn mount(
        &mut self,
        dir: ModelDir,
        file: Option<&str>,
        args: &[&str],
        known: &Known,
        dangers: &[(&str, Danger)],
    ) {
        let model = file.map_or(dir.path().to_path_buf(), |file| dir.join(file));
        let mounted = Mounted::with(&model, args);
        let mut seen = 0;
        for path in regular_files(mounted.root()) {
            let below = path
                .strip_prefix(mounted.root())
                .expect("below it")
                .to_str()
                .expect("UTF-8");
            let now = std::fs::read(&path).expect("read it");
            if let Some(want) = known.get(below) {
                seen += 1;
                assert!(
                    now == *want,
                    "{below} of {model:?}, before anything happened"
                );
            }
            let concerns = |name: &str| name.is_empty() || below.contains(name);
            let danger = dangers
                .iter()
                .find(|d| concerns(d.0))
                .map_or(Danger::None, |d| d.1);
            let stored =
                below.ends_with("/raw") || below.starts_with("npy") || below.starts_with("export");
            self.files.push(File {
                path,
                want: now.into(),
                danger,
                stored,
            });
        }
        assert_eq!(seen, known.len(), "files of {model:?}");
        if let Ok(merged) = std::fs::read(mounted.join("export/model.safetensors")) {
            same_tensors(&merged, known);
        }
        self.mounts.push(mounted);
        self.dirs.push(dir);
    }

    /// Every dtype; fused, stacked and tied tensors. Few threads.
    fn sharded(&mut self) {
        let mut all: Vec<T> = DTYPES
            .iter()
            .map(|&d| tensor(&format!("one.{d}"), d, &[9, 20, 36]))
            .collect();
        let part = |name: &str, rows| {
            tensor(
                &format!("model.layers.0.{name}.weight"),
                Dtype::BF16,
                &[rows, 301],
            )
        };
        let qkv = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
        all.extend(
            qkv.iter()
                .zip([901, 70, 77])
                .map(|(name, rows)| part(name, rows)),
        );
        let expert = |e: usize, name: &str| {
            tensor(
                &format!("model.layers.1.mlp.experts.{e}.{name}.weight"),
                Dtype::F16,
                &[33, 129],
            )
        };
        for e in 0..12 {
            all.extend(["gate_proj", "up_proj", "down_proj"].map(|name| expert(e, name)));
        }
        all.push(tensor(
            "model.embed_tokens.weight",
            Dtype::BF16,
            &[1003, 211],
        ));
        let dir =
            ModelDir::sharded(&[("1.safetensors", &all[..20]), ("2.safetensors", &all[20..])]);
        dir.json(
            "config.json",
            &json!({"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": true}),
        );
        dir.file("notes.txt", noise(3, 70_001));
        let find = |name: &str| {
            all.iter()
                .find(|t| t.name == name)
                .expect("it is there")
                .clone()
        };
        let join = |name: &str, parts: &[T], shape: &[usize]| T {
            name: name.into(),
            dtype: parts[0].dtype,
            shape: shape.into(),
            data: parts.iter().flat_map(|t| t.data.clone()).collect(),
        };
        let parts: Vec<T> = qkv
            .iter()
            .map(|n| find(&format!("model.layers.0.{n}.weight")))
            .collect();
        let experts = |names: &[&str]| -> Vec<T> {
            (0..12)
                .flat_map(|e| names.iter().map(move |n| expert(e, n)).collect::<Vec<_>>())
                .collect()
        };
        let synthetic = [
            join(
                "model.layers.0.self_attn.qkv_proj.weight",
                &parts,
                &[1048, 301],
            ),
            join(
                "model.layers.1.mlp.experts.gate_up_proj",
                &experts(&["gate_proj", "up_proj"]),
                &[12, 66, 129],
            ),
            join(
                "model.layers.1.mlp.experts.down_proj",
                &experts(&["down_proj"]),
                &[12, 33, 129],
            ),
            join(
                "lm_head.weight",
                &[find("model.embed_tokens.weight")],
                &[1003, 211],
            ),
        ];
        let mut known = known(all.iter().chain(&synthetic));
        known.insert("files/notes.txt".into(), noise(3, 70_001));
        self.harmless
            .extend(["1.safetensors", "2.safetensors"].map(|name| dir.join(name)));
        self.mount(dir, None, &["--threads", "3"], &known, &[]);
    }

    /// One of two shards may be cut.
    fn truncated(&mut self) {
        let cut = [
            tensor("cut.q_proj.weight", Dtype::BF16, &[700, 500]),
            tensor("cut.f64", Dtype::F64, &[90_001]),
        ];
        let whole = [
            tensor("cut.k_proj.weight", Dtype::BF16, &[100, 500]),
            tensor("cut.v_proj.weight", Dtype::BF16, &[100, 500]),
            tensor("whole.i32", Dtype::I32, &[100_003]),
        ];
        let dir = ModelDir::sharded(&[("1.safetensors", &cut), ("2.safetensors", &whole)]);
        self.cut.push(dir.join("1.safetensors"));
        let known = known(cut.iter().chain(&whole));
        // Files that describe the tensors do not need the shard.
        let dangers =
            ["cut.q_proj", "cut.f64", "qkv_proj", "export/"].map(|name| (name, Danger::Truncated));
        let safe = [
            ("meta.json", Danger::None),
            ("model_weights.json", Danger::None),
        ];
        self.mount(dir, None, &[], &known, &[&safe[..], &dangers].concat());
    }

    /// One of two shards lies on another FUSE file system, which stops now and then.
    fn on_another_mount(&mut self, far: &[T]) {
        let near = [
            tensor("near", Dtype::F32, &[300, 700]),
            tensor("near.u8", Dtype::U8, &[70_001]),
        ];
        let dir = ModelDir::new();
        dir.shard("near.safetensors", &near);
        symlink(
            self.below.join("files/far.safetensors"),
            dir.join("far.safetensors"),
        )
        .expect("link");
        let of = |tensors: &[T], shard: &'static str| {
            tensors.iter().map(|t| (t.name.clone(), shard)).collect()
        };
        let pairs: [Vec<(String, &str)>; 2] =
            [of(&near, "near.safetensors"), of(far, "far.safetensors")];
        dir.index(
            "model.safetensors.index.json",
            pairs.iter().flatten().map(|(t, s)| (t.as_str(), *s)),
        );
        let known = known(near.iter().chain(far));
        let dangers = ["/far", "export/"].map(|name| (name, Danger::Stalled));
        self.mount(dir, None, &[], &known, &dangers);
    }

    /// A layer whose words lie across the rows of its values.
    fn gptq(&mut self) {
        const K: usize = 512;
        const N: usize = 776;
        const GROUP: usize = 64;
        let nibble = |words: &[u8], i: usize| words[i / 2] >> (4 * (i % 2)) & 15;
        let name = |part: &str| format!("model.layers.0.mlp.down_proj.{part}");
        let words = tensor(&name("qweight"), Dtype::I32, &[K / 8, N]);
        let mut zeros = tensor(&name("qzeros"), Dtype::I32, &[K / GROUP, N / 8]);
        let mut scales = tensor(&name("scales"), Dtype::F16, &[K / GROUP, N]);
        // No field is full: readers differ in what one more than that is.
        zeros.data.iter_mut().for_each(|fields| *fields &= 0x77);
        // Neither infinities nor NaN.
        scales
            .data
            .iter_mut()
            .skip(1)
            .step_by(2)
            .for_each(|high| *high &= 0xBF);
        let scale = naive::f32_bytes(Dtype::F16, &scales.data).expect("floats");
        let scale = |i: usize| f32::from_le_bytes(scale[4 * i..][..4].try_into().expect("four"));
        let mut values = Vec::with_capacity(4 * N * K);
        for n in 0..N {
            for k in 0..K {
                // Eight values of a column are a word, eight columns' zero points another.
                let q = nibble(&words.data, (k / 8 * N + n) * 8 + k % 8);
                let zero = nibble(&zeros.data, (k / GROUP * N / 8 + n / 8) * 8 + n % 8) + 1;
                let value = scale(k / GROUP * N + n) * (f32::from(q) - f32::from(zero));
                values.extend(value.to_le_bytes());
            }
        }
        let dir = ModelDir::of(&[words.clone(), zeros.clone(), scales.clone()]);
        let config = json!({"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": false, "sym": false});
        dir.json(
            "config.json",
            &json!({"architectures": ["LlamaForCausalLM"], "quantization_config": config}),
        );
        let mut known = known([&words, &zeros, &scales].into_iter());
        known.insert(format!("tensors/{}/f32", name("weight")), values.clone());
        known.insert(format!("tensors/{}/raw", name("weight")), values);
        self.harmless.push(dir.join("model.safetensors"));
        self.mount(dir, None, &[], &known, &[]);
    }

    /// Blocks of two kinds.
    fn gguf(&mut self) {
        let mut known = Known::new();
        let mut file = Gguf::new().key("general.architecture", s("llama"));
        for (name, kind, bytes) in [
            ("blk.0.attn_q.weight", Q8_0, 34),
            ("blk.0.attn_k.weight", Q4_0, 18),
        ] {
            let mut data = noise(bytes as u64, 40 * 512 * bytes);
            data.iter_mut()
                .skip(1)
                .step_by(bytes)
                .for_each(|high| *high &= 0xBF);
            let block = |block: &[u8]| -> Vec<u8> {
                let scale = naive::f32_bytes(Dtype::F16, &block[..2]).expect("a float");
                let scale = f32::from_le_bytes(scale.try_into().expect("four"));
                let code = |i: usize| match kind {
                    Q8_0 => f32::from(block[2 + i] as i8),
                    _ if i < 16 => f32::from(block[2 + i] & 15) - 8.0,
                    _ => f32::from(block[2 + i - 16] >> 4) - 8.0,
                };
                (0..32)
                    .flat_map(|i| (scale * code(i)).to_le_bytes())
                    .collect()
            };
            known.insert(format!("tensors/{name}/raw"), data.clone());
            known.insert(
                format!("tensors/{name}/f32"),
                data.chunks(bytes).flat_map(block).collect(),
            );
            file = file.tensor(name, &[40 * 32, 512], kind, data);
        }
        let dir = ModelDir::new();
        let path = dir.file("m.gguf", file.bytes());
        self.harmless.push(path);
        self.mount(dir, Some("m.gguf"), &[], &known, &[]);
    }

    /// Transposed and sliced tensors, in both containers.
    fn checkpoints(&mut self) {
        for legacy in [false, true] {
            let (mut known, mut entries) = (Known::new(), Vec::new());
            for (i, (rows, columns, front)) in [(700, 333, 0), (33, 20_001, 7), (1, 70_000, 3)]
                .into_iter()
                .enumerate()
            {
                let name = format!("layer.{i}.weight");
                let data = noise(9 + i as u64, 4 * (front + rows * columns));
                // The storage has columns one after another; the tensor is its transposition.
                let element =
                    |i: usize| &data[4 * (front + i % columns * rows + i / columns)..][..4];
                let want: Vec<u8> = (0..rows * columns).flat_map(element).copied().collect();
                known.insert(format!("tensors/{name}/raw"), want.clone());
                known.insert(format!("tensors/{name}/f32"), want);
                let tensor = Strided {
                    key: i.to_string(),
                    data,
                    class: "FloatStorage",
                    element: 4,
                    offset: front as i64,
                    shape: vec![rows as i64, columns as i64],
                    strides: vec![1, rows as i64],
                };
                entries.push((text(&name), Py::Tensor(tensor)));
            }
            let root = Py::Dict(entries);
            let dir = ModelDir::new();
            let bytes = if legacy {
                legacy_file(&root)
            } else {
                zip_file(&root)
            };
            self.harmless.push(dir.file("model.pt", bytes));
            self.mount(dir, None, &[], &known, &[]);
        }
    }

    /// Quantized models as their own libraries save them, with those libraries' values.
    fn golden(&mut self, numbers: &mut Numbers) {
        let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
        let cases = std::fs::read_dir(golden)
            .expect("list")
            .map(|e| e.expect("an entry").path());
        let mut cases: Vec<PathBuf> = cases
            .filter(|c| c.join("expected.safetensors").exists())
            .collect();
        cases.sort();
        for _ in 0..3 {
            let case = cases.swap_remove(numbers.below(cases.len()));
            println!("{}", case.display());
            let dir = ModelDir::new();
            for file in std::fs::read_dir(case.join("model")).expect("list") {
                let file = file.expect("an entry");
                dir.file(
                    file.file_name().to_str().expect("UTF-8"),
                    std::fs::read(file.path()).expect("read"),
                );
            }
            // Their values agree up to the kind of NaN and the sign of zero (`tests/golden.rs`); what is
            // compared here is that they stay what they are.
            self.mount(dir, None, &[], &Known::new(), &[]);
            let expected = std::fs::read(case.join("expected.safetensors")).expect("read");
            let mounted = self.mounts.last().expect("just mounted");
            for (name, tensor) in SafeTensors::deserialize(&expected)
                .expect("valid")
                .tensors()
            {
                let got = mounted.read(&format!("tensors/{name}/f32"));
                let float = |b: &[u8]| f32::from_le_bytes(b.try_into().expect("four"));
                let same = |(a, b): (&[u8], &[u8])| {
                    let (a, b) = (float(a), float(b));
                    a == b || a.is_nan() && b.is_nan()
                };
                assert!(
                    got.chunks(4).zip(tensor.data().chunks(4)).all(same),
                    "{name} of {case:?}"
                );
            }
        }
    }
}

/// The regular files below a directory. Links are not followed.
fn regular_files(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root).expect("list") {
        let entry = entry.expect("an entry");
        let kind = entry.file_type().expect("its kind");
        if kind.is_dir() {
            found.extend(regular_files(&entry.path()));
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    found
}

/// The bytes of the files of these tensors, from their definitions.
fn known<'a>(tensors: impl Iterator<Item = &'a T>) -> Known {
    let mut known = Known::new();
    for t in tensors {
        let f32 = naive::f32_bytes(t.dtype, &t.data);
        // Any NaN stands for a NaN of these: their bytes are compared with those of the start.
        let certain = matches!(
            t.dtype,
            Dtype::F32 | Dtype::BF16 | Dtype::I32 | Dtype::I8 | Dtype::U8 | Dtype::I16 | Dtype::U16
        );
        known.insert(format!("tensors/{}/raw", t.name), t.data.clone());
        match (naive::descr(t.dtype), f32) {
            (Some(descr), f32) => {
                let npy = [naive::npy_header(descr, &t.shape), t.data.clone()].concat();
                known.insert(format!("npy/{}.npy", t.name), npy);
                known.extend(
                    f32.filter(|_| certain)
                        .map(|f32| (format!("tensors/{}/f32", t.name), f32)),
                );
            }
            (None, Some(f32)) if certain => {
                let npy = [naive::npy_header("<f4", &t.shape), f32.clone()].concat();
                known.insert(format!("npy/{}.npy", t.name), npy);
                known.insert(format!("tensors/{}/f32", t.name), f32);
            }
            (None, _) => {}
        }
    }
    known
}

/// The library reads the merged file, and finds the bytes of the stored tensors in it.
fn same_tensors(merged: &[u8], known: &Known) {
    let merged = SafeTensors::deserialize(merged).expect("the library reads the export");
    for (name, tensor) in merged.tensors() {
        if let Some(want) = known.get(&format!("tensors/{name}/raw")) {
            assert!(
                tensor.data() == &want[..],
                "{name} in export/model.safetensors"
            );
        }
    }
}
