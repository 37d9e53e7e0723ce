//! How a recipe is opened and shown beside what other tests look at: parameters of two models, models taken as floats,
//! names of exports, the problems of the models that it names, and recipes of other users.

use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;

use safetensors::Dtype;
use serde_json::json;

use crate::common::model::open_to_all;
use crate::common::sys::is_root;
use crate::common::{ModelDir, Mounted, Ran, stfs, tensor};
use crate::{model, models, verified};

const PART: &str = "model = 'm'\nset = { n = 2 }\nrules = [{ keep = 'a.weight' }, { on = 'a.weight', is = 'part(it, 0, n)' }]\n";

#[test]
fn a_parameter_counts_for_each_of_two_models_that_has_it() {
    let dir = models();
    let a = dir.file("a.toml", PART);
    let b = dir.file("b.toml", PART.replace("n = 2", "n = 4, m = 1"));
    let keep = dir.file("c.toml", "model = 'm'\nrules = [{ keep = 'a.weight' }]\n");
    let diff = |a: &std::path::Path, b: &std::path::Path, set: &str| {
        stfs([
            "diff",
            a.to_str().unwrap(),
            b.to_str().unwrap(),
            "--set",
            set,
        ])
    };
    assert_eq!(diff(&a, &b, "n=2").code, 0);
    assert_eq!(diff(&a, &b, "m=1").code, 1);
    let one = diff(&a, &keep, "n=1");
    assert_eq!(one.code, 0, "{one:?}");
    let unknown = diff(&a, &b, "mm=1");
    assert_eq!(unknown.code, 2, "{unknown:?}");
    assert!(unknown.err.contains("'m'"), "{unknown:?}");
}

#[test]
fn a_mount_takes_parameters_as_mount_options() {
    let dir = models();
    let path = dir.file("recipe.toml", PART);
    let m = Mounted::with(&path, &["-o", "ro,set=n=4"]);
    let meta = m.json("tensors/a.weight/meta.json");
    assert_eq!(meta["shape"], json!([1, 6]));
    assert_eq!(m.json("model.json")["recipe"]["set"], json!({"n": 4}));
}

/// Arithmetic may have rounded; a cut has not.
#[test]
fn values_that_may_have_been_rounded_are_not_called_exact() {
    let dir = models();
    let rules =
        "rules = [{ on = 'a.weight', is = 'it + 1' }, { on = 'b.weight', is = 'it[1:]' }]\n";
    let m = Mounted::new(&dir.file("recipe.toml", format!("model = 'm'\n{rules}")));
    let exact = |name: &str| {
        let meta = m.json(&format!("tensors/{name}/meta.json"));
        meta["views"]["f32"]["exact"].clone()
    };
    assert_eq!(
        [exact("a.weight"), exact("b.weight")],
        [json!(false), json!(true)]
    );
    // A slice along the first axis is in place, and is still not what the file has.
    let origin = &m.json("tensors/b.weight/meta.json")["origin"];
    assert_eq!(
        (&origin["kind"], origin.get("offset")),
        (&json!("derived"), None)
    );
    let entry = &m.json("index.json")["b.weight"];
    assert_eq!(
        (&entry["origin"], entry.get("file")),
        (&json!("derived"), None)
    );
}

#[test]
fn a_model_taken_as_floats_says_nothing_of_quantization() {
    let dir = models();
    let quantized = json!({"quantization_config": {"quant_method": "fp8"}, "hidden_size": 4});
    dir.json("m/config.json", &quantized);
    dir.json("m/quantize_config.json", &json!({"bits": 4}));
    dir.file("m/other.safetensors.index.json", "{}");
    let stored = Mounted::new(&dir.file("stored.toml", "model = 'm'\n"));
    assert_eq!(stored.json("files/config.json"), quantized);
    assert_eq!(
        stored.list("files"),
        ["config.json", "quantize_config.json", "stored.toml"]
    );
    let text = "model = { path = 'm', as = 'floats' }\n";
    let floats = Mounted::new(&dir.file("floats.toml", text));
    assert_eq!(floats.json("files/config.json"), json!({"hidden_size": 4}));
    assert_eq!(floats.list("files"), ["config.json", "floats.toml"]);
}

