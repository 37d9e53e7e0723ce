use super::*;

#[test]
fn operators_bind_as_in_python() {
    for (text, tree) in [
        ("1 + 2 * 3", "(Add 1 (Multiply 2 3))"),
        ("1 - 2 - 3", "(Subtract (Subtract 1 2) 3)"),
        ("rank * kvs // tp", "(FloorDivide (Multiply rank kvs) tp)"),
        ("7 % 4 / 2", "(Divide (Modulo 7 4) 2)"),
        ("a @ b * 2", "(Multiply (Product a b) 2)"),
        (
            "it + 0.5 * ('B' @ 'A')",
            "(Add it (Multiply 0.5 (Product 'B' 'A')))",
        ),
        ("-it[0]", "(- it[0])"),
        ("-a * b", "(Multiply (- a) b)"),
        ("a * -b", "(Multiply a (- b))"),
        ("(1 + 2) * 3", "(Multiply (Add 1 2) 3)"),
        (
            "(0.6 * it + 0.4 * tuned:it) / 1.0",
            "(Divide (Add (Multiply 0.6 it) (Multiply 0.4 tuned:it)) 1.0)",
        ),
    ] {
        assert_eq!(show(&expression(text).unwrap()), tree, "{text}");
    }
}

#[test]
fn atoms_are_understood() {
    for (text, tree) in [
        ("config.rope.theta", "config[rope theta]"),
        ("config . x", "?"),
        ("model:'lm_head.weight'", "model:'lm_head.weight'"),
        ("tuned : it", "tuned:it"),
        ("'{p}.up_proj.weight'", "'{p}.up_proj.weight'"),
        (
            "'l.{n - 16*stage}.w'",
            "'l.{(Subtract n (Multiply 16 stage))}.w'",
        ),
        ("'it''s {{x}}'", "'it's {x}'"),
        ("part(it, rank, tp, axis=1)", "(part it rank tp axis=1)"),
        ("part(it, rank, tp, 1)", "(part it rank tp axis=1)"),
        ("dim(it, axis=-1)", "(dim it (- 1))"),
        ("pad(x, up(dim(x, 0), 64))", "(pad x (up (dim x 0) 64))"),
        ("stack('{p}.{e}.w' for e)", "(stack '{p}.{e}.w' for e)"),
        ("concat(a, b, axis=-1)", "(concat a b axis=(- 1))"),
        (
            "concat('s.{i}' for i in 0..n + 1, axis=1)",
            "(concat 's.{i}' for i in 0..(Add n 1) axis=1)",
        ),
        ("reshape(it, -1, h)", "(reshape it (- 1) h)"),
        ("f8_e4m3(it)", "(f8_e4m3 it)"),
        ("axis * 2", "(Multiply axis 2)"),
    ] {
        match tree {
            "?" => assert!(expression(text).is_err(), "{text}"),
            _ => assert_eq!(show(&expression(text).unwrap()), tree, "{text}"),
        }
    }
}

#[test]
fn indexes_are_numpys() {
    for (text, tree) in [
        ("x[2:8, :, 0]", "x[2:8, :, 0]"),
        ("x[::2]", "x[::2]"),
        ("x[-1]", "x[(- 1)]"),
        ("x[:n][1]", "x[:n][1]"),
        ("x[a:b:c]", "x[a:b:c]"),
        ("x[n : dim(it, 0)]", "x[n:(dim it 0)]"),
    ] {
        assert_eq!(show(&expression(text).unwrap()), tree, "{text}");
    }
}

#[test]
fn numbers_are_pythons() {
    for (text, tree) in [
        ("1_000", "1000"),
        ("0x_ff", "255"),
        ("0b101", "5"),
        ("1.", "1.0"),
        (".5", "0.5"),
        ("2e3", "2000.0"),
        ("1_0.0_1e-1", "1.001"),
        ("9223372036854775807", "9223372036854775807"),
        ("-9223372036854775808", "-9223372036854775808"),
        ("00", "0"),
    ] {
        assert_eq!(show(&expression(text).unwrap()), tree, "{text}");
    }
    for (text, what) in [
        ("9223372036854775808", "too large"),
        ("99999999999999999999", "too large"),
        ("0x", "not a number"),
        ("1__0", "not a number"),
        ("1_", "not a number"),
        ("007", "leading zeros"),
        ("3x", "3*x"),
        ("2 ** 3", "no '**'"),
        ("0xfg", "not a number"),
    ] {
        let mistake = expression(text).unwrap_err();
        assert!(mistake.what.contains(what), "{text}: {}", mistake.what);
    }
}

