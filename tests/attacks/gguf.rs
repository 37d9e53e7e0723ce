//! GGUF files that are wrong about themselves, each in one way, and split sets that do not fit.

use std::path::Path;

use stfs::catalog::{Catalog, OpenOptions, check};
use stfs::model::{Model, ModelOptions};

use crate::common::{Dir, good, open, refused, refused_files};
use crate::gguf_file::{F32, Gguf, I8, Q4_0, Q4_K, Q8_0, Tensor, V, counting, s, splits, strings};

const MISSING: OpenOptions = OpenOptions {
    allow_missing: true,
};

/// Bytes that must be refused by path and in a directory, naming the file.
#[track_caller]
fn refused_bytes(bytes: &[u8], parts: &[&str]) {
    let dir = Dir::of(&[("m.gguf", bytes)]);
    let parts = [&["m.gguf: "], parts].concat();
    refused(dir.path(), &parts);
    refused(&dir.join("m.gguf"), &parts);
    let problems = check(dir.path()).unwrap();
    let all: Vec<String> = problems.iter().map(|p| format!("{p:?}")).collect();
    assert!(!all.is_empty());
}

#[track_caller]
fn refused_gguf(file: &Gguf, parts: &[&str]) {
    refused_bytes(&file.bytes(), parts);
}

/// What opens, by its path.
#[track_caller]
fn opened(bytes: &[u8]) -> Catalog {
    let dir = Dir::of(&[("m.gguf", bytes)]);
    open(&dir.join("m.gguf"), OpenOptions::default()).unwrap()
}

/// What `stfs verify` reports: file, tensor, problem.
fn problems(model: &Path) -> Vec<(String, String, String)> {
    let found = check(model).unwrap().into_iter();
    let found = found.map(|p| (p.file, p.tensor.unwrap_or_default(), p.problem));
    found.collect()
}

/// What `stfs verify` reports about one file: tensor, problem.
fn problems_of(file: &Gguf) -> Vec<(String, String)> {
    let dir = Dir::of(&[("m.gguf", &file.bytes())]);
    let found = problems(dir.path()).into_iter();
    found
        .map(|(_, tensor, problem)| (tensor, problem))
        .collect()
}

/// What a test does to the files of a set.
type Change<'a> = &'a dyn Fn(&mut Vec<(String, Gguf)>);

/// A directory of these files.
fn dir_of(files: &[(String, Gguf)]) -> Dir {
    let dir = Dir::new();
    for (name, file) in files {
        std::fs::write(dir.join(name), file.bytes()).unwrap();
    }
    dir
}

/// Three files of two tensors each.
fn set() -> Vec<(String, Gguf)> {
    let two = |i: usize| [0, 1].map(|j| counting(&format!("t{i}{j}"), 32, (2 * i + j) as f32));
    let (a, b, c) = (two(0), two(1), two(2));
    splits("m", &[("general.architecture", s("llama"))], &[&a, &b, &c])
}

#[test]
fn a_sound_file_opens_and_has_no_problems() {
    let file = Gguf::small()
        .key("general.name", s("Tiny"))
        .tensor("q", &[64, 3, 2], Q4_0, vec![1; 6 * 36])
        .tensor("k", &[256], Q4_K, vec![2; 144])
        .tensor("scalar", &[], F32, vec![3; 4])
        .tensor("none", &[32, 0], Q8_0, vec![]);
    for version in [2, 3] {
        let file = Gguf {
            version,
            ..file.clone()
        };
        assert_eq!(problems_of(&file), []);
        let catalog = opened(&file.bytes());
        assert_eq!(catalog.format, "gguf");
        let q = catalog.find("q").unwrap();
        let tensor = catalog.tensors.get(q);
        assert_eq!((tensor.shape, tensor.nbytes), (&[2, 3, 64][..], 216));
        assert_eq!(tensor.dtype.name(), "Q4_0");
        let extent = catalog.extent(q).unwrap();
        assert_eq!(extent.offset, file.data_start() + 128);
        let scalar = catalog.tensors.get(catalog.find("scalar").unwrap());
        assert!(scalar.shape.is_empty());
        let none = catalog.tensors.get(catalog.find("none").unwrap());
        assert_eq!((none.shape, none.nbytes), (&[0, 32][..], 0));
        assert_eq!(catalog.metadata["general.name"], "Tiny");
    }
}

#[test]
fn empty_and_cut_files() {
    refused_bytes(b"", &["is empty (0 bytes)"]);
    refused_bytes(b"GG", &["the magic number needs 4 bytes", "at byte 0 of 2"]);
    refused_bytes(b"GGUF", &["the version needs 4 bytes", "at byte 4 of 4"]);
    let file = Gguf::small().key("k", strings(["one", "two"]));
    let header = file.header();
    for cut in 4..header.len() {
        refused_bytes(&header[..cut], &["cut short", &format!("of {cut};")]);
    }
    refused_bytes(
        &header[..header.len() - 3],
        &["the offset of tensor 't' needs 8 bytes, but 5 bytes are left"],
    );
}

