//! The commands that inspect a model: exit codes, JSON, and what reaches the terminal.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use safetensors::tensor::{Dtype, TensorView, serialize_to_file};
use serde_json::{Value, json};

fn stfs(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stfs"))
        .args(args)
        .stdin(Stdio::null())
        .env_remove("NO_COLOR")
        .output()
        .unwrap()
}

/// Standard output of a command that must end with that code.
fn out(code: i32, args: &[&str]) -> String {
    let done = stfs(args);
    let text = String::from_utf8(done.stdout).unwrap();
    let errors = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(code), "{args:?}: {text}{errors}");
    assert!(!errors.contains("panicked"), "{errors}");
    text
}

fn json_of(code: i32, args: &[&str]) -> Value {
    serde_json::from_str(&out(code, args)).unwrap()
}

fn write(path: &Path, tensors: &[(&str, &[usize], &[f32])]) {
    let bytes: Vec<Vec<u8>> = tensors
        .iter()
        .map(|t| t.2.iter().flat_map(|v| v.to_le_bytes()).collect())
        .collect();
    let views = tensors.iter().zip(&bytes).map(|(t, b)| {
        let view = TensorView::new(Dtype::F32, t.1.to_vec(), b).unwrap();
        (t.0, view)
    });
    serialize_to_file(views, None, path).unwrap();
}

/// A directory with `model.safetensors`.
fn model(tensors: &[(&str, &[usize], &[f32])]) -> (tempfile::TempDir, String) {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("model.safetensors"), tensors);
    let path = dir.path().to_str().unwrap().to_string();
    (dir, path)
}

#[test]
fn without_more_threads_the_results_are_the_same() {
    let values: Vec<f32> = (0..3u32 << 20).map(|i| (i % 7) as f32).collect();
    let (_dir, m) = model(&[("a", &[3 << 20], &values)]);
    // No thread has room for such a stack.
    let without_threads = Command::new(env!("CARGO_BIN_EXE_stfs"))
        .args(["stat", "--json", &m])
        .env("RUST_MIN_STACK", (1u64 << 60).to_string())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&without_threads.stderr);
    assert!(without_threads.status.success(), "{errors}");
    let with_threads = out(0, &["stat", "--json", &m]);
    assert_eq!(without_threads.stdout, with_threads.as_bytes());
}

#[test]
fn stat_has_exactly_the_keys_of_the_contract() {
    let (_dir, m) = model(&[
        ("a", &[2, 2], &[1.0, -3.0, 0.0, f32::NAN]),
        ("b", &[1], &[f32::INFINITY]),
        ("c", &[0, 5], &[]),
    ]);
    let found = out(0, &["stat", "--json", &m]);
    let expected = json!([
        {"name": "a", "dtype": "F32", "shape": [2, 2], "min": -3.0, "max": 1.0,
         "mean": -2.0 / 3.0, "std": (26.0f64 / 9.0).sqrt(), "zeros": 1, "nan": 1, "inf": 0},
        {"name": "b", "dtype": "F32", "shape": [1], "min": null, "max": null,
         "mean": null, "std": null, "zeros": 0, "nan": 0, "inf": 1},
        {"name": "c", "dtype": "F32", "shape": [0, 5], "min": null, "max": null,
         "mean": null, "std": null, "zeros": 0, "nan": 0, "inf": 0},
    ]);
    // As text: the keys' order counts.
    assert_eq!(
        found,
        serde_json::to_string_pretty(&expected).unwrap() + "\n"
    );
    out(1, &["stat", "--check", &m]);
    out(0, &["stat", "--check", &m, "c"]);
    out(2, &["stat", "--check", &m, "no such*"]);
    out(1, &["stat", &m, "no such*"]);
    // A typo in a script's glob is not a clean bill of health.
    let check = ["stat", "--check", "--json", &m, "no such*"];
    assert_eq!(json_of(2, &check), json!([]));
    assert_eq!(json_of(1, &["stat", "--json", &m, "no such*"]), json!([]));
    out(2, &["stat", "--check", "/nonexistent"]);
    out(2, &["stat"]);
}

