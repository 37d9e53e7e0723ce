//! What may import what: `doc/ARCHITECTURE.md` holds the table, and this test holds the code to it.
//! Test modules are exempt.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

/// No file of `src` has more lines than this.
const MAX_LINES: usize = 400;

/// Longer files that remain to be split.
const TOO_LONG: &[&str] = &[];

/// Imports that break the order and remain to be removed: file and module.
const TO_BE_MENDED: &[(&str, &str)] = &[];

/// Crates that may be named in only one place, so that they can be replaced there.
const CRATES: &[(&str, &[&str])] = &[
    ("fuser", &["src/fuse.rs", "src/fuse/"]),
    ("cudarc", &["src/gpu/driver/cuda"]),
    ("memmap2", &["src/catalog/"]),
    ("landlock", &["src/sandbox/paths.rs"]),
    ("seccompiler", &["src/sandbox/calls.rs"]),
    (
        "clap",
        &[
            "src/cli.rs",
            "src/commands.rs",
            "src/commands/",
            "src/main.rs",
        ],
    ),
    ("indicatif", &["src/text.rs", "src/commands/"]),
    ("toml", &["src/model/recipe/file"]),
    ("syslog", &["src/commands/logging/sink.rs"]),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A source file: its path from the root, its module, and its text.
struct Source {
    path: String,
    module: Vec<String>,
    text: String,
}

fn sources() -> Vec<Source> {
    let mut dirs = vec![PathBuf::from("src")];
    let mut found = Vec::new();
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(root().join(&dir)).unwrap() {
            let path = dir.join(entry.unwrap().file_name());
            if root().join(&path).is_dir() {
                dirs.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                let text = std::fs::read_to_string(root().join(&path)).unwrap();
                let module = path.with_extension("");
                let module = module.strip_prefix("src").unwrap().iter();
                found.push(Source {
                    module: module.map(|c| c.to_str().unwrap().to_string()).collect(),
                    path: path.to_str().unwrap().to_string(),
                    text,
                });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The rows of the table, each the modules (`catalog/store`) that may use each other and all rows
/// above.
fn layers() -> Vec<Vec<Vec<String>>> {
    let page = std::fs::read_to_string(root().join("doc/ARCHITECTURE.md")).unwrap();
    let section = page
        .split("\n## ")
        .find(|s| s.starts_with("What may import what"))
        .expect("the section");
    let rows = section.lines().filter(|l| l.starts_with("| `"));
    rows.map(|row| {
        let cell = row.trim_start_matches('|').split('|').next().unwrap();
        let names = cell.split('`').skip(1).step_by(2);
        names
            .map(|name| name.split('/').map(String::from).collect())
            .collect()
    })
    .collect()
}

/// The code alone: without line comments, and without an inline test module and what follows it.
fn code(text: &str) -> String {
    let text = match text.find("#[cfg(test)]\nmod tests {") {
        Some(end) => &text[..end],
        None => text,
    };
    let lines = text.lines().map(|line| match line.find("//") {
        // Not the slashes of a URL in a string.
        Some(at) if !line[..at].ends_with(':') => &line[..at],
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Modules that are compiled for tests alone: `#[cfg(test)] mod x;` in their parent.
fn test_modules(sources: &[Source]) -> HashSet<Vec<String>> {
    let mut modules = HashSet::new();
    for source in sources {
        for part in source.text.split("#[cfg(test)]").skip(1) {
            let Some((declared, _)) = part.split_once(';') else {
                continue;
            };
            if let Some((_, name)) = declared.split_once("mod ")
                && !name.contains(|c: char| !c.is_alphanumeric() && c != '_')
            {
                let mut module = source.module.clone();
                module.push(name.to_string());
                modules.insert(module);
            }
        }
    }
    modules
}

/// All paths from `crate::` on in `code`, `use` trees unfolded and `super::` resolved.
fn imports(module: &[String], code: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        let before = code[..at].chars().next_back();
        if !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') {
            unfold(&[], &code[at + "crate::".len()..], &mut found);
        }
    }
    let mut rest = code;
    while let Some(at) = rest.find("super::") {
        let mut prefix = module.to_vec();
        let mut tail = &rest[at..];
        while let Some(t) = tail.strip_prefix("super::") {
            prefix.pop();
            tail = t;
        }
        unfold(&prefix, tail, &mut found);
        rest = tail;
    }
    found
}

/// Follows a path to its end, or each branch of a `{…}`.
fn unfold(prefix: &[String], text: &str, found: &mut Vec<Vec<String>>) {
    let text = text.trim_start();
    if let Some(tree) = text.strip_prefix('{') {
        let mut depth = 0;
        let mut branch = 0;
        for (i, c) in tree.char_indices() {
            match c {
                '{' => depth += 1,
                '}' if depth > 0 => depth -= 1,
                '}' | ',' if depth == 0 => {
                    if !tree[branch..i].trim().is_empty() {
                        unfold(prefix, &tree[branch..i], found);
                    }
                    branch = i + 1;
                    if c == '}' {
                        return;
                    }
                }
                _ => {}
            }
        }
        return;
    }
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    let mut path = prefix.to_vec();
    path.push(text[..end].to_string());
    match text[end..].strip_prefix("::") {
        Some(rest) => unfold(&path, rest, found),
        None => found.push(path),
    }
}

/// The row of the table whose entry is the longest prefix of `path`, and that entry.
fn layer_of(layers: &[Vec<Vec<String>>], path: &[String]) -> Option<(usize, String)> {
    let rows = layers.iter().enumerate();
    let entries = rows.flat_map(|(row, names)| names.iter().map(move |name| (row, name)));
    entries
        .filter(|(_, name)| path.starts_with(name))
        .max_by_key(|(_, name)| name.len())
        .map(|(row, name)| (row, name.join("/")))
}

#[test]
fn modules_import_only_what_lies_above_them() {
    let (sources, layers) = (sources(), layers());
    assert!(layers.len() > 10, "the table was not understood");
    let tests = test_modules(&sources);
    let mut problems = Vec::new();
    for source in &sources {
        let exempt = (1..=source.module.len()).any(|n| tests.contains(&source.module[..n]));
        if exempt || source.module == ["lib"] || source.module == ["main"] {
            continue;
        }
        let Some((row, name)) = layer_of(&layers, &source.module) else {
            problems.push(format!("{}: is in no row of the table", source.path));
            continue;
        };
        let mut seen = HashSet::new();
        for mut path in imports(&source.module, &code(&source.text)) {
            // `lib.rs` exports these two again.
            if path.len() == 1 && (path[0] == "Error" || path[0] == "Result") {
                path = vec!["error".into()];
            }
            // A `super::` path that leads to an item belongs to the module itself.
            let Some((used, target)) = layer_of(&layers, &path) else {
                continue;
            };
            // A parent may use its children, whatever the order says.
            let child = target.starts_with(&format!("{name}/"));
            let known = TO_BE_MENDED.contains(&(source.path.as_str(), target.as_str()));
            if used > row && !child && !known && seen.insert(target.clone()) {
                problems.push(format!("{}: {name} must not use {target}", source.path));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn some_crates_are_named_in_one_place_alone() {
    let mut problems = Vec::new();
    for source in sources() {
        let code = code(&source.text);
        for (name, places) in CRATES {
            let named = code.match_indices(&format!("{name}::")).any(|(at, _)| {
                let before = code[..at].chars().next_back();
                !before.is_some_and(|c| c.is_alphanumeric() || c == '_')
            });
            if named && !places.iter().any(|p| source.path.starts_with(p)) {
                problems.push(format!("{} names {name}", source.path));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn no_source_file_is_long() {
    let problems: Vec<String> = sources()
        .iter()
        .map(|s| (s.path.clone(), s.text.lines().count()))
        .filter(|(path, lines)| *lines > MAX_LINES && !TOO_LONG.contains(&path.as_str()))
        .map(|(path, lines)| format!("{path}: {lines} lines, at most {MAX_LINES}"))
        .collect();
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn paths_are_understood() {
    let module = ["quant".to_string(), "mlx".to_string()];
    let code =
        "use crate::{a::B, c::{d, e::F}};\nuse super::super::g::h;\ncrate::i::j(k)\nsuper::l";
    let paths: Vec<String> = imports(&module, code)
        .iter()
        .map(|p| p.join("::"))
        .collect();
    assert_eq!(
        paths,
        ["a::B", "c::d", "c::e::F", "i::j", "g::h", "quant::l"]
    );
}
