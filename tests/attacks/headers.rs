//! One shard, and what its header claims.

use crate::common::{good, raw_shard, refused_shard, shard};

/// A header of one tensor `t` with these fields, 16 bytes of data behind it.
#[track_caller]
fn entry(fields: &str, parts: &[&str]) {
    let mut parts = parts.to_vec();
    parts.push("tensor 't'");
    refused_shard(&shard(&format!(r#"{{"t":{{{fields}}}}}"#), 16), &parts);
}

#[test]
fn files_too_short_for_a_header() {
    refused_shard(b"", &["empty (0 bytes)", "download it again"]);
    refused_shard(&[1, 2, 3, 4, 5, 6, 7], &["at least 8 bytes, has 7"]);
    refused_shard(&raw_shard(0, b"", 0), &["not a JSON object"]);
}

#[test]
fn header_lengths_that_lie() {
    let cut = raw_shard(1000, b"{}", 0);
    refused_shard(&cut, &["needs 1008 bytes, has 10", "download it again"]);
    let huge = raw_shard(100_000_001, b"{}", 0);
    refused_shard(&huge, &["100000001 bytes", "limit of 100000000"]);
    refused_shard(
        &raw_shard(u64::MAX, b"{}", 0),
        &["18446744073709551615", "limit"],
    );
    // One byte short: the object does not end.
    let short = raw_shard(1, b"{}", 0);
    refused_shard(&short, &["not a JSON object"]);
}

#[test]
fn headers_that_are_no_json_object_in_utf8() {
    refused_shard(
        &raw_shard(5, b"{\"a\xFF\"", 0),
        &["not UTF-8", "byte 3 of 5"],
    );
    for text in [
        "[]",
        "7",
        "null",
        "{,}",
        "{\"t\":",
        "\u{feff}{}",
        "\0\0\0\0",
    ] {
        refused_shard(&shard(text, 0), &["not a JSON object"]);
    }
    let deep = "[".repeat(200_000);
    refused_shard(&shard(&format!("{{\"t\":{deep}"), 0), &["recursion limit"]);
}

#[test]
fn metadata_must_be_strings() {
    for metadata in ["7", "[]", r#"{"a":1}"#, r#"{"a":{"b":"c"}}"#] {
        let header = format!(r#"{{"__metadata__":{metadata}}}"#);
        refused_shard(&shard(&header, 0), &["__metadata__", "object of strings"]);
    }
}

#[test]
fn entries_with_missing_or_odd_fields() {
    let rest = r#""shape":[4],"data_offsets":[0,16]"#;
    entry(rest, &["has no dtype"]);
    entry(&format!(r#""dtype":7,{rest}"#), &["has no dtype"]);
    entry(
        &format!(r#""dtype":"Q4_K",{rest}"#),
        &["dtype 'Q4_K'", "whole file is refused"],
    );
    for shape in [
        "[-1]",
        "[4.0]",
        "[\"4\"]",
        "4",
        "null",
        "[18446744073709551616]",
    ] {
        let fields = format!(r#""dtype":"F32","shape":{shape},"data_offsets":[0,16]"#);
        entry(&fields, &["shape is not an array of whole numbers"]);
    }
    entry(
        r#""dtype":"F32","data_offsets":[0,16]"#,
        &["shape is not an array"],
    );
    for offsets in ["[0,-16]", "[0,1.5]", "16", "[0,18446744073709551616]"] {
        let fields = format!(r#""dtype":"F32","shape":[4],"data_offsets":{offsets}"#);
        entry(&fields, &["data_offsets is not an array of whole numbers"]);
    }
    entry(
        r#""dtype":"F32","shape":[4]"#,
        &["data_offsets is not an array"],
    );
    let count = |n: &str| format!(r#""dtype":"F32","shape":[4],"data_offsets":{n}"#);
    entry(&count("[0]"), &["has 1 numbers, needs 2"]);
    entry(&count("[0,16,16]"), &["has 3 numbers, needs 2"]);
    entry(&count("[16,0]"), &["run backwards: 16 to 0"]);
    refused_shard(&shard(r#"{"t":7}"#, 16), &["tensor 't'", "has no dtype"]);
}

#[test]
fn shapes_that_disagree_with_their_bytes() {
    let of = |dtype: &str, shape: &str| {
        format!(r#""dtype":"{dtype}","shape":{shape},"data_offsets":[0,16]"#)
    };
    entry(
        &of("F32", "[2,3]"),
        &["F32 [2, 3] needs 24 bytes", "give 16"],
    );
    entry(&of("BF16", "[]"), &["needs 2 bytes", "give 16"]);
    entry(&of("F64", "[0,9]"), &["needs 0 bytes", "give 16"]);
    // Overflow in the product, and in the bits of a product that just fits.
    let half = "[4294967296,4294967296]";
    entry(
        &of("U8", half),
        &["[4294967296, 4294967296] overflows 64 bits"],
    );
    entry(&of("F64", "[2305843009213693952]"), &["overflows 64 bits"]);
    // A zero does not excuse an overflow on the way to it.
    entry(
        &of("F32", "[18446744073709551615,2,0]"),
        &["overflows 64 bits"],
    );
    entry(&of("F4", "[31]"), &["31 elements of F4", "124 bits"]);
    entry(
        &of("F6_E2M3", "[21]"),
        &["21 elements of F6_E2M3", "126 bits"],
    );
}

/// Tensors `a`, `b` … of U8 at these offsets.
#[track_caller]
fn spans(spans: &[(u64, u64)], data: usize, parts: &[&str]) {
    let names = "abcdef".chars();
    let entries: Vec<String> = names
        .zip(spans)
        .map(|(name, (start, end))| {
            let n = end - start;
            format!(r#""{name}":{{"dtype":"U8","shape":[{n}],"data_offsets":[{start},{end}]}}"#)
        })
        .collect();
    refused_shard(&shard(&format!("{{{}}}", entries.join(",")), data), parts);
}

#[test]
fn tensors_that_do_not_tile_the_file() {
    spans(
        &[(0, 4), (8, 12)],
        12,
        &["tensor 'b'", "begins at 8", "ends at 4"],
    );
    spans(&[(4, 8)], 8, &["tensor 'a'", "begins at 4", "ends at 0"]);
    spans(
        &[(0, 8), (4, 12)],
        12,
        &["tensor 'b'", "overlaps", "ends at 8", "begins at 4"],
    );
    spans(&[(0, 8), (0, 8)], 8, &["tensor 'b'", "overlaps"]);
    // One inside another, and the same bytes in another order.
    spans(
        &[(0, 12), (4, 8)],
        12,
        &["tensor 'b'", "overlaps", "ends at 12"],
    );
    let cut = [
        "tensor 'b'",
        "needs 12 bytes of data, has 9",
        "download it again",
        "--allow-missing",
    ];
    spans(&[(0, 4), (4, 12)], 9, &cut);
    spans(
        &[(0, 4)],
        9,
        &["5 trailing bytes", "accounts for 4", "has 9"],
    );
    spans(&[], 3, &["3 trailing bytes"]);
    let end = u64::MAX;
    spans(&[(0, end)], 16, &["tensor 'a'"]);
    spans(&[(0, 4), (end - 4, end)], 16, &["tensor 'b'", "ends at 4"]);
}

#[test]
fn files_of_another_kind_under_a_shards_name() {
    let pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize 4998663688\n";
    let said = [
        "Git LFS pointer of 75 bytes",
        "for 4998663688 bytes",
        "git lfs pull",
    ];
    refused_shard(pointer, &said);
    // A pointer whose size is nonsense is still a pointer.
    let odd = b"version https://git-lfs.github.com/spec/v1\noid sha256:4665\nsize lots\n";
    refused_shard(odd, &["Git LFS pointer", "git lfs pull"]);
    for page in [
        "<!DOCTYPE html><title>Sign in</title>",
        "\n <HTML><body>",
        "\u{feff}<!doctype HTML>",
    ] {
        refused_shard(page.as_bytes(), &["HTML page", "download it again"]);
    }
    refused_shard(
        b"PK\x03\x04archive/data.pkl",
        &["is a PyTorch checkpoint (a pickle), although a safetensors file is expected"],
    );
    refused_shard(
        b"\x80\x02}q\x00X\x01\x00\x00\x00",
        &["is a pickle, but not of torch.save"],
    );
    refused_shard(b"GGUF\x03\0\0\0\x23\x01\0\0\0\0\0\0", &["is a gguf file"]);
}

#[test]
fn every_problem_is_found_not_only_the_first() {
    let header = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]},
        "b":{"dtype":"Z","shape":[1],"data_offsets":[4,5]},
        "c":{"dtype":"U8","shape":[9],"data_offsets":[5,14]}}"#;
    let problems = stfs::catalog::check_header(header.as_bytes(), 8 + header.len() as u64 + 10);
    let named: Vec<_> = problems
        .iter()
        .filter_map(|p| p.tensor.as_deref())
        .collect();
    assert_eq!(named, ["a", "b", "c"]);
}

#[test]
fn what_looks_odd_but_is_allowed_opens() {
    use crate::common::{Dir, open};
    let ok = |bytes: &[u8]| {
        let dir = Dir::of(&[("model.safetensors", bytes)]);
        open(dir.path(), Default::default()).unwrap().tensors.len()
    };
    assert_eq!(ok(&shard("{}", 0)), 0);
    assert_eq!(ok(&shard("{}    ", 0)), 0);
    assert_eq!(
        ok(&good(&["", "../../etc/passwd", "a\0b", "\u{1b}[31m"])),
        4
    );
    // The last of two equal keys counts.
    let twice = r#"{"a":{"dtype":"F32","shape":[9],"data_offsets":[0,36]},
        "a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    assert_eq!(ok(&shard(twice, 4)), 1);
}

/// The safetensors library refuses it, and names the field, but not the tensor.
#[test]
fn fields_that_appear_twice() {
    entry(
        r#""dtype":"F32","shape":[4],"dtype":"F32","data_offsets":[0,16]"#,
        &["'dtype' twice"],
    );
    entry(
        r#""dtype":"F32","shape":[4],"shape":[4],"data_offsets":[0,16]"#,
        &["'shape' twice"],
    );
}

/// The last of two entries counts, but the library refuses the file if the first is not valid.
#[test]
fn entries_that_appear_twice() {
    let sound = r#""dtype":"F32","shape":[1],"data_offsets":[0,4]"#;
    for (first, problem) in [
        ("7", "appears twice, and the first entry is not an object"),
        (
            "{}",
            "appears twice, and the first entry is not valid: missing field",
        ),
    ] {
        let header = format!(r#"{{"a":{first},"a":{{{sound}}}}}"#);
        refused_shard(&shard(&header, 4), &["tensor 'a'", problem]);
    }
}
