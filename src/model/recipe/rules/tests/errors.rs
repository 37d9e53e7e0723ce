//! What is wrong, in the words of the contract, and where.

use super::*;

/// The only mistake.
#[track_caller]
fn one(case: &Case, rest: &str) -> String {
    let wrong = case.wrong(rest);
    assert_eq!(wrong.len(), 1, "{wrong:#?}");
    wrong.into_iter().next().unwrap()
}

#[test]
fn a_missing_tensor_and_what_was_meant() {
    let case = Case::of_names(LLAMA);
    assert_eq!(
        one(
            &case,
            r#"rules = [{ on = "lm_head.weight", is = "concat(it, 'model.layers.0.self_attn.kproj.weight')" }]"#
        ),
        "r.toml:2:52: 'model.layers.0.self_attn.kproj.weight' is not there; did you mean 'model.layers.0.self_attn.k_proj.weight'?"
    );
    // Of a further pattern.
    assert_eq!(
        one(
            &case,
            r#"rules = [{ on = ["{p..}.gate_proj.weight", "{p..}.upproj.weight"], to = "{p}.fc", where = "p == 'model.layers.1.mlp'" }]"#
        ),
        "r.toml:2:45: 'model.layers.1.mlp.upproj.weight' is not there; did you mean 'model.layers.1.mlp.up_proj.weight'?"
    );
}

#[test]
fn a_tensor_that_a_rule_above_took_or_dropped() {
    let case = Case::of_names(&["a", "b", "c"]);
    assert_eq!(
        case.wrong(
            "rules = [\n{ on = \"a\", to = \"aa\" },\n{ drop = \"b\" },\n{ on = \"c\", to = { d = \"concat(it, 'a')\", e = \"concat(it, 'b')\" } },\n]"
        ),
        [
            "r.toml:5:36: 'a' is not there any more: line 3 took it",
            "r.toml:5:59: 'b' is not there any more: line 4 dropped it",
        ]
    );
}