/// A finite value that binary32 cannot hold is not an infinity.
#[test]
fn stat_sees_binary64_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let values = [0.1f64, 0.2, 1e-50, -1e300];
    let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F64, vec![4], &bytes).unwrap();
    let path = dir.path().join("model.safetensors");
    serialize_to_file([("w", view)], None, &path).unwrap();
    let m = path.to_str().unwrap();
    let found = json_of(0, &["stat", "--check", "--json", m]);
    for (key, value) in [
        ("min", json!(-1e300)),
        ("max", json!(0.2)),
        ("mean", json!(-2.5e299)),
        ("zeros", json!(0)),
        ("nan", json!(0)),
        ("inf", json!(0)),
    ] {
        assert_eq!(found[0][key], value, "{key}");
    }
    assert!(out(0, &["show", m, "w"]).contains("max 0.2"));
}

#[test]
fn diff_tells_shape_from_dtype_from_value() {
    let (_a, a) = model(&[
        ("gone", &[1], &[1.0]),
        ("same", &[2], &[1.0, f32::NAN]),
        ("shape", &[4], &[1.0; 4]),
        ("value", &[3], &[1.0, 2.0, 0.0]),
        ("worse", &[2], &[1.0, 1.0]),
    ]);
    let (_b, b) = model(&[
        ("new", &[1], &[1.0]),
        ("same", &[2], &[1.0, -f32::NAN]),
        ("shape", &[2, 2], &[1.0; 4]),
        ("value", &[3], &[1.0, 2.5, 0.0]),
        ("worse", &[2], &[-1.0, -1.0]),
    ]);
    let cosine = 6.0 / (5.0f64 * 7.25).sqrt();
    assert_eq!(
        json_of(1, &["diff", "--json", &a, &b]),
        json!({
            "added": ["new"],
            "removed": ["gone"],
            "changed": [
                {"name": "shape", "what": "shape", "max_abs": null, "max_rel": null, "cosine": null},
                {"name": "worse", "what": "value", "max_abs": 2.0, "max_rel": 2.0, "cosine": -1.0},
                {"name": "value", "what": "value", "max_abs": 0.5, "max_rel": 0.25, "cosine": cosine},
            ],
            "unchanged": 1,
        })
    );
    assert!(out(1, &["diff", &a, &b]).ends_with("1 added, 1 removed, 3 changed, 1 unchanged\n"));
    assert_eq!(
        out(0, &["diff", &a, &a]),
        "0 added, 0 removed, 0 changed, 5 unchanged\n"
    );
    out(2, &["diff", &a, "/nonexistent"]);
    out(2, &["diff", &a]);
}

/// The distance over the other values would look like "hardly changed".
#[test]
fn diff_has_no_distance_where_nan_or_inf_came_or_went() {
    let inf = f32::INFINITY;
    let (_a, a) = model(&[("i", &[3], &[1.0, inf, 2.0]), ("n", &[2], &[1.0, 2.0])]);
    let (_b, b) = model(&[
        ("i", &[3], &[1.0, -inf, 2.0]),
        ("n", &[2], &[f32::NAN, 2.0]),
    ]);
    let change = |name: &str| {
        json!({"name": name, "what": "value", "max_abs": null, "max_rel": null, "cosine": null,
            "non_finite": 1})
    };
    assert_eq!(
        json_of(1, &["diff", "--json", &a, &b])["changed"],
        json!([change("i"), change("n")])
    );
    let text = out(1, &["diff", &a, &b]);
    assert_eq!(text.matches("1 NaN or Inf differ").count(), 2, "{text}");
}

#[test]
fn verify_finds_more_than_one_problem() {
    let (dir, m) = model(&[("a", &[2], &[1.0, 2.0])]);
    assert!(out(0, &["verify", &m]).contains("no problems"));
    assert_eq!(json_of(0, &["verify", "--json", &m]), json!([]));
    let header = br#"{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
        "y": {"dtype": "F32", "shape": [1], "data_offsets": [2, 6]}}"#;
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(header);
    std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
    let found = json_of(1, &["verify", "--json", &m]);
    let tensors: Vec<&Value> = found
        .as_array()
        .unwrap()
        .iter()
        .map(|p| &p["tensor"])
        .collect();
    assert!(
        tensors.contains(&&json!("x")) && tensors.contains(&&json!("y")),
        "{found}"
    );
    assert!(
        found
            .as_array()
            .unwrap()
            .iter()
            .all(|p| p["file"] == "model.safetensors")
    );
    out(2, &["verify", "/nonexistent"]);
}

