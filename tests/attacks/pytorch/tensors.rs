//! Tensors that do not fit their storages, and arguments that no writer makes.

use safetensors::Dtype;

use super::{archive, beside, pickle, rebuilt, refused, served, text, w};
use crate::program::pytorch::{Py, Strided, call, contiguous, dict, legacy_file, zip_file};

/// The file of one tensor `t` with these arguments, whose storage "0" has `n` F32 elements and bytes.
fn file(n: i32, offset: &[u8], size: &[u8], stride: &[u8]) -> Vec<u8> {
    let data = vec![7; n.max(0) as usize * 4];
    let root = [
        b"}",
        &text("t")[..],
        &rebuilt(n, offset, size, stride),
        b"s",
    ]
    .concat();
    archive(&pickle(&[&root]), &[("0", &data)])
}

fn int(n: i64) -> Vec<u8> {
    [&b"\x8a\x08"[..], &n.to_le_bytes()].concat()
}

fn tuple(numbers: &[i64]) -> Vec<u8> {
    let items: Vec<u8> = numbers.iter().flat_map(|&n| int(n)).collect();
    [b"(", &items[..], b"t"].concat()
}

/// The same with numbers.
fn numbers(n: i32, offset: i64, size: &[i64], stride: &[i64]) -> Vec<u8> {
    file(n, &int(offset), &tuple(size), &tuple(stride))
}

#[test]
fn beyond_the_storage() {
    assert_eq!(served(&numbers(4, 0, &[4], &[1])), ["t"]);
    refused(
        &numbers(4, 0, &[5], &[1]),
        &["'t'", "needs 20 bytes of storage 0, which has 16"],
    );
    refused(&numbers(4, 1, &[4], &[1]), &["'t'", "20", "16"]);
    refused(&numbers(4, 4, &[], &[]), &["'t'", "20", "16"]);
    refused(&numbers(6, 0, &[2, 3], &[4, 1]), &["'t'", "28", "24"]);
    refused(&numbers(6, 0, &[2, 3], &[1, 3]), &["'t'", "32", "24"]);
    refused(&numbers(0, 0, &[1], &[1]), &["'t'", "4", "0"]);
    // As in torch: nothing matters to a tensor without elements, nor the stride of a single element.
    assert_eq!(served(&numbers(4, 99, &[0, 3], &[7, 5])), ["t"]);
    assert_eq!(served(&numbers(4, 3, &[1, 1], &[99, 1 << 60])), ["t"]);
    assert_eq!(served(&numbers(1, 0, &[1 << 40], &[0])), ["t"]);
}

#[test]
fn negative_and_huge_numbers() {
    refused(&numbers(4, -1, &[2], &[1]), &["'t'", "-1"]);
    refused(&numbers(4, 0, &[-2], &[1]), &["'t'", "-2"]);
    refused(&numbers(4, 3, &[2], &[-1]), &["'t'", "-1"]);
    refused(&numbers(4, i64::MAX, &[1], &[1]), &["'t'", "16"]);
    refused(&numbers(4, 1, &[2], &[i64::MAX]), &["'t'", "16"]);
    refused(
        &numbers(4, 0, &[i64::MAX, i64::MAX], &[i64::MAX, i64::MAX]),
        &["'t'"],
    );
    refused(&numbers(4, 0, &[i64::MAX, 2], &[0, 0]), &["'t'"]);
    refused(&numbers(4, 0, &[1 << 62], &[0]), &["'t'"]);
    refused(&numbers(4, 0, &[1 << 55], &[0]), &["'t'"]);
    refused(&numbers(4, 0, &[1 << 32; 8], &[0; 8]), &["'t'"]);
    assert_eq!(served(&numbers(4, 0, &[1 << 62, 0], &[1, 1])), ["t"]);
    // An integer over 64 bits.
    let huge = b"\x8a\x09\0\0\0\0\0\0\0\0\x01";
    refused(&file(4, huge, &tuple(&[1]), &tuple(&[1])), &["'t'"]);
}

#[test]
fn arguments_of_other_types() {
    let (zero, size, stride) = (int(0), tuple(&[2, 2]), tuple(&[2, 1]));
    refused(&numbers(4, 0, &[2, 2], &[1]), &["'t'", "2", "1"]);
    refused(&numbers(4, 0, &[4], &[1, 1]), &["'t'", "1", "2"]);
    let float = b"G\x40\0\0\0\0\0\0\0";
    refused(
        &file(4, &zero, &[&float[..], b"\x85"].concat(), b"K\x01\x85"),
        &["'t'"],
    );
    refused(&file(4, float, &size, &stride), &["'t'"]);
    refused(&file(4, &zero, b"K\x04", &stride), &["'t'"]);
    refused(&file(4, &zero, &size, &text("2, 1")), &["'t'"]);
    refused(&file(4, &zero, b"N", b"N"), &["'t'"]);
    refused(&file(4, &text("0"), &size, &stride), &["'t'"]);
    refused(
        &file(4, &zero, &[&text("2")[..], b"\x85"].concat(), b"K\x01\x85"),
        &["'t'"],
    );
    // torch.Size and lists are as good as tuples.
    let torch_size = [b"ctorch\nSize\n", &size[..], b"\x85R"].concat();
    assert_eq!(served(&file(4, &zero, &torch_size, &stride)), ["t"]);
}

