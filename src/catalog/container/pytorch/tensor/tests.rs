//! Rows of tensors. What is accepted and what is refused, and every byte, was compared with torch 2.15
//! (`torch._utils._rebuild_tensor`).

use serde_json::{Value as Json, json};

use super::super::testing::writer::{Py, Strided, dict};
use super::super::testing::{Made as File, made, rebuilt, storage};
use crate::catalog::row::{Row, RowBytes};
use crate::view::read_all;

/// A storage of 16 bytes, 0 to 15.
fn floats() -> Py {
    storage(("torch", "FloatStorage"), "7", "cpu", 4)
}

fn ints(numbers: &[i64]) -> Py {
    Py::Tuple(numbers.iter().map(|&n| Py::Int(n)).collect())
}

fn view(offset: i64, size: &[i64], stride: &[i64]) -> Py {
    rebuilt(&floats(), Py::Int(offset), ints(size), ints(stride))
}

/// A file with this value as `w`, whose storages all are the 16 bytes 0 to 15 at byte 3 of it.
fn file(value: Py) -> File {
    let anchor = Py::Tensor(Strided {
        key: "anchor".into(),
        data: (0..16).collect(),
        class: "ByteStorage",
        element: 1,
        offset: 0,
        shape: vec![16],
        strides: vec![1],
    });
    let mut file = made(&dict([("model", dict([("w", value)])), ("anchor", anchor)]));
    let ranges = &mut file.checkpoint.storages.of;
    let range = ranges[b"anchor".as_slice()].clone();
    ranges.values_mut().for_each(|place| *place = range.clone());
    file
}

fn row(value: Py) -> Result<Row, String> {
    let mut shard = file(value).open(None)?;
    shard.tensors.pop().ok_or_else(|| shard.notes.join("; "))
}

/// The bytes of a row, the origin's kind, and its fields.
fn read(file: &File, row: &Row) -> (Vec<u8>, &'static str, Json) {
    let origin = row.origin.as_ref().unwrap();
    let fields = origin
        .fields
        .iter()
        .map(|(k, v)| (k.to_string(), v.clone()));
    let bytes = match &row.bytes {
        RowBytes::View { view, .. } => read_all(view).unwrap(),
        RowBytes::Extent { offset, .. } => {
            let mut bytes = vec![0; row.nbytes as usize];
            file.file.read_at(*offset, &mut bytes).unwrap();
            bytes
        }
    };
    (bytes, origin.kind, Json::Object(fields.collect()))
}

#[test]
fn a_contiguous_tensor_is_an_extent_and_any_other_is_gathered() {
    // Dimensions of size 1 have any stride, and so has a tensor of one element or none.
    for (offset, size, stride) in [
        (0, &[4][..], &[1][..]),
        (0, &[2, 2], &[2, 1]),
        (1, &[1, 3], &[99, 1]),
        (0, &[2, 1, 2], &[2, 77, 1]),
        (3, &[], &[]),
        (2, &[1, 1], &[5, 5]),
        (99, &[0, 3], &[1, 7]),
    ] {
        let row = row(view(offset, size, stride)).unwrap();
        assert!(
            matches!(row.bytes, RowBytes::Extent { .. }),
            "{size:?} {stride:?}"
        );
        let origin = row.origin.unwrap();
        assert_eq!(
            (origin.kind, &*origin.fields),
            ("stored", &[("storage", json!("7"))][..])
        );
    }
    for (offset, size, stride) in [
        (0, &[2, 2][..], &[1, 2][..]),
        (0, &[2], &[2]),
        (0, &[2, 2], &[1, 1]),
        (0, &[3], &[0]),
        (0, &[2, 1, 2], &[1, 77, 2]),
    ] {
        let row = row(view(offset, size, stride)).unwrap();
        assert!(
            matches!(row.bytes, RowBytes::View { .. }),
            "{size:?} {stride:?}"
        );
        let origin = row.origin.unwrap();
        let fields = [("storage", json!("7")), ("strides", json!(stride))];
        assert_eq!((origin.kind, &*origin.fields), ("strided", &fields[..]));
    }
}

#[test]
fn a_gathered_tensor_knows_where_its_first_element_lies() {
    let file = file(view(1, &[1, 2], &[1, 2]));
    let shard = file.open(None).unwrap();
    let start = file.checkpoint.storages.of[b"7".as_slice()].start;
    let row = &shard.tensors[0];
    let RowBytes::View { offset, files, .. } = &row.bytes else {
        panic!("it is not contiguous");
    };
    assert_eq!((*offset, &**files), (Some(start + 4), &[0][..]));
    assert_eq!((row.nbytes, &*row.shape), (8, &[1, 2][..]));
    assert_eq!(read(&file, row).0, [4, 5, 6, 7, 12, 13, 14, 15]);
}

