//! A GGUF model: values of block types, `metadata.json`, fusions, the tied head, exports.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::gguf::{F32, Gguf, Q4_0, Q8_0, Tensor, V, counting, s, splits, strings};
use crate::common::sys::{errno, getxattr};
use crate::common::{ModelDir, Mounted, noise, stfs, tensor};

/// Blocks of Q8_0 and Q4_0 under a scale of one half, and their values. The same seed gives the same
/// bytes.
fn blocks(kind: u32, values: u64, seed: u64) -> (Vec<u8>, Vec<f32>) {
    let bytes = if kind == Q8_0 { 32 } else { 16 };
    let codes = noise(seed, (values / 32) as usize * bytes);
    let (mut data, mut floats) = (Vec::new(), Vec::new());
    for block in codes.chunks(bytes) {
        data.extend([0x00, 0x38]);
        data.extend(block);
        match kind {
            Q8_0 => floats.extend(block.iter().map(|&b| f32::from(b as i8) * 0.5)),
            _ => {
                let nibbles = block
                    .iter()
                    .map(|b| b & 15)
                    .chain(block.iter().map(|b| b >> 4));
                floats.extend(nibbles.map(|n| (f32::from(n) - 8.0) * 0.5));
            }
        }
    }
    (data, floats)
}

fn bytes_of(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// A tensor of that shape (in C order).
fn made(name: &str, kind: u32, shape: &[u64]) -> (Tensor, Vec<f32>) {
    let n: u64 = shape.iter().product();
    let seed = name
        .bytes()
        .fold(1, |a, b| (a * 31 + u64::from(b)) % 100_003);
    let (data, values) = match kind {
        F32 => {
            let values: Vec<f32> = (0..n).map(|i| i as f32 - seed as f32).collect();
            (bytes_of(&values), values)
        }
        _ => blocks(kind, n, seed),
    };
    let tensor = Tensor {
        name: name.into(),
        ne: shape.iter().rev().copied().collect(),
        kind,
        offset: None,
        data,
    };
    (tensor, values)
}

/// Every tensor of the model: name, type, shape.
const TENSORS: &[(&str, u32, &[u64])] = &[
    ("token_embd.weight", Q8_0, &[5, 64]),
    ("output_norm.weight", F32, &[3]),
    ("blk.0.attn_q.weight", Q8_0, &[4, 64]),
    ("blk.0.attn_k.weight", Q8_0, &[2, 64]),
    ("blk.0.attn_v.weight", Q8_0, &[2, 64]),
    ("blk.1.attn_q.weight", Q4_0, &[4, 64]),
    ("blk.1.attn_k.weight", Q4_0, &[2, 64]),
    ("blk.1.attn_v.weight", Q8_0, &[2, 64]),
    ("blk.1.ffn_gate_exps.weight", Q4_0, &[3, 2, 32]),
    ("blk.1.ffn_up_exps.weight", Q4_0, &[3, 2, 32]),
];

fn tensors() -> Vec<Tensor> {
    let all = TENSORS.iter();
    all.map(|(name, kind, shape)| made(name, *kind, shape).0)
        .collect()
}

fn values(name: &str) -> Vec<f32> {
    let (_, kind, shape) = TENSORS.iter().find(|t| t.0 == name).unwrap();
    made(name, *kind, shape).1
}

fn stored(name: &str) -> Vec<u8> {
    let (_, kind, shape) = TENSORS.iter().find(|t| t.0 == name).unwrap();
    made(name, *kind, shape).0.data
}

/// Keys, with a vocabulary that is too long for `model.json`.
fn keys() -> Vec<(&'static str, V)> {
    vec![
        ("general.architecture", s("llama")),
        ("general.alignment", V::U32(64)),
        ("llama.rope.scale", V::F32(f32::NAN)),
        (
            "tokenizer.ggml.tokens",
            strings((0..100).map(|i| format!("t{i}"))),
        ),
        ("large", V::U64(u64::MAX)),
    ]
}

fn gguf() -> Gguf {
    let mut file = Gguf::new();
    file.alignment = 64;
    for (key, value) in keys() {
        file = file.key(key, value);
    }
    file.tensors = tensors();
    file
}

fn model() -> (ModelDir, PathBuf, Vec<u8>) {
    let dir = ModelDir::new();
    // Bytes past the last tensor are part of the file.
    let bytes = [gguf().bytes(), b"trailing".to_vec()].concat();
    let path = dir.file("model.gguf", &bytes);
    (dir, path, bytes)
}

#[test]
fn block_types_are_shown_by_values() {
    let (_dir, path, bytes) = model();
    let m = Mounted::new(&path);
    for (name, kind, shape) in TENSORS {
        let tensor = format!("tensors/{name}");
        assert_eq!(m.read(&format!("{tensor}/raw")), stored(name), "{name}");
        let f32 = bytes_of(&values(name));
        assert_eq!(m.read(&format!("{tensor}/f32")), f32, "{name}");
        let npy = m.read(&format!("npy/{name}.npy"));
        assert!(npy.ends_with(&f32) && npy[..128].windows(3).any(|w| w == b"<f4"));
        let meta = m.json(&format!("{tensor}/meta.json"));
        let dtype = match *kind {
            F32 => "F32",
            Q8_0 => "Q8_0",
            _ => "Q4_0",
        };
        let nbytes = stored(name).len();
        assert_eq!(meta["dtype"], dtype);
        let raw = json!({"dtype": dtype, "shape": shape, "nbytes": nbytes});
        assert_eq!(meta["views"]["raw"], raw);
        let floats = json!({"dtype": "F32", "shape": shape, "nbytes": f32.len(), "exact": true});
        assert_eq!(meta["views"]["f32"], floats);
        assert_eq!(meta["views"]["npy"]["shape"], json!(shape));
        assert_eq!(meta["numel"], json!(shape.iter().product::<u64>()));
        assert_eq!(meta.get("quantization"), None);
        assert_eq!(meta["origin"]["file"], "model.gguf");
        let at = meta["origin"]["offset"].as_u64().unwrap() as usize;
        assert_eq!(bytes[at..at + nbytes], stored(name), "{name}");
        assert!(
            m.read(&format!("preview/{name}.png"))
                .starts_with(b"\x89PNG")
        );
    }
    let raw = m.join("tensors/blk.1.attn_q.weight/raw");
    assert_eq!(getxattr(&raw, "user.stfs.dtype").unwrap(), b"Q4_0");
    assert_eq!(getxattr(&raw, "user.stfs.shape").unwrap(), b"4,64");
    let values = m.join("tensors/blk.1.attn_q.weight/f32");
    assert_eq!(getxattr(&values, "user.stfs.dtype").unwrap(), b"F32");

    let json = m.json("model.json");
    assert_eq!(json["format"], "gguf");
    let quantization = json!({"method": "gguf", "bits": null, "group_size": null});
    assert_eq!(json["quantization"], quantization);
    let numel = |t: &(&str, u32, &[u64])| t.2.iter().product::<u64>();
    let parameters: u64 = TENSORS.iter().map(numel).sum();
    assert_eq!(json["parameters"], parameters);
    assert_eq!(json["dtypes"]["Q8_0"]["tensors"], 5);
    assert_eq!(json["metadata"]["general.architecture"], "llama");
    assert_eq!(json["metadata"].get("tokenizer.ggml.tokens"), None);
    let index = m.json("index.json");
    assert_eq!(index["token_embd.weight"]["dtype"], "Q8_0");
    assert_eq!(index["output.weight"]["origin"], "tied");
}

#[test]
fn llama_cpps_fusions_and_head_are_there() {
    let (_dir, path, _) = model();
    let m = Mounted::new(&path);
    let parts = ["q", "k", "v"].map(|p| format!("blk.0.attn_{p}.weight"));
    let joined: Vec<u8> = parts.iter().flat_map(|p| stored(p)).collect();
    assert_eq!(m.read("tensors/blk.0.attn_qkv.weight/raw"), joined);
    let meta = m.json("tensors/blk.0.attn_qkv.weight/meta.json");
    assert_eq!(
        (&meta["dtype"], &meta["shape"]),
        (&json!("Q8_0"), &json!([8, 64]))
    );
    // v is of another type.
    let parts = ["q", "k", "v"].map(|p| format!("blk.1.attn_{p}.weight"));
    let floats: Vec<f32> = parts.iter().flat_map(|p| values(p)).collect();
    for file in ["raw", "f32"] {
        let got = m.read(&format!("tensors/blk.1.attn_qkv.weight/{file}"));
        assert_eq!(got, bytes_of(&floats), "{file}");
    }
    let meta = m.json("tensors/blk.1.attn_qkv.weight/meta.json");
    assert_eq!(
        (&meta["dtype"], &meta["shape"]),
        (&json!("F32"), &json!([8, 64]))
    );
    // Within each expert.
    let [gate, up] = ["gate", "up"].map(|p| stored(&format!("blk.1.ffn_{p}_exps.weight")));
    let expert = |data: &[u8], e: usize| data[36 * e..36 * (e + 1)].to_vec();
    let joined = (0..3).flat_map(|e| [expert(&gate, e), expert(&up, e)].concat());
    let got = m.read("tensors/blk.1.ffn_gate_up_exps.weight/raw");
    assert_eq!(got, joined.collect::<Vec<u8>>());
    assert_eq!(
        m.read("tensors/output.weight/raw"),
        stored("token_embd.weight")
    );

    let why = stfs([Path::new("ls"), "--why".as_ref(), &path]).ok().out;
    let is_said = |words: &[&str]| {
        let line = |line: &&str| words.iter().all(|word| line.contains(word));
        assert!(why.lines().any(|l| line(&l)), "{words:?}: {why}");
    };
    is_said(&["blk.1.attn_qkv.weight: is F32 values", "Q4_0", "Q8_0"]);
    is_said(&["export/model.safetensors: 'blk.0.attn_k.weight' is Q8_0"]);
    is_said(&["export/model-fused.safetensors: "]);
    let json = stfs(["ls", "--why", "--json", path.to_str().unwrap(), "export/*"]);
    let json = json.ok().json();
    assert_eq!(json.as_array().unwrap().len(), 2);
    assert_eq!(json[0]["name"], "export/model.safetensors");
}

#[test]
fn metadata_json_has_every_key_and_only_gguf_has_it() {
    let (_dir, path, _) = model();
    let m = Mounted::new(&path);
    let size = m.join("metadata.json").metadata().unwrap().len();
    let text = m.read("metadata.json");
    assert_eq!(text.len() as u64, size);
    let json: Value = serde_json::from_slice(&text).unwrap();
    assert_eq!(
        json["general.architecture"],
        json!({"type": "string", "value": "llama"})
    );
    assert_eq!(
        json["llama.rope.scale"],
        json!({"type": "float32", "value": null})
    );
    assert_eq!(json["large"], json!({"type": "uint64", "value": u64::MAX}));
    let tokens = &json["tokenizer.ggml.tokens"];
    assert_eq!(
        (&tokens["type"], &tokens["of"]),
        (&json!("array"), &json!("string"))
    );
    assert_eq!(tokens["value"].as_array().unwrap().len(), 100);
    let order: Vec<String> = keys().iter().map(|(key, _)| format!("\"{key}\"")).collect();
    let text = String::from_utf8(text).unwrap();
    assert!(
        order.is_sorted_by_key(|key| text.find(key).unwrap()),
        "{text}"
    );
    assert!(m.list("").contains(&"metadata.json".to_string()));
    assert!(!m.list("files").contains(&"metadata.json".to_string()));

    // The source is gone: that file alone has an error, and the listing still has it.
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(40)
        .unwrap();
    let other = ModelDir::of(&[tensor("w", safetensors::Dtype::F32, &[2])]);
    let again = Mounted::new(other.path());
    assert_eq!(errno(File::open(again.join("metadata.json"))), libc::ENOENT);
    assert!(!again.list("").contains(&"metadata.json".to_string()));
    assert!(!again.list("export").contains(&"model.gguf".to_string()));
    let read = File::open(m.join("metadata.json")).and_then(|mut f| f.read_to_end(&mut vec![]));
    assert_eq!(errno(read), libc::EIO);
    assert_eq!(m.join("metadata.json").metadata().unwrap().len(), size);
}

/// The memory of the daemon that a stat of a large file leaves behind.
#[test]
fn what_is_made_for_its_size_is_not_kept() {
    // Eight million times `false, `.
    let count = 8 << 20;
    let mut array = 7u32.to_le_bytes().to_vec();
    array.extend((count as u64).to_le_bytes());
    array.resize(array.len() + count, 0);
    let dir = ModelDir::new();
    let path = dir.file("m.gguf", Gguf::new().key("k", V::Raw(9, array)).bytes());
    let m = Mounted::new(&path);
    let resident = || -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", m.pid())).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
        let kib = line.unwrap().trim().strip_suffix(" kB").unwrap();
        1024 * kib.parse::<u64>().unwrap()
    };
    let before = resident();
    let size = m.join("metadata.json").metadata().unwrap().len();
    assert!(size > 7 * count as u64);
    let more = resident().saturating_sub(before);
    assert!(more < size, "{more} bytes for {size}");
}

