//! What the commands that need no mount print.

use std::path::Path;
use std::process::Stdio;

use safetensors::Dtype;
use serde_json::{Value, json};

use crate::common::mount::command;
use crate::common::{DTYPES, ModelDir, Mounted, Ran, T, stfs, tensor};

fn model() -> (ModelDir, Vec<T>) {
    let mut all = Vec::new();
    for layer in 0..12 {
        for p in ["q", "k", "v"] {
            let name = format!("model.layers.{layer}.self_attn.{p}_proj.weight");
            all.push(tensor(&name, Dtype::BF16, &[8, 16]));
        }
    }
    all.push(tensor("model.embed_tokens.weight", Dtype::F16, &[10, 16]));
    all.extend(DTYPES.iter().map(|&d| tensor(&format!("one.{d}"), d, &[4])));
    let dir = ModelDir::of(&all);
    dir.json("config.json", &json!({"tie_word_embeddings": true}));
    (dir, all)
}

fn ls(dir: &ModelDir, args: &[&str]) -> Ran {
    let args: Vec<&Path> = args.iter().map(Path::new).collect();
    stfs([&[Path::new("ls"), dir.path()], &args[..]].concat())
}

#[test]
fn ls_json_is_index_json_with_names() {
    let (dir, _) = model();
    let m = Mounted::new(dir.path());
    let index = m.json("index.json");
    let want: Vec<Value> = index
        .as_object()
        .unwrap()
        .iter()
        .map(|(name, entry)| {
            let mut entry = entry.clone();
            entry["name"] = json!(name);
            entry
        })
        .collect();
    let got = ls(&dir, &["--json"]).ok().json();
    assert_eq!(got, json!(want));
    let all = [
        "name", "dtype", "shape", "nbytes", "origin", "path", "file", "offset",
    ];
    for entry in got.as_array().unwrap() {
        let keys: Vec<&String> = entry.as_object().unwrap().keys().collect();
        let name = entry["name"].as_str().unwrap();
        if entry["origin"] != "stored" {
            assert_eq!(keys, all[..6], "{name}");
            continue;
        }
        assert_eq!(keys, all, "{name}");
        // Where `meta.json` has it, and where the bytes are.
        let meta = m.json(&format!("tensors/{name}/meta.json"));
        assert_eq!(entry["file"], meta["origin"]["file"], "{name}");
        assert_eq!(entry["offset"], meta["origin"]["offset"], "{name}");
        let shard = std::fs::read(dir.path().join(entry["file"].as_str().unwrap())).unwrap();
        let raw = m.read(&format!("tensors/{name}/raw"));
        let at = entry["offset"].as_u64().unwrap() as usize;
        assert!(shard[at..at + raw.len()] == raw, "{name}");
    }
}

#[test]
fn ls_is_a_table_that_a_glob_narrows() {
    let (dir, all) = model();
    let table = ls(&dir, &[]).ok().out;
    // Stored ones, twelve fusions and the tied head.
    assert_eq!(table.lines().count(), all.len() + 13);
    let line = table
        .lines()
        .find(|l| l.starts_with("model.layers.10.self_attn.k_proj"))
        .unwrap();
    let cells: Vec<&str> = line
        .split("  ")
        .map(str::trim)
        .filter(|c| !c.is_empty())
        .collect();
    let name = "model.layers.10.self_attn.k_proj.weight";
    assert_eq!(
        cells,
        [name, "BF16", "[8, 16]", "256 B", "model.safetensors"]
    );
    let head = table
        .lines()
        .find(|l| l.starts_with("lm_head.weight"))
        .unwrap();
    assert!(
        head.ends_with("tied to model.embed_tokens.weight"),
        "{head}"
    );
    assert_eq!(ls(&dir, &["*.1?.*k_proj*"]).ok().out.lines().count(), 2);
    assert_eq!(
        ls(&dir, &["*qkv*", "--json"])
            .ok()
            .json()
            .as_array()
            .unwrap()
            .len(),
        12
    );
    // A glob that matches nothing is an error, in JSON after the empty answer.
    ls(&dir, &["nothing*"]).fails(&["nothing*", "stfs ls"]);
    ls(&dir, &["nothing*", "--tree"]).fails(&["nothing*", "stfs ls"]);
    let ran = ls(&dir, &["nothing*", "--json"]);
    assert_eq!((ran.code, ran.json()), (1, json!([])), "{ran:?}");
    assert!(ran.err.contains("nothing*"), "{ran:?}");
    let ran = ls(&dir, &["nothing*", "--tree", "--json"]);
    assert_eq!((ran.code, &ran.json()["tensors"]), (1, &json!(0)));
    ls(&dir, &["nothing*", "--why"]).ok();
    assert_eq!(
        ls(&dir, &["--no-synthetic"]).ok().out.lines().count(),
        all.len()
    );
}

