//! Checkpoints without a model.

use super::super::super::testing::writer::{Py, call, dict, text};
use super::super::super::testing::{names, tensor};
use super::{object, serves, weights};

const OBJECT: &str = "is an object of the class models.yolo.Model, not a state dict; stfs builds no classes: save its state_dict()";

#[track_caller]
fn refused(root: &Py, expected: &str) {
    let refused = names(root, None).unwrap_err();
    assert_eq!(refused, expected);
}

#[test]
fn a_model_that_is_an_object_is_refused_by_its_class() {
    let state = dict([("_parameters", weights())]);
    let deep = object(dict([("_modules", dict([("0", object(state))]))]));
    let model = format!("'model' {OBJECT}");
    refused(
        &dict([("epoch", Py::Int(1)), ("model", deep.clone())]),
        &model,
    );
    // Tensors elsewhere are not the model.
    let root = [
        ("optimizer", weights()),
        ("model", deep.clone()),
        ("x", tensor("1")),
    ];
    refused(&dict(root), &model);
    refused(
        &dict([
            ("ema", deep.clone()),
            ("model", Py::None),
            ("optimizer", weights()),
        ]),
        &format!("'ema' {OBJECT}"),
    );
    refused(&deep, &format!("its root {OBJECT}"));
    refused(
        &Py::List(vec![Py::Int(1), deep.clone()]),
        &format!("'1' {OBJECT}"),
    );
    // A state dict that comes first is served.
    serves(
        &dict([("model", deep.clone()), ("state_dict", weights())]),
        &["w"],
    );
    // An object without tensors is nothing to wait for.
    let args = object(dict([("lr", Py::Float(0.1))]));
    serves(&dict([("model", args.clone()), ("x", weights())]), &["w"]);
    refused(
        &dict([("epoch", Py::Int(1)), ("args", args)]),
        &format!("has no tensors: 'args' {OBJECT}"),
    );
    // Protocols 0 and 1 name the class in an argument.
    let classes = vec![
        Py::Name("models.yolo", "Model"),
        Py::Name("__builtin__", "object"),
        Py::None,
    ];
    refused(
        &call("copy_reg", "_reconstructor", classes),
        &format!("its root {OBJECT}"),
    );
}

#[test]
fn a_file_without_a_model_is_refused_with_what_it_has() {
    refused(&Py::Int(3), "has no tensors: its root is 3");
    refused(&dict([]), "has no tensors: its root is a dict");
    refused(
        &dict([("epoch", Py::Int(1)), ("s", text("x"))]),
        "has no tensors: its root has 'epoch' (1), 's' (the text 'x')",
    );
    refused(
        &dict([("optimizer", weights()), ("args", object(Py::None))]),
        "has no model: its tensors are in 'optimizer' (1 tensor, 4 B), a key that stands for something other than the model; mount x.ckpt#optimizer",
    );
    let many: Vec<String> = (0..30).map(|i| format!("k{i}")).collect();
    let many = dict(many.iter().map(|key| (key.as_str(), Py::None)));
    let refused = names(&many, None).unwrap_err();
    assert!(refused.ends_with("'k19' (None) and 10 more"), "{refused}");
    let long = "x".repeat(1000);
    let refused = names(&dict([(long.as_str(), Py::None)]), None).unwrap_err();
    assert!(refused.len() < 200, "{refused}");
}
