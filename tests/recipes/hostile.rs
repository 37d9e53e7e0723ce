//! Recipes that ask for too much end in one line, quickly: each run here has a minute, and needs a moment.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::time::{Duration, Instant};

use crate::common::sys::{is_root, mkfifo};
use crate::common::{ModelDir, tensor};
use crate::{model, models, refused, with_rules};
use safetensors::Dtype;

/// Far more than any of these takes, on a machine that does many other things.
const QUICKLY: Duration = Duration::from_secs(20);

/// The recipe of that text is refused with these words.
#[track_caller]
fn ends(dir: &ModelDir, text: &str, words: &[&str]) {
    let path = dir.file("recipe.toml", text);
    let start = Instant::now();
    let line = refused(&path, words);
    assert!(start.elapsed() < QUICKLY, "{:?}", start.elapsed());
    assert!(line.len() < 2000, "{} bytes: {line}", line.len());
}

#[track_caller]
fn rules_end(rules: &str, words: &[&str]) {
    ends(&models(), &with_rules(rules), words);
}

fn repeated(n: usize, of: impl Fn(usize) -> String) -> String {
    (0..n).map(of).collect()
}

#[test]
fn recipes_that_reach_themselves() {
    let dir = models();
    ends(
        &dir,
        "model = 'recipe.toml'\n",
        &["recipe.toml:1:10: ", "recipe.toml → ", "itself"],
    );
    dir.file("b.toml", "model = 'm'\nmodels = { x = './recipe.toml' }\n");
    ends(
        &dir,
        "model = 'b.toml'\n",
        &["b.toml", "recipe.toml", "itself"],
    );
    symlink(dir.join("recipe.toml"), dir.join("link.toml")).unwrap();
    ends(
        &dir,
        "model = 'm'\nmodels = { x = 'link.toml' }\n",
        &["itself"],
    );
    let spelled = refused(
        &dir.file("recipe.toml", "model = './recipe.toml'\n"),
        &["recipe.toml → "],
    );
    assert!(!spelled.contains("./recipe.toml"), "{spelled}");
    let absolute = format!("model = '{}'\n", dir.join("recipe.toml").display());
    ends(&dir, &absolute, &["itself"]);
}

#[test]
fn recipes_within_recipes_are_8_deep() {
    let dir = models();
    dir.file("0.toml", "model = 'm'\n");
    for i in 1..=9 {
        dir.file(&format!("{i}.toml"), format!("model = '{}.toml'\n", i - 1));
    }
    crate::ls(&dir.join("7.toml"));
    refused(&dir.join("9.toml"), &["8"]);
}

/// Each recipe names the next twice: 2^20 of them, if they were all opened. They are 8 deep at most, and 16 models each.
#[test]
fn recipes_that_fan_out() {
    let dir = models();
    dir.file("0.toml", "model = 'm'\n");
    for i in 1..7 {
        let names = repeated(15, |k| format!("m{k} = '{}.toml', ", i - 1));
        dir.file(
            &format!("{i}.toml"),
            format!("model = '{}.toml'\nmodels = {{ {names} }}\n", i - 1),
        );
    }
    let start = Instant::now();
    let ran = crate::stfs(["ls".as_ref(), dir.join("6.toml").as_os_str()]);
    assert!(
        ran.code == 0 || (ran.code == 1 && ran.err.lines().count() == 1),
        "{ran:?}"
    );
    assert!(start.elapsed() < QUICKLY, "{:?}", start.elapsed());
}

#[test]
fn files_that_are_not_recipes() {
    let dir = models();
    let at = |name: &str| dir.join(name);
    mkfifo(&at("fifo.toml")).unwrap();
    refused(&at("fifo.toml"), &["fifo.toml", "regular file"]);
    std::fs::create_dir(at("dir.toml")).unwrap();
    refused(&at("dir.toml"), &["dir.toml", "regular file"]);
    symlink("/dev/zero", at("zero.toml")).unwrap();
    refused(&at("zero.toml"), &["zero.toml", "regular file"]);
    symlink("gone", at("dangling.toml")).unwrap();
    refused(&at("dangling.toml"), &["dangling.toml", "No such file"]);
    let big = dir.file(
        "big.toml",
        format!("model = 'm'\n{}", "#\n".repeat(1 << 19)),
    );
    refused(&big, &["big.toml", "1048576"]);
    let sparse = std::fs::File::create(at("sparse.toml")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    refused(&at("sparse.toml"), &["sparse.toml", "1048576"]);
    let exactly = format!("model = 'm'\n{}", "#".repeat((1 << 20) - 12));
    crate::ls(&dir.file("exactly.toml", exactly));
}

#[test]
fn models_that_are_special_files_or_unreadable() {
    let dir = models();
    mkfifo(&dir.join("pipe.toml")).unwrap();
    ends(
        &dir,
        "model = 'pipe.toml'\n",
        &["recipe.toml:1:10: ", "pipe.toml"],
    );
    mkfifo(&dir.join("pipe")).unwrap();
    ends(
        &dir,
        "model = 'm'\nmodels = { x = 'pipe' }\n",
        &["recipe.toml:2:17: ", "pipe"],
    );
    ends(&dir, "model = '/dev/zero'\n", &["/dev/zero"]);
    ends(&dir, "model = ''\n", &["recipe.toml:1:"]);
    ends(&dir, "model = \"a\\u0000b\"\n", &["recipe.toml:1:"]);
    if !is_root() {
        let closed = dir.file("closed.toml", "model = 'm'\n");
        std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o000)).unwrap();
        refused(&closed, &["closed.toml", "Permission denied"]);
    }
}

