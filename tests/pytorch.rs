//! PyTorch checkpoints as torch writes them, held to what torch makes of them: names, dtypes, shapes,
//! bytes, values, strides, and what is refused (`tests/golden/pytorch`, made by
//! `tests/golden/makers/pytorch_.py`).

#[path = "common/mod.rs"]
mod common;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use common::mount::Mounted;
use common::sys::getxattr;
use common::{naive, stfs};
use safetensors::SafeTensors;
use serde_json::{Map, Value, json};

/// One test for each directory of `tests/golden/pytorch`.
macro_rules! cases {
    ($($test:ident: $case:literal,)*) => {
        const CASES: &[&str] = &[$($case),*];
        $(#[test]
        fn $test() {
            case($case);
        })*
    };
}

cases! {
    a_state_dict_in_a_directory: "zip",
    every_dtype: "dtypes",
    views_of_every_layout: "strided",
    the_format_before_1_6: "legacy",
    what_older_versions_wrote: "older",
    every_protocol: "protocols",
    the_other_byte_order: "big-endian",
    archives_stored_again: "restored",
    stable_diffusion: "stable-diffusion",
    a_tensor_beside_the_model: "imagenet",
    several_networks: "gan",
    the_order_of_keys: "params-ema",
    deepspeed: "deepspeed",
    keys_within_keys: "nested",
    tensors_and_lists_alone: "bare",
    keys_that_are_not_text: "keys",
    objects_beside_tensors: "beside",
    shared_storages: "tied",
    parameters_and_subclasses: "wrapped",
    shards_with_an_index: "sharded",
    numbered_files: "numbered",
    gptq: "auto-gptq-4bit-act-order",
    awq: "awq-4bit-groups-of-32",
    bitsandbytes_nf4: "bnb-nf4",
    bitsandbytes_int8: "bnb-int8",
    tensors_that_are_left_out: "left-out",
    what_is_not_a_checkpoint: "refused",
}

#[test]
fn every_case_has_its_test() {
    let all = std::fs::read_dir(golden().join("pytorch")).unwrap();
    let mut all: Vec<String> = all
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    let mut tested: Vec<&str> = CASES.to_vec();
    all.sort();
    tested.sort_unstable();
    assert_eq!(all, tested);
}

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// What differs, of all that is compared.
struct Problems {
    of: String,
    found: Vec<String>,
}

impl Problems {
    fn add(&mut self, what: String) {
        self.found.push(format!("{}: {what}", self.of));
    }

    fn same<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, found: &T, expected: &T) {
        if found != expected {
            self.add(format!("{what} is {found:?}, torch has {expected:?}"));
        }
    }

    fn bytes(&mut self, what: &str, found: &[u8], expected: &[u8]) {
        if found != expected {
            let at = found.iter().zip(expected).position(|(a, b)| a != b);
            let lens = (found.len(), expected.len());
            self.add(format!(
                "{what} differs at {at:?}; {} bytes, torch has {}",
                lens.0, lens.1
            ));
        }
    }

    fn words(&mut self, what: &str, text: &str, words: &Value) {
        for word in words.as_array().into_iter().flatten() {
            let word = word.as_str().unwrap();
            if !text.contains(word) {
                self.add(format!("{what} lacks {word:?}: {text}"));
            }
        }
    }
}

fn case(name: &str) {
    let dir = golden().join("pytorch").join(name);
    let expected = std::fs::read(dir.join("expected.json")).unwrap();
    let expected: Value = serde_json::from_slice(&expected).unwrap();
    let mut all = Vec::new();
    for opened in expected["open"].as_array().unwrap() {
        for path in opened["paths"].as_array().unwrap() {
            let path = path.as_str().unwrap();
            let mut problems = Problems {
                of: format!("{name}/{path}"),
                found: Vec::new(),
            };
            let model = match path {
                "." => dir.join("model"),
                path => dir.join("model").join(path),
            };
            if opened.get("refused").is_some() {
                refused(&model, &opened["refused"], &mut problems);
            } else {
                opens(&model, opened, &mut problems);
            }
            if let Some(twin) = expected["twin"].as_str() {
                same_as(&model, &golden().join(twin).join("model"), &mut problems);
            }
            all.extend(problems.found);
        }
    }
    assert!(all.is_empty(), "\n{}", all.join("\n"));
}

