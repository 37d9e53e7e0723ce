//! The sentences of sections 3 and 4 of the contract, in the language itself.

use std::sync::Arc;

use super::super::language::Located;
use super::super::language::{parse_condition, parse_expression, parse_template};
use super::super::mistake::Place;
use super::super::sources::Sources;
use super::super::testing::{leaf, row, sources};
use super::*;
use crate::dtype::Dtype;
use crate::model::Expr;
use crate::view::Bytes;

/// Some names, and tensors of zeros.
struct Names(Sources);

impl Names {
    fn new() -> Names {
        let zeros = |name: &str, dtype: Dtype, shape: &[u64]| {
            let bytes = vec![0; dtype.bytes(shape.iter().product()).unwrap() as usize];
            row(name, dtype, shape, Arc::new(Bytes(bytes.into())))
        };
        let rows = || {
            vec![
                zeros("l.3.weight", Dtype::F32, &[4, 6]),
                zeros("l.4.weight", Dtype::F32, &[4, 6]),
                zeros("l.5.weight", Dtype::F32, &[4, 6]),
                zeros("c", Dtype::C64, &[2]),
            ]
        };
        Names(sources(vec![
            ("model", b"", rows()),
            ("tuned", b"", rows()),
        ]))
    }
}

impl Scope for Names {
    fn name(&self, name: &str) -> Option<Value> {
        Some(match name {
            "n" => Value::Text("3".into()),
            "x" => Value::Text("k".into()),
            "huge" => Value::Text("99999999999999999999".into()),
            "rank" => Value::Integer(1),
            "alpha" => Value::Real(0.1),
            _ => return None,
        })
    }
    fn names(&self) -> Vec<String> {
        ["n", "x", "huge", "rank", "alpha"].map(String::from).into()
    }
    fn it(&self, model: Option<&str>) -> Result<Derived, String> {
        self.tensor(model, "l.3.weight")
    }
    fn tensor(&self, model: Option<&str>, name: &str) -> Result<Derived, String> {
        let model = usize::from(model == Some("tuned"));
        let id = self.0.models[model].model.id(name);
        id.ok_or(format!("'{name}' is not there"))?;
        Ok(leaf(&self.0, model, name))
    }
    fn config(&self, keys: &[Box<str>]) -> Result<Value, String> {
        match &*keys[0] {
            "hidden_size" => Ok(Value::Integer(6)),
            "tie" => Ok(Value::Bool(true)),
            "model_type" => Ok(Value::Text("llama".into())),
            other => Err(format!("config.{other} is not there")),
        }
    }
    fn gathered(&self, name: &str) -> Option<u64> {
        (name == "e").then_some(3)
    }
}

fn value(text: &str) -> Result<Value, Mistake> {
    let node = parse_expression(&Located::plain(text, 0)).unwrap();
    expression(&node, &Names::new())
}

fn holds(text: &str) -> Result<bool, Mistake> {
    let node = parse_condition(&Located::plain(text, 0)).unwrap();
    condition(&node, &Names::new())
}

fn named(text: &str) -> Result<String, Mistake> {
    let text = parse_template(&Located::plain(text, 0)).unwrap();
    template(&text, &Names::new())
}

fn tensor(text: &str) -> Derived {
    match value(text) {
        Ok(Value::Tensor(x)) => x,
        other => panic!("{text}: {other:?}"),
    }
}

fn shape(text: &str) -> Vec<u64> {
    tensor(text).shape.to_vec()
}

/// What is wrong, and at which byte.
fn why<T: std::fmt::Debug>(got: Result<T, Mistake>) -> (u32, String) {
    let Mistake {
        at: Place(at),
        what,
        ..
    } = got.unwrap_err();
    (at, what)
}

/// Computed by Python 3.
#[rustfmt::skip]
const NUMBERS: &[(&str, &str)] = &[
    ("1 + 2 * 3", "7"),
    ("7 // 2", "3"),
    ("-7 // 2", "-4"),
    ("7 // -2", "-4"),
    ("-7 % 3", "2"),
    ("7 % -3", "-2"),
    ("7 / 2", "3.5"),
    ("6 / 2", "3.0"),
    ("-6 // 4 * 4", "-8"),
    ("1 / 3", "0.3333333333333333"),
    ("9007199254740993 / 3", "3002399751580331.0"),
    ("9223372036854775807 / 9007199254740993", "1023.9999999999999"),
    ("-9223372036854775807 / 3", "-3.0744573456182584e+18"),
    ("9223372036854775807 / 7", "1.3176245766935393e+18"),
    ("1 / 9223372036854775807", "1.0842021724855044e-19"),
    ("0 / 5", "0.0"),
    ("7.5 // 2", "3.0"),
    ("-7.5 // 2", "-4.0"),
    ("7.5 % -2", "-0.5"),
    ("-7.5 % 2", "0.5"),
    ("0.3 % 0.1", "0.09999999999999998"),
    ("-0.3 // 0.1", "-3.0"),
    ("1 - 0.9", "0.09999999999999998"),
    ("6.0 % 3", "0.0"),
    ("-6.0 % 3", "0.0"),
    ("2 - -3", "5"),
    ("0.1 + 0.2", "0.30000000000000004"),
    ("1.0 // 0.1", "9.0"),
    ("1e308 * 10", "inf"),
    ("9223372036854775807 + 0.5", "9.223372036854776e+18"),
    ("(1 + 2) * -3", "-9"),
    ("min(3, 2.5, 4)", "2.5"),
    ("max(3, 2.5, 4)", "4"),
    ("min(2, 2.0)", "2"),
    ("max(2.0, 2)", "2.0"),
    ("min(e for e in 3..7)", "3"),
    ("max(e * e for e in -5..3)", "25"),
    ("up(10, 4)", "12"),
    ("up(12, 4)", "12"),
    ("up(-10, 4)", "-8"),
    ("up(0, 64)", "0"),
];

