//! bin + manifest: spans that lie outside, sizes that disagree.

use serde_json::{Value, json};
use stfs::catalog::check;

use crate::common::{Dir, refused, refused_files};

/// A manifest of one tensor `t`, beside a `.bin` of 64 bytes.
#[track_caller]
fn tensor(entry: Value, parts: &[&str]) {
    let mut parts = parts.to_vec();
    parts.extend(["w.json", "tensor 't'"]);
    let json = json!({"tensors": {"t": entry}}).to_string();
    refused_files(&[("w.bin", &[0; 64]), ("w.json", json.as_bytes())], &parts);
}

#[test]
fn spans_and_sizes_that_lie() {
    let of = |offset: u64, size: u64, shape: Value, dtype: &str| json!({"offset": offset, "size": size, "shape": shape, "dtype": dtype});
    tensor(of(32, 64, json!([16]), "F32"), &["needs 96 bytes, has 64"]);
    tensor(
        of(u64::MAX, 8, json!([2]), "F32"),
        &["18446744073709551615 + size 8 overflows"],
    );
    tensor(
        of(0, 16, json!([5]), "F32"),
        &["F32 [5] needs 20 bytes, size is 16"],
    );
    tensor(
        of(0, 16, json!([3]), "F4"),
        &["not a whole number of bytes"],
    );
    tensor(
        of(0, 16, json!([u64::MAX, 2]), "U8"),
        &["overflows 64 bits"],
    );
    // As a logical shape of 4-bit values, both sides of its size overflow.
    tensor(
        of(0, 1 << 62, json!([1u64 << 63]), "U32"),
        &["[9223372036854775808] overflows 64 bits"],
    );
    tensor(of(0, 16, json!(["4"]), "F32"), &["shape is not an array"]);
    tensor(of(0, 16, json!([-4]), "F32"), &["shape is not an array"]);
    // A U32 whose logical shape packs no whole words in a row.
    tensor(
        of(0, 16, json!([4, 9]), "U32"),
        &["[4, 9] needs 144 bytes, size is 16"],
    );
    for key in ["offset", "size", "dtype", "shape"] {
        let mut entry = of(0, 16, json!([4]), "F32");
        entry.as_object_mut().unwrap().remove(key);
        tensor(entry, &[key]);
    }
    let mut odd = of(0, 16, json!([4]), "U32");
    odd["bits"] = json!(4294967300u64);
    tensor(odd.clone(), &["bits is too large"]);
    odd["bits"] = json!("four");
    tensor(odd, &["bits is \"four\""]);
    tensor(json!(7), &["has no offset"]);
}

#[test]
fn default_bits_are_not_cut_to_fit() {
    let json = json!({"tensors": {"t": {"offset": 0, "size": 4, "shape": [1], "dtype": "U32"}},
        "config": {"default_bits": 4294967300u64}});
    let json = json.to_string();
    let files: [(&str, &[u8]); 2] = [("w.bin", &[0; 4]), ("w.json", json.as_bytes())];
    refused_files(&files, &["w.json", "default_bits", "4294967300"]);
}

#[test]
fn pairs_that_are_none() {
    let pair = |json: &'static [u8]| Dir::of(&[("w.bin", &[0; 64]), ("w.json", json)]);
    let dir = pair(b"{");
    refused(dir.path(), &["w.json", "not JSON"]);
    for json in [&b"{}"[..], b"[]", br#"{"tensors": []}"#] {
        let dir = pair(json);
        refused(dir.path(), &["holds no model", "w.bin has no manifest"]);
        refused(&dir.join("w.json"), &["w.json", "'tensors'"]);
        refused(&dir.join("w.bin"), &["w.bin", "no manifest", "w.json"]);
    }
    let lone = Dir::of(&[("w.json", br#"{"tensors": {}}"#)]);
    refused(&lone.join("w.json"), &["w.json", "w.bin is missing"]);
    let dir = Dir::of(&[("w.bin", &[0; 64])]);
    dir.fifo("w.json");
    refused(dir.path(), &["w.json", "not a regular file"]);
    let two: [(&str, &[u8]); 4] = [
        ("a.bin", b""),
        ("a.json", br#"{"tensors": {}}"#),
        ("b.bin", b""),
        ("b.json", br#"{"tensors": {}}"#),
    ];
    refused_files(&two, &["several manifests", "a.json", "b.json"]);
}

/// Like a broken index, it is a problem of the model, not a failure of the program.
#[test]
fn a_broken_manifest_is_a_problem_that_is_listed() {
    let dir = Dir::of(&[("w.bin", &[0; 64]), ("w.json", b"{\"tensors\": {")]);
    for model in [
        dir.path().to_path_buf(),
        dir.join("w.json"),
        dir.join("w.bin"),
    ] {
        let problems = check(&model).unwrap();
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert_eq!(problems[0].file, "w.json");
        assert!(problems[0].problem.contains("not JSON"), "{problems:?}");
    }
}

#[test]
fn a_bin_that_is_something_else() {
    let json =
        json!({"tensors": {"t": {"offset": 0, "size": 4096, "shape": [1024], "dtype": "F32"}}});
    let json = json.to_string();
    let pointer = b"version https://git-lfs.github.com/spec/v1\nsize 4096\n";
    let files: [(&str, &[u8]); 2] = [("w.bin", pointer), ("w.json", json.as_bytes())];
    refused_files(&files, &["w.bin", "for 4096 bytes", "git lfs pull"]);
}

/// Spans may overlap, and a file may be sparse, so sums of sizes need not fit 64 bits.
#[test]
fn more_bytes_than_can_be_added_up() {
    let size = 1u64 << 43;
    let entry = json!({"offset": 0, "size": size, "shape": [size], "dtype": "U8"});
    let entries = (0..=1 << 13).map(|i| (format!("t{i}"), entry.clone()));
    let json = json!({"tensors": Value::Object(entries.collect())}).to_string();
    let dir = Dir::of(&[("w.bin", b""), ("w.json", json.as_bytes())]);
    let bin = std::fs::File::options().write(true).open(dir.join("w.bin"));
    bin.unwrap().set_len(size).unwrap();
    let (total, most) = (72066390130950144u64, 72057594037927936u64);
    refused(
        dir.path(),
        &["8193 tensors", &total.to_string(), &most.to_string()],
    );
}
