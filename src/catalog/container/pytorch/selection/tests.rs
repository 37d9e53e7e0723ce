//! Which part of a checkpoint is served, and under which names. Expected values are the rules': where a
//! name follows from PyTorch alone, `tests/golden` has it from there.

use super::super::testing::writer::{Py, call, dict, text};
use super::super::testing::{made, names, tensor};

mod parts;
mod refused;
mod walks;

/// A dict with one tensor, `w`.
fn weights() -> Py {
    dict([("w", tensor("0"))])
}

/// An object of a class that is unknown here, with this state.
fn object(state: Py) -> Py {
    // `copyreg.__newobj__` is what NEWOBJ stands for; protocol 2 has its opcodes.
    let mut opcodes = b"cmodels.yolo\nModel\n)\x81".to_vec();
    opcodes.extend(super::super::testing::opcodes(&state));
    opcodes.push(b'b');
    Py::Opcodes(opcodes)
}

#[track_caller]
fn serves(root: &Py, expected: &[&str]) {
    assert_eq!(names(root, None).unwrap(), expected);
}

#[test]
fn the_model_is_under_the_first_key_that_programs_use_for_it() {
    let keys = [
        "model_state_dict",
        "state_dict",
        "params_ema",
        "params-ema",
        "params",
        "model",
        "module",
        "net",
    ];
    let under = |key| (key, dict([(key, tensor(key))]));
    for (rank, first) in keys.iter().enumerate() {
        // The order in the file does not matter.
        let root = dict(keys[rank..].iter().rev().map(|key| under(*key)));
        serves(&root, &[first]);
    }
    // The key must lead to a mapping that holds tensors.
    let list = Py::List(vec![tensor("0")]);
    let root = dict([
        ("model_state_dict", dict([])),
        ("state_dict", list),
        ("params", tensor("1")),
        ("net", weights()),
    ]);
    serves(&root, &["w"]);
    // Tensors of the root's own do not change that.
    serves(
        &dict([("best_acc1", tensor("1")), ("net", weights())]),
        &["w"],
    );
}

#[test]
fn inside_the_model_it_goes_on_while_nothing_else_holds_tensors() {
    let inner = dict([("params_ema", weights()), ("epoch", Py::Int(3))]);
    serves(&dict([("model", inner)]), &["w"]);
    let both = dict([("params_ema", weights()), ("other", weights())]);
    serves(&dict([("model", both)]), &["params_ema.w", "other.w"]);
    // Not below a mapping that was found without a key.
    serves(&dict([("x", dict([("model", weights())]))]), &["model.w"]);
    // A tensor under such a key is a tensor of that name.
    serves(&dict([("model", dict([("net", tensor("0"))]))]), &["net"]);
    // A list is not a mapping.
    let list = Py::List(vec![tensor("0")]);
    serves(&dict([("model", dict([("params", list)]))]), &["params.0"]);
}