/// Problems that only opening the model finds.
#[test]
fn verify_says_why_a_model_cannot_be_opened() {
    let dir = tempfile::tempdir().unwrap();
    let size = 1u64 << 43;
    let entry = json!({"offset": 0, "size": size, "shape": [size], "dtype": "U8"});
    let entries = (0..=1 << 13).map(|i| (format!("t{i}"), entry.clone()));
    let manifest = json!({"tensors": Value::Object(entries.collect())});
    std::fs::write(dir.path().join("w.json"), manifest.to_string()).unwrap();
    let bin = std::fs::File::create(dir.path().join("w.bin")).unwrap();
    bin.set_len(size).unwrap();
    let found = json_of(1, &["verify", "--json", dir.path().to_str().unwrap()]);
    assert_eq!(found.as_array().unwrap().len(), 1);
    let problem = found[0]["problem"].as_str().unwrap();
    assert!(
        problem.contains("72066390130950144 bytes together"),
        "{problem}"
    );
}

/// Mixtral's names, GPTQ: in expert 1 `w1` and `w3` have another act-order each.
#[test]
fn verify_compares_the_g_idx_of_every_expert() {
    let dir = tempfile::tempdir().unwrap();
    let mut data: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    for e in 0..3 {
        for part in ["w1", "w3"] {
            let (a, b) = match (e, part) {
                (1, "w3") => (1, 0),
                _ => (0, 1),
            };
            let g_idx = [[a; 32], [b; 32]].concat();
            let mut add = |last: &str, dtype: Dtype, shape: [usize; 2], bytes| {
                let shape = shape.into_iter().filter(|&d| d > 0).collect();
                let name = format!("m.experts.{e}.{part}.{last}");
                data.push((name, dtype, shape, bytes));
            };
            add("qweight", Dtype::I32, [8, 32], vec![0; 8 * 32 * 4]);
            add("qzeros", Dtype::I32, [2, 4], vec![0; 2 * 4 * 4]);
            add("scales", Dtype::F16, [2, 32], vec![0; 2 * 32 * 2]);
            let g_idx = g_idx.iter().flat_map(|g: &i32| g.to_le_bytes()).collect();
            add("g_idx", Dtype::I32, [64, 0], g_idx);
        }
    }
    let views = data.iter().map(|(name, dtype, shape, bytes)| {
        let view = TensorView::new(*dtype, shape.clone(), bytes).unwrap();
        (name.as_str(), view)
    });
    serialize_to_file(views, None, &dir.path().join("model.safetensors")).unwrap();
    let found = json_of(1, &["verify", "--json", dir.path().to_str().unwrap()]);
    let found = found.as_array().unwrap();
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(found[0]["tensor"], "m.experts.gate_up_proj.g_idx");
    assert_eq!(found[0]["file"], "model.safetensors");
    let problem = found[0]["problem"].as_str().unwrap();
    assert!(problem.starts_with("expert 1: the parts"), "{problem}");
}

#[test]
fn checksums_are_written_once_and_then_compared() {
    let (dir, m) = model(&[("a", &[1], &[1.0]), ("n\nl", &[0], &[])]);
    let sums = dir.path().join("sums");
    let sums_path = sums.to_str().unwrap();
    out(0, &["verify", "--checksum", sums_path, &m]);
    // SHA-256 of 00 00 80 3F, and of nothing.
    let one = "e00e5eb9444182f352323374ef4e08ebcb784725fdd4fd612d7730540b3e0c8c";
    let text = std::fs::read_to_string(&sums).unwrap();
    let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert!(
        text.contains(&format!("\\{empty}  tensors/n\\nl/raw\n")),
        "{text}"
    );
    assert!(text.contains(&format!("{one}  tensors/a/raw\n")), "{text}");
    assert_eq!(text.lines().count(), 2);
    out(0, &["verify", "--checksum", sums_path, &m]);
    std::fs::write(&sums, text.replace(empty, &"0".repeat(64))).unwrap();
    let found = json_of(1, &["verify", "--json", "--checksum", sums_path, &m]);
    assert_eq!(found[0]["tensor"], "n\nl");
    std::fs::write(&sums, text.lines().next().unwrap()).unwrap();
    let found = json_of(1, &["verify", "--json", "--checksum", sums_path, &m]);
    assert_eq!(found.as_array().unwrap().len(), 1);
    // As other programs write it, and sha256sum reads it.
    let theirs = text.replace("  tensors/", "  ./tensors/");
    std::fs::write(&sums, format!("# of the model\n{theirs}")).unwrap();
    out(0, &["verify", "--checksum", sums_path, &m]);
    // sha256sum checks both lines, and one of them fails.
    let twice = format!("{}{text}", text.replace(one, &"0".repeat(64)));
    std::fs::write(&sums, twice).unwrap();
    let found = json_of(1, &["verify", "--json", "--checksum", sums_path, &m]);
    let problem = found[0]["problem"].as_str().unwrap();
    assert!(
        problem.contains("tensors/a/raw had another checksum"),
        "{problem}"
    );
    // Standard output is a pipe here: there is nothing to compare with, and it never ends.
    let done = stfs(&["verify", "--checksum", "/dev/stdout", &m]);
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(2), "{said}");
    assert!(
        said.contains("/dev/stdout: is not a regular file"),
        "{said}"
    );
}

