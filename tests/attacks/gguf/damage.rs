//! Any byte of a file changed, and any number of them cut off.

use stfs::catalog::{Catalog, OpenOptions, check};

use super::MISSING;
use crate::common::Dir;
use crate::gguf_file::{Gguf, I8, Q8_0, V, strings};

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
