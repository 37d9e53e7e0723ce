//! Archives whose headers are wrong about the members, or about each other.

use std::path::Path;

use super::{archive, refused, served, w};
use crate::common::Dir;
use crate::program::pytorch::{checkpoint, members, state_dict, zip};
use crate::program::stfs;

const DATA_PKL: &str = "archive/data.pkl";
const STORAGE: &str = "archive/data/0";

/// Where the entry of a member is in the central directory.
fn central(bytes: &[u8], name: &str) -> usize {
    let found = (0..bytes.len() - 46).rev().find(|&at| {
        bytes[at..].starts_with(b"PK\x01\x02")
            && bytes[at + 46..].starts_with(name.as_bytes())
            && get(bytes, at + 28, 2) == name.len()
    });
    found.unwrap()
}

/// Where the local header of a member is.
fn local(bytes: &[u8], name: &str) -> usize {
    get(bytes, central(bytes, name) + 42, 4)
}

/// Where the end record is.
fn end(bytes: &[u8]) -> usize {
    bytes.len() - 22
}

fn get(bytes: &[u8], at: usize, size: usize) -> usize {
    let number = bytes[at..at + size].iter().rev();
    number.fold(0, |n, &b| n << 8 | usize::from(b))
}

fn set(bytes: &mut [u8], at: usize, size: usize, value: u64) {
    bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
}

/// A sound archive of the tensor `w`.
fn good() -> Vec<u8> {
    checkpoint(&[w()])
}

/// The same, changed.
fn changed(change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
    let mut bytes = good();
    change(&mut bytes);
    bytes
}

#[test]
fn members_that_are_compressed_or_encrypted() {
    assert_eq!(served(&good()), ["w"]);
    for name in [DATA_PKL, STORAGE] {
        for (method, called) in [
            (8, "deflate"),
            (12, "bzip2"),
            (14, "lzma"),
            (93, "zstd"),
            (77, "77"),
        ] {
            let bytes = changed(|b| {
                let (c, l) = (central(b, name), local(b, name));
                set(b, c + 10, 2, method);
                set(b, l + 8, 2, method);
            });
            let line = refused(&bytes, &[name, "zip -0"]);
            assert!(line.to_lowercase().contains(called), "{called}: {line}");
        }
        let bytes = changed(|b| {
            let (c, l) = (central(b, name), local(b, name));
            b[c + 8] |= 1;
            b[l + 6] |= 1;
        });
        refused(&bytes, &[name, "encrypted"]);
    }
}

#[test]
fn local_headers_that_do_not_agree() {
    for name in [DATA_PKL, STORAGE] {
        // No header where the directory says; beyond the file; in the directory itself.
        let at = local(&good(), name) as u64;
        for place in [at + 1, at + 30] {
            let bytes = changed(|b| {
                let c = central(b, name);
                set(b, c + 42, 4, place);
            });
            refused(&bytes, &[name, &place.to_string()]);
        }
        let bytes = changed(|b| {
            let c = central(b, name);
            set(b, c + 42, 4, 0xff_ffff);
        });
        refused(&bytes, &[name, "16777215"]);
        // Another name, method, or size.
        let bytes = changed(|b| {
            let l = local(b, name);
            b[l + 30] = b'A';
        });
        refused(&bytes, &[name, &name.replacen('a', "A", 1)]);
        let bytes = changed(|b| {
            let l = local(b, name);
            set(b, l + 8, 2, 8);
        });
        refused(&bytes, &[name, "8", "0"]);
        let bytes = changed(|b| {
            let (l, c) = (local(b, name), central(b, name));
            for at in [l + 6, c + 8] {
                b[at] &= !8;
            }
            set(b, l + 18, 4, 3);
            set(b, l + 22, 4, 3);
        });
        refused(&bytes, &[name, "3"]);
        // A name that is longer than the file.
        let bytes = changed(|b| {
            let l = local(b, name);
            set(b, l + 26, 2, 0xffff);
        });
        refused(&bytes, &[name]);
    }
}

