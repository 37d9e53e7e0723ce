//! Shared, self-containing and deep values.

use super::super::super::testing::writer::{Py, dict, text};
use super::super::super::testing::{made, names, opcodes, tensor};
use super::{serves, weights};

/// The opcodes of a key, and of a tensor.
fn pair(key: &str) -> Vec<u8> {
    let mut pair = opcodes(&text(key));
    pair.extend(opcodes(&tensor("0")));
    pair
}

/// A list of two references to a list of two references … to what `inner` leaves on the stack.
fn doubled(levels: u8, inner: &[u8]) -> Py {
    let mut opcodes = inner.to_vec();
    for level in 0..levels {
        // Put, then `]` with two references to it: `(` get get `e`.
        opcodes.extend([
            b'q', level, b'0', b']', b'(', b'h', level, b'h', level, b'e',
        ]);
    }
    Py::Opcodes(opcodes)
}

#[test]
fn paths_are_counted_only_where_they_are_walked() {
    let small = doubled(70, b"]");
    let refused = names(
        &dict([("model", dict([("w", tensor("0")), ("x", small.clone())]))]),
        None,
    )
    .unwrap_err();
    assert!(
        refused.contains("the walk through its model stops after 65536 references"),
        "{refused}"
    );
    // Beside the model they cost nothing.
    serves(&dict([("model", weights()), ("x", small)]), &["w"]);
}

#[test]
fn left_out_tensors_are_counted_once_for_each_path() {
    let tensor = opcodes(&tensor("0"));
    for (levels, expected) in [(10, 1 << 10), (70, u64::MAX)] {
        let root = dict([("model", weights()), ("x", doubled(levels, &tensor))]);
        let shard = made(&root).open(None).unwrap();
        assert_eq!(
            shard.summary["checkpoint"]["left_out"]["x"]["tensors"],
            expected
        );
    }
}

#[test]
fn a_way_back_is_skipped() {
    // A dict that contains itself, and a tensor after that.
    let itself = |key: &str| {
        let mut opcodes = b"}q\x00(X\x04\0\0\0selfh\x00".to_vec();
        opcodes.extend(pair(key));
        opcodes.push(b'u');
        Py::Opcodes(opcodes)
    };
    let shard = made(&itself("w")).open(None).unwrap();
    assert_eq!(shard.tensors.len(), 1);
    assert_eq!(
        shard.notes,
        ["['self'] contains itself; the way back is skipped"]
    );
    serves(&itself("w"), &["w"]);
    // It is also found where the first look at it was from inside.
    serves(&dict([("x", Py::Int(1)), ("net", itself("w"))]), &["w"]);
}

#[test]
fn containers_of_each_other_hold_the_same() {
    // a = {"b": b}, b = {"a": a, "t": tensor}: a is met first, and b from inside it.
    let mut opcodes = b"}q\x00}q\x01(X\x01\0\0\0ah\x00".to_vec();
    opcodes.extend(pair("t"));
    opcodes.extend(b"u0(X\x01\0\0\0bh\x01u");
    let a = Py::Opcodes(opcodes);
    let b = Py::Opcodes(b"h\x01".to_vec());
    let root = dict([("x", a), ("model", b)]);
    serves(&root, &["t"]);
    let shard = made(&root).open(None).unwrap();
    assert_eq!(shard.summary["checkpoint"]["left_out"]["x"]["tensors"], 1);
    assert_eq!(names(&root, Some("x")).unwrap(), ["b.t"]);
}

/// Dicts in each other, `depth` of them, around a value.
fn nested(depth: usize, inner: &Py) -> Py {
    nested_under("k", depth, inner)
}

fn nested_under(key: &str, depth: usize, inner: &Py) -> Py {
    let mut nested = b"}".to_vec();
    nested.extend(opcodes(&text(key)));
    nested.extend(b"q\x00");
    for _ in 1..depth {
        nested.extend(b"}h\x00");
    }
    nested.extend(opcodes(inner));
    nested.extend(std::iter::repeat_n(b's', depth));
    Py::Opcodes(nested)
}

#[test]
fn depth_costs_no_stack_and_a_path_has_64_keys_at_most() {
    let deep = |depth| dict([("w", tensor("1")), ("x", nested(depth, &tensor("0")))]);
    let name = format!("x{}", ".k".repeat(63));
    serves(&deep(63), &["w", &name]);
    let refused = names(&deep(64), None).unwrap_err();
    assert!(
        refused.contains("more than 64 keys in its path"),
        "{refused}"
    );
    assert!(
        names(&deep(200_000), None)
            .unwrap_err()
            .contains("more than 64 keys")
    );
    let empty = dict([("w", tensor("1")), ("x", nested(200_000, &Py::None))]);
    serves(&empty, &["w"]);
    let beside = dict([("model", weights()), ("x", nested(200_000, &tensor("0")))]);
    serves(&beside, &["w"]);
}

#[test]
fn the_way_to_the_model_has_64_keys_at_most() {
    let model = |depth| nested_under("model", depth, &dict([("w", tensor("0"))]));
    serves(&model(64), &["w"]);
    let refused = names(&model(200_000), None).unwrap_err();
    assert!(refused.contains("below more than 64 keys"), "{refused}");
}

/// One key of 60,000 bytes in 40,000 mappings, on the way to nothing: names are made of keys only where a
/// tensor is.
#[test]
fn long_keys_on_the_way_to_nothing_cost_nothing() {
    let key = "k".repeat(60_000);
    let mut many = b"(".to_vec();
    many.extend(opcodes(&text(&key)));
    many.extend(b"q\x00");
    many.push(b'0');
    many.push(b']');
    for _ in 0..40_000 {
        many.extend(b"}h\x00]s");
    }
    many.extend(b"l");
    let root = dict([("w", tensor("0")), ("x", Py::Opcodes(many))]);
    serves(&root, &["w"]);
}
