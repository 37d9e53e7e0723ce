//! What MODEL may be, and what an index decides.

use std::os::unix::fs::symlink;
use std::path::Path;

use safetensors::Dtype;
use serde_json::json;

use crate::common::{ModelDir, Mounted, T, stfs, tensor};

fn t(name: &str) -> T {
    tensor(name, Dtype::BF16, &[4, 2])
}

/// Another tensor of that name.
fn stale(name: &str) -> T {
    T {
        name: name.into(),
        ..t("stale")
    }
}

fn ls(model: &Path) -> Vec<String> {
    let all = stfs([
        Path::new("ls"),
        "--json".as_ref(),
        "--no-synthetic".as_ref(),
        model,
    ])
    .ok()
    .json();
    let name = |t: &serde_json::Value| t["name"].as_str().unwrap().to_string();
    all.as_array().unwrap().iter().map(name).collect()
}

fn notes(model: &Path) -> String {
    stfs([Path::new("ls"), "--why".as_ref(), model]).ok().out
}

#[test]
fn an_index_decides_which_copy_counts() {
    let dir = ModelDir::new();
    dir.shard(
        "one.safetensors",
        &[t("a"), stale("b"), t("only.in.one"), t("twice")],
    );
    dir.shard("two.safetensors", &[stale("a"), t("b"), stale("twice")]);
    // A leftover of an earlier version, which the index does not name.
    dir.shard("old.safetensors", &[stale("a"), stale("b"), stale("gone")]);
    dir.index(
        "model.safetensors.index.json",
        [("a", "one.safetensors"), ("b", "two.safetensors")],
    );
    let m = Mounted::new(dir.path());
    // One named shard has `only.in.one`; two have `twice`, and nothing decides between them.
    assert_eq!(m.list("tensors"), ["a", "b", "only.in.one"]);
    for name in ["a", "b", "only.in.one"] {
        assert_eq!(
            m.read(&format!("tensors/{name}/raw")),
            t(name).data,
            "{name}"
        );
    }
    assert_eq!(
        m.json("tensors/b/meta.json")["origin"]["file"],
        "two.safetensors"
    );
    let files = m.json("model.json")["files"].clone();
    assert_eq!(files.as_array().unwrap().len(), 2);
    assert_eq!(m.list("files"), ["old.safetensors"]);
    let notes = notes(dir.path());
    for words in [
        "'a': the copy in two.safetensors is stale",
        "'twice'",
        "'only.in.one'",
    ] {
        assert!(notes.contains(words), "{words}: {notes}");
    }
}

#[test]
fn the_order_of_preference_is_the_tables() {
    // A manifest pair, then any other safetensors, then an index, then model.safetensors.
    let dir = ModelDir::new();
    dir.file("weights.bin", [7; 16]);
    let entry = json!({"offset": 0, "size": 16, "shape": [4], "dtype": "F32"});
    dir.json(
        "weights.json",
        &json!({"tensors": {"from.manifest": entry}}),
    );
    assert_eq!(ls(dir.path()), ["from.manifest"]);
    dir.shard("z10.safetensors", &[t("z10")]);
    assert_eq!(ls(dir.path()), ["z10"]);
    dir.shard("z2.safetensors", &[t("z2")]);
    assert_eq!(ls(dir.path()), ["z2", "z10"]);
    dir.index("other.safetensors.index.json", [("z2", "z2.safetensors")]);
    assert_eq!(ls(dir.path()), ["z2"]);
    dir.index("model.safetensors.index.json", [("z10", "z10.safetensors")]);
    assert_eq!(ls(dir.path()), ["z10"]);
    dir.shard("model.safetensors", &[t("single")]);
    assert_eq!(ls(dir.path()), ["single"]);
    // Each form by its own path.
    assert_eq!(ls(&dir.join("z2.safetensors")), ["z2"]);
    assert_eq!(ls(&dir.join("other.safetensors.index.json")), ["z2"]);
    assert_eq!(ls(&dir.join("weights.json")), ["from.manifest"]);
    assert_eq!(ls(&dir.join("weights.bin")), ["from.manifest"]);
}

#[test]
fn customary_names_of_single_files() {
    for name in [
        "weights.safetensors",
        "consolidated.safetensors",
        "adapter_model.safetensors",
        "diffusion_pytorch_model.safetensors",
    ] {
        let dir = ModelDir::new();
        dir.shard(name, &[t("a")]);
        assert_eq!(ls(dir.path()), ["a"], "{name}");
    }
}

#[test]
fn a_lone_shard_is_just_that() {
    let (one, two) = (
        [t("l.q_proj.weight"), t("l.k_proj.weight")],
        [t("l.v_proj.weight")],
    );
    let dir = ModelDir::sharded(&[("one.safetensors", &one), ("two.safetensors", &two)]);
    let whole = Mounted::new(dir.path());
    assert!(whole.join("tensors/l.qkv_proj.weight/raw").exists());
    let m = Mounted::new(&dir.join("one.safetensors"));
    assert_eq!(m.list("tensors"), ["l.k_proj.weight", "l.q_proj.weight"]);
    assert_eq!(m.read("tensors/l.q_proj.weight/raw"), one[0].data);
    let path = dir.join("one.safetensors");
    assert_eq!(m.status()["model"], path.to_str().unwrap());
    // The shards beside it are ordinary files.
    assert_eq!(
        m.list("files"),
        ["model.safetensors.index.json", "two.safetensors"]
    );
}

