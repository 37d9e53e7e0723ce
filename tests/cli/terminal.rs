//! Hostile names never reach a terminal raw.

use std::path::Path;

use safetensors::Dtype;
use serde_json::json;

use crate::common::{ModelDir, Mounted, Ran, T, stfs, tensor};

/// Clears the screen, sets a title, rings, goes back, reorders, hides; C0, DEL, C1 (as UTF-8) and
/// the characters that turn text around.
const HOSTILE: [&str; 8] = [
    "\u{1b}[2J\u{1b}]0;owned\u{7}",
    "a\rb",
    "a\nstfs: all is well",
    "\u{7f}\u{8}\u{8}",
    "\u{9b}31m\u{85}",
    "\u{202e}gnp.exe",
    "\u{2066}x\u{2069}\u{200f}",
    "zero\u{200b}width\u{feff}",
];

/// What output may contain: no control character but newline, and nothing that reorders or hides.
#[track_caller]
fn harmless(ran: &Ran) {
    for text in [&ran.out, &ran.err] {
        let bad = text.chars().find(|&c| {
            (c.is_control() && c != '\n')
                || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
        });
        assert_eq!(bad, None, "{text:?}");
        assert!(!text.contains('\u{fffd}'), "{text:?}");
    }
}

fn paths<'a>(args: &'a [&'a str]) -> Vec<&'a Path> {
    args.iter().map(Path::new).collect()
}

#[test]
fn in_listings() {
    let all: Vec<T> = HOSTILE
        .iter()
        .flat_map(|h| {
            ["q", "k"].map(|p| tensor(&format!("{h}.{h}.{p}_proj.weight"), Dtype::U8, &[4, 4]))
        })
        .collect();
    let dir = ModelDir::of(&all);
    let listings = [
        &["ls"][..],
        &["ls", "--json"],
        &["ls", "--tree"],
        &["ls", "--tree", "--json"],
        &["ls", "--why"],
        &["ls", "--why", "--json"],
    ];
    for args in listings {
        let ran = stfs([&paths(args)[..], &[dir.path()]].concat()).ok();
        harmless(&ran);
        assert!(ran.out.contains("gnp.exe"), "{ran:?}");
        if args.contains(&"--json") {
            // Escaped, not changed.
            assert!(ran.json().to_string().contains("\u{202e}gnp.exe"));
        } else if args.len() == 1 {
            assert_eq!(ran.out.lines().count(), all.len());
        }
    }
}

#[test]
fn in_error_messages() {
    for hostile in HOSTILE {
        let refused = |dir: &ModelDir| {
            let ran = stfs([Path::new("ls"), dir.path()]);
            harmless(&ran);
            ran.fails(&[])
        };
        let dir = ModelDir::new();
        let entry = json!({"dtype": "F32", "shape": [2], "data_offsets": [0, 4]});
        dir.raw_shard(
            "model.safetensors",
            json!({hostile: entry}).to_string(),
            &[0; 4],
        );
        refused(&dir);
        let entry = json!({"dtype": hostile, "shape": [2], "data_offsets": [0, 4]});
        dir.raw_shard(
            "model.safetensors",
            json!({"a": entry}).to_string(),
            &[0; 4],
        );
        refused(&dir);
        let dir = ModelDir::of(&[tensor("a", Dtype::U8, &[1])]);
        std::fs::rename(dir.join("model.safetensors"), dir.join("1.safetensors")).unwrap();
        dir.index("model.safetensors.index.json", [("a", hostile)]);
        refused(&dir);
        dir.index("model.safetensors.index.json", [(hostile, "1.safetensors")]);
        refused(&dir);
        dir.index(
            "model.safetensors.index.json",
            [("a", &*format!("../{hostile}"))],
        );
        refused(&dir);
        // A name on the command line.
        let ran = stfs([
            Path::new("cat"),
            &dir.join("1.safetensors"),
            hostile.as_ref(),
        ]);
        harmless(&ran);
        ran.fails(&[]);
        let ran = stfs([Path::new("ls"), &dir.join(hostile)]);
        harmless(&ran);
        ran.fails(&[]);
        let ran = stfs([
            Path::new("mount"),
            &dir.join("1.safetensors"),
            &dir.join("1.safetensors").join(hostile),
        ]);
        harmless(&ran);
        ran.fails(&[]);
        harmless(&stfs(["umount", hostile]));
        harmless(&stfs(["ls", "/", hostile]));
        harmless(&stfs(["mount", "/", "/", "-o", hostile]));
        harmless(&stfs(["frobnicate", hostile]));
        harmless(&stfs([hostile]));
    }
}

#[test]
fn in_manifests() {
    for hostile in HOSTILE {
        let dir = ModelDir::new();
        dir.file("w.bin", [0; 16]);
        let entry = json!({"offset": 0, "size": 16, "shape": [4], "dtype": hostile});
        dir.json("w.json", &json!({"tensors": {hostile: entry}}));
        for args in [&["ls"][..], &["ls", "--tree"], &["ls", "--json"]] {
            harmless(&stfs([&paths(args)[..], &[dir.path()]].concat()).ok());
        }
        let m = Mounted::new(dir.path());
        harmless(&Ran {
            code: 0,
            out: m.line.clone(),
            err: m.log(),
        });
        assert_eq!(m.list("tensors").len(), 1);
    }
}

#[test]
fn in_mounts_and_its_errors() {
    for hostile in HOSTILE {
        let parent = ModelDir::of(&[tensor("a", Dtype::U8, &[4096])]);
        let model = parent.join(hostile);
        std::fs::create_dir(&model).unwrap();
        let shard = model.join("model.safetensors");
        std::fs::rename(parent.join("model.safetensors"), &shard).unwrap();
        let m = Mounted::new(&model);
        harmless(&stfs(["mounts"]).ok());
        harmless(&stfs(["mounts", "--json"]).ok());
        assert_eq!(m.status()["model"], model.to_str().unwrap());
        let again = stfs([Path::new("mount"), &model, m.root()]);
        harmless(&again);
        again.fails(&["mounted there already"]);
        let file = std::fs::File::options().write(true).open(&shard).unwrap();
        file.set_len(10).unwrap();
        std::fs::read(m.join("tensors/a/raw")).unwrap_err();
        let log = m.logged("truncated");
        harmless(&Ran {
            code: 0,
            out: m.line.clone(),
            err: log,
        });
    }
}
