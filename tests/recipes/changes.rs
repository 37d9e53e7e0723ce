//! What changes under the mount of a recipe: its sources, and the recipe itself.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use safetensors::Dtype;
use serde_json::json;

use crate::common::sys::errno;
use crate::common::{ModelDir, Mounted, T, noise, stfs};
use crate::model;

/// A tensor of small whole numbers, on which arithmetic is exact.
fn numbers(name: &str, shape: &[usize], seed: u64) -> T {
    let count = shape.iter().product();
    let small = noise(seed, count).into_iter().map(|b| f32::from(b % 16));
    T {
        name: name.into(),
        dtype: Dtype::F32,
        shape: shape.into(),
        data: small.flat_map(f32::to_le_bytes).collect(),
    }
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    let all = bytes.chunks_exact(4);
    all.map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect()
}

fn bytes(values: impl IntoIterator<Item = f32>) -> Vec<u8> {
    values.into_iter().flat_map(f32::to_le_bytes).collect()
}

/// Puts other data in place of a tensor's in a model of it alone, or the first one.
fn overwrite(path: &Path, data: &[u8]) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut len = [0; 8];
    file.read_exact_at(&mut len, 0).unwrap();
    file.write_all_at(data, 8 + u64::from_le_bytes(len))
        .unwrap();
}

const N: usize = 300;

/// Two models, and a recipe with a view of each kind over their one tensor `w`, `[300, 300]`.
fn sources() -> (ModelDir, T, T) {
    let dir = ModelDir::new();
    let (w, other) = (numbers("w", &[N, N], 1), numbers("w", &[N, N], 2));
    model(&dir, "m", std::slice::from_ref(&w));
    model(&dir, "other", std::slice::from_ref(&other));
    let recipe = "model = 'm'\nmodels = { other = 'other' }\nrules = [\n\
        { on = 'w', add = { sum = 'it + 2 * other:it', t = 't(it)', cut = 'it[:, 1:]', both = 'concat(it, other:it)' } },\n\
        { on = 'w', add = 'other', is = 'other:it' },\n]\n";
    dir.file("recipe.toml", recipe);
    (dir, w, other)
}

/// Every derived tensor is what it should be of these sources.
#[track_caller]
fn shows(m: &Mounted, w: &[u8], other: &[u8]) {
    let (a, b) = (f32s(w), f32s(other));
    let raw = |name: &str| m.read(&format!("tensors/{name}/raw"));
    assert!(raw("w") == w, "w");
    assert!(raw("other") == other, "other");
    assert!(raw("both") == [w, other].concat(), "both");
    let sum = a.iter().zip(&b).map(|(a, b)| a + 2.0 * b);
    assert!(raw("sum") == bytes(sum), "sum");
    let t = (0..N).flat_map(|i| (0..N).map(move |j| j * N + i));
    assert!(raw("t") == bytes(t.map(|i| a[i])), "t");
    let cut = a.chunks(N).flat_map(|row| row[1..].to_vec());
    assert!(raw("cut") == bytes(cut), "cut");
}

#[test]
fn a_source_that_changes_is_served_as_it_is_now_and_reported() {
    let (dir, w, other) = sources();
    let m = Mounted::new(&dir.join("recipe.toml"));
    shows(&m, &w.data, &other.data);
    assert_eq!(m.status()["source_changed"], false, "{}", m.log());
    let new = numbers("w", &[N, N], 3).data;
    overwrite(&dir.join("other/model.safetensors"), &new);
    shows(&m, &w.data, &new);
    assert_eq!(m.status()["source_changed"], true, "{}", m.log());
    let newer = numbers("w", &[N, N], 4).data;
    overwrite(&dir.join("m/model.safetensors"), &newer);
    shows(&m, &newer, &new);
}

#[test]
fn a_truncated_source_fails_what_needs_it_and_nothing_else() {
    let (dir, w, other) = sources();
    let m = Mounted::new(&dir.join("recipe.toml"));
    let path = dir.join("other/model.safetensors");
    let whole = std::fs::read(&path).unwrap();
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(whole.len() as u64 - 4000).unwrap();
    for name in ["sum", "other", "both"] {
        let read = std::fs::read(m.join(&format!("tensors/{name}/raw")));
        assert_eq!(errno(read), libc::EIO, "{name}");
    }
    assert!(m.read("tensors/w/raw") == w.data);
    assert!(m.read("tensors/cut/raw").len() == N * (N - 1) * 4);
    // Its first rows are still there.
    let first = File::open(m.join("tensors/other/raw")).unwrap();
    let mut row = vec![0; 4 * N];
    first.read_exact_at(&mut row, 0).unwrap();
    assert!(row == other.data[..4 * N]);
    drop(first);
    std::fs::write(&path, &whole).unwrap();
    shows(&m, &w.data, &other.data);
}