#[test]
fn without_such_a_key_the_root_counts_without_what_training_adds() {
    let prefixes = [
        "optim",
        "Optimizer_states",
        "last_optimizer",
        "LR_schedulers",
        "scheduler",
        "scaler",
        "grad_scaler",
        "amp",
        "rng_states",
        "callbacks",
        "loops",
        "hyper_parameters",
        "hparams",
    ];
    let others = prefixes.map(|key| (key, weights()));
    let with = |more: Vec<(&'static str, Py)>| dict(others.clone().into_iter().chain(more));
    serves(&with(vec![("generator", weights())]), &["w"]);
    let two = vec![("generator", weights()), ("discriminator", weights())];
    serves(&with(two), &["generator.w", "discriminator.w"]);
    // A tensor of the root's own keeps the keys in the names.
    let own = vec![("generator", weights()), ("step", tensor("1"))];
    serves(&with(own), &["generator.w", "step"]);
    // Only containers are left out.
    serves(
        &dict([("scaler", tensor("0")), ("w", tensor("1"))]),
        &["scaler", "w"],
    );
    // A list of tensors is no mapping, so its key stays.
    serves(&dict([("x", Py::List(vec![tensor("0")]))]), &["x.0"]);
    // Keys that only contain such a word stay.
    let root = dict([("myoptim", weights()), ("b", weights())]);
    serves(&root, &["myoptim.w", "b.w"]);
}

#[test]
fn a_root_without_keys_is_served() {
    serves(&tensor("0"), &["tensor"]);
    let two = vec![tensor("0"), tensor("1")];
    serves(&Py::List(two.clone()), &["0", "1"]);
    serves(&Py::Tuple(two), &["0", "1"]);
    serves(&Py::List(vec![weights(), Py::Int(3)]), &["w"]);
    let both = Py::Tuple(vec![weights(), weights()]);
    serves(&both, &["0.w", "1.w"]);
    serves(&Py::List(vec![weights(), tensor("1")]), &["0.w", "1"]);
}

#[test]
fn keys_are_taken_exactly() {
    let bytes = |bytes: &[u8]| {
        let mut opcodes = b"C".to_vec();
        opcodes.push(bytes.len() as u8);
        opcodes.extend(bytes);
        Py::Opcodes(opcodes)
    };
    let keys = [
        text("module._orig_mod.w"),
        text(""),
        Py::Int(-1),
        Py::Int(1 << 40),
        Py::Bool(false),
        Py::None,
        bytes(b"b"),
    ];
    let names = [
        "module._orig_mod.w",
        "",
        "-1",
        "1099511627776",
        "False",
        "None",
        "b",
    ];
    let entries = keys
        .into_iter()
        .zip(0..)
        .map(|(k, i)| (k, tensor(&format!("{i}"))));
    serves(&Py::Dict(entries.collect()), &names);
    // Entries under any other key are skipped, and said to be.
    let odd = [
        Py::Float(1.5),
        Py::Tuple(vec![Py::Int(1)]),
        bytes(&[0xff]),
        Py::Name("torch", "nn"),
    ];
    let mut entries: Vec<_> = odd.into_iter().map(|key| (key, tensor("0"))).collect();
    entries.push((text("w"), tensor("0")));
    let shard = made(&Py::Dict(entries)).open(None).unwrap();
    assert_eq!(shard.tensors.len(), 1);
    let skipped: Vec<&String> = shard
        .notes
        .iter()
        .filter(|n| n.contains("is skipped"))
        .collect();
    assert_eq!(skipped.len(), 4, "{:?}", shard.notes);
    assert!(skipped[1].contains("its key is a tuple"), "{skipped:?}");
}

#[test]
fn of_a_key_that_comes_twice_the_last_value_counts() {
    let twice = |a: Py, b: Py| {
        Py::Dict(vec![
            (a, tensor("0")),
            (text("x"), tensor("1")),
            (b, tensor("2")),
        ])
    };
    let shard = made(&twice(text("w"), text("w"))).open(None).unwrap();
    let storage = |name: &str| {
        let row = shard.tensors.iter().find(|t| &*t.name == name).unwrap();
        row.origin.as_ref().unwrap().fields[0].1.clone()
    };
    assert_eq!((storage("x"), storage("w")), ("1".into(), "2".into()));
    assert_eq!(shard.tensors.len(), 2);
    // In Python True and 1 are one key; 1 and "1" are two, which would have one name.
    assert_eq!(
        names(&twice(Py::Int(1), Py::Bool(true)), None).unwrap(),
        ["x", "True"]
    );
    let same = names(&twice(Py::Int(1), text("1")), None).unwrap_err();
    assert!(
        same.contains("tensor '1': is the name of two tensors, [1] and ['1']"),
        "{same}"
    );
    let dots = dict([
        ("a.b", dict([("c", tensor("0"))])),
        ("a", dict([("b.c", tensor("1"))])),
    ]);
    let same = names(&dots, None).unwrap_err();
    assert!(same.contains("['a.b']['c'] and ['a']['b.c']"), "{same}");
    // In a part that is not served it does not matter.
    let root = dict([("model", weights()), ("x", twice(Py::Int(1), text("1")))]);
    serves(&root, &["w"]);
}

#[test]
fn what_is_left_out_is_counted_and_said() {
    let state = Py::List(vec![dict([("a", tensor("1"))]), tensor("2")]);
    let root = dict([
        ("epoch", Py::Int(3)),
        ("version", text("1.4.2")),
        ("loss", Py::Float(0.5)),
        ("best", Py::Float(f64::INFINITY)),
        ("done", Py::Bool(true)),
        ("none", Py::None),
        ("optimizer_states", state.clone()),
        ("state_dict", weights()),
        ("acc", tensor("3")),
        ("args", call("argparse", "Namespace", Vec::new())),
    ]);
    let shard = made(&root).open(None).unwrap();
    assert_eq!(
        serde_json::Value::from(shard.summary),
        serde_json::json!({"checkpoint": {
            "key": ["state_dict"],
            "values": {"epoch": 3, "version": "1.4.2", "loss": 0.5, "best": "inf", "done": true, "none": null},
            "left_out": {
                "optimizer_states": {"tensors": 2, "bytes": 8},
                "acc": {"tensors": 1, "bytes": 4},
            },
            "globals": ["argparse.Namespace"],
        }})
    );
    assert_eq!(
        shard.notes,
        [
            "optimizer_states: 2 tensors, 8 B, not the model; mount x.ckpt#optimizer_states",
            "acc: 1 tensor, 4 B, not the model; mount x.ckpt#acc",
            "argparse.Namespace: kept as names, nothing was called",
        ]
    );
    let metadata = shard.metadata.unwrap();
    assert_eq!(metadata.get("format").map(String::as_str), Some("pt"));
    // By the second rule.
    let root = dict([("optim", state), ("w", tensor("0")), ("x", weights())]);
    let shard = made(&root).open(None).unwrap();
    assert_eq!(shard.summary["checkpoint"]["key"], serde_json::json!([]));
    assert_eq!(
        shard.summary["checkpoint"]["left_out"]["optim"]["tensors"],
        2
    );
}