#[test]
fn what_is_not_gguf() {
    for magic in [*b"lmgg", *b"tjgg", *b"fmgg", *b"algg", *b"GGML", *b"ggjt"] {
        let file = Gguf {
            magic,
            ..Gguf::small()
        };
        refused_gguf(&file, &["an older GGML file", "not GGUF"]);
        // They had other names then.
        let dir = Dir::of(&[("ggml-model.bin", &file.bytes())]);
        refused(&dir.join("ggml-model.bin"), &["an older GGML file"]);
    }
    let other = Gguf {
        magic: *b"GGUX",
        ..Gguf::small()
    };
    refused_gguf(&other, &["is not a GGUF file", "'GGUX'"]);
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 123456\n";
    refused_bytes(
        pointer,
        &["Git LFS pointer", "123456 bytes", "git lfs pull"],
    );
    refused_bytes(
        b"<!DOCTYPE html><html>",
        &["HTML page", "download it again"],
    );
    refused_bytes(
        &good(&["a"]),
        &["is a safetensors file, although a gguf file"],
    );
    refused_bytes(b"PK\x03\x04archive/data.pkl", &["pickle"]);
}

#[test]
fn versions() {
    for version in [0, 1, 4, 17] {
        let file = Gguf {
            version,
            ..Gguf::small()
        };
        refused_gguf(&file, &[&format!("version {version}; stfs reads 2 and 3")]);
    }
    for version in [2u32, 3] {
        let swapped = version.swap_bytes();
        let file = Gguf {
            version: swapped,
            ..Gguf::small()
        };
        refused_gguf(&file, &["big-endian", &format!("version {version}")]);
    }
}

#[test]
fn counts_that_the_file_cannot_hold() {
    for count in [1000, u64::MAX, u64::MAX / 24 + 2, 1 << 63] {
        let tensors = Gguf {
            tensor_count: Some(count),
            ..Gguf::small()
        };
        let left = tensors.bytes().len() - 24;
        let left = format!("{left} bytes are left");
        refused_gguf(&tensors, &[&format!("promises {count} tensors"), &left]);
        let keys = Gguf {
            key_count: Some(count),
            ..Gguf::small()
        };
        refused_gguf(&keys, &[&format!("promises {count} keys"), &left]);
    }
    let both = Gguf {
        key_count: Some(u64::MAX),
        tensor_count: Some(u64::MAX),
        ..Gguf::small()
    };
    assert_eq!(problems_of(&both).len(), 2);
}

#[test]
fn strings_and_arrays_over_the_end() {
    let length = |n: u64| V::Raw(8, n.to_le_bytes().to_vec());
    for n in [1000, u64::MAX, u64::MAX - 7] {
        let file = Gguf::small().key("k", length(n));
        refused_gguf(&file, &["key 'k'", &n.to_string(), "bytes are left"]);
        let array = |of: u32| {
            let bytes = [&of.to_le_bytes()[..], &n.to_le_bytes()].concat();
            Gguf::small().key("k", V::Raw(9, bytes))
        };
        for of in [0, 4, 8, 12] {
            refused_gguf(&array(of), &["key 'k'", &n.to_string(), "bytes are left"]);
        }
    }
    // The lengths of strings within an array that itself could fit.
    let mut elements = (100u64).to_le_bytes().to_vec();
    elements.splice(0..0, 8u32.to_le_bytes());
    (0..100).for_each(|_| elements.extend(u64::MAX.to_le_bytes()));
    let file = Gguf::small().key("k", V::Raw(9, elements));
    refused_gguf(
        &file,
        &["string 1 of the value of key 'k'", "18446744073709551615"],
    );
    let mut name = Gguf::small();
    name.keys[0].0 = vec![b'x'; 1 << 20];
    let bytes = &name.bytes()[..500];
    refused_bytes(bytes, &["key 1 of 1 is 1048576 bytes long"]);
}