#[test]
fn results_are_a_million_at_most() {
    let loops = "{ on = 'a.weight', for = 'i in 0..65536', add = { {names} } },";
    let names = repeated(16, |k| format!("'x{k}.{{i}}' = 'it', "));
    rules_end(&loops.replace("{names}", &names), &["1000000"]);
    let many = repeated(40, |k| {
        format!("{{ on = 'one', for = 'i in 0..65536', add = 'y{k}.{{i}}' }},\n")
    });
    rules_end(&many, &["1000000"]);
    rules_end(
        "{ on = 'a.weight', for = 'i in 0..65537', to = 'x{i}' },",
        &["65536"],
    );
    rules_end(
        "{ on = 'a.weight', for = 'i in 0..9223372036854775807', to = 'x{i}' },",
        &["65536"],
    );
    rules_end(
        "{ on = 'one', is = 'concat(it for i in 0..65537)' },",
        &["65536"],
    );
    rules_end(
        "{ on = 'one', is = 'concat(it for i in -9223372036854775807..9223372036854775807)' },",
        &["65536"],
    );
    let rules = repeated(1001, |_| "{ drop = 'x', optional = true },\n".into());
    rules_end(&rules, &["1,000"]);
}

#[test]
fn models_are_16_at_most() {
    let dir = models();
    let of = |n| {
        format!(
            "model = 'm'\nmodels = {{ {} }}\n",
            repeated(n, |i| format!("m{i} = 'tuned', "))
        )
    };
    crate::ls(&dir.file("recipe.toml", of(15)));
    ends(&dir, &of(17), &["16"]);
}

#[test]
fn expressions_are_64_deep_and_4096_long() {
    let dir = models();
    let nested = |n| {
        with_rules(&format!(
            "{{ on = 'a.weight', is = '{}it{}' }},",
            "(".repeat(n),
            ")".repeat(n)
        ))
    };
    crate::ls(&dir.file("recipe.toml", nested(60)));
    ends(&dir, &nested(65), &["recipe.toml:4:", "64"]);
    ends(&dir, &nested(2000), &["recipe.toml:4:", "64"]);
    let minus = |n| {
        with_rules(&format!(
            "{{ on = 'a.weight', is = '{}it' }},",
            "-".repeat(n)
        ))
    };
    ends(&dir, &minus(2000), &["recipe.toml:4:"]);
    let nots = with_rules(&format!(
        "{{ drop = 'x', where = '{}1 == 1' }},",
        "not ".repeat(1000)
    ));
    ends(&dir, &nots, &["recipe.toml:4:", "64"]);
    let calls = with_rules(&format!(
        "{{ on = 'a.weight', is = '{}it{}' }},",
        "t(".repeat(400),
        ")".repeat(400)
    ));
    ends(&dir, &calls, &["recipe.toml:4:", "64"]);
    let indexes = with_rules(&format!(
        "{{ on = 'a.weight', is = 'it{}' }},",
        "[:]".repeat(1000)
    ));
    ends(&dir, &indexes, &["recipe.toml:4:"]);
    let long = with_rules(&format!(
        "{{ on = 'a.weight', is = 'it{}' }},",
        " ".repeat(4096)
    ));
    ends(&dir, &long, &["recipe.toml:4:", "4,096"]);
    let holes = with_rules(&format!(
        "{{ on = '{{n}}.weight', to = '{}' }},",
        "{{".repeat(500_000)
    ));
    ends(&dir, &holes, &["recipe.toml:4:"]);
    let toml = format!("model = 'm'\nrules = {}\n", "[".repeat(100_000));
    ends(&dir, &toml, &["recipe.toml:2:"]);
    let tables = format!("model = 'm'\nx = {}\n", "{a=".repeat(100_000));
    ends(&dir, &tables, &["recipe.toml:2:"]);
    let dotted = format!("model = 'm'\n{}x = 1\n", "a.".repeat(100_000));
    ends(&dir, &dotted, &["recipe.toml:"]);
}

