//! Random damage, compared with the safetensors library.

use proptest::prelude::*;
use safetensors::SafeTensors;
use stfs::catalog::{OpenOptions, check_header};

use crate::common::{Dir, open, shard};

/// Whether the library takes a whole file.
fn library_takes(file: &[u8]) -> bool {
    SafeTensors::read_metadata(file)
        .is_ok_and(|(header, metadata)| 8 + header + metadata.data_len() == file.len())
}

/// Opens a file as a model: stfs accepts it if and only if the library does, explains a refusal,
/// and every extent lies in the file.
fn agrees(file: &[u8]) {
    let dir = Dir::of(&[("model.safetensors", file)]);
    let opened = open(dir.path(), OpenOptions::default());
    assert_eq!(opened.is_ok(), library_takes(file), "{:?}", opened.err());
    match opened {
        Ok(catalog) => {
            for (i, t) in (0..).zip(&catalog.tensors) {
                let offset = catalog.extent(i).unwrap().offset;
                assert!(offset + t.nbytes <= file.len() as u64, "{t:?}");
            }
        }
        Err(error) => assert!(error.to_string().contains("model.safetensors: "), "{error}"),
    }
    let length = file
        .first_chunk()
        .map_or(u64::MAX, |b| u64::from_le_bytes(*b));
    let rest = file.get(8..).unwrap_or_default();
    let header = usize::try_from(length).ok().and_then(|n| rest.get(..n));
    if let Some(header) = header {
        let problems = check_header(header, file.len() as u64);
        assert_eq!(problems.is_empty(), library_takes(file), "{problems:?}");
    }
    // With `allow_missing`, only missing data is tolerated: no panic, no extent outside.
    if let Ok(catalog) = open(
        dir.path(),
        OpenOptions {
            allow_missing: true,
        },
    ) {
        for (i, t) in (0..).zip(&catalog.tensors) {
            let offset = catalog.extent(i).unwrap().offset;
            assert!(offset + t.nbytes <= file.len() as u64, "{t:?}");
        }
    }
}

/// A header of a few tensors whose numbers are mostly right.
fn header() -> impl Strategy<Value = (String, usize)> {
    let number = prop_oneof![
        6 => 0u64..20,
        1 => Just(u64::MAX),
        1 => Just(1u64 << 61),
    ];
    let dtype = prop::sample::select(vec!["F32", "BF16", "U8", "F4", "F6_E3M2", "BOOL", "X"]);
    let entry = (
        dtype,
        prop::collection::vec(number.clone(), 0..3),
        number,
        any::<u8>(),
    );
    (prop::collection::vec(entry, 0..5), 0usize..3).prop_map(|(entries, slack)| {
        let (mut at, mut texts) = (0u64, Vec::new());
        for (i, (dtype, shape, odd, luck)) in entries.into_iter().enumerate() {
            let bits = match dtype {
                "F32" => 32,
                "BF16" => 16,
                "F4" => 4,
                "F6_E3M2" => 6,
                _ => 8u64,
            };
            let n = shape.iter().fold(1u64, |n, d| n.wrapping_mul(*d));
            let right = n.wrapping_mul(bits) / 8;
            let size = if luck < 20 || right > 1 << 20 {
                odd
            } else {
                right
            };
            let start = if luck > 240 { odd } else { at };
            let end = start.wrapping_add(size);
            at = end;
            texts.push(format!(
                r#""t{i}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#
            ));
        }
        let data = if at > 1 << 20 { 8 } else { at as usize };
        let data = match slack {
            0 => data + 1,
            _ => data,
        };
        (format!("{{{}}}", texts.join(",")), data)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]

    #[test]
    fn made_up_headers_are_judged_as_the_library_does((header, data) in header()) {
        agrees(&shard(&header, data));
    }

    #[test]
    fn flipped_bytes_and_cut_ends_are_judged_as_the_library_does(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},"b":{"dtype":"F8_E4M3","shape":[],"data_offsets":[24,25]},"c":{"dtype":"F4","shape":[3,2],"data_offsets":[25,28]}}"#;
        let mut file = shard(header, 28);
        for (at, byte) in flips {
            let i = at.index(file.len() - 28);
            file[i] = byte;
        }
        if let Some(cut) = cut {
            file.truncate(cut.index(file.len()));
        }
        agrees(&file);
    }
}
