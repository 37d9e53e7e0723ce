//! Mistakes in the file itself: keys, TOML, and the little language. No tensor is looked at for these.

use crate::{Expected, MARK, check_all, model, models, refused, stfs, with_rules};

#[track_caller]
fn files(cases: &[(&str, &[&str])]) {
    let all = cases.iter().map(|(text, words)| Expected {
        text,
        of_line: false,
        words,
    });
    check_all(&models(), all);
}

#[track_caller]
fn rules(cases: &[(&str, &[&str])]) {
    let texts: Vec<String> = cases.iter().map(|(rules, _)| with_rules(rules)).collect();
    let all = texts.iter().zip(cases).map(|(text, (_, words))| Expected {
        text,
        of_line: false,
        words,
    });
    check_all(&models(), all);
}

#[test]
fn keys_of_the_file() {
    files(&[
        ("⟦modle = 'm'\n", &["modle", "model"]),
        ("model = 'm'\n⟦ruels = []\n", &["ruels", "rules"]),
        ("model = 'm'\n[⟦confg]\nset = {}\n", &["confg", "config"]),
        ("model = { path = 'm', ⟦pth = 'x' }\n", &["pth", "path"]),
        (
            "model = { path = 'm', as = '⟦float' }\n",
            &["float", "floats"],
        ),
        ("model = ⟦5\n", &["model"]),
        ("model = ⟦{ as = 'floats' }\n", &["path"]),
        ("model = 'm'\nmodels = ⟦'x'\n", &["models"]),
        ("model = 'm'\nmodels = { ⟦it = 'tuned' }\n", &["it"]),
        ("model = 'm'\nmodels = { ⟦model = 'tuned' }\n", &["model"]),
        ("model = 'm'\nmodels = { ⟦concat = 'tuned' }\n", &["concat"]),
        ("model = 'm'\nmodels = { ⟦'a-b' = 'tuned' }\n", &["a-b"]),
        (
            "model = 'm'\nmodels = { ad = 'tuned' }\nset = { ⟦ad = 1 }\n",
            &["ad"],
        ),
        ("model = 'm'\nset = { ⟦dtype = 1 }\n", &["dtype"]),
        ("model = 'm'\nset = { ⟦config = 1 }\n", &["config"]),
        ("model = 'm'\nset = { n = ⟦true }\n", &["n"]),
        (
            "model = 'm'\nset = { n = '⟦later + 1', later = 1 }\n",
            &["later"],
        ),
        ("model = 'm'\nset = { n = '1 ⟦/ 0' }\n", &["0"]),
        (
            "model = 'm'\nset = { n = '⟦config.haeds' }\n",
            &["haeds", "heads"],
        ),
        ("model = 'm'\nset = { n = '1 +⟦' }\n", &[]),
        (
            "model = 'm'\nconfig = { ⟦add = {} }\n",
            &["add", "set", "remove"],
        ),
        ("model = 'm'\nconfig = { remove = ⟦'x' }\n", &["remove"]),
        (
            "model = 'm'\nexports = [{ ⟦flie = 'x' }]\n",
            &["flie", "file"],
        ),
        (
            "model = 'm'\nexports = [{ file = '⟦../x.safetensors', on = '*' }]\n",
            &["../x.safetensors"],
        ),
        (
            "model = 'm'\nexports = [{ file = '⟦model.safetensors', on = '*' }]\n",
            &["model.safetensors"],
        ),
        ("model = 'm'\nrules = ⟦{}\n", &["rules"]),
        ("model = 'm'\nrules = [⟦5]\n", &[]),
    ]);
}

#[test]
fn keys_of_rules() {
    rules(&[
        ("{ on = 'a.weight', ⟦too = 'x' },", &["too", "'to'"]),
        ("{ on = 'a.weight', ⟦iz = 'x' },", &["iz", "'is'"]),
        ("{ on = 'a.weight', to = 'x', ⟦add = 'y' },", &["add", "to"]),
        ("{ keep = '*', ⟦drop = 'x' },", &["drop", "keep"]),
        (
            "{ on = 'a.weight', to = { x = 'it' }, ⟦is = 'it' },",
            &["is"],
        ),
        ("{ drop = 'a.weight', ⟦is = 'it' },", &["is", "drop"]),
        ("{ keep = '*', ⟦to = 'x' },", &["to", "keep"]),
        ("{ lora = 'tuned', ⟦where = '1 == 1' },", &["where", "lora"]),
        ("{ on = 'a.weight', ⟦scale = 2 },", &["scale"]),
        ("{ on = ⟦5 },", &["on"]),
        ("{ on = ⟦[] },", &["on"]),
        ("{ on = ['a.weight', ⟦3] },", &["on"]),
        ("{ on = 'a.weight', is = ⟦5 },", &["is"]),
        (
            "{ on = 'a.weight', optional = ⟦'yes' },",
            &["optional", "true"],
        ),
        ("{ on = 'a.weight', to = { x = ⟦1 } },", &["x"]),
        (
            "{ on = 'a.weight', for = '⟦1..2', to = 'x' },",
            &["variable", "'1'"],
        ),
        (
            "{ on = '{n}.weight', for = '⟦n in 0..2', to = 'x{n}' },",
            &["n"],
        ),
        ("⟦{ is = 'it' },", &["on"]),
        ("⟦{ },", &["on", "keep", "drop", "lora"]),
    ]);
}