#[test]
fn a_tensor_must_lie_in_its_storage() {
    let refused = |value| row(value).map(|row| row.nbytes).unwrap_err();
    let problem = |problem: &str| format!("tensor 'w': {problem}");
    for (offset, size, stride, why) in [
        (
            0,
            &[5][..],
            &[1][..],
            "needs 20 bytes of storage 7, which has 16",
        ),
        (4, &[], &[], "needs 20 bytes of storage 7, which has 16"),
        (
            1,
            &[2, 2],
            &[2, 1],
            "needs 20 bytes of storage 7, which has 16",
        ),
        (
            0,
            &[2, 2],
            &[1 << 62, 1],
            "needs 18446744073709551624 bytes of storage 7, which has 16",
        ),
        (
            i64::MAX,
            &[2, 2],
            &[i64::MAX, i64::MAX],
            "needs 110680464442257309688 bytes of storage 7, which has 16",
        ),
        (
            0,
            &[1 << 62],
            &[0],
            "shape [4611686018427387904] needs 18446744073709551616 bytes, at most 72057594037927936 are served",
        ),
        (
            0,
            &[1 << 31, 1 << 32],
            &[0, 0],
            "shape [2147483648, 4294967296] has 2^63 elements or more, at most 72057594037927936 bytes are served",
        ),
        (0, &[2, 2], &[1], "has 2 sizes and 1 strides"),
        (-1, &[2], &[1], "offset is -1, not a whole number from 0 up"),
        (0, &[-2], &[1], "size is -2, not a whole number from 0 up"),
        (0, &[0], &[-1], "stride is -1, not a whole number from 0 up"),
        (0, &[1], &[-1], "stride is -1, not a whole number from 0 up"),
    ] {
        assert_eq!(refused(view(offset, size, stride)), problem(why));
    }
    let float = rebuilt(
        &floats(),
        Py::Int(0),
        Py::Tuple(vec![Py::Float(2.0)]),
        ints(&[1]),
    );
    assert_eq!(
        refused(float),
        problem("size is the float 2, not a whole number from 0 up")
    );
    // Four bytes may make terabytes.
    let large = row(view(0, &[1 << 40], &[0])).unwrap();
    assert_eq!(large.nbytes, 1 << 42);
    let large = row(view(0, &[1 << 54], &[0])).unwrap();
    assert_eq!(large.nbytes, 1 << 56);
}

#[test]
fn elements_are_those_of_the_storage_or_of_the_dtype() {
    let of = |class, elements, sizes: &[i64]| {
        let strides: Vec<i64> = sizes.iter().map(|_| 1).collect();
        row(rebuilt(
            &storage(class, "7", "cpu", elements),
            Py::Int(0),
            ints(sizes),
            ints(&strides),
        ))
    };
    let named = |class: (&'static str, &'static str), elements| {
        let row = of(class, elements, &[elements]).unwrap();
        (row.dtype.name().to_string(), row.nbytes)
    };
    assert_eq!(named(("torch", "BFloat16Storage"), 8), ("BF16".into(), 16));
    assert_eq!(named(("torch.cuda", "HalfStorage"), 8), ("F16".into(), 16));
    assert_eq!(
        named(("torch", "ComplexDoubleStorage"), 1),
        ("C128".into(), 16)
    );
    assert_eq!(
        named(("torch.storage", "UntypedStorage"), 16),
        ("U8".into(), 16)
    );
    let quantized = of(("torch", "QUInt8Storage"), 16, &[16]).err().unwrap();
    assert!(
        quantized.contains("first 'w': quantized: torch.quint8"),
        "{quantized}"
    );
    let v3 = |dtype, offset, sizes: &[i64]| {
        let storage = storage(("torch.storage", "UntypedStorage"), "7", "cpu", 16);
        let strides: Vec<i64> = sizes.iter().map(|_| 1).collect();
        super::super::testing::writer::call(
            "torch._utils",
            "_rebuild_tensor_v3",
            vec![
                storage,
                Py::Int(offset),
                ints(sizes),
                ints(&strides),
                Py::Bool(false),
                super::super::testing::writer::call("collections", "OrderedDict", Vec::new()),
                Py::Name("torch", dtype),
            ],
        )
    };
    // The offset counts elements of that dtype.
    let u16s = file(v3("uint16", 2, &[2]));
    let shard = u16s.open(None).unwrap();
    let (bytes, kind, _) = read(&u16s, &shard.tensors[0]);
    assert_eq!((bytes, kind), (vec![4, 5, 6, 7], "stored"));
    let outside = row(v3("uint16", 7, &[2]))
        .map(|row| row.nbytes)
        .unwrap_err();
    assert!(
        outside.contains("needs 18 bytes of storage 7, which has 16"),
        "{outside}"
    );
    // Two values to a byte, which the last dimension counts.
    let pairs = row(v3("float4_e2m1fn_x2", 0, &[2, 3]))
        .map(|row| (row.shape, row.nbytes, row.dtype.name().to_string()));
    assert_eq!(pairs.unwrap(), ([2, 6].into(), 6, "F4".into()));
    let scalar = row(v3("float4_e2m1fn_x2", 0, &[]))
        .map(|row| row.nbytes)
        .unwrap_err();
    assert!(
        scalar.contains("first 'w': a scalar of torch.float4_e2m1fn_x2"),
        "{scalar}"
    );
}