#[test]
fn a_rule_that_matches_nothing() {
    let case = Case::of_names(&["l.0.q_proj.weight", "l.1.q_proj.weight"]);
    assert_eq!(
        one(
            &case,
            "rules = [\n{ on = \"*.q_porj.weight\", is = \"it\" }]"
        ),
        "r.toml:3: matches nothing: no name is like '*.q_porj.weight' (nearest to 'q_porj': 'q_proj'); optional = true if that may be"
    );
    for key in ["keep", "drop"] {
        let wrong = one(
            &case,
            &format!("rules = [{{ {key} = [\"x\", \"y.{{n}}\"] }}]"),
        );
        assert!(
            wrong.starts_with("r.toml:2: matches nothing: no name is like 'x' or 'y.{n}'"),
            "{wrong}"
        );
        assert!(
            wrong.ends_with("; optional = true if that may be"),
            "{wrong}"
        );
    }
    assert_eq!(
        one(&case, r#"rules = [{ drop = "l.{n}.*", where = "n > 7" }]"#),
        "r.toml:2: matches nothing: 'where' holds for none of 2 names like 'l.{n}.*'; optional = true if that may be"
    );
    let optional = r#"rules = [{ drop = "x", optional = true }, { on = "y", optional = true, to = "z" }, { keep = "l.*", optional = true }]"#;
    assert_eq!(
        case.names(optional),
        ["l.0.q_proj.weight", "l.1.q_proj.weight"]
    );
}

#[test]
fn names_that_are_made_twice() {
    let case = Case::of_names(&["x.weight", "y.weight", "z.weight"]);
    assert_eq!(
        one(
            &case,
            "rules = [\n{ drop = \"x.weight\" },\n{ on = \"y.weight\", add = \"x.weight\" },\n\n{ on = \"z.weight\", to = \"x.weight\" },\n]"
        ),
        "r.toml:6: makes 'x.weight', which line 4 made already"
    );
    let wrong = one(&case, r#"rules = [{ on = "y.weight", to = "x.weight" }]"#);
    assert!(
        wrong.starts_with("r.toml:2: makes 'x.weight', which the model has already"),
        "{wrong}"
    );
    assert_eq!(
        one(&case, r#"rules = [{ on = "{x=y|z}.weight", to = "new" }]"#),
        "r.toml:2: makes 'new', which line 2 made already, from 'y.weight' and now from 'z.weight'"
    );
    assert_eq!(
        one(
            &case,
            r#"rules = [{ on = "y.weight", for = "r in 0..2", to = "new" }]"#
        ),
        "r.toml:2: makes 'new', which line 2 made already, from 'y.weight' both times"
    );
    // In place of itself, and of what was taken, is no conflict.
    assert_eq!(
        case.names(r#"rules = [{ on = ["x.weight", "y.weight"], to = "y.weight" }]"#),
        ["y.weight", "z.weight"]
    );
}

#[test]
fn a_tensor_that_two_matches_take() {
    let case = Case::of_names(&["p.a", "p.b", "p.shared"]);
    assert_eq!(
        one(
            &case,
            r#"rules = [{ on = ["{p}.{x=a|b}", "{p}.shared"], to = "{p}.{x}2" }]"#
        ),
        "r.toml:2:34: 'p.shared' is taken by two matches, 'p.a' and 'p.b'"
    );
    // It may be used by two, if nobody takes it.
    assert_eq!(
        case.names(r#"rules = [{ on = ["{p}.{x=a|b}", "{p}.shared"], add = "{p}.{x}2" }]"#),
        ["p.a", "p.a2", "p.b", "p.b2", "p.shared"]
    );
}

#[test]
fn consequences_are_not_listed() {
    let case = Case::of_names(&["a", "b", "c"]);
    // 'd' would be there, and 'a' is something unknown.
    assert_eq!(
        case.wrong(
            r#"rules = [
{ on = "a", is = "it[9:10]" },
{ on = "b", to = "d", is = "concat(it, 'nothing')" },
{ on = "d", to = "e", is = "concat(it, 'a')" },
{ on = "e", is = "it[0:1]" },
{ on = "c", is = "it[7]" },
]"#
        )
        .iter()
        .map(|line| line.split(": ").next().unwrap().to_string())
        .collect::<Vec<_>>(),
        ["r.toml:3:22", "r.toml:4:40", "r.toml:7:22"]
    );
}

#[test]
fn the_same_mistake_of_many_tensors_is_listed_a_few_times() {
    let names: Vec<String> = (0..40).map(|n| format!("l.{n}.w")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let case = Case::of_names(&names);
    let wrong = case.wrong(r#"rules = [{ on = "l.{n}.w", is = "it + 'l.{n}.scale'" }]"#);
    assert_eq!(wrong.len(), 4, "{wrong:#?}");
    assert!(
        wrong[0].starts_with("r.toml:2:39: 'l.0.scale' is not there"),
        "{wrong:#?}"
    );
    assert!(
        wrong[2].starts_with("r.toml:2:39: 'l.2.scale' is not there"),
        "{wrong:#?}"
    );
    assert_eq!(wrong[3], "r.toml:2:39: and 37 more like these");
    // One that does not depend on the tensor is listed once.
    assert_eq!(
        case.wrong(r#"rules = [{ on = "l.{n}.w", is = "it[0:1 // 0]" }]"#)
            .len(),
        1
    );
}

#[test]
fn a_result_is_a_tensor_with_a_name() {
    let case = Case::of_names(&["a"]);
    assert_eq!(
        one(&case, r#"rules = [{ on = "a", is = "dim(it, 0)" }]"#),
        "r.toml:2:28: a result is a tensor, and this is the number 4"
    );
    let wrong = one(&case, r#"rules = [{ on = "{n}", to = "x.{n + 1}" }]"#);
    assert!(wrong.starts_with("r.toml:2:3"), "{wrong}");
}

#[test]
fn other_models() {
    let case =
        Case::of_names(&["a.weight", "b"]).and("tuned", &matrices(&["a.weight"]), Json::Null);
    let rest = |rule: &str| format!("models = {{ tuned = \"t\" }}\nrules = [{rule}]");
    assert_eq!(
        one(&case, &rest(r#"{ on = "b", is = "tuned:it" }"#)),
        "r.toml:3:28: tuned:'b' is not there"
    );
    assert_eq!(
        one(&case, &rest(r#"{ on = "b", is = "tuned:'a.wieght'" }"#)),
        "r.toml:3:28: tuned:'a.wieght' is not there; did you mean 'a.weight'?"
    );
}

/// It is the same for all tensors, and what is looked up once is not looked up for each.
#[test]
fn values_of_the_configuration() {
    let keys = (0..300).map(|n| (format!("key_{n}"), json!(n)));
    let mut config: serde_json::Map<String, Json> = keys.collect();
    config.insert("long".into(), "x".repeat(4097).into());
    config.insert("word".into(), "x".repeat(4096).into());
    let names: Vec<String> = (0..2000).map(|n| format!("l.{n}.w")).collect();
    let tensors: Vec<_> = names
        .iter()
        .map(|name| zeros(name, Dtype::BF16, &[1]))
        .collect();
    let case = Case::with_config(&tensors, config.into());
    let of = |key: &str| format!(r#"rules = [{{ drop = "*", where = "config.{key} == 1" }}]"#);
    let near = "is not in config.json; did you mean 'config.key_99'?";
    assert_eq!(
        case.wrong(&of("key299")),
        [format!("r.toml:2:33: config.key299 {near}")]
    );
    assert_eq!(
        case.wrong(&of("long")),
        ["r.toml:2:33: config.long is a text of 4097 bytes, at most 4096 are possible"]
    );
    assert_eq!(case.left(&of("key_1 - config.key_0")).len(), 0);
    assert!(case.wrong(&of("word"))[0].contains("'where' holds for none of"));
    // After many, the nearest key is no longer looked for.
    let missing = |n: usize| format!("{{ on = \"l.{n}.w\", is = \"it[config.key{n}]\" }},");
    let rules: String = (0..100).map(missing).collect();
    let wrong = case.wrong(&format!("rules = [{rules}]"));
    let meant = wrong.iter().filter(|w| w.contains("did you mean")).count();
    assert_eq!((wrong.len(), meant), (100, 30));
}

/// A text of digits is a number, with a sign it is text: in ranges as everywhere.
#[test]
fn ranges_of_results_are_those_of_expressions() {
    let case = Case::of_names(&["w-3"]);
    let wrong = one(
        &case,
        r#"rules = [{ on = "w{n}", for = "r in n..0", to = "x{r}" }]"#,
    );
    assert!(
        wrong.contains("text '-3' where a whole number is needed"),
        "{wrong}"
    );
}