#[test]
fn patterns() {
    rules(&[
        ("{ on = 'a.⟦{n' },", &["{"]),
        ("{ on = 'a.n⟦}' },", &["}"]),
        ("{ on = '{n}.⟦{n}' },", &["n", "where"]),
        ("{ on = '⟦{}.x' },", &["{NAME}"]),
        ("{ on = '⟦{it}.x' },", &["it"]),
        ("{ on = '⟦{dim}.x' },", &["dim"]),
        ("{ on = '⟦{tuned}.x' },", &["tuned"]),
        ("{ on = '⟦{a b}.x' },", &["a b"]),
        ("{ on = '⟦{n=}.x' },", &["empty"]),
        ("{ on = '⟦{x=a||b}.x' },", &["empty"]),
        ("{ on = '⟦{n...}.x' },", &["{NAME..}"]),
        ("{ on = '⟦' },", &["empty pattern"]),
        ("{ on = '{n}.weight', to = 'x.⟦{' },", &["{"]),
        ("{ on = '{n}.weight', to = 'x⟦}' },", &["}"]),
        ("{ on = '{n}.weight', to = 'x.{n ⟦m}' },", &["m"]),
        ("{ on = '{n}.weight', to = '⟦' },", &["empty name"]),
    ]);
}

#[test]
fn expressions() {
    rules(&[
        ("{ on = 'a.weight', is = 'it +⟦' },", &["end"]),
        ("{ on = 'a.weight', is = '⟦' },", &[]),
        ("{ on = 'a.weight', is = 'it ⟦it' },", &["it"]),
        ("{ on = 'a.weight', is = '⟦(it' },", &["'('"]),
        ("{ on = 'a.weight', is = 'it⟦)' },", &[")"]),
        ("{ on = 'a.weight', is = 'it⟦[1' },", &["'['"]),
        ("{ on = 'a.weight', is = 'it[⟦]' },", &[]),
        ("{ on = 'a.weight', is = \"it + ⟦'b.weight\" },", &["quote"]),
        ("{ on = 'a.weight', is = 'it ⟦** 2' },", &["'**'"]),
        ("{ on = 'a.weight', is = 'it ⟦$ 2' },", &["$"]),
        ("{ on = 'a.weight', is = 'it ⟦= 2' },", &["="]),
        ("{ on = 'a.weight', is = 'it ⟦== 2' },", &["where"]),
        ("{ on = 'a.weight', is = 'it ⟦and it' },", &["and"]),
        ("{ on = 'a.weight', where = '⟦1' },", &["1"]),
        ("{ on = 'a.weight', where = '1 ⟦= 1' },", &["=="]),
        ("{ on = 'a.weight', is = 'it * ⟦1e' },", &[]),
        (
            "{ on = 'a.weight', is = 'part(it, 0, 2, ⟦axes=1)' },",
            &["axes", "axis"],
        ),
        ("{ on = 'a.weight', is = '⟦part(it, 0)' },", &["part"]),
        ("{ on = 'a.weight', is = '⟦t()' },", &["t"]),
        ("{ on = 'a.weight', is = '⟦t(it, 1)' },", &["t"]),
        (
            "{ on = 'a.weight', is = '⟦bf16(it, axis=1)' },",
            &["bf16", "axis"],
        ),
        (
            "{ on = 'a.weight', is = 'part(it ⟦for it in 0..2)' },",
            &["part", "for"],
        ),
        ("{ on = 'a.weight', is = 'concat(it for ⟦e)' },", &["e"]),
        ("{ on = 'a.weight', is = '⟦config' },", &["config"]),
        ("{ on = 'a.weight', is = '⟦dtype' },", &["dtype"]),
        ("{ on = 'a.weight', is = '⟦concat' },", &["concat"]),
        ("{ on = 'a.weight', is = '⟦tuned' },", &["tuned"]),
        ("{ on = 'a.weight', is = \"⟦''\" },", &["empty name"]),
    ]);
}

