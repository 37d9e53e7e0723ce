//! Odd names: under `tensors/`, `npy/` and `tree/`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use safetensors::Dtype;
use sha2::{Digest, Sha256};

use crate::common::sys::errno;
use crate::common::{ModelDir, Mounted, T, tensor};
use crate::walk;

/// The documented escaping, byte by byte.
fn file_name(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        match c {
            '/' => out += "%2F",
            '%' => out += "%25",
            '\0' => out += "%00",
            c => out.push(c),
        }
    }
    match name {
        "" => return "%".into(),
        "." => return "%2E".into(),
        ".." => return "%2E%2E".into(),
        _ if out.len() <= 240 => return out,
        _ => {}
    }
    let mut cut = 200;
    while !out.is_char_boundary(cut) {
        cut -= 1;
    }
    format!("{}~{}", &out[..cut], &hash(name)[..16])
}

fn hash(name: &str) -> String {
    format!("{:x}", Sha256::digest(name))
}

fn odd_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "",
        ".",
        "..",
        "...",
        "a",
        "a.b",
        "a.b.c",
        "a/b",
        "../../etc/passwd",
        "%",
        "%2F",
        "%00",
        "nul\0byte",
        "@",
        "@.@",
        "a.@",
        "x@y",
        "%40",
        ".hidden",
        "end.",
        "two..dots",
        "with blank",
        "tab\tnew\nline",
        "\u{1b}[31mred\u{7}",
        "\u{202e}rtl",
        "日本語.重み",
        "emoji🦀.w",
        "quote\"back\\slash",
        "-rf",
        "~",
        "raw",
        "f32",
        "meta.json",
    ]
    .map(String::from)
    .into();
    names.push("x".repeat(240));
    names.push("x".repeat(241));
    names.push(format!("{}y", "x".repeat(241)));
    names.push("é".repeat(150)); // the 200th byte is inside a character
    names.push(format!("a{}", "é".repeat(150)));
    names.push("/".repeat(81)); // 243 bytes once escaped
    names.push("🦀.".repeat(300));
    names.push("z".repeat(5000));
    names
}

#[test]
fn names_change_only_where_a_file_name_must() {
    let names = odd_names();
    let all: Vec<T> = names
        .iter()
        .map(|n| tensor(n, Dtype::BF16, &[3, 2]))
        .collect();
    let dir = ModelDir::of(&all);
    let m = Mounted::new(dir.path());
    // Look names up before anything is listed, so that the kernel knows none yet.
    for t in &all {
        let file = file_name(&t.name);
        assert_eq!(
            m.read(&format!("tensors/{file}/raw")),
            t.data,
            "{:?}",
            t.name
        );
        assert_eq!(m.read(&format!("npy/{file}.npy")).len(), 128 + 24);
        assert_eq!(m.json(&format!("tensors/{file}/meta.json"))["name"], t.name);
    }
    let listed: BTreeSet<String> = m.list("tensors").into_iter().collect();
    let want: BTreeSet<String> = names.iter().map(|n| file_name(n)).collect();
    assert_eq!(listed, want);
    assert_eq!(want.len(), names.len());
    let index = m.json("index.json");
    for name in &names {
        assert_eq!(index[name]["path"], format!("tensors/{}", file_name(name)));
    }
    assert_eq!(index.as_object().unwrap().len(), names.len());
    tree_links(&m, &names);
}