#[test]
fn a_file_that_cannot_be_made_does_not_hide_the_others() {
    let (_dir, path, bytes) = model();
    let m = Mounted::new(&path);
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(40).unwrap();
    // Neither was looked at before.
    let mut names = m.list("");
    names.sort();
    let all = [
        "export",
        "files",
        "index.json",
        "metadata.json",
        "model.json",
    ];
    assert_eq!(
        names,
        [&all[..], &["npy", "preview", "tensors", "tree"]].concat()
    );
    assert_eq!(errno(m.join("metadata.json").metadata()), libc::EIO);
    assert!(m.join("model.json").metadata().unwrap().len() > 0);
    // The error is not remembered.
    file.write_all_at(&bytes, 0).unwrap();
    assert!(m.json("metadata.json").is_object());
}

#[test]
fn model_gguf_is_the_file_itself() {
    let (_dir, path, bytes) = model();
    let m = Mounted::new(&path);
    let export = m.join("export/model.gguf");
    assert_eq!(export.metadata().unwrap().len(), bytes.len() as u64);
    assert!(m.read("export/model.gguf") == bytes);
    let mut exports = m.list("export");
    exports.sort();
    let there = [
        "model-bf16.safetensors",
        "model-f32.safetensors",
        "model.gguf",
        "model_weights.bin",
        "model_weights.json",
    ];
    assert_eq!(exports, there);
    for absent in ["model.safetensors", "model-fused.safetensors"] {
        let at = m.join("export").join(absent);
        assert_eq!(errno(at.metadata()), libc::ENOENT, "{absent}");
    }
    // A float model, and bin + manifest.
    let file = m.read("export/model-f32.safetensors");
    let floats = safetensors::SafeTensors::deserialize(&file).unwrap();
    assert_eq!(floats.len(), TENSORS.len());
    for (name, _, shape) in TENSORS {
        let tensor = floats.tensor(name).unwrap();
        assert!(
            tensor
                .shape()
                .iter()
                .map(|&d| d as u64)
                .eq(shape.iter().copied())
        );
        assert_eq!(tensor.data(), bytes_of(&values(name)), "{name}");
    }
    let manifest = m.json("export/model_weights.json");
    let entry = &manifest["tensors"]["blk.1.attn_q.weight"];
    assert_eq!(
        (&entry["dtype"], &entry["shape"]),
        (&json!("Q4_0"), &json!([4, 64]))
    );
    let (at, size) = (
        entry["offset"].as_u64().unwrap(),
        entry["size"].as_u64().unwrap(),
    );
    let mut raw = vec![0; size as usize];
    let bin = File::open(m.join("export/model_weights.bin")).unwrap();
    bin.read_exact_at(&mut raw, at).unwrap();
    assert_eq!(raw, stored("blk.1.attn_q.weight"));
}

