//! Large recipes, and how long they take.

use super::*;

#[test]
fn a_million_results_are_the_limit() {
    let case = Case::of_names(&["a"]);
    let rest = r#"rules = [
{ on = "a", for = "r in 0..1000", to = "a.{r}" },
{ on = "a.{n}", for = "r in 0..65536", to = "a.{n}.{r}" }]"#;
    let wrong = case.wrong(rest);
    assert_eq!(
        wrong,
        ["r.toml:4: the rules make more than 1000000 tensors"]
    );
    let wrong = case.wrong(r#"rules = [{ on = "a", for = "r in 0..65537", to = "a.{r}" }]"#);
    assert_eq!(wrong.len(), 1);
    assert!(
        wrong[0].contains("65537 numbers, at most 65536"),
        "{wrong:?}"
    );
}

#[test]
fn names_that_double_end() {
    let case = Case::of_names(&["ab"]);
    let rule = r#"{ on = "{x..}", to = "{x}{x}" },"#;
    let wrong = case.wrong(&format!("rules = [{}]", rule.repeat(60)));
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(wrong[0].contains("at most 4096"), "{wrong:?}");
}

#[test]
fn ranges_within_ranges_end() {
    let case = Case::of_names(&["a"]);
    let within = "concat(concat(it for b in 0..65536) for c in 0..65536)";
    let wrong = case.wrong(&format!(r#"rules = [{{ on = "a", is = "{within}" }}]"#));
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(wrong[0].contains("steps"), "{wrong:?}");
    let within = "max(max(1 for b in 0..65536) for c in 0..65536)";
    let wrong = case.wrong(&format!("set = {{ p = \"{within}\" }}\nrules = []"));
    assert!(wrong[0].contains("steps"), "{wrong:?}");
}

/// What takes only a few lines to write must not take more than a second or so: some 16 million steps.
#[test]
fn steps_are_for_tensors_that_there_are() {
    let case = Case::of_names(&["a"]);
    let ranges = |function: &str, of: &str| {
        let three = ["b", "c", "d"].into_iter();
        three.fold(of.to_string(), |of, v| {
            format!("{function}({of} for {v} in 0..65536)")
        })
    };
    let few = format!("{} steps", (1 << 24) + 256 * 2);
    for is in [ranges("stack", "it"), format!("it[{}]", ranges("max", "0"))] {
        let wrong = case.wrong(&format!(r#"rules = [{{ on = "a", is = "{is}" }}]"#));
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert!(wrong[0].contains(&few), "{wrong:?}");
    }
    let condition = ranges("min", "0");
    let wrong = case.wrong(&format!(
        r#"rules = [{{ on = "a", where = "{condition} == 0", is = "it" }}]"#
    ));
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    let few = format!("{} steps", (1 << 24) + 32);
    assert!(wrong[0].contains(&few), "{wrong:?}");
    // Many results may take more.
    let parts = "concat(part(it, r % 4, 4) for i in 0..8)";
    let left = case.left(&format!(
        r#"rules = [{{ on = "a", for = "r in 0..40000", to = "a.{{r}}", is = "{parts}[0]" }}]"#
    ));
    assert_eq!(left.len(), 40_000);
}

#[test]
fn comparisons_of_patterns_with_names_are_counted() {
    let names: Vec<String> = (0..20_000).map(|n| format!("l.{n}.w")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let case = Case::of_names(&names);
    let alternatives: Vec<String> = (0..800).map(|n| format!("b{n}")).collect();
    let pattern = format!("\"{{x={}}}*\",", alternatives.join("|"));
    let rules = |action: &str, optional: &str| {
        format!(
            "rules = [{{ {action} = [{}]{optional} }}, {{ drop = \"no\" }}]",
            pattern.repeat(200)
        )
    };
    for (action, optional) in [("keep", ""), ("drop", ", optional = true")] {
        let wrong = case.wrong(&rules(action, optional));
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert!(
            wrong[0].starts_with("r.toml:2: the patterns of all rules have too many pieces"),
            "{wrong:?}"
        );
    }
    let further = "\"{x..}\",".repeat(998);
    let rule = format!("{{ on = [\"{{x..}}\", {further}], add = \"n.{{x}}\", is = \"it\" }},");
    let wrong = case.wrong(&format!("rules = [{rule}]"));
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(wrong[0].contains("too many pieces"), "{wrong:?}");
}