#[test]
fn numbers_are_pythons() {
    for (text, want) in NUMBERS {
        match value(text) {
            Ok(Value::Integer(got)) => assert_eq!(got.to_string(), *want, "{text}"),
            Ok(Value::Real(got)) => {
                assert!(want.contains(['.', 'i']), "{text} is {got:?}");
                assert_eq!(
                    got.to_bits(),
                    want.parse::<f64>().unwrap().to_bits(),
                    "{text} is {got:?}"
                );
            }
            other => panic!("{text}: {other:?}"),
        }
    }
}

/// Computed by Python 3.
#[rustfmt::skip]
const CONDITIONS: &[(&str, bool)] = &[
    ("1 < 2 < 3", true),
    ("1 < 3 < 2", false),
    ("3 > 2 >= 2 != 1", true),
    ("9007199254740993 == 9007199254740992.0", false),
    ("9007199254740993 > 9007199254740992.0", true),
    ("9223372036854775807 < 9223372036854775808.0", true),
    ("-1 < -0.5", true),
    ("1 == 1.0", true),
    ("2 <= 2.0", true),
    ("not 1 == 2", true),
    ("1 == 2 or 2 == 2", true),
    ("1 == 1 and not 2 == 2", false),
    ("0.1 + 0.2 == 0.3", false),
    ("1 < 2 == 2", true),
];

#[test]
fn conditions_are_pythons() {
    for (text, want) in CONDITIONS {
        assert_eq!(holds(text), Ok(*want), "{text}");
    }
}

#[test]
fn names_in_conditions() {
    for text in [
        "dtype == 'F32' and ndim == 2",
        "dtype != 'BF16'",
        "dim(it, 0) == 4 and dim(it, -1) == config.hidden_size",
        "n == 3 and n == '3' and 2 < n <= 3",
        "x == 'k' and x != 'q' and x != 3",
        "config.model_type == 'llama'",
        "config.tie",
        "not config.tie == 0",
        "n // 2 == rank",
        "'l.{n}' == 'l.3'",
        // What decides first decides alone.
        "rank == 1 or 1 // 0 == 0",
        "not (rank == 2 and 1 // 0 == 0)",
        "not 2 < 1 < 1 // 0",
    ] {
        assert_eq!(holds(text), Ok(true), "{text}");
    }
    let what = |text| why(holds(text));
    assert_eq!(
        what("rank"),
        (0, "1 where a condition is needed (==, <, …)".into())
    );
    assert_eq!(
        what("1 < x"),
        (4, "text 'k' where a number is needed".into())
    );
    assert_eq!(
        what("it == 1"),
        (0, "the tensor 'l.3.weight' cannot be compared".into())
    );
    assert_eq!(
        what("dim('l.4.weight', 0) == 4"),
        (4, "dim: text 'l.4.weight' where a tensor is needed".into())
    );
    assert_eq!(holds("dim(tuned:it, 0) == 4"), Ok(true));
}

#[test]
fn names_are_filled_in() {
    assert_eq!(
        named("a.{n}.{x}_proj.{{{n - 4*rank}}}"),
        Ok("a.3.k_proj.{-1}".into())
    );
    assert_eq!(
        named("{config.model_type}.{up(n, 4)}"),
        Ok("llama.4".into())
    );
    assert_eq!(
        why(named("a.{rank / 2}")),
        (8, "0.5 where text or a whole number is needed".into())
    );
    assert_eq!(
        why(named("{it}")),
        (
            1,
            "the tensor 'l.3.weight' where text or a whole number is needed".into()
        )
    );
    let (at, what) = why(named("{ranc}"));
    assert!(
        at == 1 && what.starts_with("'ranc' is not a hole, a parameter or a loop variable here"),
        "{what}"
    );
}