#[test]
fn an_edited_recipe_changes_nothing_of_a_mount_but_is_reported() {
    let (dir, w, other) = sources();
    let path = dir.join("recipe.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let m = Mounted::new(&path);
    let names = m.list("tensors");
    assert_eq!(m.status()["source_changed"], false, "{}", m.log());
    std::fs::write(&path, "model = 'm'\n").unwrap();
    assert_eq!(m.list("tensors"), names);
    shows(&m, &w.data, &other.data);
    assert_eq!(m.status()["source_changed"], true, "{}", m.log());
    drop(m);
    // As editors write: another file takes the name.
    std::fs::write(&path, &text).unwrap();
    let m = Mounted::new(&path);
    std::fs::write(dir.join("new"), "not a recipe").unwrap();
    std::fs::rename(dir.join("new"), &path).unwrap();
    shows(&m, &w.data, &other.data);
    std::fs::remove_file(&path).unwrap();
    shows(&m, &w.data, &other.data);
    assert_eq!(m.list("tensors"), names);
}

/// A mountpoint stands for what is mounted there, whatever has become of the recipe.
#[test]
fn a_mountpoint_is_the_recipe_as_it_was_mounted() {
    let (dir, w, _) = sources();
    let path = dir.join("recipe.toml");
    let text = std::fs::read_to_string(&path).unwrap();
    let text = format!("set = {{ n = 2 }}\n{text}").replace("it[:, 1:]", "it[:, n:]");
    std::fs::write(&path, text).unwrap();
    let m = Mounted::with(&path, &["--set", "n=3"]);
    let root = m.root().to_str().unwrap();
    let shown = || {
        let all = stfs(["ls", "--json", root]).ok().json();
        let cut = all.as_array().unwrap().iter().find(|t| t["name"] == "cut");
        assert_eq!(cut.unwrap()["shape"], json!([N, N - 3]));
        let raw = stfs(["cat", root, "w", "--view", "raw"]).ok();
        assert_eq!(raw.out.len(), String::from_utf8_lossy(&w.data).len());
        stfs(["verify", root]).ok();
    };
    shown();
    std::fs::write(&path, "garbage = [").unwrap();
    shown();
    std::fs::remove_file(&path).unwrap();
    shown();
    // Of what is wrong meanwhile, messages name the recipe.
    std::fs::rename(dir.join("other"), dir.join("gone")).unwrap();
    let path = format!("{}:3:", path.display());
    stfs(["ls", root]).fails(&[&path]);
}

/// The factors of an adapter are kept in memory while they are small. A change is seen all the same.
#[test]
fn an_adapter_that_changes_is_served_as_it_is_now() {
    let (dir, w, _) = sources();
    let factors = |seed| {
        let of = |x: &str, shape: &[usize], seed| {
            numbers(&format!("base_model.model.w.lora_{x}.weight"), shape, seed)
        };
        [of("A", &[2, N], seed), of("B", &[N, 2], seed + 1)]
    };
    let base = T {
        name: "w.weight".into(),
        ..w.clone()
    };
    model(&dir, "base", &[base]);
    let config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4});
    let merged = |[a, b]: &[T; 2]| {
        let (w, a, b) = (f32s(&w.data), f32s(&a.data), f32s(&b.data));
        let ab = |i: usize, j: usize| b[2 * i] * a[j] + b[2 * i + 1] * a[N + j];
        bytes((0..N * N).map(|at| w[at] + 2.0 * ab(at / N, at % N)))
    };
    let first = factors(10);
    model(&dir, "ad", &first);
    dir.json("ad/adapter_config.json", &config);
    let text = "model = 'base'\nmodels = { ad = 'ad' }\nrules = [{ lora = 'ad' }]\n";
    let m = Mounted::new(&dir.file("lora.toml", text));
    assert!(m.read("tensors/w.weight/raw") == merged(&first));
    for seed in [20, 30] {
        let next = factors(seed);
        // The library writes tensors of one size in the order of their names.
        overwrite(
            &dir.join("ad/model.safetensors"),
            &[&*next[0].data, &*next[1].data].concat(),
        );
        assert!(m.read("tensors/w.weight/raw") == merged(&next), "{seed}");
    }
    assert_eq!(m.status()["source_changed"], true, "{}", m.log());
}
