//! The judge is Python: `tests/cases.txt` has what its `pickle` makes of values, and how they are shown.

use super::*;
use crate::catalog::store::MemoryStore;

mod containers;
mod damage;
mod limits;
mod meaning;
mod payloads;
mod python;

/// Runs a pickle.
fn outcome(bytes: &[u8]) -> Outcome {
    let store = MemoryStore::new(&[("data.pkl", bytes)]);
    let object = store.object("data.pkl").unwrap();
    let mut cursor = Cursor::new(&*object, 0, bytes.len() as u64);
    let place = Place {
        start: 0,
        of: "data.pkl",
    };
    read(&mut cursor, place).unwrap()
}

/// What a pickle holds that nothing is wrong with.
fn run(bytes: &[u8]) -> Pickle {
    let outcome = outcome(bytes);
    let problems = [outcome.hostile, outcome.damage].concat();
    assert!(problems.is_empty(), "{problems:?}");
    outcome.pickle.unwrap()
}

/// The problems of a pickle.
fn problems(bytes: &[u8]) -> Vec<String> {
    let outcome = outcome(bytes);
    assert!(outcome.pickle.is_some() != (outcome.damage.len() == 1));
    [outcome.hostile, outcome.damage].concat()
}

/// The value of a pickle, shown.
fn value(bytes: &[u8]) -> String {
    let pickle = run(bytes);
    show(&pickle, pickle.root().unwrap())
}

/// A value as `cases.py` shows it.
fn show(pickle: &Pickle, value: Ref) -> String {
    let all = |items: &[Ref]| -> Vec<String> {
        let shown = items.iter().map(|item| show(pickle, *item));
        shown.collect()
    };
    let hex = |bytes: &[u8]| -> String { bytes.iter().map(|b| format!("{b:02x}")).collect() };
    match pickle.get(value) {
        Value::None => "None".into(),
        Value::Bool(true) => "True".into(),
        Value::Bool(false) => "False".into(),
        Value::Int(n) => n.to_string(),
        Value::BigInt => "BIG".into(),
        Value::Float(v) if v.is_nan() => "float:nan".into(),
        Value::Float(v) => format!("float:{:016x}", v.to_bits()),
        Value::Text(text) => format!("'{}'", hex(text.as_bytes())),
        Value::Bytes(bytes) => format!("b'{}'", hex(bytes)),
        Value::Skipped => format!("skipped:{}", pickle.describe(value)),
        Value::Tuple(items) => format!("({})", all(items).join(" ")),
        Value::List(items) => format!("[{}]", all(items).join(" ")),
        Value::Set(items) => {
            let mut items = all(items);
            items.sort();
            format!("set{{{}}}", items.join(" "))
        }
        Value::Mapping(pairs) => {
            let pairs = pairs.into_iter();
            let pairs = pairs.map(|(k, v)| format!("{}:{}", show(pickle, k), show(pickle, v)));
            format!("{{{}}}", pairs.collect::<Vec<_>>().join(" "))
        }
        Value::Name => format!("name:{}", pickle.describe(value)),
        Value::Object(object) => {
            let mut shown = format!("object:{}", object.name);
            if let Value::Tuple([_, ..]) = pickle.get(object.arguments) {
                shown += &format!(" arguments {}", show(pickle, object.arguments));
            }
            if !object.contents.is_empty() {
                shown += &format!(" contents [{}]", all(object.contents).join(" "));
            }
            if let Some(state) = object.state {
                shown += &format!(" state {}", show(pickle, state));
            }
            shown
        }
        Value::Storage(storage) => format!(
            "storage:{} {} {} {}{}",
            storage.dtype.map_or("untyped", |dtype| dtype.name),
            String::from_utf8_lossy(storage.key),
            storage.location,
            storage.elements,
            match storage.window {
                Some((from, len)) => format!(" window {from} {len}"),
                None => String::new(),
            }
        ),
        Value::Tensor(Rebuilt::Strided(tensor)) => format!(
            "tensor:<{}> {} {} {}{}{}",
            show(pickle, tensor.storage),
            show(pickle, tensor.offset),
            show(pickle, tensor.size),
            show(pickle, tensor.stride),
            tensor
                .dtype
                .map_or(String::new(), |d| format!(" {}", d.name)),
            tensor.class.map_or(String::new(), |c| format!(" {c}")),
        ),
        Value::Tensor(Rebuilt::LeftOut(why)) => format!("left out: {why}"),
        Value::Tensor(Rebuilt::Malformed(why)) => format!("malformed: {why}"),
        Value::Other => format!("other:{}", pickle.describe(value)),
    }
}