#[test]
fn ls_tree_folds_like_layers() {
    let (dir, all) = model();
    let text = ls(&dir, &["--tree"]).ok().out;
    let first = text.lines().next().unwrap();
    assert!(
        first.starts_with(&format!("{} tensors, ", all.len())),
        "{first}"
    );
    let line = text
        .lines()
        .find(|l| l.contains("{0..11}"))
        .unwrap_or_else(|| panic!("{text}"));
    assert!(
        line.contains("×12") && line.contains("3 tensors, 384 parameters, 768 B"),
        "{line}"
    );
    let json = ls(&dir, &["--tree", "--json"]).ok().json();
    let layers = &json["children"]["model"]["children"]["layers"];
    assert_eq!(layers["tensors"], 36);
    assert_eq!(layers["parameters"], 36 * 128);
    assert_eq!(layers["children"]["7"]["bytes"], 768);
    let leaf = &layers["children"]["7"]["children"]["self_attn"]["children"]["q_proj"]["children"]
        ["weight"];
    assert_eq!(leaf["name"], "model.layers.7.self_attn.q_proj.weight");
}

#[test]
fn an_empty_name_is_seen() {
    let dir = ModelDir::of(&[tensor("", Dtype::F32, &[2]), tensor("a", Dtype::F32, &[2])]);
    let stat = stfs([Path::new("stat"), dir.path()]).ok().out;
    for text in [ls(&dir, &[]).ok().out, ls(&dir, &["--tree"]).ok().out, stat] {
        assert!(text.contains("\"\"  "), "{text}");
    }
}

/// Every level once held the text of everything below it.
#[test]
fn ls_tree_takes_memory_for_the_names_once() {
    let deep = vec!["m"; 60].join(".");
    let long = "x".repeat(2000);
    let all: Vec<T> = (0..2500)
        .map(|i| tensor(&format!("{deep}.{i}{long}"), Dtype::U8, &[1]))
        .collect();
    let dir = ModelDir::of(&all);
    let limited = "ulimit -v 250000; exec \"$0\" ls --tree \"$1\"";
    let out = std::process::Command::new("sh")
        .args(["-c", limited, crate::common::mount::BIN])
        .arg(dir.path())
        .output()
        .unwrap();
    let ran = Ran::of(out).ok();
    assert_eq!(ran.out.lines().count(), 2502, "{}", &ran.out[..500]);
}

#[test]
fn names_of_a_hundred_thousand_components() {
    let name = vec!["a"; 100_000].join(".");
    let dir = ModelDir::of(&[tensor(&name, Dtype::U8, &[2]), tensor("b", Dtype::U8, &[2])]);
    for args in [
        &["--tree"][..],
        &["--tree", "--json"],
        &["--json"],
        &[],
        &["--why"],
    ] {
        ls(&dir, args).ok();
    }
    let m = Mounted::new(dir.path());
    assert_eq!(m.list("tensors").len(), 2);
    assert_eq!(m.list("tree"), ["b"]);
}

#[test]
fn cat_writes_what_the_mount_shows() {
    let (dir, all) = model();
    let m = Mounted::new(dir.path());
    let cat = |name: &str, view: &str| {
        let args = ["cat", "--view", view].map(Path::new);
        let out = command(args.into_iter().chain([dir.path(), name.as_ref()]))
            .output()
            .unwrap();
        assert!(
            out.status.success() && out.stderr.is_empty(),
            "{name} {view}: {out:?}"
        );
        out.stdout
    };
    let fused = "model.layers.3.self_attn.qkv_proj.weight";
    let names = all.iter().map(|t| t.name.as_str()).step_by(5);
    for name in names.chain(["lm_head.weight", fused]) {
        assert!(
            cat(name, "raw") == m.read(&format!("tensors/{name}/raw")),
            "{name}"
        );
        assert!(
            cat(name, "meta") == m.read(&format!("tensors/{name}/meta.json")),
            "{name}"
        );
        assert!(
            cat(name, "npy") == m.read(&format!("npy/{name}.npy")),
            "{name}"
        );
        if m.join(&format!("tensors/{name}/f32")).exists() {
            assert!(
                cat(name, "f32") == m.read(&format!("tensors/{name}/f32")),
                "{name}"
            );
        }
    }
    let fail = |name: &str, view: &str, words: &[&str]| {
        let args = ["cat", "--view", view].map(Path::new);
        stfs(args.into_iter().chain([dir.path(), name.as_ref()])).fails(words)
    };
    fail("nowhere", "raw", &["'nowhere'", "stfs ls"]);
    fail("one.C64", "f32", &["'one.C64'", "f32"]);
    fail(
        "model.layers.3.mlp.gate_up_proj.weight",
        "raw",
        &["gate_up_proj"],
    );
}