#[test]
fn sizes_that_do_not_fit() {
    for (name, size) in [
        (STORAGE, 1 << 20),
        (STORAGE, 0xffff_fffe),
        (DATA_PKL, 1 << 20),
    ] {
        let bytes = changed(|b| {
            let c = central(b, name);
            set(b, c + 20, 4, size);
            set(b, c + 24, 4, size);
        });
        let end = |at: usize| (at + 30 + size as usize).to_string();
        let line = refused(&bytes, &[name, "needs bytes"]);
        let at = local(&good(), name);
        let padded = (0..128).any(|more| line.contains(&end(at + more)));
        assert!(padded, "{line}");
    }
    // A stored member whose two sizes differ.
    let bytes = changed(|b| {
        let c = central(b, STORAGE);
        set(b, c + 24, 4, 48);
    });
    refused(&bytes, &[STORAGE, "24", "48"]);
}

#[test]
fn members_that_overlap() {
    // A member that has another one in its data, local header and all.
    let inner = [("archive/data/1".to_string(), vec![9; 8])];
    let header = zip(&inner);
    let header = &header[..local_end(&header)];
    let mut all = members(&state_dict("", &[w()]));
    let storage = all.iter().position(|(name, _)| name == STORAGE).unwrap();
    let mut outer = vec![0; 24];
    outer.extend(header);
    let n = i32::try_from(outer.len().div_ceil(4)).unwrap();
    outer.resize(n as usize * 4, 0);
    all[storage].1 = outer;
    let root = super::pickle(&[
        b"}",
        &super::text("w"),
        &super::rebuilt(n, b"K\0", b"K\x06\x85", b"K\x01\x85"),
        b"s",
    ]);
    all.iter_mut().find(|(name, _)| name == DATA_PKL).unwrap().1 = root;
    let sound = zip(&all);
    assert_eq!(served(&sound), ["w"]);
    all.push(inner[0].clone());
    let mut bytes = zip(&all);
    let c = central(&bytes, "archive/data/1");
    let place = local(&bytes, STORAGE);
    let start = place + 30 + get(&bytes, place + 26, 2) + get(&bytes, place + 28, 2) + 24;
    set(&mut bytes, c + 42, 4, start as u64);
    let line = refused(&bytes, &[STORAGE, "archive/data/1", "overlap"]);
    assert!(
        line.contains(&start.to_string()) || line.contains(&place.to_string()),
        "{line}"
    );
}

/// Where the first member of an archive ends, its data included.
fn local_end(bytes: &[u8]) -> usize {
    let c = (0..bytes.len()).find(|&at| bytes[at..].starts_with(b"PK\x01\x02"));
    c.unwrap() - 16
}

#[test]
fn members_of_one_name() {
    let mut all = members(&state_dict("", &[w()]));
    all.push((STORAGE.to_string(), vec![9; 24]));
    refused(&zip(&all), &[STORAGE]);
    let mut all = members(&state_dict("", &[w()]));
    all.push((DATA_PKL.to_string(), all[0].1.clone()));
    refused(&zip(&all), &["data.pkl"]);
    // Two archives in one.
    let mut all = members(&state_dict("", &[w()]));
    all.push(("other/data.pkl".to_string(), all[0].1.clone()));
    refused(&zip(&all), &["data.pkl"]);
}

#[test]
fn versions_and_byte_orders() {
    let with = |name: &str, data: Option<&[u8]>| {
        let mut all = members(&state_dict("", &[w()]));
        all.retain(|(n, _)| n != name);
        all.extend(data.map(|data| (name.to_string(), data.to_vec())));
        zip(&all)
    };
    for version in ["1", "2\n", "3", "10\n"] {
        assert_eq!(
            served(&with("archive/version", Some(version.as_bytes()))),
            ["w"],
            "{version:?}"
        );
    }
    for version in ["11\n", "", "x", "-3\n"] {
        refused(
            &with("archive/version", Some(version.as_bytes())),
            &["version"],
        );
    }
    refused(&with("archive/version", None), &["version"]);
    for order in [None, Some("little")] {
        assert_eq!(
            served(&with("archive/byteorder", order.map(str::as_bytes))),
            ["w"]
        );
    }
    for order in ["", "middle", "LITTLE"] {
        refused(
            &with("archive/byteorder", Some(order.as_bytes())),
            &["byteorder"],
        );
    }
}

