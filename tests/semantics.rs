//! `doc/SEMANTICS.md` names the tests of its promises. Each of them must exist.

use std::path::Path;

/// The cells of a line of a Markdown table; none if it is not one.
fn cells(line: &str) -> Vec<&str> {
    let inner = line.strip_prefix('|').and_then(|l| l.strip_suffix('|'));
    inner.map_or_else(Vec::new, |l| l.split(" | ").map(str::trim).collect())
}

#[test]
fn every_promise_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("doc/SEMANTICS.md")).unwrap();
    let mut problems = Vec::new();
    let mut tests = 0;
    let mut section = "";
    for line in page.lines() {
        section = line.strip_prefix("## ").unwrap_or(section);
        let cells = cells(line);
        let Some(held_by) = cells.last() else {
            continue;
        };
        if *held_by == "held by" || held_by.starts_with("---") || line.starts_with("|---") {
            continue;
        }
        let names: Vec<&str> = held_by.split('`').skip(1).step_by(2).collect();
        if names.is_empty() {
            problems.push(format!("{section}: no test is named: {line}"));
        }
        for name in names {
            tests += 1;
            let Some((file, test)) = name.split_once("::") else {
                problems.push(format!("{section}: {name}: is not file::test"));
                continue;
            };
            let source = std::fs::read_to_string(root.join(file)).unwrap_or_default();
            let (keyword, mark) = match file.ends_with(".py") {
                true => ("def", "@check"),
                false => ("fn", "#[test]"),
            };
            let found = source.split_once(&format!("{keyword} {test}("));
            // In the same paragraph: a function that nothing runs holds nothing.
            let is_run = |before: &str| before.rsplit("\n\n").next().unwrap().contains(mark);
            if !found.is_some_and(|(before, _)| is_run(before)) {
                problems.push(format!(
                    "{section}: {name}: does not exist or is not a test"
                ));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    // The page was parsed.
    assert!(tests > 40, "{tests}");
}