#[test]
fn large_tensors_go_through_cat_whole() {
    let t = tensor("big", Dtype::BF16, &[1_500_001]);
    let dir = ModelDir::of(std::slice::from_ref(&t));
    let args = [Path::new("cat"), dir.path(), "big".as_ref()];
    assert!(command(args).output().unwrap().stdout == t.data);
}

#[test]
fn completions_and_the_manual_page_are_generated() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let text = stfs(["completions", shell]).ok().out;
        assert!(
            text.contains("stfs") && text.contains("umount"),
            "{shell}: {text}"
        );
    }
    let man = stfs(["man"]).ok().out;
    assert!(
        man.contains(".TH stfs 1") && man.contains(".SH NAME"),
        "{man}"
    );
    // There is only this page: it has a part for every command, and does not refer to other pages of stfs.
    for (command, flag) in [
        ("mount", "\\-\\-gpu\\-limit"),
        ("ls", "\\-\\-why"),
        ("verify", "\\-\\-checksum"),
        ("gpu upload", "\\-\\-pin"),
        ("gpu status", "\\-\\-devices"),
    ] {
        let part = man.split_once(&format!(".SS \"stfs {command}\"\n"));
        let part = part.and_then(|(_, after)| after.split("\n.S").next());
        assert!(part.is_some_and(|p| p.contains(flag)), "{command}: {man}");
    }
    assert!(!man.contains("stfs\\-mount(1)"), "{man}");
    assert_eq!(man.matches(".TH").count(), 1);
    assert_eq!(man.matches(".SH NAME").count(), 1);
    assert!(man.is_ascii(), "what troff cannot read as it is");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let all: Vec<T> = (0..4000)
        .flat_map(|i| {
            let name = |p: &str| format!("model.layers.{i}.self_attn.{p}_proj.weight");
            [
                tensor(&name("q"), Dtype::BF16, &[4, i % 7]),
                tensor(&name("k"), Dtype::F32, &[2]),
            ]
        })
        .chain([tensor("big", Dtype::BF16, &[1 << 20])])
        .collect();
    let dir = ModelDir::of(&all);
    for args in [
        &["ls"][..],
        &["ls", "--json"],
        &["ls", "--tree"],
        &["ls", "--tree", "--json"],
        &["ls", "--why"],
        &["ls", "--why", "--json"],
        &["cat", "--view", "raw"],
        &["cat", "--view", "f32"],
    ] {
        let mut all: Vec<&Path> = args.iter().map(Path::new).collect();
        all.push(dir.path());
        if args[0] == "cat" {
            all.push("big".as_ref());
        }
        let closed = closed_pipe(&all);
        assert_eq!((closed.code, closed.err.as_str()), (0, ""), "{args:?}");
        // Any other failure to write is an error.
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let out = command(&all).stdout(full).output().unwrap();
        Ran::of(out).fails(&["stfs: standard output: No space left on device"]);
    }
    for args in [
        &["completions", "bash"][..],
        &["man"],
        &["--help"],
        &["mounts"],
    ] {
        let args: Vec<&Path> = args.iter().map(Path::new).collect();
        let closed = closed_pipe(&args);
        assert_eq!((closed.code, closed.err.as_str()), (0, ""), "{args:?}");
    }
}

#[test]
fn wrong_usage_is_an_error_like_any_other() {
    for (args, what) in [
        (&["ls"][..], "stfs: the following required arguments"),
        (&["ls", "--frobnicate", "/"], "stfs: unexpected argument"),
        (&["frobnicate"], "stfs: unrecognized subcommand"),
        (&["cat", "/", "t", "--view", "x"], "stfs: invalid value 'x'"),
    ] {
        let ran = stfs(args);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{ran:?}");
        assert!(ran.err.starts_with(what), "{ran:?}");
        assert!(ran.err.contains("try '--help'"), "{ran:?}");
        assert!(!ran.err.contains("error:"), "{ran:?}");
    }
    let help = stfs(["--help"]).ok();
    assert!(help.out.contains("Usage: stfs") && help.err.is_empty());
    let ran = stfs::<&str>([]);
    assert!(ran.code == 2 && ran.err.contains("Usage: stfs"), "{ran:?}");
}

/// Runs the program with its output into a closed pipe.
fn closed_pipe(args: &[&Path]) -> Ran {
    let mut child = command(args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    Ran::of(child.wait_with_output().unwrap())
}

#[test]
fn an_unwritable_standard_error_changes_no_exit_code() {
    let full = || {
        std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap()
    };
    for (arguments, code) in [
        (&["ls", "/nothing/of/this/name"][..], 1),
        (&["verify", "/nothing/of/this/name"], 2),
        (&["no-such-command"], 2),
    ] {
        let mut command = std::process::Command::new(crate::common::mount::BIN);
        let status = command.args(arguments).stderr(full()).status().unwrap();
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
}
