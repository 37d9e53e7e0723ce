//! `{e#}`: several tensors are one match.

use super::*;

const STACK: &str = r#"rules = [{ on = "{p..}.experts.{e#}.w2.weight", to = "{p}.down", is = "stack('{p}.experts.{e}.w2.weight' for e)" }]"#;

fn experts(layer: u32, numbers: &[u32]) -> Vec<String> {
    let name = |e: &u32| format!("l.{layer}.experts.{e}.w2.weight");
    numbers.iter().map(name).collect()
}

fn case(names: &[String]) -> Case {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    Case::of_names(&names)
}

#[test]
fn names_that_differ_in_their_numbers_are_one_match() {
    let names = [
        experts(0, &(0..12).collect::<Vec<_>>()),
        experts(1, &[0, 1]),
    ]
    .concat();
    let case = case(&names);
    assert_eq!(
        case.left(STACK),
        ["l.0.down BF16 [12, 4, 6]", "l.1.down BF16 [2, 4, 6]"]
    );
    // Parts are in numeric order.
    let results = case.run(STACK).unwrap_or_else(|m| panic!("{m:?}"));
    let first = results
        .tensors
        .iter()
        .find(|o| &*o.name == "l.0.down")
        .unwrap();
    let name = |&(_, id): &(usize, u32)| case.sources.models[0].model.name(id).to_string();
    let parts: Vec<String> = case
        .sources
        .parts(&first.tensor.expr)
        .iter()
        .map(name)
        .collect();
    assert_eq!(parts, experts(0, &(0..12).collect::<Vec<_>>()));
    assert_eq!(results.applied[0].matches, 2);
    let example = results.applied[0].example.as_ref().unwrap();
    assert_eq!(&*example.0, "l.0.experts.0.w2.weight");
}

#[test]
fn further_patterns_are_filled_in_for_each_number() {
    let names = ["x.0.w1", "x.0.w3", "x.1.w1", "x.1.w3", "x.gate"];
    let case = Case::of_names(&names);
    let rule = r#"rules = [{ on = ["{p}.{e#}.w1", "{p}.{e#}.w3", "{p}.gate"], to = "{p}.up", is = "stack(concat('{p}.{e}.w1', '{p}.{e}.w3') for e)" }]"#;
    assert_eq!(case.left(rule), ["x.up BF16 [2, 8, 6]"]);
}

#[test]
fn a_gap_is_an_error() {
    let at = "r.toml:2:18";
    let first = case(&experts(0, &[1, 2])).wrong(STACK);
    let [message] = &first[..] else {
        panic!("{first:?}");
    };
    assert!(message.starts_with(at), "{message}");
    assert!(
        message.contains("'l.0.experts.0.w2.weight' is not there"),
        "{message}"
    );
    let inside = case(&experts(3, &[0, 1, 3, 10])).wrong(STACK);
    let [message] = &inside[..] else {
        panic!("{inside:?}");
    };
    assert!(
        message.contains("'l.3.experts.2.w2.weight' is not there"),
        "{message}"
    );
    assert!(message.contains("'l.3.experts.10.w2.weight'"), "{message}");
}

#[test]
fn several_numbers_are_a_grid() {
    let names = ["x.0.0", "x.0.1", "x.1.0", "x.1.1", "x.2.0", "x.2.1"];
    let rule = r#"rules = [{ on = "x.{a#}.{b#}", to = "x", is = "stack(stack('x.{a}.{b}' for b) for a)" }]"#;
    assert_eq!(Case::of_names(&names).left(rule), ["x BF16 [3, 2, 4, 6]"]);
    let wrong = Case::of_names(&names[..5]).wrong(rule);
    assert!(wrong[0].contains("'x.2.1' is not there"), "{wrong:?}");
}

#[test]
fn it_and_a_result_in_place_are_no_single_tensor() {
    let case = case(&experts(0, &[0, 1]));
    let wrong = case.wrong(r#"rules = [{ on = "l.0.experts.{e#}.w2.weight", is = "stack('l.0.experts.{e}.w2.weight' for e)" }]"#);
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(
        wrong[0].starts_with("r.toml:2: {e#} gathers several tensors"),
        "{wrong:?}"
    );
    let wrong =
        case.wrong(r#"rules = [{ on = "l.0.experts.{e#}.w2.weight", to = "x", is = "bf16(it)" }]"#);
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(wrong[0].starts_with("r.toml:2:68: 'it'"), "{wrong:?}");
    // Its shape is that of all.
    assert_eq!(
        case.left(r#"rules = [{ on = "l.0.experts.{e#}.w2.weight", to = "x", is = "reshape(stack('l.0.experts.{e}.w2.weight' for e), -1, dim(it, 1))" }]"#),
        ["x BF16 [8, 6]"]
    );
}

#[test]
fn where_is_about_each_name() {
    let case = case(&experts(0, &[0, 1, 2]));
    assert_eq!(
        case.left(r#"rules = [{ on = "l.0.experts.{e#}.w2.weight", where = "dtype == 'BF16'", to = "x", is = "stack('l.0.experts.{e}.w2.weight' for e)" }]"#),
        ["x BF16 [3, 4, 6]"]
    );
    assert_eq!(
        case.names(r#"rules = [{ drop = "l.0.experts.{e}.w2.weight", where = "e >= 1" }]"#),
        experts(0, &[0])
    );
}

#[test]
fn and_back() {
    let case = Case::new(&[zeros("m.experts.down_proj", Dtype::BF16, &[3, 4, 6])]);
    assert_eq!(
        case.left(r#"rules = [{ on = "{p..}.experts.down_proj", for = "e in 0..dim(it, 0)", to = "{p}.experts.{e}.down_proj.weight", is = "it[e]" }]"#),
        [
            "m.experts.0.down_proj.weight BF16 [4, 6]",
            "m.experts.1.down_proj.weight BF16 [4, 6]",
            "m.experts.2.down_proj.weight BF16 [4, 6]"
        ]
    );
}