/// Each name once in `tree/`, as a relative link to its directory; the 600-component one not. A
/// tensor whose name is another's cut form, and one whose name is the form that the first then
/// takes.
#[test]
fn a_name_that_is_anothers_cut_form_makes_room() {
    let cut = |name: &str| format!("{}~{}", "x".repeat(200), &hash(name)[..16]);
    let long = "x".repeat(300);
    let (first, second) = (cut(&long), cut(&cut(&long)));
    let all = [&long, &first, &second].map(|n| tensor(n, Dtype::U8, &[n.len()]));
    let files = [&first, &second, &cut(&second)];
    let dir = ModelDir::of(&all);
    let m = Mounted::new(dir.path());
    for (t, file) in all.iter().zip(files) {
        assert_eq!(m.read(&format!("tensors/{file}/raw")), t.data);
        assert_eq!(m.json(&format!("tensors/{file}/meta.json"))["name"], t.name);
        assert_eq!(
            m.json("index.json")[&t.name]["path"],
            format!("tensors/{file}")
        );
    }
    let listed: BTreeSet<String> = m.list("tensors").into_iter().collect();
    assert_eq!(listed, files.into_iter().cloned().collect());
    // Without a conflict, a name stays as it is.
    let dir = ModelDir::of(&all[1..]);
    let m = Mounted::new(dir.path());
    assert_eq!(m.read(&format!("tensors/{first}/raw")), all[1].data);
    assert_eq!(m.read(&format!("tensors/{second}/raw")), all[2].data);
}

fn tree_links(m: &Mounted, names: &[String]) {
    let links: Vec<PathBuf> = walk(&m.join("tree"))
        .into_iter()
        .filter(|p| p.symlink_metadata().unwrap().is_symlink())
        .collect();
    let mut reached = BTreeSet::new();
    for link in &links {
        let target = std::fs::read_link(link).unwrap();
        assert!(
            target.is_relative() && target.starts_with(".."),
            "{target:?}"
        );
        let size = link.symlink_metadata().unwrap().len();
        assert_eq!(size, target.as_os_str().len() as u64, "{link:?}");
        let dir = link.canonicalize().unwrap();
        assert_eq!(dir.parent().unwrap(), m.join("tensors"));
        assert!(link.join("raw").is_file());
        reached.insert(dir.file_name().unwrap().to_str().unwrap().to_string());
    }
    assert_eq!(reached.len(), links.len());
    let deep = |n: &&String| n.split('.').count() > 64;
    let want: BTreeSet<String> = names
        .iter()
        .filter(|n| !deep(n))
        .map(|n| file_name(n))
        .collect();
    assert_eq!(reached, want);
}

#[test]
fn tree_nests_at_the_dots() {
    let names = [
        "a", "a.b", "a.b.c", "a.@", "@", "d.10", "d.9", "e..f", "g.x/y", "%40",
    ];
    let all: Vec<T> = names.iter().map(|n| tensor(n, Dtype::U8, &[4])).collect();
    let dir = ModelDir::of(&all);
    let m = Mounted::new(dir.path());
    for (link, name) in [
        ("a/@", "a"),
        ("a/b/@", "a.b"),
        ("a/b/c", "a.b.c"),
        ("a/%40", "a.@"),
        ("%40", "@"),
        ("%2540", "%40"),
        ("d/9", "d.9"),
        ("e/%/f", "e..f"),
        ("g/x%2Fy", "g.x/y"),
    ] {
        let up = "../".repeat(link.split('/').count());
        let want = format!("{up}tensors/{}", file_name(name));
        let link = m.join("tree").join(link);
        assert_eq!(
            std::fs::read_link(&link).unwrap(),
            Path::new(&want),
            "{name}"
        );
        let data = &all.iter().find(|t| t.name == name).unwrap().data;
        assert_eq!(&std::fs::read(link.join("raw")).unwrap(), data);
    }
    assert_eq!(m.list("tree/d"), ["9", "10"]);
    let mut a = m.list("tree/a");
    a.sort();
    assert_eq!(a, ["%40", "@", "b"]);
}

#[test]
fn names_of_over_64_components_are_left_out_of_tree() {
    let name = |n: usize| vec!["c"; n].join(".");
    let all: Vec<T> = [64, 65, 4000]
        .map(|n| tensor(&name(n), Dtype::U8, &[1]))
        .into();
    let dir = ModelDir::of(&all);
    let m = Mounted::new(dir.path());
    let last = m.join("tree").join(vec!["c"; 63].join("/"));
    assert_eq!(std::fs::read(last.join("c/raw")).unwrap(), all[0].data);
    assert_eq!(errno(last.join("c/c").symlink_metadata()), libc::ENOENT);
    assert_eq!(walk(&m.join("tree")).len(), 64);
    assert_eq!(m.list("tensors").len(), 3);
}