/// A set of three files, the second without tensors; and the names of its files.
fn split() -> (ModelDir, Vec<String>) {
    let dir = ModelDir::new();
    let all = tensors();
    let set = splits("model", &keys(), &[&all[..4], &[], &all[4..]]);
    let names = set.iter().map(|(name, _)| name.clone()).collect();
    for (i, (name, mut file)) in set.into_iter().enumerate() {
        // Each file has its own alignment; the first has the key.
        file.alignment = [64, 32, 32][i];
        file.version = [2, 3, 3][i];
        dir.file(&name, file.bytes());
    }
    (dir, names)
}

#[test]
fn splits_are_merged_into_one_file() {
    let (dir, names) = split();
    let m = Mounted::new(dir.path());
    let merged = m.read("export/model.gguf");
    // As if it had never been split.
    assert!(merged == gguf().bytes());
    let ino = m.join("export/model.gguf").metadata().unwrap().ino();
    // Any range, read at random.
    let file = File::open(m.join("export/model.gguf")).unwrap();
    for from in (0..merged.len()).step_by(397) {
        let n = 1000.min(merged.len() - from);
        let mut got = vec![0; n];
        file.read_exact_at(&mut got, from as u64).unwrap();
        assert!(got == merged[from..from + n], "{from}");
    }
    // The set of one file loses its split keys, too.
    let one = ModelDir::new();
    let all = tensors();
    for (name, mut file) in splits("one", &keys(), &[&all[..]]) {
        file.alignment = 64;
        one.file(&name, file.bytes());
    }
    let of_one = Mounted::new(one.path());
    assert!(of_one.read("export/model.gguf") == gguf().bytes());
    assert_eq!(
        of_one.join("export/model.gguf").metadata().unwrap().ino(),
        ino
    );

    // A part of the set is not the model.
    std::fs::remove_file(dir.join(&names[2])).unwrap();
    let first = dir.join(&names[0]);
    let part = Mounted::with(&first, &["--allow-missing"]);
    assert!(!part.list("export").contains(&"model.gguf".to_string()));
    assert_eq!(
        errno(part.join("export/model.gguf").metadata()),
        libc::ENOENT
    );
    assert!(part.read("tensors/token_embd.weight/raw") == stored("token_embd.weight"));
    // The head may be in the missing split.
    assert_eq!(
        errno(part.join("tensors/output.weight").metadata()),
        libc::ENOENT
    );
}