#[test]
fn names_of_exports_are_checked() {
    let dir = models();
    for (export, words) in [
        (
            "{ file = 'x/y', on = '*' }",
            "'x/y' is not the name of one file",
        ),
        (
            "{ file = '..', on = '*' }",
            "'..' is not the name of one file",
        ),
        (
            "{ file = 'model.safetensors', on = '*' }",
            "'model.safetensors' is one of the files",
        ),
        (
            "{ file = 'model-bf16.safetensors', on = '*' }",
            "is one of the files",
        ),
        ("{ file = 'x', on = 'nothing.*' }", "matches nothing"),
        (
            "{ file = 'x', on = '*.weight', to = 'one' }",
            "would be a second 'one' in 'x'",
        ),
    ] {
        let text = format!("model = 'm'\nexports = [\n{export},\n]\n");
        let why = crate::refused(&dir.file("recipe.toml", text), &[words]);
        assert!(why.contains("recipe.toml:3:"), "{why}");
    }
}

#[test]
fn problems_of_the_models_are_those_of_the_recipe() {
    let dir = models();
    model(&dir, "bad", &[tensor("a.weight", Dtype::F32, &[2])]);
    let shard = dir.join("bad/model.safetensors");
    let bytes = std::fs::read(&shard).unwrap();
    std::fs::write(&shard, &bytes[..bytes.len() - 1]).unwrap();
    let text =
        "model = 'm'\nmodels = { bad = 'bad' }\nrules = [{ drop = 'a.weight', wher = '1' }]\n";
    let path = dir.file("recipe.toml", text);
    let ran = verified(&path);
    assert_eq!(ran.code, 1, "{ran:?}");
    let shard = shard.canonicalize().unwrap();
    for words in [&format!("{}: ", shard.display()), "recipe.toml:3:"] {
        assert!(ran.out.contains(words), "{words}: {ran:?}");
    }
    let json = stfs(["verify", "--json", path.to_str().unwrap()]).json();
    let all = json.as_array().unwrap();
    let of_recipe = |p: &&serde_json::Value| p.get("line").is_some();
    let of_recipe = all.iter().find(of_recipe).unwrap();
    assert_eq!(
        (&of_recipe["line"], &of_recipe["tensor"]),
        (&json!(3), &json!(null))
    );
    assert!(of_recipe["column"].is_u64(), "{json}");
    assert!(
        all.iter().any(|p| p["file"] == shard.to_str().unwrap()),
        "{json}"
    );
}

/// The recipe's author could otherwise have root show everyone a model that not everyone can reach.
#[test]
fn a_recipe_of_another_user_reaches_only_what_every_user_can() {
    if !is_root() {
        return;
    }
    let dir = models();
    open_to_all(dir.path());
    let closed = ModelDir::of(&[tensor("a.weight", Dtype::F32, &[2])]);
    std::fs::set_permissions(closed.path(), PermissionsExt::from_mode(0o700)).unwrap();
    let at = closed.join("inner");
    std::fs::create_dir(&at).unwrap();
    std::fs::rename(
        closed.join("model.safetensors"),
        at.join("model.safetensors"),
    )
    .unwrap();
    let path = dir.file("recipe.toml", format!("model = '{}'\n", at.display()));
    open_to_all(dir.path());
    let mount = |path: &Path| mount_for_all(&dir, path);
    let own = mount(&path);
    assert_eq!(own.code, 0, "{own:?}");
    assert!(own.err.contains("not every user may search"), "{own:?}");
    chown(&path, Some(12_345), None).unwrap();
    mount(&path).fails(&["recipe.toml:1:10: ", "another user wrote this recipe"]);
    // Without --allow-other nobody but this user sees it.
    drop(Mounted::new(&path));
}

fn mount_for_all(dir: &ModelDir, path: &Path) -> Ran {
    let to = dir.join("mnt");
    let (path, to) = (path.to_str().unwrap(), to.to_str().unwrap());
    let ran = stfs(["mount", "--allow-other", path, to]);
    if ran.code == 0 {
        stfs(["umount", to]).ok();
    }
    ran
}