#[test]
fn conditions_are_understood() {
    for (text, tree) in [
        ("dtype == 'F32'", "(dtype Equal 'F32')"),
        ("8 <= n < 16", "(8 LessOrEqual n Less 16)"),
        ("n // 16 != stage", "((FloorDivide n 16) NotEqual stage)"),
        ("not a == b and c or d", "(or (and (not (a Equal b)) c) d)"),
        ("a and b and c and d", "(and (and a b) (and c d))"),
        ("(a or b) and c", "(and (or a b) c)"),
        (
            "dim(it, 0) > 4 and ndim == 2",
            "(and ((dim it 0) Greater 4) (ndim Equal 2))",
        ),
        ("x == '*'", "(x Equal '*')"),
        ("x == ''", "(x Equal '')"),
    ] {
        assert_eq!(show(&condition(text).unwrap()), tree, "{text}");
    }
    let many: Vec<String> = (0..100).map(|n| format!("n == {n}")).collect();
    condition(&many.join(" or ")).unwrap();
}

#[test]
fn mistakes_name_the_place_and_what_was_meant() {
    for (text, at, what) in [
        (
            "",
            0,
            "expected a number, a name or a tensor, found the end",
        ),
        ("it it", 3, "expected an operator or the end, found 'it'"),
        ("part(it, 0, 4", 4, "'(' is not closed"),
        ("it)", 2, "')' closes nothing"),
        ("it[0", 2, "'[' is not closed"),
        ("it[0..4]", 4, "a slice is written start:stop"),
        ("it[]", 3, "expected an index or a slice, found ']'"),
        ("it + ", 5, "found the end"),
        ("'a.weight", 0, "the quote is not closed"),
        ("'a.{n'", 3, "'{' is not closed"),
        ("'a.n}'", 4, "'}' closes nothing"),
        ("'a.{}'", 3, "an empty hole"),
        ("'a.{rest..}'", 8, "write {NAME} alone"),
        ("'a.*'", 3, "'*' has no name"),
        (
            "bf61(it)",
            0,
            "'bf61' is not a function; did you mean 'bf16'?",
        ),
        ("part + 1", 0, "part is a function"),
        (
            "part(it, 1)",
            0,
            "part: 2 given, takes 3 arguments: part(x, i, n, axis=0)",
        ),
        ("concat()", 0, "concat: 0 given, takes at least 1 argument"),
        ("t(it, axis=0)", 0, "t has no axis"),
        (
            "bf16(it for e)",
            8,
            "'for' is for concat, stack, min and max",
        ),
        ("concat(a, b for e)", 12, "'for' repeats one argument"),
        (
            "stack(it for e in 0)",
            19,
            "expected '..', as in for e in 0..4",
        ),
        ("a < b", 2, "comparisons are for conditions"),
        ("a and b", 2, "'and' is for conditions"),
        ("it = 1", 3, "'=='"),
        ("--1", 1, "one '-' is enough"),
        ("a && b", 2, "'&&' is written 'and'"),
        ("\"x\"", 0, "quotes"),
        ("it + é", 5, "'é' means nothing here"),
        ("config", 0, "config.KEY"),
        ("config.", 7, "config.KEY"),
        (
            "part(it, 0, 2, axes=1)",
            15,
            "'axes' is not an argument; axis= alone is given by name; did you mean 'axis'?",
        ),
        ("it + ''", 5, "an empty name"),
        ("'x.{n'", 3, "'{' is not closed"),
    ] {
        let mistake = expression(text).unwrap_err();
        assert_eq!(mistake.at.0, at, "{text}: {}", mistake.what);
        assert!(mistake.what.contains(what), "{text}: {}", mistake.what);
    }
}

#[test]
fn depth_and_length_are_limited() {
    let nested = |n| format!("{}it{}", "(".repeat(n), ")".repeat(n));
    expression(&nested(64)).unwrap();
    for text in [
        nested(65),
        nested(2000),
        "f32(".repeat(1000) + "it",
        "it[".repeat(1000),
        format!("it{}", "[0]".repeat(100)),
        format!("1{}", "+1".repeat(100)),
        "-(".repeat(1000),
    ] {
        let mistake = expression(&text).unwrap_err();
        assert!(
            mistake
                .what
                .contains("more than 64 operations within one another"),
            "{}",
            mistake.what
        );
    }
    let not = condition(&"not ".repeat(1000)).unwrap_err();
    assert!(
        not.what
            .contains("more than 64 operations within one another"),
        "{}",
        not.what
    );
    let long = format!("concat({}it)", "it, ".repeat(1500));
    let mistake = expression(&long).unwrap_err();
    assert_eq!(
        mistake.what,
        "the expression has 6,010 characters; at most 4,096"
    );
    expression(&format!("it{}", " ".repeat(4094))).unwrap();
    expression(&format!("it{}", " ".repeat(4095))).unwrap_err();
}
