use super::*;

/// Each rule has that one mistake, in the second line.
#[test]
fn rules() {
    for (rule, mistake) in [
        (
            "{ droop = 'x' }",
            "2:3: unknown key 'droop'; did you mean 'drop'?",
        ),
        (
            "{ on = 'x', wehre = 'ndim == 1' }",
            "2:13: unknown key 'wehre'; did you mean 'where'?",
        ),
        ("{ }", "2:1: a rule has one of keep, drop, on and lora"),
        (
            "{ optional = true }",
            "2:1: a rule has one of keep, drop, on and lora",
        ),
        (
            "{ drop = 'x', keep = 'y' }",
            "2:15: 'drop' and 'keep' in one rule; make it two",
        ),
        (
            "{ drop = 'x', to = 'y' }",
            "2:15: 'to' is not for rules with drop",
        ),
        (
            "{ lora = 'tuned', where = 'ndim == 1' }",
            "2:19: 'where' is not for rules with lora",
        ),
        (
            "{ on = 'x', scale = 2 }",
            "2:13: 'scale' is not for rules with on",
        ),
        (
            "{ lora = 'tund' }",
            "2:11: 'tund' is not one of the models; did you mean 'tuned'?",
        ),
        (
            "{ lora = 'tuned', scale = 'it' }",
            "2:28: there are no tensors here, only numbers",
        ),
        (
            "{ on = 'x', to = 'y', add = 'z' }",
            "2:23: 'to' and 'add' in one rule: 'to' takes what was matched out of the model, 'add' leaves it there",
        ),
        (
            "{ on = 'x', to = { 'y' = 'it' }, is = 'it' }",
            "2:34: 'is' beside a table of results; there each name in 'to' has its own expression",
        ),
        (
            "{ on = 'x', to = { } }",
            "2:18: to: no result; it has lines of \"NAME\" = \"EXPRESSION\"",
        ),
        (
            "{ on = 'x', to = 3 }",
            "2:18: to must be a name or a table of \"NAME\" = \"EXPRESSION\", not an integer",
        ),
        ("{ on = [] }", "2:8: on: no pattern"),
        (
            "{ on = ['x', 1.5] }",
            "2:14: on: a pattern must be a string, not a float",
        ),
        (
            "{ on = 'x', optional = 'yes' }",
            "2:24: optional must be true or false, not a string",
        ),
        ("3", "2:1: a rule must be a table, not an integer"),
        (
            "{ on = 'x.{n}.{n}' }",
            "2:15: the hole 'n' stands twice; give one another name, and say that they are equal: where = \"n == …\"",
        ),
        (
            "{ on = 'x.{tp}' }",
            "2:11: 'tp' is a parameter already; choose another name",
        ),
        (
            "{ on = 'x.{tuned}' }",
            "2:11: 'tuned' is a model already; choose another name",
        ),
        (
            "{ on = 'x.{dtype}' }",
            "2:11: the name 'dtype' is taken; choose another one",
        ),
        (
            "{ on = ['x.{n}', 'y.{m}'] }",
            "2:21: 'm' is not a hole of the first pattern, by which the others are filled in",
        ),
        (
            "{ on = ['x.{n}', 'y.*'] }",
            "2:21: '*' is for the first pattern, by which the others are filled in",
        ),
        (
            "{ on = 'x.{n', to = 'y' }",
            "2:11: '{' is not closed; a brace in text is '{{'",
        ),
        (
            "{ on = 'x.n}' }",
            "2:12: '}' closes nothing; a brace in text is '}}'",
        ),
        (
            "{ on = 'x.{e#}', to = 'y.{e}' }",
            "2:27: 'e' gathers: it is a number only where a function repeats its argument 'for e'",
        ),
    ] {
        assert_eq!(mistakes(&in_rule(rule)), [mistake], "{rule}");
    }
}

#[test]
fn names_in_expressions() {
    for (rule, mistake) in [
        (
            "{ on = 'x.{nn}', to = 'y.{n}' }",
            "2:27: 'n' is not a hole, a parameter or a variable here; did you mean 'nn'?",
        ),
        (
            "{ on = 'x', is = 'it * rnak' }",
            "2:24: 'rnak' is not a hole, a parameter or a variable here; did you mean 'rank'?",
        ),
        (
            "{ on = 'x', is = 'it + tund:it' }",
            "2:24: 'tund' is not one of the models; did you mean 'tuned'?",
        ),
        (
            "{ on = 'x', is = 'tuned + 1' }",
            "2:19: 'tuned' is a model; its tensors are tuned:'NAME' and tuned:it",
        ),
        (
            "{ on = 'x', is = 'bf61(it)' }",
            "2:19: 'bf61' is not a function; did you mean 'bf16'?",
        ),
        (
            "{ on = 'x', is = 'dim(it, ndim)' }",
            "2:27: ndim is for conditions (where)",
        ),
        (
            "{ on = 'x', is = \"stack('y.{e}' for e)\" }",
            "2:37: 'e' is not a hole that gathers numbers, such as {e#}; give its numbers, as in for e in 0..4",
        ),
        (
            "{ on = 'x', is = \"stack('y.{tp}' for tp in 0..2)\" }",
            "2:38: 'tp' is a parameter already; choose another name",
        ),
        (
            "{ on = 'x.{e#}', is = \"stack('y.{e}' for e in 0..2)\" }",
            "2:42: 'e' is a hole already; choose another name",
        ),
        (
            "{ on = 'x.{n}', for = 'n in 0..2' }",
            "2:24: 'n' is a hole already; choose another name",
        ),
        (
            "{ on = 'x', for = 'i in 0..i' }",
            "2:28: 'i' is not a hole, a parameter or a variable here; did you mean 'it'?",
        ),
        (
            "{ on = 'x', for = 'i = 0..4' }",
            "2:22: expected 'in', as in for e in 0..4, found '='",
        ),
        (
            "{ keep = ['{a}.x', '{b}.y'], where = 'a == 1' }",
            "2:39: 'a' is not a hole, a parameter or a variable here",
        ),
        // The column counts characters, and escapes are several.
        (
            "{ on = \"é\\u00e9.{x..}\", to = \"é\\u00e9.{xx}\" }",
            "2:40: 'xx' is not a hole, a parameter or a variable here; did you mean 'x'?",
        ),
    ] {
        assert_eq!(mistakes(&in_rule(rule)), [mistake], "{rule}");
    }
    for rule in [
        "{ on = 'x.{e#}', where = 'e < 4', is = \"stack('x.{e}' for e)\" }",
        "{ on = 'x', is = \"stack(stack('y.{a}.{b}' for b in 0..a) for a in 0..2)\" }",
        "{ on = 'x', where = \"dtype == '{tp}' or ndim == 2 or model:'y'[0] == 1\" }",
        "{ keep = ['{a}.x', '{a}.y'], where = \"a == 'b'\" }",
    ] {
        assert_eq!(mistakes(&in_rule(rule)), Vec::<String>::new(), "{rule}");
    }
}