#[test]
fn a_hub_cache_folder_is_its_main_snapshot() {
    let parent = ModelDir::new();
    let repo = parent.join("models--org--name");
    for sub in ["blobs", "refs", "snapshots/abc123", "snapshots/older"] {
        std::fs::create_dir_all(repo.join(sub)).unwrap();
    }
    std::fs::write(repo.join("refs/main"), "abc123").unwrap();
    let shard = parent.shard("x", &[t("a"), t("b")]);
    std::fs::rename(shard, repo.join("blobs/f00")).unwrap();
    std::fs::write(repo.join("blobs/c0f"), "{\"a\": 1}").unwrap();
    let snapshot = repo.join("snapshots/abc123");
    symlink("../../blobs/f00", snapshot.join("model.safetensors")).unwrap();
    symlink("../../blobs/c0f", snapshot.join("config.json")).unwrap();
    for model in [&repo, &snapshot, &snapshot.join("model.safetensors")] {
        let m = Mounted::new(model);
        assert_eq!(m.read("tensors/a/raw"), t("a").data);
        assert_eq!(m.json("files/config.json")["a"], 1);
        assert_eq!(
            m.json("tensors/a/meta.json")["origin"]["file"],
            "model.safetensors"
        );
        assert_eq!(m.status()["model"], model.to_str().unwrap());
    }
    std::fs::write(repo.join("refs/main"), "gone").unwrap();
    stfs([Path::new("ls"), &repo]).fails(&["models--org--name", "gone"]);
    std::fs::write(repo.join("refs/main"), "../../..").unwrap();
    stfs([Path::new("ls"), &repo]).fails(&["refs/main"]);
    std::fs::remove_file(repo.join("refs/main")).unwrap();
    stfs([Path::new("ls"), &repo]).fails(&["refs/main", "snapshots"]);
}

#[test]
fn a_key_twice_in_one_header_is_the_last_one() {
    let dir = ModelDir::new();
    let header = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},
        "a":{"dtype":"I8","shape":[2],"data_offsets":[0,2]}}"#;
    dir.raw_shard("model.safetensors", header, b"xy");
    let m = Mounted::new(dir.path());
    assert_eq!(m.read("tensors/a/raw"), b"xy");
    assert_eq!(m.json("tensors/a/meta.json")["dtype"], "I8");
}

#[test]
fn headers_in_any_order_with_padding_and_metadata() {
    let dir = ModelDir::new();
    // The second tensor by name comes first; unknown keys are ignored; metadata is null or absent.
    let header = r#"{"__metadata__":null,"a":{"shape":[2],"more":1,"data_offsets":[3,5],"dtype":"U8"},"b":{"dtype":"U8","shape":[3,1],"data_offsets":[0,3]}}       "#;
    dir.raw_shard("model.safetensors", header, b"bbbaa");
    let m = Mounted::new(dir.path());
    assert_eq!(m.read("tensors/a/raw"), b"aa");
    assert_eq!(m.read("tensors/b/raw"), b"bbb");
    assert_eq!(m.json("model.json")["metadata"], json!({}));
}

/// Bytes of a name that are not valid UTF-8 are escaped, if the resulting name is free.
#[test]
fn files_may_have_names_that_are_no_utf_8() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let dir = ModelDir::of(&[t("a")]);
    let write = |name: &[u8], what: &str| {
        std::fs::write(dir.path().join(OsStr::from_bytes(name)), what).unwrap();
    };
    write(b"caf\xe9.txt", "latin-1");
    write(b"100%.txt", "UTF-8");
    write(b"x\xff", "hidden");
    write(b"x%FF", "own");
    write(&[0xff; 100], "too long");
    let m = Mounted::new(dir.path());
    assert_eq!(m.list("files"), ["100%.txt", "caf%E9.txt", "x%FF"]);
    assert_eq!(m.read("files/caf%E9.txt"), b"latin-1");
    assert_eq!(m.read("files/x%FF"), b"own");
}

#[test]
fn files_are_the_other_files_of_the_directory() {
    let dir = ModelDir::of(&[t("a")]);
    let mount_inside = dir.join("mnt");
    dir.json("config.json", &json!({}));
    dir.file("tokenizer.json", vec![b'x'; 70_001]);
    dir.file(".gitattributes", "*");
    std::fs::create_dir(dir.join("subdirectory")).unwrap();
    crate::common::sys::mkfifo(&dir.join("fifo")).unwrap();
    symlink("tokenizer.json", dir.join("link.json")).unwrap();
    symlink("/nonexistent", dir.join("dangling")).unwrap();
    symlink("subdirectory", dir.join("dirlink")).unwrap();
    let m = Mounted::new(dir.path());
    let want = [
        ".gitattributes",
        "config.json",
        "link.json",
        "tokenizer.json",
    ];
    assert_eq!(m.list("files"), want);
    assert_eq!(m.read("files/link.json"), vec![b'x'; 70_001]);
    // Files that are added later are not shown, and a mount inside the model does not show itself.
    dir.file("later.txt", "x");
    assert_eq!(m.list("files"), want);
    let ran = stfs([Path::new("mount"), dir.path(), &mount_inside]).ok();
    let inside = std::fs::read_dir(mount_inside.join("files"))
        .unwrap()
        .count();
    stfs([Path::new("umount"), &mount_inside]).ok();
    assert_eq!(inside, 5, "{ran:?}");
}