/// The merged file reads the headers again, and nothing behind them.
#[test]
fn a_split_that_is_cut_takes_only_its_own_bytes() {
    let dir = ModelDir::new();
    let [small, large] = [("a", 32), ("b", 1 << 16)].map(|(name, n)| [counting(name, n, 1.0)]);
    let set = splits("model", &[], &[&small, &large]);
    let paths: Vec<PathBuf> = set
        .iter()
        .map(|(name, file)| dir.file(name, file.bytes()))
        .collect();
    let m = Mounted::new(dir.path());
    let whole = m.read("export/model.gguf");
    let cut = File::options().write(true).open(&paths[1]).unwrap();
    cut.set_len(cut.metadata().unwrap().len() - (128 << 10))
        .unwrap();
    let file = File::open(m.join("export/model.gguf")).unwrap();
    let mut head = vec![0; 1000];
    file.read_exact_at(&mut head, 0).unwrap();
    assert!(head == whole[..1000]);
    let end = whole.len() as u64 - 100;
    assert_eq!(errno(file.read_exact_at(&mut [0; 100], end)), libc::EIO);
}

#[test]
fn diff_compares_values_across_types() {
    let (dir, path, _) = model();
    let args = |other: &Path| ["diff".into(), "--json".into(), path.clone(), other.into()];
    assert_eq!(stfs(args(&path)).ok().json()["unchanged"], TENSORS.len());
    // The same values as floats: half of what fits in eight bits is exact in F32.
    let mut floats = gguf();
    for tensor in &mut floats.tensors {
        tensor.data = bytes_of(&values(std::str::from_utf8(&tensor.name).unwrap()));
        tensor.kind = F32;
    }
    let other = dir.file("floats.gguf", floats.bytes());
    let ran = stfs(args(&other));
    assert_eq!(ran.code, 1, "{ran:?}");
    let found = ran.json();
    let changed = found["changed"].as_array().unwrap();
    assert_eq!(changed.len(), TENSORS.len() - 1);
    for change in changed {
        assert_eq!(
            (&change["what"], &change["max_abs"]),
            (&json!("dtype"), &json!(0.0))
        );
    }
    // One code differs; and a scale of zero makes the codes of its block count for nothing.
    let mut codes = gguf();
    codes.tensors[2].data[5] ^= 1;
    let other = dir.file("codes.gguf", codes.bytes());
    let found = stfs(args(&other)).json();
    assert_eq!(found["unchanged"], TENSORS.len() - 1);
    let change = &found["changed"][0];
    assert_eq!(
        (&change["name"], &change["what"]),
        (&json!("blk.0.attn_q.weight"), &json!("value"))
    );
    assert_eq!(change["max_abs"], 0.5);
    codes.tensors[2].data[..2].fill(0);
    let zero = dir.file("zero.gguf", codes.bytes());
    codes.tensors[2].data[5] ^= 2;
    let other = dir.file("other.gguf", codes.bytes());
    let args = ["diff".into(), "--json".into(), zero, other];
    assert_eq!(stfs(args).ok().json()["unchanged"], TENSORS.len());
}