/// Every command must refuse it, in one line with these words.
fn refused(model: &Path, words: &Value, problems: &mut Problems) {
    let at = tempfile::tempdir().unwrap();
    let mountpoint = at.path().join("m");
    let model = model.to_str().unwrap();
    for args in [
        vec!["ls", model],
        vec!["info", model],
        vec!["mount", model, mountpoint.to_str().unwrap()],
    ] {
        let ran = stfs(&args);
        let lines = ran.err.lines().count();
        if ran.code == 0 && args[0] == "mount" {
            stfs(["umount", mountpoint.to_str().unwrap()]);
        }
        if (ran.code, lines) != (1, 1) || !ran.out.is_empty() {
            problems.add(format!("{}: {ran:?}", args[0]));
        } else {
            problems.words(args[0], &ran.err, words);
        }
    }
}

/// Opens and mounts it, and compares everything.
fn opens(model: &Path, expected: &Value, problems: &mut Problems) {
    let path = model.to_str().unwrap();
    let why = stfs(["ls", "--why", path]);
    if why.code != 0 {
        return problems.add(why.err);
    }
    problems.words("ls --why", &why.out, &expected["why"]);
    problems.words("ls --why", &why.out, &expected["left_out"]);
    // Of a model that is there twice, all is compared with the other.
    let verify = stfs(["verify", path]);
    if verify.code != 0 && expected.get("names").is_none() {
        problems.add(format!("verify: {verify:?}"));
    }
    let m = Mounted::with(model, &["--no-synthetic"]);
    let index = m.json("index.json");
    let names: Vec<&String> = index.as_object().unwrap().keys().collect();
    if let Some(expected) = expected["names"].as_array() {
        let mut names = names.clone();
        names.sort();
        return problems.same("names", &json!(names), &json!(expected));
    }
    let tensors = expected["tensors"].as_object().unwrap();
    let mut sorted: (Vec<&String>, Vec<&String>) = (names.clone(), tensors.keys().collect());
    sorted.0.sort();
    sorted.1.sort();
    problems.same("the list of names", &sorted.0, &sorted.1);
    summary(&m, expected, problems);
    let mut storages: HashMap<String, u64> = HashMap::new();
    for (name, tensor) in tensors {
        let Some(entry) = index.get(name) else {
            continue;
        };
        let seen = Seen {
            m: &m,
            directory: match model.is_dir() {
                true => model,
                false => model.parent().unwrap(),
            },
            name,
            path: entry["path"].as_str().unwrap(),
            expected: tensor,
        };
        let origin = seen.compare(entry, problems);
        // Tensors of one storage have the same `storage` in their origin, and others do not.
        let number = tensor["storage"].as_u64().unwrap();
        let storage = format!("{} {}", origin["file"], origin["storage"]);
        let other = *storages.entry(storage.clone()).or_insert(number);
        if other != number || storages.values().filter(|n| **n == number).count() != 1 {
            problems.add(format!("{name}: its storage is {storage}"));
        }
    }
    exported(&m, tensors, problems);
}

/// model.json and files/.
fn summary(m: &Mounted, expected: &Value, problems: &mut Problems) {
    let found = m.json("model.json");
    problems.same("format", &found["format"], &json!("pytorch"));
    let count = expected["tensors"].as_object().unwrap().len();
    problems.same("tensors", &found["tensors"], &json!(count));
    problems.same("metadata", &found["metadata"], &json!({"format": "pt"}));
    if let Some(files) = expected.get("files") {
        let mut list = m.list("files");
        list.sort();
        problems.same("files/", &json!(list), files);
    }
    let Some(expected) = expected.get("checkpoint") else {
        return;
    };
    let found = &found["checkpoint"];
    for key in ["key", "values"] {
        problems.same(key, &found[key], &expected[key]);
    }
    let all: Map<String, Value> = found["left_out"].as_object().cloned().unwrap_or_default();
    for (key, size) in expected["left_out"].as_object().into_iter().flatten() {
        problems.same(&format!("left_out.{key}"), &all.get(key), &Some(size));
    }
    if let Some(expected) = expected["globals"].as_array() {
        let all = found["globals"].as_array().cloned().unwrap_or_default();
        let missing = expected.iter().any(|name| !all.contains(name));
        if missing || (expected.is_empty() && !all.is_empty()) {
            problems.add(format!("globals are {all:?}, expected {expected:?}"));
        }
    }
}

/// A tensor in a mount, and what torch has of it.
struct Seen<'a> {
    m: &'a Mounted,
    /// Where the files of origins are.
    directory: &'a Path,
    name: &'a str,
    /// Its directory in the mount.
    path: &'a str,
    expected: &'a Value,
}

fn hex(text: &Value) -> Vec<u8> {
    let text = text.as_str().unwrap();
    let digits = (0..text.len()).step_by(2);
    digits
        .map(|i| u8::from_str_radix(&text[i..i + 2], 16).unwrap())
        .collect()
}

fn numbers(list: &Value) -> Vec<usize> {
    let list = list.as_array().into_iter().flatten();
    list.map(|n| n.as_u64().unwrap() as usize).collect()
}