#[test]
fn keys() {
    let small = Gguf::small;
    refused_gguf(&small().key("", V::U8(1)), &["key 2 of 2 has no name"]);
    let twice = small().key("a", V::U8(1)).key("a", V::U8(1));
    refused_gguf(&twice, &["key 'a' appears twice"]);
    refused_gguf(
        &small().key(b"a\xff", V::U8(1)),
        &["key 2 of 2", "not valid UTF-8"],
    );
    for kind in [13, 255, u32::MAX] {
        let file = small().key("a", V::Raw(kind, vec![0; 8]));
        refused_gguf(&file, &["key 'a'", &format!("type {kind}")]);
        let file = small().key("a", V::Array(kind, vec![V::U64(0)]));
        refused_gguf(&file, &["key 'a'", "an array", &format!("type {kind}")]);
    }
    let nested = small().key("a", V::Array(9, vec![V::Array(4, vec![])]));
    refused_gguf(&nested, &["key 'a' is an array of arrays", "type 9"]);
    // All of them, and the tensors' problems behind them.
    let many = small()
        .key("", V::U8(1))
        .key("general.architecture", s("qwen"))
        .key(b"\xff", V::U8(1))
        .tensor("u", &[3], 77, vec![]);
    assert_eq!(problems_of(&many).len(), 4, "{:?}", problems_of(&many));
}

#[test]
fn alignments() {
    for (value, says) in [
        (V::U32(0), "0 (uint32)"),
        (V::U32(48), "48 (uint32)"),
        (V::U64(64), "64 (uint64)"),
        (V::I32(32), "32 (int32)"),
        (s("32"), "\"32\" (string)"),
        (V::Array(4, vec![V::U32(32)]), "[32] (array)"),
    ] {
        let file = Gguf::small().key("general.alignment", value);
        refused_gguf(&file, &["general.alignment", says, "power of two"]);
    }
    for alignment in [1, 8, 64, 4096] {
        let mut file = Gguf::small();
        file.alignment = alignment;
        let value = V::U32(alignment as u32);
        let file = file
            .key("general.alignment", value)
            .tensor("u", &[4], F32, [7; 16]);
        assert_eq!(problems_of(&file), [], "{alignment}");
        let catalog = opened(&file.bytes());
        let extent = catalog.extent(catalog.find("u").unwrap()).unwrap();
        assert_eq!(extent.offset % alignment, 0);
        let mut bytes = [0; 16];
        extent.file.read_at(extent.offset, &mut bytes).unwrap();
        assert_eq!(bytes, [7; 16]);
    }
    // As large as the key can say, in a file without tensors.
    let none = Gguf::new()
        .key("general.alignment", V::U32(1 << 31))
        .header();
    assert_eq!(opened(&none).tensors.len(), 0);
}

#[test]
fn dimensions() {
    let of = |ne: &[u64]| Gguf::small().tensor("x", ne, F32, [0; 128]);
    refused_gguf(&of(&[2, 2, 2, 2, 2]), &["tensor 'x'", "5 dimensions"]);
    // However many: they are not looked for in the file.
    let mut many = Gguf::small().bytes();
    let at = Gguf::small().header().len() - 8 - 4 - 8 - 4;
    for n in [6u32, 100, u32::MAX] {
        many[at..at + 4].copy_from_slice(&n.to_le_bytes());
        let said = format!("has {n} dimensions, at most 4");
        refused_bytes(&many, &["tensor 't'", &said]);
    }
    let large = 1u64 << 63;
    refused_gguf(&of(&[large]), &["tensor 'x'", &large.to_string()]);
    refused_gguf(&of(&[0, u64::MAX]), &["tensor 'x'", &u64::MAX.to_string()]);
    for ne in [
        &[1 << 32, 1 << 31][..],
        &[1 << 62, 2],
        &[1 << 21; 3],
        &[u32::MAX.into(); 4],
    ] {
        let said = format!("{ne:?}");
        refused_gguf(&of(ne), &["tensor 'x'", &said, "product"]);
    }
    // Just below, the file is too short.
    let most = (1u64 << 63) - 1;
    refused_gguf(&of(&[most]), &["tensor 'x'", "36893488147419103"]);
}

#[test]
fn types() {
    let of = |kind| Gguf::small().tensor("x", &[256], kind, [0; 1024]);
    for kind in [4, 5, 31, 32, 33, 36, 37, 38, 43, 1000, u32::MAX] {
        refused_gguf(&of(kind), &["tensor 'x'", &format!("ggml type {kind} ")]);
    }
    for kind in (0..43).filter(|k| ![4, 5, 31, 32, 33, 36, 37, 38].contains(k)) {
        let mut file = of(kind);
        // The largest is 8 bytes a value.
        file.tensors[1].data = vec![0; 2048];
        assert_eq!(opened(&file.bytes()).tensors.len(), 2, "{kind}");
    }
    for (kind, ne, parts) in [
        (Q4_0, &[48, 2][..], ["48", "32"]),
        (Q8_0, &[31], ["31", "32"]),
        (Q4_K, &[128, 2], ["128", "256"]),
        (Q8_0, &[], ["1 values", "32"]),
        (Q8_0, &[1, 32], ["1 values", "32"]),
    ] {
        let file = Gguf::small().tensor("x", ne, kind, [0; 1024]);
        refused_gguf(&file, &[&["tensor 'x'"], &parts[..]].concat());
    }
}

