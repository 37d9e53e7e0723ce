//! Recipes that want to take long, or deep: each ends.

use super::*;

#[test]
fn deep_and_long_recipes_end() {
    let nested = |open: &str| format!("model = 'm'\na = {}", open.repeat(100_000));
    for text in [
        nested("["),
        nested("{a="),
        format!("a{} = 1", ".a".repeat(100_000)),
        format!("[{}a]", "a.".repeat(100_000)),
        format!(
            "model = 'm'\nrules = [{{ on = '{}' }}]",
            "{a}".repeat(100_000)
        ),
        "= ".repeat(100_000),
        "=\n".repeat(500_000),
        "\n=\n".repeat(340_000),
        format!("{}\n", "a ".repeat(500_000)),
    ] {
        let found = mistakes(&text);
        assert!(!found.is_empty() && found.len() <= MAX_MISTAKES + 1);
    }
    let name = |i| format!("a{i} = 'b{i}', ");
    let names: String = (0..50_000).map(name).collect();
    let found = mistakes(&format!("model = 'm'\nset = {{ {names} }}"));
    assert_eq!(found.len(), MAX_MISTAKES + 1);
    assert!(found[MAX_MISTAKES].ends_with("49,000 more mistakes from here on"));
}

#[test]
fn many_names_are_many_names_only() {
    let parameters: String = (1..40_000)
        .map(|i| format!("a{i} = 'a{}'\n", i - 1))
        .collect();
    let rule = "{ on = 'x.{n}', is = 'it + a1 + a39999' },\n";
    let text = format!(
        "model = 'm'\nrules = [\n{}]\n[set]\na0 = 1\n{parameters}",
        rule.repeat(1000)
    );
    assert_eq!(parse(&text).unwrap().set.len(), 40_000);
    // None of the models is there, and none is searched for each time.
    let models: String = (0..30_000).map(|i| format!("model{i} = 'm'\n")).collect();
    let sum = vec!["modl:it"; 400].join(" , ");
    let rule = format!("{{ on = 'x', is = 'concat({sum})' }},\n");
    let text = format!(
        "model = 'm'\nrules = [\n{}]\n[models]\n{models}",
        rule.repeat(100)
    );
    let found = mistakes(&text);
    assert!(found[0].contains("did you mean 'model'?"), "{}", found[0]);
    assert!(!found[30].contains("did you mean"), "{}", found[30]);
}

#[test]
fn the_depth_of_configurations_is_limited() {
    let nested = |n| format!("{}1{}", "[".repeat(n), "]".repeat(n));
    let keys = |n: usize| vec!["b"; n].join(".");
    let text = |change: String| format!("model = 'm'\nconfig.{change}");
    for (change, mistake) in [
        (
            format!("set.a = {}", nested(65)),
            "2:80: the value is nested deeper than 64",
        ),
        (
            format!("set.\"{}\" = [1]", keys(64)),
            "2:145: the value is nested deeper than 64",
        ),
        (
            format!("set.\"{}\" = 1", keys(200_000)),
            "2:13: 200,000 keys within one another; at most 64",
        ),
        (
            format!("set.a.\"{}\" = 1", keys(64)),
            "2:15: 65 keys within one another; at most 64",
        ),
        (
            format!("remove = ['{}']", keys(65)),
            "2:19: 65 keys within one another; at most 64",
        ),
    ] {
        assert_eq!(mistakes(&text(change)), [mistake]);
    }
    for change in [
        format!("set.a = {}", nested(64)),
        format!("set.\"{}\" = 1", keys(64)),
        format!("remove = ['{}']", keys(64)),
    ] {
        assert_eq!(mistakes(&text(change)), Vec::<String>::new());
    }
}

#[test]
fn limits_hold() {
    let rules = |n| format!("model = 'm'\nrules = [\n{}]", "{ drop = 'x' },\n".repeat(n));
    assert_eq!(parse(&rules(1000)).unwrap().rules.len(), 1000);
    assert_eq!(
        mistakes(&rules(1001)),
        ["1003:1: 1,001 rules; a recipe has at most 1,000"]
    );
    for key in ["keep = ", "drop = ", "on = "] {
        let patterns = |n| in_rule(&format!("{{ {key}[\n{}] }}", "'x',\n".repeat(n)));
        assert_eq!(parse(&patterns(1000)).unwrap().rules.len(), 1);
        let key = &key[..key.len() - 3];
        let what = format!("1003:1: {key}: 1,001 patterns; at most 1,000");
        assert_eq!(mistakes(&patterns(1001)), [what]);
    }
    let exports = |n| "{ file = 'f', on = 'x' },\n".repeat(n);
    let exports = |n| format!("model = 'm'\nexports = [\n{}]", exports(n));
    assert_eq!(parse(&exports(1000)).unwrap().exports.len(), 1000);
    assert_eq!(
        mistakes(&exports(1001)),
        ["1003:1: 1,001 exports; a recipe has at most 1,000"]
    );
    let patterns = "'x',\n".repeat(1001);
    let export = format!("model = 'm'\nexports = [{{ file = 'f', on = [\n{patterns}] }}]");
    assert_eq!(
        mistakes(&export),
        ["1003:1: on: 1,001 patterns; at most 1,000"]
    );
    let models = |n| (0..n).map(|i| format!("m{i} = 'x'\n")).collect::<String>();
    let models = |n| format!("model = 'm'\n[models]\n{}", models(n));
    assert_eq!(parse(&models(16)).unwrap().models.len(), 16);
    assert_eq!(
        mistakes(&models(17)),
        ["19:1: 17 models; a recipe has at most 16"]
    );
    let long = format!("model = 'm'\n#{}", "x".repeat(1 << 20));
    assert_eq!(
        mistakes(&long),
        ["1:1: the recipe has 1,048,589 bytes; at most 1 MiB"]
    );
    let mut text = format!("model = 'm'\n#{}", "x".repeat(1 << 20));
    text.truncate(1 << 20);
    parse(&text).unwrap();
}
