//! Hostile names in JSON: nothing in it acts on a terminal, and every reader gets the names back.

use std::path::Path;

use safetensors::Dtype;
use serde_json::{Value, json};

use crate::common::gguf::{F32, Gguf, counting, s, strings};
use crate::common::mount::command;
use crate::common::{ModelDir, Mounted, T, tensor};

/// C0, DEL, C1, bidirectional controls, separators, marks of no width, tags (beyond the basic plane).
const HOSTILE: &str = "\u{1b}[2J\u{7f}\u{9b}31m\u{80}\u{9f}\u{61c}\u{200e}\u{200f}\u{202a}\u{202e}\u{2066}\u{2069}\u{2028}\u{2029}\u{feff}\u{200b}\u{ad}\u{2060}\u{180e}\u{fff9}\u{e0041}\u{1d173}";

/// Text that stays as it is.
const PLAIN: &str = "é\u{1f980}漢\u{301}\"\\";

fn hostile(name: &str) -> String {
    format!("{HOSTILE}.{PLAIN}.{name}")
}

/// No character of the text acts on a terminal, or is not seen.
#[track_caller]
fn is_harmless(what: &str, bytes: &[u8]) {
    let text = std::str::from_utf8(bytes).unwrap();
    let bad = |&c: &char| c != '\n' && (c.is_control() || HOSTILE.contains(c) && !c.is_ascii());
    assert_eq!(text.chars().find(bad), None, "{what}: {text:?}");
}

fn model() -> (ModelDir, Vec<T>) {
    let all: Vec<T> = ["q_proj.weight", "k_proj.weight", "v_proj.weight"]
        .map(|p| tensor(&hostile(&format!("self_attn.{p}")), Dtype::BF16, &[4, 8]))
        .into_iter()
        .chain([tensor(HOSTILE, Dtype::U8, &[3])])
        .collect();
    (ModelDir::of(&all), all)
}

#[test]
fn in_the_mounts_files() {
    let (dir, all) = model();
    let m = Mounted::new(dir.path());
    let mut paths = vec!["index.json".to_string(), "model.json".into()];
    for name in m.list("tensors") {
        paths.push(format!("tensors/{name}/meta.json"));
    }
    assert_eq!(paths.len(), 2 + all.len() + 1, "{paths:?}");
    paths.push("export/model_weights.json".into());
    for path in &paths {
        let bytes = m.read(path);
        let size = m.join(path).metadata().unwrap().len();
        assert_eq!(size, bytes.len() as u64, "{path}");
        is_harmless(path, &bytes);
        serde_json::from_slice::<Value>(&bytes).unwrap();
    }
    let index = m.json("index.json");
    for t in &all {
        let entry = &index[&t.name];
        let file = entry["path"].as_str().unwrap();
        assert!(m.read(&format!("{file}/raw")) == t.data);
        assert_eq!(m.json(&format!("{file}/meta.json"))["name"], t.name);
        let args = [Path::new("cat"), "--view".as_ref(), "meta".as_ref()];
        let args = args.into_iter().chain([dir.path(), t.name.as_ref()]);
        let meta = command(args).output().unwrap().stdout;
        assert!(meta == m.read(&format!("{file}/meta.json")));
    }
}

/// The library that everybody uses finds every name and every byte.
#[test]
fn in_the_headers_of_exports() {
    let (dir, all) = model();
    let m = Mounted::new(dir.path());
    for export in ["model.safetensors", "model-fused.safetensors"] {
        let bytes = m.read(&format!("export/{export}"));
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let fused = export.contains("fused");
        assert_eq!(file.len(), if fused { 2 } else { all.len() });
        for t in all.iter().filter(|t| !fused || t.name == HOSTILE) {
            assert!(file.tensor(&t.name).unwrap().data() == t.data);
        }
    }
}

#[test]
fn in_what_commands_print() {
    let (dir, _) = model();
    let other = ModelDir::of(&[tensor(&hostile("x"), Dtype::F32, &[2])]);
    let damaged = ModelDir::new();
    let entry = json!({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]});
    let header = json!({hostile("x"): entry}).to_string();
    damaged.raw_shard("model.safetensors", header, &[0; 4]);
    let word = Path::new;
    for (code, args) in [
        (0, vec![word("ls"), dir.path()]),
        (0, vec![word("ls"), word("--tree"), dir.path()]),
        (0, vec![word("ls"), word("--why"), dir.path()]),
        (0, vec![word("info"), dir.path()]),
        (0, vec![word("stat"), dir.path()]),
        (1, vec![word("diff"), dir.path(), other.path()]),
        (1, vec![word("verify"), damaged.path()]),
    ] {
        let out = command(args.iter().copied().chain([word("--json")]))
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(code), "{args:?}: {out:?}");
        is_harmless(&format!("{args:?} --json"), &out.stdout);
        serde_json::from_slice::<Value>(&out.stdout).unwrap();
        is_harmless(
            &format!("{args:?}"),
            &command(args).output().unwrap().stdout,
        );
    }
}

#[test]
fn in_the_keys_of_a_gguf_file() {
    let dir = ModelDir::new();
    let file = Gguf::small()
        .key(hostile("key"), s(HOSTILE))
        .key("words", strings([HOSTILE, PLAIN]));
    let t = counting("t.weight", 32, 0.0);
    let file = file.tensor("t.weight", &t.ne, F32, &*t.data);
    dir.file("model.gguf", file.bytes());
    let m = Mounted::new(dir.path());
    let bytes = m.read("metadata.json");
    is_harmless("metadata.json", &bytes);
    is_harmless("model.json", &m.read("model.json"));
    let size = m.join("metadata.json").metadata().unwrap().len();
    assert_eq!(size, bytes.len() as u64);
    let keys: Value = serde_json::from_slice(&bytes).unwrap();
    assert_eq!(keys[hostile("key")]["value"], HOSTILE);
    assert_eq!(keys["words"]["value"], json!([HOSTILE, PLAIN]));
    assert_eq!(m.json("model.json")["metadata"][hostile("key")], HOSTILE);
}