#[test]
fn names_of_tensors() {
    let file = Gguf::small().tensor("t", &[1], F32, [0; 4]);
    refused_gguf(&file, &["tensor 't'", "twice"]);
    // Even if the first is wrong itself.
    let file = Gguf::new()
        .tensor("x", &[48], Q4_0, [0; 27])
        .tensor("x", &[1], F32, [0; 4]);
    let found = problems_of(&file);
    assert!(
        found[0].1.contains("48") && found[1].1.contains("twice"),
        "{found:?}"
    );
    let file = Gguf::small().tensor(b"t\xff", &[1], F32, [0; 4]);
    refused_gguf(&file, &["tensor 't\u{fffd}'", "not valid UTF-8"]);
    for name in ["", "a/b", "..", "\0", "ü"] {
        let file = Gguf::small().tensor(name, &[1], F32, [0; 4]);
        assert!(opened(&file.bytes()).find(name).is_some());
    }
    let long = "n".repeat(64);
    let file = Gguf::small().tensor(&long, &[1], F32, [0; 4]);
    assert!(opened(&file.bytes()).find(&long).is_some());
    let problem = "llama.cpp will not load this: its name has 64 bytes, at most 63 are read";
    assert_eq!(problems_of(&file), [(long, problem.into())]);
}

#[test]
fn offsets() {
    let of = |offset| Gguf::small().tensor("x", &[32], F32, [0; 128]).at(offset);
    for offset in [1, 16, 129, u64::MAX] {
        let said = [&*offset.to_string(), "alignment 32"];
        refused_gguf(&of(offset), &["tensor 'x'", said[0], said[1]]);
    }
    // The end may be more than 64 bits count.
    for offset in [160, 1 << 40, u64::MAX - 31] {
        let mut file = of(offset);
        if offset == 160 {
            file.tensors[1].data = vec![0; 100];
        }
        let bytes = file.bytes();
        let bytes = &bytes[..bytes.len() - if offset == 160 { 28 } else { 0 }];
        let start = u128::from(file.data_start());
        let needs = start + u128::from(offset) + 128;
        let needs = format!("needs {needs} bytes, has {}", bytes.len());
        refused_bytes(bytes, &["tensor 'x'", &needs, "--allow-missing"]);
        let dir = Dir::of(&[("m.gguf", bytes)]);
        let catalog = open(dir.path(), MISSING).unwrap();
        assert!(catalog.find("t").is_some() && catalog.find("x").is_none());
        assert!(catalog.absent.contains("x"));
        assert!(
            catalog.notes[0].contains("1 of the tensors"),
            "{:?}",
            catalog.notes
        );
    }
}

#[test]
fn tensors_that_share_bytes() {
    let of = |a: (u64, usize), b: (u64, usize)| {
        let tensor = |(offset, n): (u64, usize), name| Tensor {
            offset: Some(offset),
            ..counting(name, n, 0.0)
        };
        let mut file = Gguf::new();
        file.tensors = vec![tensor(a, "a"), tensor(b, "b")];
        file
    };
    for (a, b) in [((0, 32), (0, 32)), ((0, 32), (96, 8)), ((64, 8), (0, 32))] {
        refused_gguf(&of(a, b), &["shares bytes with", "'a'", "'b'"]);
    }
    // Empty tensors share nothing.
    for (a, b) in [((0, 32), (64, 0)), ((0, 0), (0, 32)), ((0, 32), (128, 8))] {
        assert_eq!(opened(&of(a, b).bytes()).tensors.len(), 2);
    }
    // A large one over several small ones: each pair is named.
    let mut file = Gguf::new().tensor("all", &[64], F32, [0; 256]);
    for i in 0..4 {
        file = file.tensor(format!("t{i}"), &[8], F32, [0; 32]).at(64 * i);
    }
    let found = problems_of(&file);
    let shared = found
        .iter()
        .filter(|(_, p)| p.contains("shares bytes with 'all'"));
    assert_eq!(shared.count(), 4, "{found:?}");
}