#[test]
fn the_other_keys() {
    for (text, mistake) in [
        (
            "modle = 'm'",
            "1:1: unknown key 'modle'; did you mean 'model'?",
        ),
        (
            "",
            "1:1: model is missing: the path of the model that the rules start with",
        ),
        (
            "model = 3",
            "1:9: a model is a path, or a table with path, as and set, not an integer",
        ),
        ("model = ''", "1:10: an empty path"),
        ("model = { as = 'floats' }", "1:9: path is missing"),
        (
            "model = { path = 'm', as = 'float' }",
            "1:29: as: 'float' is not known; did you mean 'floats'?",
        ),
        (
            "model = { path = 'm', sets = {} }",
            "1:23: unknown key 'sets'; did you mean 'set'?",
        ),
        (
            "model = 'm'\nmodels = { model = 'n' }",
            "2:12: the name 'model' is taken; choose another one",
        ),
        (
            "model = 'm'\nmodels = { a-b = 'n' }",
            "2:12: 'a-b' is not a name: letters, digits and '_', and no digit first",
        ),
        (
            "model = 'm'\nset = { a = 'b', b = 1 }",
            "2:14: 'b' is not known yet: a parameter may use those above it",
        ),
        (
            "model = 'm'\nset = { a = 'a' }",
            "2:14: 'a' is not known yet: a parameter may use those above it",
        ),
        (
            "model = 'm'\nset = { a = 'it' }",
            "2:14: there are no tensors here, only numbers",
        ),
        (
            "model = 'm'\nset = { a = true }",
            "2:13: a parameter must be a number or an expression, not a boolean",
        ),
        (
            "model = 'm'\nset = { a = 9223372036854775808 }",
            "2:13: too large: whole numbers are from -2^63 to 2^63 - 1",
        ),
        (
            "model = 'm'\nset = { bf16 = 1 }",
            "2:9: the name 'bf16' is taken; choose another one",
        ),
        (
            "model = 'm'\nset = { a = 1 }\nmodels = { a = 'n' }",
            "2:9: 'a' is a model already; choose another name",
        ),
        (
            "model = 'm'\nrules = 'x'",
            "2:9: rules must be an array, not a string",
        ),
        (
            "model = 'm'\nconfig = { sets = {} }",
            "2:12: unknown key 'sets'; did you mean 'set'?",
        ),
        (
            "model = 'm'\nconfig = { set = { a = 1979-05-27 } }",
            "2:24: JSON has no dates; write a string",
        ),
        (
            "model = 'm'\nconfig = { set = { a = inf } }",
            "2:24: not a number of JSON",
        ),
        (
            "model = 'm'\nconfig = { remove = ['a..b'] }",
            "2:23: an empty key",
        ),
        (
            "model = 'm'\nexports = [{ on = 'a' }]",
            "2:12: an export has file and on; file is missing",
        ),
        (
            "model = 'm'\nexports = [{ file = 'x-{r}', on = 'a' }]",
            "2:25: 'r' is not a parameter",
        ),
        (
            "model = 'm'\nexports = [{ file = 'x', on = 'a', where = 'b' }]",
            "2:36: unknown key 'where'; an export has file, on, to",
        ),
    ] {
        assert_eq!(mistakes(text), [mistake], "{text}");
    }
}

#[test]
fn toml() {
    let one = mistakes("model = 'm'\nrules = [\n  { on = 'x' to = 'y' },\n]");
    assert_eq!(one.len(), 1);
    assert!(
        one[0].starts_with("3:14: TOML: ") && one[0].contains("comma"),
        "{}",
        one[0]
    );
    let twice = mistakes("model = 'm'\nmodel = 'n'");
    assert_eq!(twice, ["2:1: TOML: duplicate key"]);
    // TOML 1.1: an inline table may go over lines.
    assert_eq!(
        mistakes("model = {\n  path = 'm',\n}\n"),
        Vec::<String>::new()
    );
}

#[test]
fn all_are_listed_in_order() {
    let text = "rules = [\n{ on = 'x', is = 'foo(' },\n{ drop = '{' },\n{ on = 'y', is = 'k' },\n]\nset = { a = 'b' }\n";
    let lines: Vec<String> = mistakes(text)
        .iter()
        .map(|m| m.split(": ").next().unwrap().to_string())
        .collect();
    assert_eq!(lines, ["1:1", "2:19", "3:11", "4:19", "6:14"]);
}
