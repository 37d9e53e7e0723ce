//! `--allow-missing`: the part of an incomplete download that has arrived.

use std::fs::File;
use std::path::Path;

use safetensors::Dtype;
use serde_json::json;

use crate::common::{ModelDir, Mounted, T, stfs, tensor};

fn t(name: &str) -> T {
    tensor(name, Dtype::BF16, &[64, 8])
}

fn three_shards() -> (ModelDir, [[T; 2]; 3]) {
    let pairs = [
        ["l.q_proj.weight", "a"],
        ["l.k_proj.weight", "b"],
        ["l.v_proj.weight", "c"],
    ];
    let all = pairs.map(|p| p.map(t));
    let dir = ModelDir::sharded(&[
        ("1.safetensors", &all[0]),
        ("2.safetensors", &all[1]),
        ("3.safetensors", &all[2]),
    ]);
    (dir, all)
}

fn refused(model: &Path, words: &[&str]) {
    stfs([Path::new("ls"), model]).fails(words);
}

#[test]
fn a_missing_shard() {
    let (dir, all) = three_shards();
    std::fs::remove_file(dir.join("2.safetensors")).unwrap();
    refused(dir.path(), &["2.safetensors", "missing", "--allow-missing"]);
    std::fs::write(dir.join("2.safetensors.incomplete"), "half").unwrap();
    refused(dir.path(), &["2.safetensors", ".incomplete"]);
    for option in [&["--allow-missing"][..], &["-o", "allow_missing"]] {
        let m = Mounted::with(dir.path(), option);
        assert_eq!(
            m.list("tensors"),
            ["a", "c", "l.q_proj.weight", "l.v_proj.weight"]
        );
        assert!(m.line.contains("2 tensors missing"), "{}", m.line);
        for pair in [&all[0], &all[2]] {
            assert_eq!(
                m.read(&format!("tensors/{}/raw", pair[1].name)),
                pair[1].data
            );
        }
        // Not a fusion of the parts that happen to be there.
        assert!(!m.join("tensors/l.qkv_proj.weight").exists());
        assert!(m.log().contains("2.safetensors"), "{}", m.log());
    }
}

#[test]
fn a_shard_cut_short() {
    let (dir, all) = three_shards();
    // The library puts tensors of one dtype in order of their names: `a`, then `l.q_proj.weight`.
    let path = dir.join("1.safetensors");
    let len = path.metadata().unwrap().len();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(len - 1)
        .unwrap();
    refused(
        dir.path(),
        &[
            "1.safetensors",
            "l.q_proj.weight",
            "2048",
            "2047",
            "--allow-missing",
        ],
    );
    let m = Mounted::with(dir.path(), &["--allow-missing"]);
    assert_eq!(
        m.list("tensors"),
        ["a", "b", "c", "l.k_proj.weight", "l.v_proj.weight"]
    );
    assert_eq!(m.read("tensors/a/raw"), all[0][1].data);
    drop(m);
    // Cut inside its header: none of it can be served.
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(20)
        .unwrap();
    refused(dir.path(), &["1.safetensors", "20"]);
    let m = Mounted::with(dir.path(), &["--allow-missing"]);
    assert_eq!(
        m.list("tensors"),
        ["b", "c", "l.k_proj.weight", "l.v_proj.weight"]
    );
    drop(m);
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(0)
        .unwrap();
    refused(dir.path(), &["1.safetensors", "empty"]);
    assert_eq!(
        Mounted::with(dir.path(), &["--allow-missing"])
            .list("tensors")
            .len(),
        4
    );
}

#[test]
fn a_single_file_cut_short() {
    let dir = ModelDir::of(&[t("a"), t("b"), t("c")]);
    let path = dir.join("model.safetensors");
    let len = path.metadata().unwrap().len();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(len - 1030)
        .unwrap();
    refused(dir.path(), &["model.safetensors", "'b'", "2048", "2042"]);
    for model in [dir.path(), &path] {
        let m = Mounted::with(model, &["--allow-missing"]);
        assert_eq!(m.list("tensors"), ["a"]);
        assert_eq!(m.read("tensors/a/raw"), t("a").data);
        assert!(m.line.contains("2 tensors missing"), "{}", m.line);
    }
}

#[test]
fn a_missing_head_is_not_taken_for_a_tied_one() {
    let (embed, head) = ([t("model.embed_tokens.weight")], [t("lm_head.weight")]);
    let dir = ModelDir::sharded(&[("1.safetensors", &embed), ("2.safetensors", &head)]);
    dir.json(
        "config.json",
        &json!({"architectures": ["LlamaForCausalLM"]}),
    );
    std::fs::remove_file(dir.join("2.safetensors")).unwrap();
    let m = Mounted::with(dir.path(), &["--allow-missing"]);
    assert_eq!(m.list("tensors"), ["model.embed_tokens.weight"]);
}

#[test]
fn wrong_bytes_are_still_refused() {
    let dir = ModelDir::of(&[t("a")]);
    let mut bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    bytes.extend_from_slice(b"more");
    dir.file("model.safetensors", bytes);
    let args = ["ls", "--allow-missing"].map(Path::new);
    stfs(args.into_iter().chain([dir.path()])).fails(&["model.safetensors", "4 trailing bytes"]);
}