/// What the format allows, although llama.cpp does not.
#[test]
fn holes_and_any_order_are_served() {
    let t = |name, n, at| Tensor {
        offset: Some(at),
        ..counting(name, n, 1.0)
    };
    let mut file = Gguf::new();
    file.tensors = vec![t("a", 8, 2048), t("b", 8, 0), t("c", 8, 32), t("d", 8, 128)];
    assert_eq!(opened(&file.bytes()).tensors.len(), 4);
    let says = |name: &str, at: u64, expected: u64| {
        let why = format!("tensor '{name}' at {at}, expected {expected}");
        (
            name.to_string(),
            format!("llama.cpp will not load this: {why}"),
        )
    };
    let expected = [says("a", 2048, 0), says("b", 0, 2080), says("d", 128, 64)];
    assert_eq!(problems_of(&file), expected);
    for empty in [Gguf::new(), Gguf::new().key("a", V::U8(1))] {
        assert_eq!(problems_of(&empty), []);
        assert_eq!(opened(&empty.header()).tensors.len(), 0);
    }
    // The header's own padding may be missing if nothing follows it.
    let nothing = Gguf::small().tensor("none", &[0], F32, []);
    let nothing = Gguf {
        tensors: nothing.tensors[1..].to_vec(),
        ..nothing
    };
    for end in [nothing.header(), nothing.bytes()] {
        assert_eq!(opened(&end).tensors.len(), 1);
    }
    let no_keys = Gguf {
        keys: vec![],
        ..Gguf::small()
    };
    assert_eq!(opened(&no_keys.bytes()).tensors.len(), 1);
}

/// Files with holes can be as long as they like.
#[test]
fn counts_that_only_a_file_of_holes_can_hold() {
    let tensors = Gguf {
        tensor_count: Some(1 << 32),
        ..Gguf::small()
    };
    let keys = Gguf {
        key_count: Some(1 << 32),
        ..Gguf::small()
    };
    let text = [&8u32.to_le_bytes()[..], &(1u64 << 36).to_le_bytes()].concat();
    let strings = Gguf::new().key("k", V::Raw(9, text));
    let numbers = [&4u32.to_le_bytes()[..], &(1u64 << 36).to_le_bytes()].concat();
    let numbers = Gguf::new().key("k", V::Raw(9, numbers)).key("l", V::U8(0));
    let name = Gguf::new().key("k", V::Raw(8, (1u64 << 38).to_le_bytes().to_vec()));
    for (file, says) in [
        (&tensors, "dimensions, at most 4"),
        (&keys, "4294967296 keys, at most 100000"),
        (&strings, "does not end within"),
        (&numbers, "does not end within"),
        (&name, "does not end within"),
    ] {
        let dir = Dir::of(&[("m.gguf", &file.bytes())]);
        let sparse = std::fs::File::options()
            .write(true)
            .open(dir.join("m.gguf"));
        sparse.unwrap().set_len(1 << 40).unwrap();
        refused(dir.path(), &["m.gguf: ", says]);
        assert!(!problems(dir.path()).is_empty());
    }
}

#[test]
fn a_set_of_splits_is_one_model() {
    let dir = dir_of(&set());
    assert_eq!(problems(dir.path()), []);
    let whole = open(dir.path(), OpenOptions::default()).unwrap();
    assert_eq!((whole.tensors.len(), whole.files.len()), (6, 3));
    assert_eq!(whole.metadata["general.architecture"], "llama");
    assert!(!whole.lone_file);
    for (name, _) in set() {
        let one = open(&dir.join(&name), OpenOptions::default()).unwrap();
        assert_eq!(one.tensors.len(), 6);
        assert_eq!(one.weight_files, whole.weight_files);
    }
    for (i, t) in (0..).zip(&whole.tensors) {
        let extent = whole.extent(i).unwrap();
        let mut first = [0; 4];
        extent.file.read_at(extent.offset, &mut first).unwrap();
        let number: usize = t.name[1..2].parse().unwrap();
        assert_eq!(extent.file.name(), set()[number].0);
        assert_eq!(f32::from_le_bytes(first), i as f32);
    }
}

#[test]
fn splits_that_are_missing_are_named() {
    let mut files = set();
    let dir = dir_of(&files);
    std::fs::remove_file(dir.join(&files[1].0)).unwrap();
    let missing = [
        "m-00002-of-00003.gguf: is missing",
        "3 files",
        "download it again",
    ];
    refused(dir.path(), &missing);
    refused(&dir.join(&files[2].0), &missing);
    let found = problems(dir.path());
    assert_eq!((found.len(), &*found[0].0), (1, &*files[1].0));
    let catalog = open(dir.path(), MISSING).unwrap();
    assert_eq!(catalog.tensors.len(), 4);
    assert!(catalog.shards_missing && catalog.notes[0].contains(&files[1].0));
    std::fs::remove_file(dir.join(&files[2].0)).unwrap();
    refused(
        dir.path(),
        &["m-00002-of-00003.gguf", "1 more: m-00003-of-00003.gguf"],
    );
    assert_eq!(problems(dir.path()).len(), 2);
    // Not without the first, which has the keys.
    let dir = dir_of(&files.split_off(1));
    let error = open(dir.path(), MISSING).err().unwrap().to_string();
    assert!(
        error.contains("m-00001-of-00003.gguf: is missing"),
        "{error}"
    );
    assert!(error.contains("keys"), "{error}");
    // Nor is it suggested.
    let error = open(dir.path(), OpenOptions::default()).err().unwrap();
    assert!(!error.to_string().contains("--allow-missing"), "{error}");
}

