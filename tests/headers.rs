//! Compares stfs with the safetensors library on valid and invalid files: stfs opens what the
//! library opens, with the same tensors, and refuses what it refuses, with an explanation.

mod common;

use common::{DTYPES, ModelDir};
use proptest::prelude::*;
use proptest::sample::select;
use safetensors::SafeTensors;
use stfs::catalog::{Catalog, OpenOptions, check_header};

/// Opens the bytes both ways and compares.
fn compare(bytes: &[u8]) {
    let dir = ModelDir::new();
    let path = dir.file("model.safetensors", bytes);
    let ours = Catalog::open(&path, OpenOptions::default());
    let theirs = SafeTensors::deserialize(bytes);
    let shown = || String::from_utf8_lossy(bytes).into_owned();
    match (ours, theirs) {
        (Ok(ours), Ok(theirs)) => {
            assert_eq!(ours.tensors.len(), theirs.len(), "{}", shown());
            for (i, t) in (0..).zip(&ours.tensors) {
                let same = theirs.tensor(t.name).unwrap();
                let shape: Vec<usize> = t.shape.iter().map(|&d| d as usize).collect();
                assert_eq!(t.dtype.name(), same.dtype().to_string());
                assert_eq!(shape, same.shape());
                let offset = ours.extent(i).unwrap().offset as usize;
                let data = &bytes[offset..][..t.nbytes as usize];
                assert_eq!(data, same.data(), "{}", shown());
            }
        }
        (Err(e), Err(_)) => assert!(e.to_string().contains("model.safetensors"), "{e}"),
        (Ok(_), Err(e)) => panic!("the library refuses ({e}): {}", shown()),
        (Err(e), Ok(_)) => panic!("the library accepts, stfs: {e}: {}", shown()),
    }
    // With `allow_missing` there may be fewer tensors, but never a panic.
    let allow_missing = true;
    let _ = Catalog::open(&path, OpenOptions { allow_missing });
}

fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    bytes
}

/// A number as a header might contain it: small, at a boundary, or not a number at all.
fn number() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => (0..9u64).prop_map(|n| n.to_string()),
        1 => any::<u64>().prop_map(|n| n.to_string()),
        1 => select(&["-1", "1.0", "2.5", "1e2", "null", "\"4\"", "[]", "4294967296",
            "9223372036854775808", "18446744073709551615", "18446744073709551616", "1e400"][..])
            .prop_map(String::from),
    ]
}

fn entry() -> impl Strategy<Value = String> {
    let dtype = prop_oneof![
        9 => select(&DTYPES[..]).prop_map(|d| format!("\"{d}\"")),
        1 => select(&["\"F128\"", "\"f32\"", "7", "null", "\"\"", "[\"F32\"]"][..]).prop_map(String::from),
    ];
    let list = |n| prop::collection::vec(number(), n).prop_map(|v| format!("[{}]", v.join(",")));
    let offsets = prop_oneof![9 => list(2..3), 1 => list(0..4)];
    (dtype, list(0..4), offsets, 0..20u8).prop_map(|(dtype, shape, offsets, odd)| match odd {
        0 => format!("{{\"dtype\":{dtype},\"shape\":{shape}}}"),
        1 => format!("{{\"shape\":{shape},\"data_offsets\":{offsets}}}"),
        2 => shape,
        _ => format!("{{\"dtype\":{dtype},\"shape\":{shape},\"data_offsets\":{offsets}}}"),
    })
}

/// Valid consecutive tensors, to be damaged slightly.
fn valid() -> impl Strategy<Value = (String, usize)> {
    let one = (select(&DTYPES[..]), prop::collection::vec(0..4usize, 0..3));
    prop::collection::vec(one, 0..5).prop_map(|tensors| {
        let (mut at, mut entries) = (0, Vec::new());
        for (i, (dtype, shape)) in tensors.iter().enumerate() {
            let bytes = (shape.iter().product::<usize>() * dtype.bitsize()).div_ceil(8);
            let end = at + bytes;
            entries.push(format!(
                "\"t{i}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{at},{end}]}}"
            ));
            at = end;
        }
        (format!("{{{}}}", entries.join(",")), at)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn valid_files_and_nearly_valid_ones((header, data) in valid(), spoil in any::<(bool, prop::sample::Index, u8)>(), more in -2..3isize) {
        compare(&file(&header, data));
        compare(&file(&header, data.saturating_add_signed(more)));
        let mut bytes = file(&header, data);
        let at = spoil.1.index(bytes.len());
        if spoil.0 { bytes[at] = spoil.2 } else { bytes.truncate(at) }
        compare(&bytes);
    }

    #[test]
    fn arbitrary_entries(entries in prop::collection::vec(("[a-c]|__metadata__", entry()), 0..4), data in 0..40usize) {
        let entries: Vec<String> = entries.iter().map(|(n, e)| format!("\"{n}\":{e}")).collect();
        compare(&file(&format!("{{{}}}", entries.join(",")), data));
    }

    #[test]
    fn arbitrary_bytes(header in prop::collection::vec(any::<u8>(), 0..60), len in any::<u64>()) {
        check_header(&header, len);
        compare(&header);
    }
}

/// The fuzzer's initial inputs, and those that it has found.
#[test]
fn the_fuzzers_seeds() {
    let seeds = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/header");
    for seed in std::fs::read_dir(seeds).unwrap() {
        let seed = std::fs::read(seed.unwrap().path()).unwrap();
        let (header, data) = seed.split_last_chunk::<2>().unwrap();
        let header = std::str::from_utf8(header).unwrap();
        let bytes = file(header, u16::from_le_bytes(*data).into());
        let sound = check_header(header.as_bytes(), bytes.len() as u64).is_empty();
        assert_eq!(sound, SafeTensors::deserialize(&bytes).is_ok(), "{header}");
        compare(&bytes);
    }
}