#[test]
fn pictures_go_to_a_pipe_as_png_or_as_plain_shades() {
    let values: Vec<f32> = (0..200).map(|i| (i as f32 * 0.1).sin()).collect();
    let (_dir, m) = model(&[("w", &[10, 20], &values), ("empty", &[0], &[])]);
    let png = stfs(&["cat", "--view", "png", &m, "w"]).stdout;
    assert_eq!(png.len() as u64, stfs::preview::png_len(&[10, 20]));
    assert!(png.starts_with(b"\x89PNG\r\n\x1a\n"));
    for name in ["w", "empty"] {
        let text = out(0, &["show", &m, name]);
        assert!(text.contains("NaN 0") && !text.contains('\x1b'), "{text}");
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    }
    out(1, &["show", &m, "nothing"]);
}

#[test]
fn names_longer_than_any_column_are_printed() {
    let long = "n".repeat(70_000);
    let deep = vec![1; 40_000];
    let tensors = |v: f32| model(&[(&long, &deep, &[v]), ("b", &[1], &[v])]);
    let ((_a, a), (_b, b)) = (tensors(1.0), tensors(2.0));
    for text in [
        out(0, &["ls", &a]),
        out(0, &["stat", &a]),
        out(1, &["diff", &a, &b]),
    ] {
        let line = |name: &str| {
            text.lines()
                .find(|l| l.trim_start_matches("~ ").starts_with(name))
        };
        assert!(line(&long).is_some());
        // The columns of the other lines stay aligned.
        assert!(line("b ").is_some_and(|l| l.chars().count() < 1000));
    }
}

#[test]
fn hostile_names_never_reach_the_terminal_raw() {
    let evil = "\x1b]0;evil\x07\u{202e}";
    let (_a, a) = model(&[(evil, &[1], &[1.0])]);
    let (_b, b) = model(&[(evil, &[1], &[f32::NAN])]);
    let (_c, c) = model(&[("x", &[1], &[1.0])]);
    let mut texts = vec![
        out(0, &["stat", &a]),
        out(0, &["show", &a, evil]),
        out(1, &["diff", &a, &b]),
        out(1, &["diff", &a, &c]),
        out(1, &["diff", &c, &a]),
    ];
    let sums = format!("{a}/sums");
    out(0, &["verify", "--checksum", &sums, &a]);
    texts.push(out(1, &["verify", "--checksum", &sums, &b]));
    // A problem whose text contains names from a damaged model.
    let dir = tempfile::tempdir().unwrap();
    let damaged = format!(
        r#"{{"{}": {{"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}}}"#,
        "\u{9b}2J\u{202e}"
    );
    let mut file = (damaged.len() as u64).to_le_bytes().to_vec();
    file.extend_from_slice(damaged.as_bytes());
    file.extend_from_slice(&[0; 4]);
    std::fs::write(dir.path().join("model.safetensors"), file).unwrap();
    let damaged = dir.path().to_str().unwrap();
    let found = out(1, &["verify", "--json", damaged]);
    let value: Value = serde_json::from_str(&found).unwrap();
    assert_eq!(value[0]["tensor"], "\u{9b}2J\u{202e}");
    texts.push(found);
    let error = stfs(&["show", &a, "\x1b[31m"]).stderr;
    texts.push(String::from_utf8(error).unwrap());
    for text in texts {
        let raw = |c: char| matches!(c, '\x1b' | '\x07' | '\u{9b}' | '\u{202e}');
        assert!(!text.contains(raw), "{text:?}");
    }
}