#[test]
fn damage_in_a_split() {
    let files = set();
    let dir = dir_of(&files);
    let cut = |name: &str, len: usize| {
        let bytes = std::fs::read(dir.join(name)).unwrap();
        std::fs::write(dir.join(name), &bytes[..len]).unwrap();
    };
    // The end of the second.
    let len = files[1].1.bytes().len();
    cut(&files[1].0, len - 8);
    refused(
        dir.path(),
        &["m-00002-of-00003.gguf", "'t11'", "--allow-missing"],
    );
    let catalog = open(dir.path(), MISSING).unwrap();
    assert_eq!(catalog.tensors.len(), 5);
    assert!(catalog.absent.contains("t11"));
    // Its header.
    cut(&files[1].0, 100);
    refused(dir.path(), &["m-00002-of-00003.gguf", "cut short"]);
    assert_eq!(problems(dir.path()).len(), 1);
    let catalog = open(dir.path(), MISSING).unwrap();
    assert_eq!(catalog.tensors.len(), 4);
    assert!(catalog.shards_missing);
    assert!(catalog.notes[0].starts_with("left out: m-00002-of-00003.gguf"));
    // The header of the first.
    cut(&files[0].0, 100);
    let error = open(dir.path(), MISSING).err().unwrap().to_string();
    assert!(error.contains("m-00001-of-00003.gguf: "), "{error}");
    assert_eq!(problems(dir.path()).len(), 2);
    std::fs::write(
        dir.join(&files[0].0),
        b"version https://git-lfs.github.com/spec/v1\n",
    )
    .unwrap();
    refused(dir.path(), &["m-00001-of-00003.gguf", "Git LFS pointer"]);
}

#[test]
fn splits_that_disagree() {
    let with = |change: Change<'_>| {
        let mut files = set();
        change(&mut files);
        let dir = dir_of(&files);
        let error = open(dir.path(), OpenOptions::default())
            .err()
            .map(|e| e.to_string());
        (error.unwrap_or_default(), problems(dir.path()))
    };
    let set_key = |file: &mut Gguf, key: &str, value: V| {
        let key = file.keys.iter_mut().find(|(k, _)| k == key.as_bytes());
        key.unwrap().1 = value;
    };
    for (key, value, says) in [
        (
            "split.count",
            V::U16(4),
            "split.count is 4, but its name makes it file 2 of 3",
        ),
        (
            "split.no",
            V::U16(0),
            "split.no is 0, but its name makes it file 2 of 3",
        ),
        (
            "split.no",
            s("1"),
            "split.no is \"1\" (string), expected a uint16",
        ),
        (
            "split.count",
            V::I32(-3),
            "split.count is -3 (int32), expected a uint16",
        ),
        (
            "split.tensors.count",
            V::I32(7),
            "split.tensors.count is 7, but the 3 files of the model have 6",
        ),
    ] {
        let (error, found) = with(&|files| set_key(&mut files[1].1, key, value.clone()));
        assert!(
            error.contains(says) && error.contains("m-00002-of"),
            "{error}"
        );
        assert!(
            found
                .iter()
                .any(|(file, _, p)| file.contains("00002") && p.contains(says))
        );
    }
    let (error, found) = with(&|files| files[2].1.keys.clear());
    assert!(
        error.contains("m-00003-of-00003.gguf: has no split.count"),
        "{error}"
    );
    assert_eq!(found.len(), 3, "{found:?}");
    let (error, _) = with(&|files| files[2].1.tensors[0].name = b"t00".to_vec());
    assert!(
        error.contains("m-00003-of-00003.gguf: tensor 't00': appears twice"),
        "{error}"
    );
    assert!(error.contains("m-00001-of-00003.gguf"), "{error}");
    // Served, and reported: the first file's keys count.
    let (error, found) = with(&|files| {
        files[1]
            .1
            .keys
            .push((b"general.architecture".to_vec(), s("qwen")));
        files[1].1.keys.push((b"another".to_vec(), s("x")));
        set_key(&mut files[2].1, "split.no", V::U32(2));
    });
    assert_eq!(error, "");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0]
            .2
            .contains("'general.architecture' contradicts the same key of m-00001-of")
    );
    assert!(
        found[1]
            .2
            .contains("llama.cpp will not load this: split.no is 2 (uint32)")
    );
}