#[test]
fn end_records_that_are_wrong() {
    let whole = good();
    let here = whole.len().to_string();
    for cut in [1, 10, 21, 22, 100, whole.len() - 5] {
        refused(&whole[..whole.len() - cut], &[]);
    }
    let at = end(&whole);
    // A directory that is not in the file.
    for (offset, value) in [
        (12, 0xffff_fff0u64),
        (16, 0xffff_fff0),
        (16, at as u64 + 22),
        (12, 1),
    ] {
        let bytes = changed(|b| set(b, at + offset, 4, value));
        refused(&bytes, &[]);
    }
    let bytes = changed(|b| set(b, at + 16, 4, 0xfff_ffff));
    refused(&bytes, &["268435455", &here]);
    // Entries that are not there, or more than are promised.
    for entries in [0, 1, 6, 8, 60000] {
        let bytes = changed(|b| {
            set(b, at + 8, 2, entries);
            set(b, at + 10, 2, entries);
        });
        refused(&bytes, &[]);
    }
    // Several disks.
    let bytes = changed(|b| set(b, at + 4, 2, 1));
    refused(&bytes, &[]);
    // Bytes behind are allowed; bytes in front are not.
    assert_eq!(served(&[&whole[..], b"behind"].concat()), ["w"]);
    let dir = Dir::of(&[("m.pt", &[b"front", &whole[..]].concat())]);
    stfs([Path::new("ls"), &dir.join("m.pt")]).fails(&["m.pt", "is not a PyTorch checkpoint"]);
}

/// CRC-32 is not checked when a file is opened; `verify` reports the small members'.
#[test]
fn checksums_are_verified_alone() {
    let bytes = changed(|b| {
        let c = central(b, DATA_PKL);
        set(b, c + 16, 4, 0x1234_5678);
    });
    assert_eq!(served(&bytes), ["w"]);
    let dir = Dir::of(&[("m.pt", &bytes)]);
    let found = super::verified(&dir.join("m.pt"));
    assert!(
        matches!(&found[..], [(_, _, p)] if p.contains("data.pkl") && p.contains("CRC")),
        "{found:?}"
    );
    let bytes = changed(|b| {
        let c = central(b, DATA_PKL);
        set(b, c + 16, 4, 0);
    });
    let dir = Dir::of(&[("m.pt", &bytes)]);
    assert_eq!(super::verified(&dir.join("m.pt")), []);
}

/// A storage that no tensor uses is served beside, and reported by `verify`.
#[test]
fn storages_that_nothing_uses() {
    let mut all = members(&state_dict("", &[w()]));
    all.push(("archive/data/7".into(), vec![1; 4]));
    let bytes = zip(&all);
    assert_eq!(served(&bytes), ["w"]);
    let dir = Dir::of(&[("m.pt", &bytes)]);
    let found = super::verified(&dir.join("m.pt"));
    assert!(
        matches!(&found[..], [(_, _, p)] if p.contains("data/7")),
        "{found:?}"
    );
}

/// `verify` goes on after the first problem.
#[test]
fn all_problems_at_once() {
    let bytes = changed(|b| {
        let c = central(b, STORAGE);
        set(b, c + 20, 4, 20);
        set(b, c + 24, 4, 20);
    });
    let dir = Dir::of(&[("m.pt", &bytes)]);
    assert!(!super::verified(&dir.join("m.pt")).is_empty());
    // Three tensors that are wrong, each in its own way.
    let t = |offset: &[u8], size: &[u8], stride: &[u8]| super::rebuilt(6, offset, size, stride);
    let root = super::pickle(&[
        b"}(",
        &super::text("far"),
        &t(b"K\x09", b"K\x02\x85", b"K\x01\x85"),
        &super::text("fine"),
        &t(b"K\0", b"K\x06\x85", b"K\x01\x85"),
        &super::text("odd"),
        &t(b"K\0", b"K\x02\x85", b"K\x01K\x01\x86"),
        &super::text("negative"),
        &t(b"J\xff\xff\xff\xff", b"K\x02\x85", b"K\x01\x85"),
        b"u",
    ]);
    let dir = Dir::of(&[("m.pt", &archive(&root, &[("0", &[0; 24])]))]);
    let found = super::verified(&dir.join("m.pt"));
    for name in ["far", "odd", "negative"] {
        let about = |(file, tensor, problem): &&(String, String, String)| {
            file.ends_with("m.pt") && (tensor == name || problem.contains(&format!("'{name}'")))
        };
        assert!(found.iter().any(|p| about(&p)), "{name}: {found:?}");
    }
    assert!(
        found.iter().all(|(_, tensor, _)| tensor != "fine"),
        "{found:?}"
    );
}
