//! Safetensors headers that are wrong, each in one way: one line that names the file, the tensor
//! and both numbers; never a panic, never a hang.

use std::path::Path;

use crate::common::{ModelDir, stfs};

fn refused(dir: &ModelDir, words: &[&str]) {
    let line = stfs([Path::new("ls"), dir.path()]).fails(words);
    assert!(line.contains("model.safetensors"), "{line}");
    assert!(!line.contains("panicked"), "{line}");
    // By its own path and when mounting: the same message, and no mountpoint is left behind.
    let file = dir.join("model.safetensors");
    assert_eq!(stfs([Path::new("ls"), &file]).fails(words), line);
    let at = dir.join("mnt");
    assert_eq!(
        stfs([Path::new("mount"), dir.path(), &at]).fails(words),
        line
    );
    assert!(!at.exists());
}

#[test]
fn the_length_field() {
    let dir = ModelDir::new();
    let shard = |bytes: &[u8]| dir.file("model.safetensors", bytes);
    shard(b"");
    refused(&dir, &["empty", "0 bytes", "download it again"]);
    shard(&[5, 0, 0]);
    refused(&dir, &["needs at least 8 bytes, has 3"]);
    let with_length = |n: u64, rest: &[u8]| shard(&[&n.to_le_bytes(), rest].concat());
    with_length(1000, b"{}");
    refused(&dir, &["needs 1008 bytes, has 10", "download it again"]);
    with_length(100_000_001, b"{}");
    refused(&dir, &["100000001", "100000000"]);
    with_length(u64::MAX, b"{}");
    refused(&dir, &["18446744073709551615", "100000000"]);
    with_length(u64::MAX - 7, b"{}");
    refused(&dir, &["18446744073709551608"]);
    with_length(0, b"");
    refused(&dir, &["JSON"]);
}

#[test]
fn headers_that_are_no_json_object() {
    let dir = ModelDir::new();
    let deep = "[".repeat(300_000);
    let deep_inside = format!("{{\"a\":{}", "{\"a\":".repeat(300_000));
    for (header, words) in [
        (&b"{\"a\xFF\":1}"[..], &["UTF-8", "byte 3"][..]),
        (b"\xFF\xFE", &["UTF-8"]),
        (b"{a", &["JSON"]),
        (b"{", &["JSON"]),
        (b"[]", &["JSON object"]),
        (b"null", &["JSON object"]),
        (b"7", &["JSON object"]),
        (b"{} x", &["JSON"]),
        (b"{}{}", &["JSON"]),
        (b"{\"a\":\"\\ud800\"}", &["JSON"]),
        (b"\0\0\0\0", &["JSON"]),
        (deep.as_bytes(), &["JSON"]),
        (deep_inside.as_bytes(), &["JSON"]),
    ] {
        dir.raw_shard("model.safetensors", header, b"");
        refused(&dir, words);
    }
}

/// The header of one tensor `the.one` with these members.
fn one(members: &str) -> String {
    format!("{{\"the.one\":{{{members}}}}}")
}