#[test]
fn a_split_that_lost_its_number_is_told_its_name() {
    let (_, second) = set().remove(1);
    for (name, should) in [
        ("model.gguf", "rename it to model-00002-of-00003.gguf"),
        (
            "sha256-abcd",
            "rename it to sha256-abcd-00002-of-00003.gguf",
        ),
        ("m-2-of-3.gguf", "rename it to m-2-of-3-00002-of-00003.gguf"),
    ] {
        let dir = Dir::of(&[(name, &second.bytes())]);
        refused(&dir.join(name), &[name, "file 2 of 3", should]);
    }
    // A set of one needs no number, and no keys.
    let one = Gguf::small().split(0, 1, 1);
    for (name, file) in [
        ("m.gguf", &one),
        ("m-00001-of-00001.gguf", &one),
        ("m-00001-of-00001.gguf", &Gguf::small()),
    ] {
        let dir = Dir::of(&[(name, &file.bytes())]);
        assert_eq!(problems(dir.path()), []);
    }
    let odd = Gguf::small().split(7, 3, 1);
    let dir = Dir::of(&[("m.gguf", &odd.bytes())]);
    refused(dir.path(), &["m.gguf", "one of 3 files", "split.no"]);
}

#[test]
fn directories() {
    let file = Gguf::small().bytes();
    let of = |files: &[(&str, &[u8])]| Dir::of(files);
    // Whatever its name; the configuration beside it counts for nothing.
    let config = br#"{"quantization_config": {"quant_method": "gptq"}}"#;
    let dir = of(&[
        ("any.gguf", &file),
        ("config.json", config),
        ("._any.gguf", b"fork"),
    ]);
    let catalog = open(dir.path(), OpenOptions::default()).unwrap();
    assert_eq!(catalog.weight_files, ["any.gguf"]);
    assert_eq!(
        catalog.configs.config.as_ref().unwrap()["general.architecture"],
        "llama"
    );
    assert!(catalog.configs.quantize_config.is_none() && catalog.configs.unused.is_empty());
    for (names, says) in [
        (&["a.gguf", "b.gguf"][..], "a.gguf, b.gguf"),
        (&["mmproj-m.gguf", "m.gguf"], "m.gguf, mmproj-m.gguf"),
        (
            &["a-00001-of-00002.gguf", "b-00001-of-00002.gguf"],
            "b-00001-of-00002.gguf",
        ),
        (
            &["a-00001-of-00002.gguf", "a-00001-of-00003.gguf"],
            "a-00001-of-00003.gguf",
        ),
        (
            &["a.gguf", "a-00001-of-00002.gguf"],
            "a-00001-of-00002.gguf",
        ),
    ] {
        let dir = Dir::new();
        for name in names {
            std::fs::write(dir.join(name), &file).unwrap();
        }
        refused(
            dir.path(),
            &["several GGUF models", says, "give one by its path"],
        );
        if let Some(whole) = names.iter().find(|n| !n.contains("-of-")) {
            assert!(open(&dir.join(whole), OpenOptions::default()).is_ok());
        }
    }
    // Safetensors come before, bin + manifest after.
    let dir = of(&[("m.gguf", &file), ("model.safetensors", &good(&["a"]))]);
    assert_eq!(
        open(dir.path(), OpenOptions::default()).unwrap().format,
        "safetensors"
    );
    let manifest = br#"{"tensors": {"t": {"offset": 0, "size": 4, "shape": [1], "dtype": "F32"}}}"#;
    let dir = of(&[("m.gguf", &file), ("w.bin", &[0; 4]), ("w.json", manifest)]);
    assert_eq!(
        open(dir.path(), OpenOptions::default()).unwrap().format,
        "gguf"
    );
    // A name of another container keeps it.
    refused_files(
        &[("model.safetensors", &file)],
        &["is a gguf file, although a safetensors"],
    );
    // By path, the first four bytes decide: ollama's blobs, or any other name.
    for name in ["sha256-0123456789abcdef", "model.bin", "model"] {
        let dir = of(&[(name, &file)]);
        let catalog = open(&dir.join(name), OpenOptions::default()).unwrap();
        assert_eq!((catalog.format, catalog.tensors.len()), ("gguf", 1));
    }
}

/// As in a hub's cache: the names are links.
#[test]
fn links_to_blobs_are_followed() {
    let dir = Dir::new();
    std::fs::create_dir_all(dir.join("models--o--n/snapshots/abc")).unwrap();
    std::fs::create_dir_all(dir.join("models--o--n/blobs")).unwrap();
    std::fs::create_dir_all(dir.join("models--o--n/refs")).unwrap();
    std::fs::write(dir.join("models--o--n/refs/main"), "abc").unwrap();
    for (i, (name, file)) in set().into_iter().enumerate() {
        let blob = format!("models--o--n/blobs/{i}");
        std::fs::write(dir.join(&blob), file.bytes()).unwrap();
        let link = dir.join(&format!("models--o--n/snapshots/abc/{name}"));
        std::os::unix::fs::symlink(format!("../../blobs/{i}"), link).unwrap();
    }
    for model in [
        "models--o--n",
        "models--o--n/snapshots/abc/m-00002-of-00003.gguf",
    ] {
        let catalog = open(&dir.join(model), OpenOptions::default()).unwrap();
        assert_eq!(catalog.tensors.len(), 6, "{model}");
    }
}

