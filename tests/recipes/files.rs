//! How the rest of stfs sees a recipe: files of the mount, origins, exports, and the other commands.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};

use crate::common::sys::getxattr;
use crate::common::{ModelDir, Mounted, stfs};
use crate::{ls, models};

const TEXT: &str = "model = 'm'
models = { tuned = 'tuned' }
set = { n = 2 }
config = { set = { torch_dtype = 'bfloat16', 'text_config.layers' = 1 }, remove = ['kind', 'nothing'] }
rules = [
  { keep = ['*.weight', 'cube'] },
  { on = 'b.weight', to = 'renamed' },
  { on = 'h.weight', add = 'theirs', is = \"tuned:'b.weight'\" },
  { on = 'a.weight', is = 'part(it, 0, n)' },
  { on = 'a.weight', is = 'it[:, 1:]' },
  { on = 'h.weight', is = 'bf16(it)' },
  { on = 'cube', for = 'r in 0..2', to = 'rank{r}.cube', is = 'it[r]' },
]
exports = [{ file = 'rank-{r}.safetensors', on = 'rank{r}.{name..}', to = '{name}' }]
";

fn recipe() -> (ModelDir, Mounted) {
    let dir = models();
    let m = Mounted::new(&dir.file("recipe.toml", TEXT));
    (dir, m)
}

fn origin(m: &Mounted, name: &str) -> Value {
    m.json(&format!("tensors/{name}/meta.json"))["origin"].clone()
}

#[test]
fn origins_name_the_rules_and_the_stored_tensors() {
    let (_dir, m) = recipe();
    let untouched = origin(&m, "model.layers.0.self_attn.q_proj.weight");
    assert_eq!(untouched["kind"], "stored");
    assert_eq!(
        (&untouched["renamed_from"], &untouched["model"]),
        (&Value::Null, &Value::Null)
    );
    let renamed = origin(&m, "renamed");
    assert_eq!(
        (&renamed["kind"], &renamed["renamed_from"]),
        (&json!("stored"), &json!("b.weight"))
    );
    assert_eq!(renamed["file"], "model.safetensors");
    let theirs = origin(&m, "theirs");
    assert_eq!(
        (&theirs["kind"], &theirs["renamed_from"], &theirs["model"]),
        (&json!("stored"), &json!("b.weight"), &json!("tuned"))
    );
    let a = json!({
        "kind": "derived", "recipe": "recipe.toml",
        "rules": [{"line": 9, "is": "part(it, 0, n)"}, {"line": 10, "is": "it[:, 1:]"}],
        "parts": [{"model": "model", "name": "a.weight"}],
    });
    let mut found = origin(&m, "a.weight");
    found.as_object_mut().unwrap().remove("parts_total");
    assert_eq!(found, a);
    let xattr = |path: &str| {
        String::from_utf8(getxattr(&m.join(path), "user.stfs.origin").unwrap()).unwrap()
    };
    assert_eq!(xattr("tensors/a.weight/raw"), "derived");
    assert_eq!(xattr("tensors/renamed/raw"), "stored");
    let index = m.json("index.json");
    assert_eq!(index["a.weight"]["origin"], "derived");
    assert_eq!(index["theirs"]["origin"], "stored");
    let of = m.json("model.json")["recipe"].clone();
    assert_eq!(of["file"], "recipe.toml");
    assert_eq!(of["set"], json!({"n": 2}));
    let models = of["models"].as_object().unwrap();
    assert!(
        models["tuned"].as_str().unwrap().ends_with("/tuned"),
        "{of}"
    );
}

#[test]
fn config_and_files_are_as_the_recipe_has_them() {
    let (_dir, m) = recipe();
    assert_eq!(m.list("files"), ["config.json", "recipe.toml"]);
    let config =
        json!({"heads": 4, "text_config": {"layers": 1}, "list": [1], "torch_dtype": "bfloat16"});
    assert_eq!(m.json("files/config.json"), config);
    assert_eq!(m.read("files/recipe.toml"), TEXT.as_bytes());
}

#[test]
fn further_exports_are_made_for_each_value_of_their_holes() {
    let (_dir, m) = recipe();
    let cube = m.read("tensors/rank1.cube/raw");
    let bytes = m.read("export/rank-1.safetensors");
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(file.names(), ["cube"]);
    let t = file.tensor("cube").unwrap();
    assert_eq!((t.shape(), t.data()), (&[3, 4][..], &*cube));
    let exports = m.list("export");
    for name in [
        "rank-0.safetensors",
        "rank-1.safetensors",
        "model.safetensors",
    ] {
        assert!(exports.iter().any(|e| e == name), "{exports:?}");
    }
    let bytes = m.read("export/model.safetensors");
    let all = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(all.len(), ls(&_dir.join("recipe.toml")).len());
}

#[test]
fn the_mount_is_of_the_recipes_path_and_can_be_given_for_it() {
    let (dir, m) = recipe();
    let path = dir.join("recipe.toml").canonicalize().unwrap();
    assert_eq!(m.status()["model"], path.to_str().unwrap());
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts
        .lines()
        .find(|l| l.contains(m.root().to_str().unwrap()));
    assert!(
        line.unwrap().starts_with(path.to_str().unwrap()),
        "{line:?}"
    );
    drop(m);
    let path = path.to_str().unwrap();
    let m = Mounted::with(dir.join("recipe.toml").as_path(), &["--set", "n=4"]);
    let shape = |args: &[&str]| stfs([&["ls", "--json"], args].concat()).ok().json();
    let of = |all: Value| {
        all.as_array()
            .unwrap()
            .iter()
            .find(|t| t["name"] == "a.weight")
            .unwrap()["shape"]
            .clone()
    };
    assert_eq!(of(shape(&[path])), json!([2, 5]));
    assert_eq!(
        of(shape(&[m.root().to_str().unwrap()])),
        json!([1, 5]),
        "its --set counts"
    );
}

#[test]
fn rules_are_listed_with_an_example_each() {
    let dir = models();
    let path = dir.file("recipe.toml", TEXT);
    let rules = stfs([
        "ls".as_ref(),
        "--rules".as_ref(),
        "--json".as_ref(),
        path.as_os_str(),
    ])
    .ok()
    .json();
    let rules = rules.as_array().unwrap();
    let lines: Vec<u64> = rules.iter().map(|r| r["line"].as_u64().unwrap()).collect();
    assert_eq!(lines, [6, 7, 8, 9, 10, 11, 12]);
    let cut = json!({"line": 10, "matches": 1, "from": "a.weight", "to": "a.weight", "dtype": "F32", "shape": [2, 5]});
    assert_eq!(rules[4], cut);
    let renamed = json!({"line": 7, "matches": 1, "from": "b.weight", "to": "renamed", "dtype": "F32", "shape": [4, 6]});
    assert_eq!(rules[1], renamed);
    assert_eq!(rules[6]["to"], "rank0.cube");
    let text = stfs(["ls".as_ref(), "--rules".as_ref(), path.as_os_str()])
        .ok()
        .out;
    assert_eq!(
        text.lines().filter(|l| l.contains("→")).count(),
        7,
        "{text}"
    );
    assert!(
        text.contains("h.weight") && text.contains("BF16") && text.contains("rank0.cube"),
        "{text}"
    );
}

#[test]
fn attributes_are_the_strictest_and_newest_of_sources_and_recipe() {
    let dir = models();
    let path = dir.file("recipe.toml", TEXT);
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    for (file, time, mode) in [
        ("m/model.safetensors", old, 0o644),
        (
            "tuned/model.safetensors",
            old + Duration::from_secs(50),
            0o600,
        ),
    ] {
        let at = dir.join(file);
        std::fs::File::options()
            .write(true)
            .open(&at)
            .unwrap()
            .set_modified(time)
            .unwrap();
        std::fs::set_permissions(&at, PermissionsExt::from_mode(mode)).unwrap();
    }
    let set = |time| {
        std::fs::File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_modified(time)
            .unwrap()
    };
    set(old + Duration::from_secs(9));
    let m = Mounted::new(&path);
    let stat = |name: &str| {
        let s = m.join(&format!("tensors/{name}/raw")).metadata().unwrap();
        (s.mtime(), s.mode() & 0o777)
    };
    assert_eq!(stat("a.weight"), (1_000_000_009, 0o444));
    assert_eq!(stat("theirs"), (1_000_000_050, 0o400));
}

#[test]
fn the_other_commands_take_it_like_a_model() {
    let dir = models();
    let path = dir.file("recipe.toml", TEXT);
    let path = path.to_str().unwrap();
    let stat = stfs(["stat", "--json", path]).ok().json();
    assert!(
        stat.as_array()
            .unwrap()
            .iter()
            .any(|t| t["name"] == "a.weight"),
        "{stat}"
    );
    assert_eq!(stfs(["verify", path]).code, 0);
    let diff = stfs(["diff", "--json", path, dir.join("m").to_str().unwrap()]);
    let diff = diff.json();
    assert!(
        diff["removed"]
            .as_array()
            .unwrap()
            .contains(&json!("renamed")),
        "{diff}"
    );
    let m = Mounted::new(path.as_ref());
    let raw = ls(path.as_ref()).into_iter();
    let raw = raw.map(|(name, ..)| format!("tensors/{name}/raw"));
    let sums = std::process::Command::new("sha256sum")
        .args(raw)
        .current_dir(m.root())
        .output()
        .unwrap();
    let sums = dir.file("sums", sums.stdout);
    let sums = sums.to_str().unwrap();
    let checked = stfs(["verify", "--checksum", sums, path]);
    assert_eq!(checked.code, 0, "{checked:?}");
    let other = stfs(["verify", "--checksum", sums, path, "--set", "n=4"]);
    assert_eq!(other.code, 1, "{other:?}");
    stfs(["diff", path, path]).ok();
    assert_eq!(
        stfs(["info", "--json", path]).ok().json()["tensors"],
        ls(path.as_ref()).len()
    );
}

/// Recipes of recipes join what others joined: a stored tensor is a part once, whatever the way to it.
#[test]
fn parts_of_nested_recipes_are_each_once() {
    let dir = models();
    let many = |n: usize, of: &str| {
        format!(
            "rules = [{{ on = 'a.weight', add = {{ y = \"concat({of} for e in 0..{n})\" }} }}]\n"
        )
    };
    dir.file(
        "0.toml",
        format!("model = 'm'\n{}", many(300, "concat(it, 'b.weight')")),
    );
    for i in 1..4 {
        let rule = many(300, "'y'[0:1]").replace("y =", &format!("y{i} ="));
        let rule = rule.replace("'y'", ["'y'", "'y1'", "'y2'"][i - 1]);
        let again = format!("models = {{ again = '{}.toml' }}\n", i - 1);
        dir.file(
            &format!("{i}.toml"),
            format!("model = '{}.toml'\n{again}{rule}", i - 1),
        );
    }
    let meta = |recipe: &str, name: &str| {
        let path = dir.join(recipe);
        stfs(["cat", path.to_str().unwrap(), name, "--view", "meta"])
            .ok()
            .json()["origin"]
            .clone()
    };
    let info = stfs(["info", "--json", dir.join("3.toml").to_str().unwrap()])
        .ok()
        .json();
    assert_eq!(info["files"].as_array().unwrap().len(), 1, "{info}");
    let part = |name: &str| json!({"model": "model", "name": name});
    let origin = meta("0.toml", "y");
    assert_eq!(origin["parts"], json!([part("a.weight"), part("b.weight")]));
    let origin = meta("3.toml", "y3");
    assert_eq!(origin["parts"], json!([part("a.weight"), part("b.weight")]));
    assert_eq!(origin.get("parts_total"), None);
}

/// A recipe of a recipe starts with what that one leaves, and `set` of its entry is its parameters.
#[test]
fn recipes_within_recipes() {
    let dir = models();
    dir.file("inner.toml", TEXT);
    let text = "model = { path = 'inner.toml', set = { n = 4 } }\nmodels = { plain = 'inner.toml' }\n\
        rules = [{ keep = 'a.weight' }, { on = 'a.weight', add = { two = \"plain:it\", cat = \"concat(it, plain:it)\" } }]\n";
    let all = ls(&dir.file("outer.toml", text));
    let shape = |name: &str| all.iter().find(|t| t.0 == name).unwrap().2.clone();
    assert_eq!(
        [shape("a.weight"), shape("two"), shape("cat")],
        [[1, 5], [2, 5], [3, 5]]
    );
}
