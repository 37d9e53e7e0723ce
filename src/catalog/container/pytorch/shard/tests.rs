//! Whole checkpoints: what opening refuses and verifying lists.

use super::super::testing::writer::{Py, Strided, call, dict};
use super::super::testing::{made, rebuilt, storage, tensor};

/// A tensor that needs 20 bytes of a storage that has 4.
fn too_long(key: &str) -> Py {
    let storage = storage(("torch", "FloatStorage"), key, "cpu", 1);
    let one = Py::Tuple(vec![Py::Int(1)]);
    rebuilt(&storage, Py::Int(4), one.clone(), one)
}

#[test]
fn opening_stops_at_the_first_problem_and_verifying_lists_all() {
    let model = [
        ("a", tensor("0")),
        ("b", too_long("1")),
        ("c", too_long("2")),
    ];
    let left_out = Py::List(vec![dict([("x", too_long("3"))]), too_long("4")]);
    let file = made(&dict([("optimizer", left_out), ("model", dict(model))]));
    let why = "needs 20 bytes of storage 1, which has 4";
    assert_eq!(file.open(None).err(), Some(format!("tensor 'b': {why}")));
    let found: Vec<String> = file.verify().iter().map(ToString::to_string).collect();
    assert_eq!(
        found,
        [
            "tensor 'b': needs 20 bytes of storage 1, which has 4",
            "tensor 'c': needs 20 bytes of storage 2, which has 4",
            "tensor 'optimizer.0.x': needs 20 bytes of storage 3, which has 4",
            "tensor 'optimizer.1': needs 20 bytes of storage 4, which has 4",
        ]
    );
    // What is left out does not keep the model from being served.
    let file = made(&dict([
        ("optim", too_long("1")),
        ("model", dict([("a", tensor("0"))])),
    ]));
    assert_eq!(file.open(None).unwrap().tensors.len(), 1);
    assert_eq!(file.verify().len(), 1);
}

#[test]
fn verifying_lists_every_name_that_two_paths_give() {
    let pair = |key: &str| {
        let inner = Py::Dict(vec![
            (Py::Int(1), tensor(key)),
            (dict_key("1"), tensor(key)),
        ]);
        (key.to_string(), inner)
    };
    let root = Py::Dict(
        ["x", "y"]
            .map(pair)
            .into_iter()
            .map(|(k, v)| (dict_key(&k), v))
            .collect(),
    );
    let found: Vec<String> = made(&root)
        .verify()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].contains("tensor 'x.1': is the name of two tensors, ['x'][1] and ['x']['1']"),
        "{found:?}"
    );
    assert!(found[1].contains("tensor 'y.1'"), "{found:?}");
}

fn dict_key(key: &str) -> Py {
    super::super::testing::writer::text(key)
}

#[test]
fn a_storage_that_no_tensor_uses_is_reported() {
    let bare = storage(("torch", "FloatStorage"), "9", "cpu", 1);
    let mut file = made(&dict([("w", tensor("0")), ("s", bare)]));
    file.checkpoint
        .storages
        .of
        .insert(b"17".as_slice().into(), 0..2);
    let found: Vec<String> = file.verify().iter().map(ToString::to_string).collect();
    let unused = "is used by no tensor";
    assert_eq!(
        found,
        [
            format!("storage 9 (4 bytes) {unused}"),
            format!("storage 17 (2 bytes) {unused}")
        ]
    );
    assert!(file.open(None).is_ok());
    // A tensor in an object uses its storage, too.
    let hidden = call("some.module", "thing", vec![tensor("1")]);
    assert_eq!(
        made(&dict([("w", tensor("0")), ("x", hidden)])).verify(),
        []
    );
}

#[test]
fn tensors_in_lost_storages_are_lost() {
    let mut file = made(&dict([("a", tensor("0")), ("b", tensor("1"))]));
    file.checkpoint.storages.of.remove(b"1".as_slice());
    file.checkpoint.storages.lost.push(b"1".as_slice().into());
    let shard = file.open(None).unwrap();
    assert_eq!(shard.lost, ["b".into()]);
    assert_eq!(shard.tensors.len(), 1);
}

#[test]
fn tied_tensors_have_one_offset() {
    let tied = || {
        Py::Tensor(Strided {
            key: "0".into(),
            data: vec![0; 8],
            class: "FloatStorage",
            element: 4,
            offset: 1,
            shape: vec![1],
            strides: vec![1],
        })
    };
    let shard = made(&dict([("a", tied()), ("b", tied())]))
        .open(None)
        .unwrap();
    let place = |index: usize| {
        let row: &crate::catalog::Row = &shard.tensors[index];
        let crate::catalog::RowBytes::Extent { offset, .. } = row.bytes else {
            panic!("it is contiguous");
        };
        (offset, row.origin.as_ref().unwrap().fields[0].clone())
    };
    assert_eq!(place(0), place(1));
}

#[test]
fn one_long_key_does_not_fill_memory() {
    // 64 levels of a key of 60,000 bytes, and many tensors below them.
    let key = "k".repeat(60_000);
    let many: Vec<String> = (0..200).map(|i| format!("t{i}")).collect();
    let mut value = dict(many.iter().map(|name| (name.as_str(), tensor("0"))));
    for _ in 0..62 {
        value = dict([(key.as_str(), value)]);
    }
    let refused = made(&dict([("x", value), ("y", tensor("1"))]))
        .open(None)
        .err()
        .unwrap();
    assert!(refused.contains("at most 268435456 are used"), "{refused}");
}

#[test]
fn one_tensor_under_a_million_names_does_not_fill_memory() {
    let mut many = b"}(".to_vec();
    for number in 0..(1u32 << 20) + 1 {
        many.push(b'J');
        many.extend(number.to_le_bytes());
        many.extend(b"h\x01");
    }
    many.push(b'u');
    let mut first = super::super::testing::opcodes(&tensor("0"));
    first.extend(b"q\x01");
    let root = dict([("a", Py::Opcodes(first)), ("b", Py::Opcodes(many))]);
    let refused = made(&root).open(None).err().unwrap();
    assert!(
        refused.contains("has more than 1048576 tensors"),
        "{refused}"
    );
}