#[test]
fn calls_with_wrong_arguments() {
    let rebuild = |name, arguments| call("torch._utils", name, arguments);
    for (name, arguments) in [
        ("_rebuild_tensor_v2", vec![]),
        ("_rebuild_tensor_v2", vec![Py::Int(1), Py::Int(2)]),
        (
            "_rebuild_tensor_v2",
            vec![
                Py::Int(1),
                Py::Int(0),
                Py::Tuple(vec![]),
                Py::Tuple(vec![]),
                Py::Bool(false),
                dict([]),
            ],
        ),
        ("_rebuild_tensor", vec![Py::None]),
        ("_rebuild_tensor_v3", vec![Py::None; 7]),
        ("_rebuild_parameter", vec![]),
    ] {
        refused(&beside(vec![("t", rebuild(name, arguments))]), &["'t'"]);
    }
}

/// Storages: absent, shorter, longer, under two sizes.
#[test]
fn storages_of_other_sizes() {
    let root = [
        b"}",
        &text("t")[..],
        &rebuilt(4, &int(0), &tuple(&[2, 2]), &tuple(&[2, 1])),
        b"s",
    ]
    .concat();
    let root = pickle(&[&root]);
    assert_eq!(served(&archive(&root, &[("0", &[1; 16])])), ["t"]);
    for len in [0, 1, 15, 17, 32] {
        refused(
            &archive(&root, &[("0", &vec![1; len])]),
            &["archive/data/0", "16", &len.to_string()],
        );
    }
    refused(&archive(&root, &[]), &["archive/data/0"]);
    refused(&archive(&root, &[("1", &[1; 16])]), &["archive/data/0"]);
    // Two references with other dtypes, which need the same bytes or do not.
    let two = |class, elements: i64, element| {
        let other = Strided {
            key: "0".into(),
            data: vec![1; elements as usize * element],
            class,
            element,
            offset: 0,
            shape: vec![2],
            strides: vec![1],
        };
        let w = contiguous("0", &w());
        zip_file(&dict([("w", w), ("other", Py::Tensor(other))]))
    };
    assert_eq!(served(&two("ByteStorage", 24, 1)), ["other", "w"]);
    assert_eq!(served(&two("HalfStorage", 12, 2)), ["other", "w"]);
    refused(&two("HalfStorage", 24, 2), &["archive/data/0", "48", "24"]);
}

/// Keys are never paths: they are looked up among the members as they are.
#[test]
fn keys_that_lead_elsewhere() {
    for key in ["../../etc/passwd", "/etc/passwd", "", ".", "0\0", "0/1"] {
        let t = Strided {
            key: key.into(),
            data: vec![1; 4],
            class: "FloatStorage",
            element: 4,
            offset: 0,
            shape: vec![1],
            strides: vec![1],
        };
        let root = dict([("t", Py::Tensor(t))]);
        let members = crate::program::pytorch::members(&root);
        let there = crate::program::pytorch::zip(&members);
        // With a member of just that name, it is that member.
        assert_eq!(served(&there), ["t"], "{key:?}");
        let other: Vec<(String, Vec<u8>)> = members
            .into_iter()
            .filter(|(n, _)| !n.contains("/data/"))
            .collect();
        refused(&crate::program::pytorch::zip(&other), &["archive/data/"]);
    }
}

#[test]
fn the_older_format() {
    let good = |t| dict([("w", contiguous("0", &t))]);
    let whole = legacy_file(&good(w()));
    assert_eq!(served(&whole), ["w"]);
    let text_of = |n: usize| n.to_string();
    for cut in [1, 8, 23, 24] {
        refused(
            &whole[..whole.len() - cut],
            &[&text_of(whole.len()), &text_of(whole.len() - cut)],
        );
    }
    // The number of elements in front of the storage.
    let at = whole.len() - 32;
    for count in [0u64, 5, 7, 1 << 40, u64::MAX] {
        let mut bytes = whole.clone();
        bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
        refused(&bytes, &["6"]);
    }
    // The list of keys and the references must have the same keys.
    let listed = b"X\x01\0\0\x000e.";
    let find = |bytes: &[u8]| {
        bytes
            .windows(listed.len())
            .rposition(|p| p == listed)
            .unwrap()
    };
    let mut bytes = whole.clone();
    let at = find(&bytes);
    bytes[at + 5] = b'1';
    refused(&bytes, &["storage 1"]);
    let mut bytes = whole.clone();
    bytes.splice(at..at + 6, []);
    refused(&bytes, &["storage"]);
    let mut bytes = whole.clone();
    let again = bytes[at..at + 6].to_vec();
    bytes.splice(at..at, again);
    refused(&bytes, &["storage"]);
    // More bytes are ignored, as torch does.
    assert_eq!(served(&[&whole[..], b"more"].concat()), ["w"]);
    // Two storages; the counts are of elements.
    let half = crate::program::tensor("h", Dtype::F16, &[5]);
    let both = dict([("w", contiguous("1", &w())), ("h", contiguous("0", &half))]);
    assert_eq!(served(&legacy_file(&both)), ["h", "w"]);
}