/// Changes `bytes` and opens what results: nothing may panic, hang, or lie outside the file.
fn survives(dir: &Dir, bytes: &[u8]) {
    let path = dir.join("m.gguf");
    std::fs::write(&path, bytes).unwrap();
    let problems = check(&path);
    for options in [OpenOptions::default(), MISSING] {
        match Catalog::open(&path, options) {
            Err(error) => {
                let said = error.to_string();
                assert!(said.contains("m.gguf: "), "{said}");
                // What opening refuses, verifying finds.
                assert!(problems.as_ref().map_or(true, |p| !p.is_empty()), "{said}");
            }
            Ok(catalog) => {
                for (i, t) in (0..).zip(&catalog.tensors) {
                    let end = catalog.extent(i).unwrap().offset + t.nbytes;
                    assert!(t.nbytes == 0 || end <= bytes.len() as u64, "{t:?}");
                }
                let make = catalog.metadata_json.as_ref().unwrap();
                let json = make().unwrap();
                let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
                let keys = json.as_object().unwrap();
                assert!(catalog.metadata.keys().all(|k| keys.contains_key(k)));
            }
        }
    }
}

/// A file with a key of every type, long arrays and several tensors.
fn rich() -> Gguf {
    Gguf::small()
        .key("u8", V::U8(200))
        .key("i8", V::I8(-100))
        .key("u16", V::U16(60000))
        .key("i16", V::I16(-30000))
        .key("i32", V::I32(-2_000_000_000))
        .key("f32", V::F32(1e-5))
        .key("bool", V::Bool(true))
        .key("u64", V::U64(u64::MAX))
        .key("i64", V::I64(i64::MIN))
        .key("f64", V::F64(0.1))
        .key("text", V::Bytes(b"a\"\\\n\x01\xff\xc3\xa9".to_vec()))
        .key("tokens", strings((0..70).map(|i| "x".repeat(i % 5))))
        .key(
            "scores",
            V::Array(6, (0..70).map(|i| V::F32(i as f32)).collect()),
        )
        .key("few", V::Array(5, vec![V::I32(-1), V::I32(2)]))
        .tensor("q", &[64, 2], Q8_0, vec![9; 136])
        .tensor("i", &[5, 3], I8, vec![8; 15])
}

#[test]
fn any_cut_and_any_flipped_byte() {
    let dir = Dir::new();
    let whole = rich().bytes();
    survives(&dir, &whole);
    for cut in 0..whole.len() {
        survives(&dir, &whole[..cut]);
    }
    let header = rich().header().len();
    for at in 0..header {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            survives(&dir, &bytes);
        }
    }
}

#[test]
fn random_damage() {
    let dir = Dir::new();
    let whole = rich().bytes();
    let header = rich().header().len();
    let mut x = 1u64;
    let mut random = |below: usize| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (x >> 33) as usize % below
    };
    for _ in 0..1500 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random(6) {
            let at = random(header);
            match random(3) {
                0 => bytes[at] = random(256) as u8,
                1 => bytes[at] = 0,
                // Other bytes from elsewhere: lengths and types that are plausible.
                _ => {
                    let n = 1 + random(16);
                    let from = random(header - 16);
                    let piece = bytes[from..from + n].to_vec();
                    let at = at.min(header - 16);
                    bytes[at..at + n].copy_from_slice(&piece);
                }
            }
        }
        survives(&dir, &bytes);
    }
}

#[test]
fn types_tell_what_values_are() {
    // Names that other formats give to the parts of quantized layers.
    let file = Gguf::new()
        .tensor("x.weight", &[32, 4], I8, [3; 128])
        .tensor("x.weight_scale", &[1, 4], F32, 2f32.to_le_bytes().repeat(4))
        .tensor("y", &[32], Q8_0, [1; 34]);
    let dir = Dir::of(&[("m.gguf", &file.bytes())]);
    let model = Model::new(
        open(dir.path(), OpenOptions::default()).unwrap(),
        ModelOptions::default(),
    );
    assert_eq!(model.layer_count(), 0);
    let (id, x) = model.find("x.weight").unwrap();
    assert!(!x.is_dequantized());
    assert_eq!(model.parameters(id), 128);
    let json: serde_json::Value = serde_json::from_slice(&stfs::meta::model_json(&model)).unwrap();
    assert_eq!(json["parameters"], 128 + 4 + 32);
    assert_eq!(json["quantization"]["method"], "gguf");
}
