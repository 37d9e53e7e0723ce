//! Any byte of a checkpoint changed, and any number of them cut off.

use stfs::catalog::{Catalog, OpenOptions, check};

use super::w;
use crate::common::Dir;
use crate::program::pytorch::{Py, Strided, call, contiguous, dict, legacy_file, zip_file};

const MISSING: OpenOptions = OpenOptions {
    allow_missing: true,
};

/// Opens what results of damage: nothing may panic, hang, or lie outside the file.
fn survives(dir: &Dir, bytes: &[u8]) {
    let path = dir.join("m.pt");
    std::fs::write(&path, bytes).unwrap();
    let problems = check(&path);
    for options in [OpenOptions::default(), MISSING] {
        match Catalog::open(&path, options) {
            Err(error) => {
                let said = error.to_string();
                assert!(said.contains("m.pt"), "{said}");
                // What opening refuses, verifying finds.
                assert!(problems.as_ref().map_or(true, |p| !p.is_empty()), "{said}");
            }
            Ok(catalog) => {
                for (i, t) in (0..).zip(&catalog.tensors) {
                    if let Some(extent) = catalog.extent(i) {
                        let end = extent.offset + t.nbytes;
                        assert!(t.nbytes == 0 || end <= bytes.len() as u64, "{t:?}");
                    }
                }
            }
        }
    }
}

/// A value of every type, tensors of every layout, and an optimizer.
fn rich() -> Py {
    let strided = |key: &str, offset, shape: &[i64], strides: &[i64]| {
        Py::Tensor(Strided {
            key: key.into(),
            data: vec![5; 96],
            class: "FloatStorage",
            element: 4,
            offset,
            shape: shape.into(),
            strides: strides.into(),
        })
    };
    let model = dict([
        ("a.weight", contiguous("0", &w())),
        ("b.weight", strided("1", 2, &[3, 4], &[1, 5])),
        ("c", strided("1", 0, &[2, 3], &[0, 1])),
        ("d", strided("1", 23, &[], &[])),
    ]);
    let state = dict([("exp_avg", contiguous("2", &w())), ("step", Py::Float(5.0))]);
    dict([
        ("epoch", Py::Int(3)),
        ("big", Py::Int(1 << 40)),
        ("none", Py::None),
        ("flag", Py::Bool(true)),
        ("args", call("argparse", "Namespace", vec![])),
        ("state_dict", model),
        (
            "optimizer",
            Py::List(vec![state, Py::Tuple(vec![Py::Int(1)])]),
        ),
    ])
}

#[test]
fn any_cut_and_any_flipped_byte() {
    let dir = Dir::new();
    for whole in [zip_file(&rich()), legacy_file(&rich())] {
        survives(&dir, &whole);
        assert!(Catalog::open(&dir.join("m.pt"), OpenOptions::default()).is_ok());
        for cut in 0..whole.len() {
            survives(&dir, &whole[..cut]);
        }
        // Of an archive, without the padding.
        for at in (0..whole.len()).filter(|&at| whole[at] != b'Z') {
            for flip in [0x01, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] ^= flip;
                survives(&dir, &bytes);
            }
        }
    }
}

#[test]
fn random_damage() {
    let dir = Dir::new();
    let mut x = 1u64;
    let mut random = |below: usize| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (x >> 33) as usize % below
    };
    for whole in [zip_file(&rich()), legacy_file(&rich())] {
        for _ in 0..1500 {
            let mut bytes = whole.clone();
            for _ in 0..1 + random(6) {
                let at = random(whole.len() - 16);
                match random(3) {
                    0 => bytes[at] = random(256) as u8,
                    1 => bytes[at] = 0,
                    // Other bytes from elsewhere: opcodes and lengths that are plausible.
                    _ => {
                        let n = 1 + random(16);
                        let from = random(whole.len() - 16);
                        let piece = bytes[from..from + n].to_vec();
                        bytes[at..at + n].copy_from_slice(&piece);
                    }
                }
            }
            survives(&dir, &bytes);
        }
    }
}
