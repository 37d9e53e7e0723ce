//! Incomplete downloads, opened with `--allow-missing`: what is not served is noted, and an index
//! makes no difference to which tensors count as available.

use std::os::unix::fs::symlink;

use serde_json::json;
use stfs::catalog::{Catalog, OpenOptions, check};
use stfs::model::{Model, ModelOptions};

use crate::common::{Dir, good, open, refused};

const INDEX: &str = "model.safetensors.index.json";

fn index(map: serde_json::Value) -> Vec<u8> {
    json!({ "weight_map": map }).to_string().into_bytes()
}

fn lenient(dir: &Dir) -> Catalog {
    let options = OpenOptions {
        allow_missing: true,
    };
    open(dir.path(), options).unwrap()
}

fn absent(catalog: &Catalog) -> Vec<&str> {
    catalog.absent.iter().map(|n| &**n).collect()
}

#[test]
fn a_cut_tensor_that_the_index_does_not_name_is_missed() {
    let map = index(json!({"a": "1.safetensors", "c": "2.safetensors"}));
    let whole = good(&["a", "b"]);
    let cut = &whole[..whole.len() - 1];
    let dir = Dir::of(&[
        (INDEX, &map),
        ("1.safetensors", cut),
        ("2.safetensors", &good(&["c"])),
    ]);
    let catalog = lenient(&dir);
    assert!(catalog.find("a").is_some() && catalog.find("b").is_none());
    assert_eq!(absent(&catalog), ["b"]);
    let note = &catalog.notes[0];
    assert!(
        note.contains("'b'") && note.contains("1.safetensors"),
        "{note}"
    );
    // If two shards hold it, neither is chosen, whether whole or not.
    std::fs::write(dir.join("2.safetensors"), good(&["b", "c"])).unwrap();
    let catalog = lenient(&dir);
    assert!(catalog.find("b").is_none());
    assert!(
        catalog.notes[0].contains("several shards"),
        "{:?}",
        catalog.notes
    );
}

#[test]
fn shards_that_cannot_be_read_count_the_same_with_an_index_and_without() {
    let map = index(json!({"a": "1.safetensors", "b": "2.safetensors", "c": "3.safetensors"}));
    for indexed in [true, false] {
        let dir = Dir::of(&[
            ("1.safetensors", &good(&["a"])),
            ("2.safetensors", b"half a he"),
        ]);
        symlink("../blobs/gone", dir.join("3.safetensors")).unwrap();
        if indexed {
            std::fs::write(dir.join(INDEX), &map).unwrap();
        }
        let catalog = lenient(&dir);
        let files: Vec<_> = catalog.files.iter().map(|f| f.name()).collect();
        assert_eq!(files, ["1.safetensors"]);
        for shard in ["1.safetensors", "2.safetensors", "3.safetensors"] {
            assert!(catalog.weight_files.iter().any(|n| n == shard), "{shard}");
        }
        for (note, shard) in catalog.notes.iter().zip(["2.safetensors", "3.safetensors"]) {
            assert!(
                note.starts_with("left out") && note.contains(shard),
                "{note}"
            );
        }
        assert_eq!(catalog.notes.len(), 2);
    }
}

#[test]
fn an_index_that_names_nothing_is_refused() {
    let map = index(json!({}));
    let dir = Dir::of(&[(INDEX, &map), ("1.safetensors", &good(&["a"]))]);
    let said = "'weight_map' is empty";
    refused(dir.path(), &[INDEX, said]);
    let problems = check(dir.path()).unwrap();
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].file, INDEX);
    assert!(problems[0].problem.contains(said), "{problems:?}");
}

#[test]
fn of_a_manifest_what_lies_in_the_cut_bin_is_served() {
    let of = |offset| json!({"offset": offset, "size": 4, "shape": [1], "dtype": "F32"});
    let manifest = json!({"tensors": {"a": of(0), "b": of(64), "c": of(65)}}).to_string();
    let dir = Dir::of(&[("w.json", manifest.as_bytes()), ("w.bin", &[0; 68])]);
    let said = ["w.json", "'c'", "needs 69 bytes, has 68", "--allow-missing"];
    refused(dir.path(), &said);
    let catalog = lenient(&dir);
    let names: Vec<&str> = catalog.tensors.iter().map(|t| t.name).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(absent(&catalog), ["c"]);
    let expected = "left out: 1 of the tensors, as w.bin is cut short: needs 69 bytes, has 68";
    assert_eq!(catalog.notes, [expected]);
    // A file that is not data at all contains none of the tensors.
    let pointer = b"version https://git-lfs.github.com/spec/v1\nsize 69\n";
    std::fs::write(dir.join("w.bin"), pointer).unwrap();
    let options = OpenOptions {
        allow_missing: true,
    };
    let error = open(dir.path(), options).err().unwrap().to_string();
    assert!(error.contains("Git LFS pointer"), "{error}");
}

/// Without an index, only the names of the shards show that some are missing. The existing ones are
/// a model, but nothing is inferred from absent tensors.
#[test]
fn shards_that_only_the_names_of_others_tell_of() {
    let config = json!({"tie_word_embeddings": true}).to_string();
    let dir = Dir::of(&[
        (
            "m-00001-of-00003.safetensors",
            &good(&["embed_tokens.weight"]),
        ),
        ("m-00003-of-00003.safetensors", &good(&["b"])),
        ("config.json", config.as_bytes()),
    ]);
    let missing = "m-00002-of-00003.safetensors";
    let model = |dir: &Dir| {
        let catalog = open(dir.path(), OpenOptions::default()).unwrap();
        Model::new(catalog, ModelOptions::default())
    };
    let partial = model(&dir);
    assert!(partial.catalog.shards_missing);
    assert!(partial.catalog.notes[0].starts_with(missing));
    let error = partial.find("lm_head.weight").err().unwrap().to_string();
    assert!(error.contains("shards are missing"), "{error}");
    let problems = check(dir.path()).unwrap();
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].file, missing);
    // A shard opened by its own path does not need the others.
    assert!(
        check(&dir.join("m-00003-of-00003.safetensors"))
            .unwrap()
            .is_empty()
    );
    std::fs::write(dir.join(missing), good(&["c"])).unwrap();
    let whole = model(&dir);
    assert!(whole.catalog.notes.is_empty() && whole.find("lm_head.weight").is_ok());
    assert!(check(dir.path()).unwrap().is_empty());
}

#[test]
fn a_config_that_cannot_be_read_is_not_said_to_be_missing() {
    let dir = Dir::of(&[
        ("model.safetensors", &good(&["embed_tokens.weight"])),
        ("config.json", b"{"),
    ]);
    let catalog = open(dir.path(), OpenOptions::default()).unwrap();
    let model = Model::new(catalog, ModelOptions::default());
    let error = model.find("lm_head.weight").err().unwrap().to_string();
    let words = ["because config.json cannot be read", "not JSON"];
    assert!(words.iter().all(|w| error.contains(w)), "{error}");
}