/// One's own recipe says what one wanted only where nobody else put it, and what its relative paths name.
#[test]
fn recipes_of_ones_own_count_only_in_ones_own_directories() {
    if !is_root() {
        return;
    }
    let dir = models();
    let bob = Some(12_345);
    let at = |path: &str| dir.join(path);
    let own_by = |path: &str, user| std::os::unix::fs::lchown(at(path), user, None).unwrap();
    let mode = |path: &str, mode| {
        std::fs::set_permissions(at(path), PermissionsExt::from_mode(mode)).unwrap();
    };
    for (path, access) in [
        (".", 0o755),
        ("m", 0o755),
        ("secret", 0o700),
        ("installed", 0o755),
        ("bob", 0o755),
        ("team", 0o750),
        ("team/bob", 0o755),
        ("team/carol", 0o700),
    ] {
        std::fs::create_dir_all(at(path)).unwrap();
        mode(path, access);
    }
    for path in ["secret/base", "team/carol/base"] {
        model(&dir, path, &[tensor("a.weight", Dtype::F32, &[2])]);
        mode(path, 0o755);
    }
    dir.file("installed/r.toml", "model = 'base'\n");
    symlink(at("installed/r.toml"), at("bob/link.toml")).unwrap();
    symlink(at("secret/base"), at("bob/base")).unwrap();
    dir.file("bob/indirect.toml", "model = 'link.toml'\n");
    dir.file(
        "bob/second.toml",
        "model = '../m'\nmodels = { s = '../secret' }\n",
    );
    dir.file("team/bob/r.toml", "model = '../carol/base'\n");
    let shard = at("secret/base/model.safetensors");
    std::fs::copy(shard, at("secret/model.safetensors")).unwrap();
    let of_bob = [
        "bob",
        "bob/link.toml",
        "bob/base",
        "bob/indirect.toml",
        "bob/second.toml",
    ];
    for path in of_bob.into_iter().chain(["team/bob", "team/bob/r.toml"]) {
        own_by(path, bob);
    }
    for path in [
        "bob/link.toml",
        "bob/indirect.toml",
        "bob/second.toml",
        "team/bob/r.toml",
    ] {
        let ran = mount_for_all(&dir, &at(path));
        assert_eq!(ran.code, 1, "{path}: {ran:?}");
        ran.fails(&[
            "not every user may search",
            "another user wrote this recipe",
        ]);
        drop(Mounted::new(&at(path)));
    }
    // With recipes of one's own, one after another, it is one's own decision.
    symlink(at("secret/base"), at("installed/base")).unwrap();
    dir.file("outer.toml", "model = 'installed/r.toml'\n");
    dir.file("second.toml", "model = 'm'\nmodels = { s = 'secret' }\n");
    for path in ["outer.toml", "second.toml"] {
        let ran = mount_for_all(&dir, &at(path));
        assert_eq!(ran.code, 0, "{path}: {ran:?}");
        assert!(ran.err.contains("not every user may search"), "{ran:?}");
    }
    // Everyone sees the recipe's text, too.
    dir.file(
        "secret/r.toml",
        format!("model = '{}'\n", at("m").display()),
    );
    let ran = mount_for_all(&dir, &at("secret/r.toml"));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.err.contains("secret: not every user may search"),
        "{ran:?}"
    );
}

#[test]
fn a_gguf_model_is_not_that_file_any_more() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/gguf-blocks");
    let Some(gguf) = find_gguf(file.as_ref()) else {
        panic!("no GGUF file below {file}");
    };
    let dir = ModelDir::new();
    let text = format!("model = '{}'\n", gguf.display());
    let m = Mounted::new(&dir.file("recipe.toml", text));
    assert!(!m.list("export").iter().any(|name| name == "model.gguf"));
    assert!(m.json("metadata.json").is_object());
    assert_eq!(m.list("files").last().unwrap(), "recipe.toml");
}

fn find_gguf(dir: &std::path::Path) -> Option<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).ok()?.flatten().map(|e| e.path());
    let (dirs, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let mut models = files
        .into_iter()
        .filter(|f| f.extension().is_some_and(|e| e == "gguf"));
    models
        .next()
        .or_else(|| dirs.iter().find_map(|dir| find_gguf(dir)))
}
