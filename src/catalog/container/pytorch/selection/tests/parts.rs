//! `FILE#KEY.PATH`.

use super::super::super::testing::writer::{Py, dict, text};
use super::super::super::testing::{made, names, tensor};
use super::{object, weights};

#[track_caller]
fn serves(root: &Py, part: &str, expected: &[&str]) {
    assert_eq!(names(root, Some(part)).unwrap(), expected);
}

#[test]
fn a_part_is_taken_as_it_is() {
    let inner = dict([("params", weights()), ("optim", weights())]);
    let root = dict([
        ("model", inner),
        ("optimizer", Py::List(vec![weights(), tensor("1")])),
        ("acc", tensor("2")),
    ]);
    // No rule is applied inside it.
    serves(&root, "model", &["params.w", "optim.w"]);
    serves(&root, "model.params", &["w"]);
    serves(&root, "optimizer", &["0.w", "1"]);
    serves(&root, "optimizer.0", &["w"]);
    serves(&root, "optimizer.1", &["tensor"]);
    serves(&root, "acc", &["tensor"]);
    let all = [
        "model.params.w",
        "model.optim.w",
        "optimizer.0.w",
        "optimizer.1",
        "acc",
    ];
    serves(&root, "", &all);
    let shard = made(&root).open(Some("model.params")).unwrap();
    let checkpoint = &shard.summary["checkpoint"];
    assert_eq!(checkpoint["key"], serde_json::json!(["model", "params"]));
    let left_out: Vec<&String> = checkpoint["left_out"].as_object().unwrap().keys().collect();
    assert_eq!(left_out, ["optimizer", "acc", "model.optim"]);
    let whole = made(&root).open(Some("")).unwrap();
    assert_eq!(
        whole.summary["checkpoint"]["left_out"],
        serde_json::json!({})
    );
}

#[test]
fn keys_with_dots_are_matched_longest_first() {
    let root = dict([
        ("a", dict([("b", dict([("short", tensor("0"))]))])),
        ("a.b", dict([("long", tensor("1"))])),
        ("c", dict([("d", dict([("e", weights())]))])),
        ("c.d", dict([("x", weights())])),
        ("", weights()),
    ]);
    serves(&root, "a.b", &["long"]);
    serves(&root, "a", &["b.short"]);
    // A longer key that leads nowhere is not the end.
    serves(&root, "c.d.e", &["w"]);
    serves(&root, "c.d.x", &["w"]);
    serves(&root, ".w", &["tensor"]);
    let keys = Py::Dict(vec![(Py::Int(-1), weights()), (Py::None, weights())]);
    serves(&keys, "-1", &["w"]);
    serves(&keys, "None", &["w"]);
}

#[test]
fn a_part_without_tensors_is_refused_with_what_there_is() {
    let root = dict([
        ("state_dict", weights()),
        ("epoch", Py::Int(3)),
        ("names", Py::List(vec![text("a")])),
        ("ema", object(weights())),
        ("w", tensor("1")),
    ]);
    let has = "its root has 'state_dict' (1 tensor, 4 B), 'epoch' (3), 'names' (a list), 'ema' (an object of the class models.yolo.Model), 'w' (a tensor)";
    let refused = |part: &str| names(&root, Some(part)).unwrap_err();
    assert_eq!(refused("x"), format!("has no 'x'; {has}"));
    assert_eq!(
        refused("state_dict.x"),
        format!("has no 'state_dict.x'; {has}")
    );
    assert_eq!(
        refused("epoch"),
        format!("'epoch' is 3, without tensors; {has}")
    );
    assert_eq!(
        refused("names"),
        format!("'names' is a list, without tensors; {has}")
    );
    let object = refused("ema");
    assert!(object.starts_with("'ema' is an object of the class models.yolo.Model, not a state dict; stfs builds no classes: save its state_dict(); its root has"), "{object}");
}