impl Seen<'_> {
    /// Compares the tensor's files, and returns its origin.
    fn compare(&self, entry: &Value, problems: &mut Problems) -> Value {
        let (name, expected) = (self.name, self.expected);
        let raw = hex(&expected["raw"]);
        problems.bytes(&format!("{name}: raw"), &self.read("raw"), &raw);
        let meta = self.m.json(&format!("{}/meta.json", self.path));
        for key in ["dtype", "shape"] {
            problems.same(&format!("{name}: {key}"), &meta[key], &expected[key]);
            problems.same(
                &format!("{name}: {key} in index.json"),
                &entry[key],
                &expected[key],
            );
        }
        problems.same(
            &format!("{name}: nbytes"),
            &meta["nbytes"],
            &json!(raw.len()),
        );
        self.values(&raw, problems);
        let origin = meta["origin"].clone();
        self.origin(&origin, entry, &raw, problems);
        origin
    }

    fn exists(&self, file: &str) -> bool {
        self.m.join(&format!("{}/{file}", self.path)).exists()
    }

    fn read(&self, file: &str) -> Vec<u8> {
        self.m.read(&format!("{}/{file}", self.path))
    }

    /// `f32` and the NumPy file.
    fn values(&self, raw: &[u8], problems: &mut Problems) {
        let (name, expected) = (self.name, self.expected);
        let values = match expected["dtype"] == "F32" {
            true => Some(raw.to_vec()),
            false => expected.get("f32").map(hex),
        };
        problems.same(
            &format!("{name}: having f32"),
            &self.exists("f32"),
            &values.is_some(),
        );
        if let Some(values) = values.as_ref().filter(|_| self.exists("f32")) {
            let found = nans_alike(&self.read("f32"));
            problems.bytes(&format!("{name}: f32"), &found, &nans_alike(values));
        }
        let file = self.path.replacen("tensors/", "npy/", 1) + ".npy";
        let npy = expected["npy"].as_str();
        let exists = self.m.join(&file).exists();
        problems.same(&format!("{name}: having .npy"), &exists, &npy.is_some());
        if let (Some(descr), true) = (npy, exists) {
            // NumPy's own type, or the values.
            let own = descr != "<f4" || expected["dtype"] == "F32";
            let data = if own { Some(raw.to_vec()) } else { values };
            let header = naive::npy_header(descr, &numbers(&expected["shape"]));
            let found = self.m.read(&file);
            let (start, rest) = found.split_at(header.len().min(found.len()));
            problems.bytes(&format!("{name}: header of .npy"), start, &header);
            let (rest, data) = match own {
                true => (rest.to_vec(), data.unwrap()),
                false => (nans_alike(rest), nans_alike(&data.unwrap())),
            };
            problems.bytes(&format!("{name}: .npy"), &rest, &data);
        }
    }

    /// Kind, place and layout: the origin's `file`, `offset` and `strides` must lead to the bytes.
    fn origin(&self, origin: &Value, entry: &Value, raw: &[u8], problems: &mut Problems) {
        let name = self.name;
        let strides = self.expected.get("strides");
        let more = self.expected.get("origin").and_then(Value::as_object);
        let big = more.is_some_and(|more| more.contains_key("byteorder"));
        let kind = match strides {
            Some(_) => "strided",
            None => "stored",
        };
        // Swapped bytes are not those that the file holds.
        if !(big && strides.is_none()) {
            problems.same(
                &format!("{name}: kind of origin"),
                &origin["kind"],
                &json!(kind),
            );
        }
        problems.same(
            &format!("{name}: kind in index.json"),
            &entry["origin"],
            &origin["kind"],
        );
        let file = self.m.join(&format!("{}/raw", self.path));
        let xattr = getxattr(&file, "user.stfs.origin").unwrap();
        problems.bytes(
            &format!("{name}: user.stfs.origin"),
            &xattr,
            origin["kind"].as_str().unwrap_or_default().as_bytes(),
        );
        if kind == origin["kind"] {
            problems.same(
                &format!("{name}: strides"),
                &origin.get("strides"),
                &strides,
            );
        }
        for key in ["device", "class", "byteorder"] {
            let expected = more.and_then(|more| more.get(key));
            problems.same(&format!("{name}: {key}"), &origin.get(key), &expected);
        }
        for key in ["file", "offset"] {
            problems.same(
                &format!("{name}: {key} in index.json"),
                &entry[key],
                &origin[key],
            );
        }
        let (Some(file), Some(offset)) = (origin["file"].as_str(), origin["offset"].as_u64())
        else {
            return problems.add(format!("{name}: origin is {origin}"));
        };
        let bytes = std::fs::read(self.directory.join(file)).unwrap();
        let gathered = self.gather(&bytes, offset as usize, raw.len(), big);
        problems.bytes(&format!("{name}: bytes at its origin"), &gathered, raw);
    }

    /// The tensor's bytes, one element after another.
    fn gather(&self, file: &[u8], offset: usize, len: usize, big: bool) -> Vec<u8> {
        let shape = numbers(&self.expected["shape"]);
        let count: usize = shape.iter().product();
        if count == 0 || len == 0 {
            return Vec::new();
        }
        let Some(strides) = self.expected.get("strides").map(numbers) else {
            let bytes = file.get(offset..offset + len).unwrap_or_default().to_vec();
            return if big { self.swapped(bytes) } else { bytes };
        };
        let size = len / count;
        let mut out = Vec::new();
        let mut at = vec![0; shape.len()];
        for _ in 0..count {
            let place: usize = at.iter().zip(&strides).map(|(i, s)| i * s).sum();
            let start = offset + place * size;
            out.extend(file.get(start..start + size).unwrap_or_default());
            for axis in (0..shape.len()).rev() {
                at[axis] += 1;
                if at[axis] < shape[axis] {
                    break;
                }
                at[axis] = 0;
            }
        }
        if big { self.swapped(out) } else { out }
    }

    /// With the bytes of each number the other way round.
    fn swapped(&self, bytes: Vec<u8>) -> Vec<u8> {
        let size = match self.expected["dtype"].as_str().unwrap() {
            "F64" | "I64" | "C128" => 8,
            "F32" | "I32" | "C64" => 4,
            "F16" | "BF16" | "I16" => 2,
            _ => 1,
        };
        let elements = bytes.chunks(size).flat_map(|e| e.iter().rev());
        elements.copied().collect()
    }
}

