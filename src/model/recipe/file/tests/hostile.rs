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
        "=\n".repeat(100_000),
    ] {
        let found = mistakes(&text);
        assert!(!found.is_empty() && found.len() <= MAX_MISTAKES + 1);
    }
    let name = |i| format!("a{i} = 'b{i}', ");
    let names: String = (0..50_000).map(name).collect();
    let found = mistakes(&format!("model = 'm'\nset = {{ {names} }}"));
    assert_eq!(found.len(), MAX_MISTAKES + 1);
    assert!(found[MAX_MISTAKES].ends_with("49,000 more mistakes from here on"));
    let config = format!(
        "model = 'm'\nconfig.set.a = {}1{}",
        "[".repeat(66),
        "]".repeat(66)
    );
    assert_eq!(
        mistakes(&config),
        ["2:81: the value is nested deeper than 64"]
    );
}

#[test]
fn limits_hold() {
    let rules = |n| format!("model = 'm'\nrules = [\n{}]", "{ drop = 'x' },\n".repeat(n));
    assert_eq!(parse(&rules(1000)).unwrap().rules.len(), 1000);
    assert_eq!(
        mistakes(&rules(1001)),
        ["1003:1: 1,001 rules; a recipe has at most 1,000"]
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