/// The 13th doubling is over 4,096 elements of the source for one of the result.
#[test]
fn doubling_expressions() {
    let dir = models();
    let doubled = |n| {
        with_rules(&repeated(n, |_| {
            "{ on = 'a.weight', is = 'it + it' },\n".into()
        }))
    };
    crate::ls(&dir.file("recipe.toml", doubled(12)));
    ends(&dir, &doubled(13), &["recipe.toml:16:29: ", "4096"]);
    let multiplied = with_rules(&repeated(64, |_| {
        "{ on = 'a.weight', is = 'it * it * it * it' },\n".into()
    }));
    ends(&dir, &multiplied, &["4096"]);
    let joined = with_rules(&repeated(60, |_| {
        "{ on = 'a.weight', is = 'concat(it, it)' },\n".into()
    }));
    ends(&dir, &joined, &[]);
    // Views on top of one another.
    let stacked = |n| {
        with_rules(&repeated(n, |_| {
            "{ on = 'a.weight', is = 'it * 2' },\n".into()
        }))
    };
    crate::ls(&dir.file("recipe.toml", stacked(60)));
    ends(&dir, &stacked(70), &["64"]);
}

#[test]
fn sizes_are_checked() {
    rules_end(
        "{ on = 'a.weight', is = 'pad(it, 9223372036854775807)' },",
        &["pad"],
    );
    rules_end(
        "{ on = 'a.weight', is = 'pad(pad(it, 4294967296), 4294967296, axis=1)' },",
        &["pad"],
    );
    rules_end(
        "{ on = 'a.weight', is = 'reshape(it, 4294967296, 4294967296)' },",
        &["reshape"],
    );
    rules_end(
        "{ on = 'a.weight', is = 'reshape(it, 9223372036854775807, 9223372036854775807, -1)' },",
        &["reshape"],
    );
    rules_end(
        "{ on = 'a.weight', is = 'it[0:9223372036854775807]' },",
        &["9223372036854775807"],
    );
    rules_end(
        "{ on = 'a.weight', is = 'it[-9223372036854775807]' },",
        &["9223372036854775807"],
    );
    rules_end(
        "{ on = 'a.weight', is = 'part(it, 9223372036854775807, 9223372036854775807)' },",
        &["part"],
    );
    rules_end(
        "{ on = 'a.weight', is = 'pad(it, up(9223372036854775807, 2))' },",
        &["64 bits"],
    );
    rules_end(
        "{ on = 'a.weight', is = 'it[-9223372036854775807 - 2]' },",
        &["64 bits"],
    );
    rules_end(
        "{ on = 'a.weight', is = 'it[(-9223372036854775807 - 1) // -1]' },",
        &["64 bits"],
    );
}

/// Names and patterns on which matching by backtracking would take longer than the universe is old.
#[test]
fn patterns_are_matched_in_linear_time() {
    let dir = ModelDir::new();
    let name = "a".repeat(20_000);
    model(&dir, "m", &[tensor(&name, Dtype::F32, &[1])]);
    let holes = repeated(200, |i| format!("{{h{i}..}}a"));
    ends(
        &dir,
        &format!("model = 'm'\nrules = [{{ drop = '{holes}b' }}]\n"),
        &["matches nothing"],
    );
    let stars = "*a".repeat(2000);
    ends(
        &dir,
        &format!("model = 'm'\nrules = [{{ drop = '{stars}b' }}]\n"),
        &["matches nothing"],
    );
    let of = repeated(200, |i| format!("{{h{i}=a|aa|aaa}}"));
    ends(
        &dir,
        &format!("model = 'm'\nrules = [{{ drop = '{of}b' }}]\n"),
        &["matches nothing"],
    );
}

/// What a message quotes of a recipe cannot act on a terminal, and is short.
#[test]
fn messages_are_short_and_cannot_control_a_terminal() {
    let dir = models();
    let long = "x".repeat(3000);
    ends(
        &dir,
        &with_rules(&format!("{{ on = 'a.weight', is = \"it + '{long}'\" }},")),
        &["is not there"],
    );
    ends(
        &dir,
        &format!("model = 'm'\n{} = 5\n", "k".repeat(100_000)),
        &["recipe.toml:2:1: "],
    );
    for text in [
        "\"\\u001b[31mred\" = 1\n",
        "rules = [{ drop = \"\\u001b]0;x\\u0007\" }]\n",
        "model2 = 1 # \u{202e}\n",
    ] {
        let path = dir.file("recipe.toml", format!("model = 'm'\n{text}"));
        let line = refused(&path, &["recipe.toml:2:"]);
        assert!(!line.contains(['\u{1b}', '\u{7}', '\u{202e}']), "{line:?}");
    }
}