/// Float32 values with one NaN for all.
fn nans_alike(values: &[u8]) -> Vec<u8> {
    let value = |b: &[u8]| f32::from_le_bytes(b.try_into().unwrap());
    let all = values.chunks_exact(4).map(value);
    all.flat_map(|v| if v.is_nan() { f32::NAN } else { v }.to_le_bytes())
        .collect()
}

/// `export/model.safetensors` holds every tensor that safetensors has a dtype for.
fn exported(m: &Mounted, tensors: &Map<String, Value>, problems: &mut Problems) {
    let bytes = m.read("export/model.safetensors");
    let file = match SafeTensors::deserialize(&bytes) {
        Ok(file) => file,
        Err(e) => return problems.add(format!("export/model.safetensors: {e}")),
    };
    let found: BTreeMap<String, Vec<u8>> = file
        .tensors()
        .into_iter()
        .map(|(name, t)| (name, t.data().to_vec()))
        .collect();
    let opaque = |t: &Value| {
        let dtype = t["dtype"].as_str().unwrap();
        ["C128", "C32", "BC32"].contains(&dtype) || dtype.starts_with("BITS")
    };
    let expected: BTreeMap<String, Vec<u8>> = tensors
        .iter()
        .filter(|(_, t)| !opaque(t))
        .map(|(name, t)| (name.clone(), hex(&t["raw"])))
        .collect();
    let names = |of: &BTreeMap<String, Vec<u8>>| of.keys().cloned().collect::<Vec<_>>();
    problems.same("names in the export", &names(&found), &names(&expected));
    for (name, raw) in &expected {
        if let Some(data) = found.get(name) {
            problems.bytes(&format!("{name} in the export"), data, raw);
        }
    }
}

/// The same weights, dequantized ones too, as a model of safetensors.
fn same_as(model: &Path, twin: &Path, problems: &mut Problems) {
    for pair in [[twin, model], [model, twin]] {
        let mut args = vec!["diff", "--json"];
        args.extend(pair.map(|p| p.to_str().unwrap()));
        let ran = stfs(&args);
        if ran.code != 0 {
            problems.add(format!("diff: {ran:?}"));
            continue;
        }
        let found = ran.json();
        for key in ["added", "removed", "changed"] {
            problems.same(key, &found[key], &json!([]));
        }
        if found["unchanged"].as_u64() < Some(5) {
            problems.add(format!("diff compares {} weights", found["unchanged"]));
        }
    }
    // What dequantizes, by its name and origin.
    let list = |path: &Path| {
        let ran = stfs([Path::new("ls"), "--json".as_ref(), path]).ok().json();
        let all = ran.as_array().unwrap().clone().into_iter();
        let mut all: Vec<Value> = all
            .map(|t| json!([t["name"], t["dtype"], t["shape"], t["origin"]]))
            .collect();
        all.sort_by_key(Value::to_string);
        all
    };
    problems.same("ls", &list(model), &list(twin));
}
