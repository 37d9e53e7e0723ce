//! One file that is wrong about itself, in one way each.

use super::{MISSING, opened, problems, problems_of, refused_bytes, refused_gguf};
use crate::common::{Dir, good, open, refused};
use crate::gguf_file::{F32, Gguf, Q4_0, Q4_K, Q8_0, Tensor, V, counting, s, strings};

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
    refused_bytes(
        b"PK\x03\x04archive/data.pkl",
        &["is a PyTorch checkpoint (a pickle), although a gguf file"],
    );
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