#[test]
fn tensors_that_are_wrong_by_themselves() {
    let dir = ModelDir::new();
    let f32 = |shape: &str, offsets: &str| {
        one(&format!(
            "\"dtype\":\"F32\",\"shape\":{shape},\"data_offsets\":{offsets}"
        ))
    };
    for (header, words) in [
        (f32("[3]", "[0,8]"), &["[3]", "12", "8"][..]),
        (f32("[1]", "[0,8]"), &["needs 4 bytes", "8"]),
        (f32("[2]", "[8,0]"), &["backwards", "8 to 0"]),
        (
            f32("[9223372036854775808,4]", "[0,8]"),
            &["9223372036854775808", "overflows"],
        ),
        (
            f32("[4611686018427387904]", "[0,8]"),
            &["4611686018427387904"],
        ),
        (f32("[18446744073709551616]", "[0,8]"), &["shape"]),
        (f32("[1e30]", "[0,8]"), &["shape"]),
        (f32("[-2]", "[0,8]"), &["shape"]),
        (f32("[2.5]", "[0,8]"), &["shape"]),
        (f32("2", "[0,8]"), &["shape"]),
        (f32("[\"2\"]", "[0,8]"), &["shape"]),
        (f32("null", "[0,8]"), &["shape"]),
        (f32("[2]", "[0]"), &["data_offsets", "1"]),
        (f32("[2]", "[0,4,8]"), &["data_offsets", "3"]),
        (f32("[2]", "[-8,0]"), &["data_offsets"]),
        (f32("[2]", "[0,18446744073709551616]"), &["data_offsets"]),
        (f32("[2]", "\"0,8\""), &["data_offsets"]),
        (
            f32("[0]", "[18446744073709551615,18446744073709551615]"),
            &["18446744073709551615"],
        ),
        (one("\"shape\":[2],\"data_offsets\":[0,8]"), &["dtype"]),
        (
            one("\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,8]"),
            &["dtype"],
        ),
        (
            one("\"dtype\":\"F128\",\"shape\":[2],\"data_offsets\":[0,8]"),
            &["F128"],
        ),
        (
            one("\"dtype\":\"f32\",\"shape\":[2],\"data_offsets\":[0,8]"),
            &["'f32'"],
        ),
        (
            one("\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]"),
            &["F4", "12 bits"],
        ),
        (one("\"dtype\":\"F32\",\"data_offsets\":[0,8]"), &["shape"]),
        (one("\"dtype\":\"F32\",\"shape\":[2]"), &["data_offsets"]),
        (one(""), &["dtype"]),
        ("{\"the.one\":7}".into(), &["dtype"]),
        ("{\"the.one\":[]}".into(), &["dtype"]),
        ("{\"the.one\":null}".into(), &["dtype"]),
    ] {
        dir.raw_shard("model.safetensors", header, &[0; 8]);
        refused(&dir, &[words, &["the.one"]].concat());
    }
    dir.raw_shard("model.safetensors", "{\"__metadata__\":{\"a\":1}}", b"");
    refused(&dir, &["__metadata__"]);
    dir.raw_shard("model.safetensors", "{\"__metadata__\":7}", b"");
    refused(&dir, &["__metadata__"]);
}

#[test]
fn tensors_that_do_not_fit_together() {
    let dir = ModelDir::new();
    let u8s = |spans: &[(&str, u64, u64)]| {
        let all: Vec<String> = spans
            .iter()
            .map(|(n, a, b)| {
                format!(
                    "\"{n}\":{{\"dtype\":\"U8\",\"shape\":[{}],\"data_offsets\":[{a},{b}]}}",
                    b - a
                )
            })
            .collect();
        format!("{{{}}}", all.join(","))
    };
    let huge = 1u64 << 59;
    for (spans, data, words) in [
        (
            &[("x", 0, 4), ("y", 6, 8)][..],
            8,
            &["'y'", "hole", "6", "4"][..],
        ),
        (&[("x", 2, 4)], 4, &["'x'", "hole", "2", "0"]),
        (
            &[("x", 0, 4), ("y", 2, 6)],
            6,
            &["'y'", "overlaps", "4", "2"],
        ),
        (&[("x", 0, 4), ("y", 0, 4)], 4, &["'y'", "overlaps"]),
        (&[("x", 0, 4)], 7, &["3 trailing bytes", "4 bytes", "7"]),
        (&[], 1, &["1 trailing bytes"]),
        (
            &[("x", 0, 4), ("y", 4, 8)],
            7,
            &["'y'", "needs 8 bytes", "has 7", "--allow-missing"],
        ),
        (&[("x", 0, huge)], 7, &["'x'", "576460752303423488", "7"]),
        (&[("x", 0, huge), ("y", huge, huge + huge)], 7, &["needs"]),
    ] {
        dir.raw_shard("model.safetensors", u8s(spans), &vec![0; data]);
        refused(&dir, words);
    }
}

#[test]
fn a_hundred_megabytes_of_header_are_still_read() {
    // At the limit: one tensor and much metadata. A byte more is refused by its length alone.
    let dir = ModelDir::new();
    let start = "{\"__metadata__\":{\"k\":\"";
    let end = "\"},\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    let fill = "x".repeat(100_000_000 - start.len() - end.len());
    dir.raw_shard("model.safetensors", format!("{start}{fill}{end}"), b"z");
    let args = ["ls", "--json"].map(Path::new);
    let ran = stfs(args.into_iter().chain([dir.path()])).ok();
    assert_eq!(ran.json()[0]["name"], "a");
    dir.raw_shard("model.safetensors", format!("{start}{fill}{end} "), b"z");
    refused(&dir, &["100000001"]);
}