#[test]
fn functions_make_shapes() {
    for (text, want) in [
        ("it[1:3, :]", &[2, 6][..]),
        ("it[1]", &[6]),
        ("it[-1, ::4]", &[2]),
        ("it[::2]", &[2, 6]),
        ("it[3:1]", &[0, 6]),
        ("it[4:]", &[0, 6]),
        ("it[-4:-1]", &[3, 6]),
        ("part(it, rank, 2, axis=1)", &[4, 3]),
        ("part(it, n % 2, 2, axis=-2)", &[2, 6]),
        ("concat(it, 'l.4.weight', tuned:it)", &[12, 6]),
        ("concat(it, 'l.4.weight', axis=-1)", &[4, 12]),
        ("concat('l.{e + 3}.weight' for e)", &[12, 6]),
        ("stack(it[e] for e in 0..4, axis=1)", &[6, 4]),
        ("stack(it, it, axis=-1)", &[4, 6, 2]),
        ("pad(it, up(dim(it, 0), 64))", &[64, 6]),
        ("reshape(it, 2, -1)", &[2, 12]),
        ("reshape(it, 24)", &[24]),
        ("permute(reshape(it, 2, 2, 6), 0, -1, 1)", &[2, 6, 2]),
        ("t(it)", &[6, 4]),
        ("it @ t(tuned:it)", &[4, 4]),
        ("(0.6 * it + 0.4 * tuned:it) / 1.0", &[4, 6]),
        ("-it + n", &[4, 6]),
        ("bf16(it)[0:1]", &[1, 6]),
    ] {
        assert_eq!(shape(text), want, "{text}");
    }
    assert!(tensor("bf16(it)").dtype.is(Dtype::BF16) && tensor("it + 1").dtype.is(Dtype::F32));
    assert!(
        tensor("f8_e4m3(it)").dtype.is(Dtype::F8_E4M3) && tensor("f16(it)").dtype.is(Dtype::F16)
    );
    // A number is rounded once: this one is halfway in binary64.
    let Expr::Computed(sum) = tensor("it + 16777217").expr else {
        panic!();
    };
    assert!(matches!(sum.operands[1], Expr::Number(16_777_216.0)));
}

#[test]
fn mistakes_have_their_place() {
    for (text, at, what) in [
        ("1 + x", 4, "text 'k' where a number is needed"),
        (
            "huge + 1",
            0,
            "text '99999999999999999999' where a number is needed",
        ),
        ("it + config.tie", 5, "true where a number is needed"),
        (
            "9223372036854775807 + 1",
            20,
            "'+': of 9223372036854775807 and 1 does not fit in 64 bits",
        ),
        ("1 // (n - 3)", 2, "'//': division by 0"),
        ("it / 0", 3, "'/': division by 0"),
        ("it // 2", 3, "'//': is for numbers, not for tensors"),
        ("it @ 2", 3, "'@': needs two matrices: 2"),
        (
            "it + it[0:2]",
            3,
            "'+': shapes differ: [4, 6] ('l.3.weight') and [2, 6] (slice of 'l.3.weight')",
        ),
        (
            "part(it, 1, 8)",
            0,
            "part: axis 0 of 'l.3.weight' is 4, which 8 does not divide",
        ),
        (
            "part(it, 1.5, 8)",
            9,
            "1.5 where a whole number is needed; '//' divides without a fraction",
        ),
        ("part(rank, 1, 8)", 5, "part: 1 where a tensor is needed"),
        (
            "part(it, 0, 2, axis=2)",
            20,
            "part: there is no axis 2 of 'l.3.weight' ([4, 6])",
        ),
        ("it[4]", 3, "4 is out of range: axis 0 of 'l.3.weight' is 4"),
        (
            "it[0, -7:]",
            6,
            "-7 is out of range: axis 1 of 'l.3.weight' is 6",
        ),
        ("it[::0]", 5, "steps are positive, not 0"),
        (
            "it[0, 0, 0]",
            0,
            "3 indexes for 2 axes: 'l.3.weight' is [4, 6]",
        ),
        ("rank[0]", 0, "1 has no axes to index"),
        (
            "reshape(it, 5, -1)",
            0,
            "reshape: [4, 6] ('l.3.weight') has 24 elements, which [5, -1] cannot hold",
        ),
        (
            "reshape(it, -1, -1)",
            0,
            "reshape: [-1, -1]: only one size may be -1",
        ),
        (
            "reshape(it, 5, 5)",
            0,
            "reshape: [4, 6] ('l.3.weight') has 24 elements, [5, 5] has 25",
        ),
        ("f32('c')", 0, "f32: 'c' is C64, which has no values"),
        ("bf16(2)", 5, "bf16: 2 where a tensor is needed"),
        ("concat(it, 'nope')", 11, "'nope' is not there"),
        (
            "concat(it for k)",
            14,
            "'for k' needs a range (k in 0..n), or a hole {k#} in the pattern",
        ),
        ("concat(it for k in 0..0)", 0, "concat: nothing to join"),
        (
            "concat(it for k in 1..70000)",
            14,
            "1..70000 is 69999 numbers, at most 65536 are possible",
        ),
        ("up(3, 0)", 0, "up: a multiple of 0: it must be at least 1"),
    ] {
        assert_eq!(why(value(text)), (at, what.into()), "{text}");
    }
}