#[test]
fn elements_of_a_big_endian_file_are_swapped() {
    let big = |class, elements, sizes: &[i64], strides: &[i64]| {
        let value = rebuilt(
            &storage(("torch", class), "7", "cpu", elements),
            Py::Int(0),
            ints(sizes),
            ints(strides),
        );
        let mut file = file(value);
        file.checkpoint.storages.big_endian = true;
        let shard = file.open(None).unwrap();
        let row = shard.tensors.first().unwrap();
        read(&file, row)
    };
    let (bytes, kind, fields) = big("FloatStorage", 4, &[2], &[1]);
    assert_eq!((bytes, kind), (vec![3, 2, 1, 0, 7, 6, 5, 4], "strided"));
    assert_eq!(fields["byteorder"], "big");
    // Each half of a complex number is one.
    let (bytes, _, _) = big("ComplexFloatStorage", 2, &[1], &[1]);
    assert_eq!(bytes, [3, 2, 1, 0, 7, 6, 5, 4]);
    let (bytes, _, _) = big("ComplexDoubleStorage", 1, &[1], &[1]);
    assert_eq!(
        bytes,
        [7, 6, 5, 4, 3, 2, 1, 0, 15, 14, 13, 12, 11, 10, 9, 8]
    );
    let (bytes, _, _) = big("ShortStorage", 8, &[2], &[3]);
    assert_eq!(bytes, [1, 0, 7, 6]);
    let (bytes, kind, fields) = big("ByteStorage", 16, &[2], &[1]);
    assert_eq!((bytes, kind), (vec![0, 1], "stored"));
    assert!(fields.get("byteorder").is_none());
    let (_, kind, fields) = big("FloatStorage", 4, &[0], &[1]);
    assert_eq!((kind, fields), ("stored", json!({"storage": "7"})));
}

#[test]
fn a_tensor_knows_its_device() {
    let origin = |device| {
        let storage = storage(("torch", "FloatStorage"), "7", device, 4);
        let row = row(rebuilt(&storage, Py::Int(0), ints(&[1]), ints(&[1]))).unwrap();
        row.origin.unwrap().fields
    };
    assert_eq!(*origin("cpu"), [("storage", json!("7"))]);
    assert_eq!(
        *origin("cuda:0"),
        [("storage", json!("7")), ("device", json!("cuda:0"))]
    );
}

#[test]
fn a_window_of_a_storage_bounds_its_tensors() {
    let windowed = |window: [i64; 2], offset, size: i64| {
        let mut id = vec![
            super::super::testing::writer::text("storage"),
            Py::Name("torch", "FloatStorage"),
            super::super::testing::writer::text("7"),
            super::super::testing::writer::text("cpu"),
            Py::Int(4),
        ];
        let view = [
            super::super::testing::writer::text("1"),
            Py::Int(window[0]),
            Py::Int(window[1]),
        ];
        id.push(Py::Tuple(view.to_vec()));
        let storage = super::super::testing::persistent(&Py::Tuple(id));
        file(rebuilt(
            &storage,
            Py::Int(offset),
            ints(&[size]),
            ints(&[1]),
        ))
    };
    let inside = windowed([1, 2], 1, 1);
    let shard = inside.open(None).unwrap();
    assert_eq!(read(&inside, &shard.tensors[0]).0, [8, 9, 10, 11]);
    let refused = |file: File| file.open(None).map(|_| ()).unwrap_err();
    let outside = refused(windowed([1, 2], 1, 2));
    assert!(
        outside.contains("needs 12 bytes of its window of storage 7, which has 8"),
        "{outside}"
    );
    let outside = refused(windowed([3, 2], 0, 1));
    assert!(
        outside.contains("its window of storage 7 needs 20 bytes, the storage has 16"),
        "{outside}"
    );
}

#[test]
fn dimensions_have_a_limit() {
    let row_of = |sizes: &[i64]| row(view(0, sizes, &vec![1; sizes.len()]));
    assert_eq!(row_of(&[1; 128]).unwrap().nbytes, 4);
    let refused = row_of(&[1; 129]).err().unwrap();
    assert!(
        refused.contains("has 129 sizes, at most 128 dimensions are served"),
        "{refused}"
    );
}