/// Columns count characters of the file, also after escapes and in strings over several lines.
#[test]
fn places_are_those_of_the_file() {
    rules(&[
        (
            "{ on = 'a.weight', is = \"\\u0069t + ⟦missing\" },",
            &["missing"],
        ),
        (
            "{ on = 'a.weight', is = \"it \\t\\t+ ⟦missing\" },",
            &["missing"],
        ),
        (
            "{ on = \"a.weight\", is = \"\"\"\n  it +\n    ⟦missing\"\"\" },",
            &["missing"],
        ),
        (
            "{ on = 'a.weight', is = '''it\n+ ⟦missing''' },",
            &["missing"],
        ),
        (
            "{ on = 'a.weight', is = \"\"\"it + \\\n     ⟦missing\"\"\" },",
            &["missing"],
        ),
        (
            "{ on = 'a.weight', to = 'ü', is = 'it + ⟦missing' },",
            &["missing"],
        ),
        (
            "{ on = 'a.weight', to = \"é\\\"{⟦missing}\" },",
            &["missing"],
        ),
        (
            "\t{ on = 'a.weight', # über\n  is = 'it + ⟦missing' },",
            &["missing"],
        ),
    ]);
}

#[test]
fn files_that_are_not_toml() {
    files(&[
        ("model = 'm'\nrules = [⟦", &[]),
        ("model = ⟦m\n", &[]),
        ("model = 'm'\n⟦model = 'x'\n", &["duplicate key"]),
    ]);
    let dir = models();
    refused(
        &dir.file("latin.toml", b"model = 'm' # \xfc\n"),
        &["latin.toml", "UTF-8"],
    );
    refused(&dir.file("empty.toml", b""), &["empty.toml", "model"]);
    refused(&dir.file("text.toml", b"\0\0\0\0"), &["text.toml"]);
    let bom = dir.file(
        "bom.toml",
        "\u{feff}model = 'm'\r\nrules = [\r\n  { drop = 'ids' },\r\n]\r\n",
    );
    stfs(["ls".as_ref(), bom.as_os_str()]).ok();
}

#[test]
fn models_that_are_not_there() {
    let dir = models();
    let path = dir.file("recipe.toml", "model = 'nowhere'\n");
    refused(&path, &["recipe.toml:1:10: ", "nowhere", "No such file"]);
    let path = dir.file(
        "recipe.toml",
        "model = 'm'\nmodels = { x = { path = 'gone' } }\n",
    );
    refused(&path, &["recipe.toml:2:26: ", "gone"]);
    // A model that is there and damaged: its own error, at the place that names it.
    model(&dir, "bad", &[]);
    dir.file(
        "bad/model.safetensors",
        b"\xff\xff\xff\xff\xff\xff\xff\xff{}",
    );
    let path = dir.file("recipe.toml", "model = 'm'\nmodels = { x = 'bad' }\n");
    refused(&path, &["recipe.toml:2:17: ", "bad/model.safetensors"]);
    refused(&dir.join("absent.toml"), &["absent.toml", "No such file"]);
}

#[test]
fn parameters_given_on_the_command_line() {
    let dir = models();
    let text = "model = 'm'\nset = { tp = 2, half = 'tp / 2' }\nrules = [{ keep = 'a.weight' }, { on = 'a.weight', is = 'part(it, 0, tp)' }]\n";
    let path = dir.file("recipe.toml", text);
    let ls = |set: &str| {
        stfs([
            "ls".as_ref(),
            "--json".as_ref(),
            path.as_os_str(),
            "--set".as_ref(),
            set.as_ref(),
        ])
    };
    assert_eq!(
        ls("tp=4").ok().json()[0]["shape"],
        serde_json::json!([1, 6])
    );
    ls("pt=4").fails(&["pt", "tp"]);
    for set in ["tp", "tp=", "tp=x", "tp=1 +", "=4"] {
        let ran = ls(set);
        assert!(ran.code == 1 || ran.code == 2, "{set}: {ran:?}");
        assert!(
            ran.out.is_empty() && ran.err.starts_with("stfs: "),
            "{set}: {ran:?}"
        );
    }
    ls("tp=3").fails(&["part", "4", "3"]);
    // A model that is not a recipe has no parameters.
    let m = dir.join("m");
    let ran = stfs([
        "ls".as_ref(),
        m.as_os_str(),
        "--set".as_ref(),
        "tp=1".as_ref(),
    ]);
    assert_ne!(ran.code, 0, "{ran:?}");
    assert!(text.find(MARK).is_none());
}
