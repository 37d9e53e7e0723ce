//! Standard output and standard error that are closed or cannot be written: right exit codes, no panic.

use std::path::Path;
use std::process::{Command, Stdio};

use safetensors::Dtype;

use crate::common::mount::{BIN, umount};
use crate::common::{ModelDir, Ran, tensor};
use crate::progress::terminal;

/// A command of every kind, and its exit codes: of success, and if it cannot write.
fn commands(model: &str) -> Vec<(Vec<&str>, i32, i32)> {
    let row = |args: &[&'static str], more: &[&'static str], trouble: i32| {
        let args = args.iter().copied();
        let line: Vec<&str> = args.chain([model]).chain(more.iter().copied()).collect();
        (line, 0, trouble)
    };
    let mut all = vec![
        row(&["ls"], &[], 1),
        row(&["ls", "--json"], &[], 1),
        row(&["ls", "--tree"], &[], 1),
        row(&["info"], &[], 1),
        row(&["info", "--json"], &[], 1),
        row(&["cat"], &["a.weight"], 1),
        row(&["cat", "--view", "f32"], &["a.weight"], 1),
        row(&["cat", "--view", "meta"], &["a.weight"], 1),
        row(&["show"], &["a.weight"], 1),
        row(&["stat"], &[], 1),
        row(&["stat", "--json"], &[], 1),
        row(&["stat", "--check"], &[], 2),
        row(&["diff", model_again(model)], &[], 2),
        row(&["verify"], &[], 2),
        row(&["verify", "--json"], &[], 2),
    ];
    for words in [
        &["mounts"][..],
        &["mounts", "--json"],
        &["completions", "bash"],
        &["man"],
        &["--help"],
        &["--version"],
        &["mount", "--help"],
        &["help", "ls"],
    ] {
        all.push((words.to_vec(), 0, 1));
    }
    all
}

/// The same path under another lifetime.
fn model_again(model: &str) -> &'static str {
    Box::leak(model.to_string().into_boxed_str())
}

fn model() -> ModelDir {
    // Values without a NaN.
    let mut weight = tensor("a.weight", Dtype::U8, &[64]);
    weight.name = "b".into();
    let mut values = tensor("a.weight", Dtype::F32, &[16, 16]);
    values.data = (0..256).flat_map(|i| (i as f32).to_le_bytes()).collect();
    ModelDir::of(&[weight, values])
}

/// Runs the program with redirections, as a shell does them.
fn redirected(redirections: &str, args: &[&str]) -> Ran {
    let script = format!("exec timeout -k 5 60 \"$0\" \"$@\" {redirections}");
    let mut command = Command::new("sh");
    command.args(["-c", &script, BIN]).args(args);
    Ran::of(command.stdin(Stdio::null()).output().unwrap())
}

#[test]
fn a_standard_output_that_cannot_be_written_is_an_error() {
    let model = model();
    for (args, success, trouble) in commands(model.path().to_str().unwrap()) {
        for (redirection, why) in [
            (">&-", "Bad file descriptor"),
            ("1</dev/null", "Bad file descriptor"),
            (">/dev/full", "No space left on device"),
        ] {
            let ran = redirected(redirection, &args);
            assert_eq!(ran.code, trouble, "{args:?} {redirection}: {ran:?}");
            let line = format!("stfs: standard output: {why}");
            assert!(ran.err.starts_with(&line), "{args:?}: {ran:?}");
            assert_eq!(ran.err.lines().count(), 1, "{args:?}: {ran:?}");
        }
        // Thrown away on purpose, also as Python's subprocess.DEVNULL opens it.
        for redirection in [">/dev/null", "1<>/dev/null", "<&- >/dev/null"] {
            let ran = redirected(redirection, &args);
            assert_eq!(
                (ran.code, ran.err.as_str()),
                (success, ""),
                "{args:?} {redirection}"
            );
        }
    }
}

#[test]
fn a_standard_error_that_cannot_be_written_changes_nothing_else() {
    let model = model();
    let mut all: Vec<(Vec<&str>, i32)> = commands(model.path().to_str().unwrap())
        .into_iter()
        .map(|(args, success, _)| (args, success))
        .collect();
    all.extend([
        (vec!["ls", "/nothing/of/this/name"], 1),
        (vec!["verify", "/nothing/of/this/name"], 2),
        (vec!["diff", "/nothing/of/this/name", "/"], 2),
        (vec!["mount", "/nothing/of/this/name", "/nothing/at/all"], 1),
        (vec!["umount", "/nothing/of/this/name"], 1),
        (vec!["gpu", "status", "/nothing/of/this/name"], 1),
        (vec!["gpu", "upload", "/nothing/of/this/name"], 1),
        (vec!["no-such-command"], 2),
        (vec!["ls"], 2),
        (vec![], 2),
    ]);
    for (args, code) in all {
        let expected = redirected("", &args).out;
        for redirection in ["2>&-", "2>/dev/full", "2</dev/null", "<&- 2>&-"] {
            let ran = redirected(redirection, &args);
            assert_eq!(ran.code, code, "{args:?} {redirection}: {ran:?}");
            if !args.contains(&"mounts") {
                assert_eq!(ran.out, expected, "{args:?} {redirection}");
            }
        }
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = crate::common::mount::command(&args);
        let status = command.stdout(Stdio::null()).stderr(writer).status();
        assert_eq!(status.unwrap().code(), Some(code), "{args:?} closed pipe");
    }
    let nothing = redirected("<&- >&- 2>&-", &["verify", model.path().to_str().unwrap()]);
    assert_eq!(nothing.code, 2);
}

/// Files that are opened later must not take the numbers of the standard descriptors.
#[test]
fn messages_do_not_end_up_in_a_file() {
    let model = model();
    let (sums, dir) = (model.join("sums"), model.path().to_str().unwrap());
    let args = ["verify", "--checksum", sums.to_str().unwrap(), dir];
    assert_eq!(redirected("<&- >&- 2>&-", &args).code, 2);
    let text = std::fs::read_to_string(&sums).unwrap();
    assert_eq!(text.lines().count(), 2, "{text}");
    assert!(text.lines().all(|l| l.ends_with("/raw")), "{text}");
}

#[test]
fn a_mount_with_a_note_to_say_needs_no_standard_error() {
    let model = model();
    model.file("config.json", "{\"tie_word_embeddings\": tru");
    let at = model.join("m");
    let args = [
        "mount",
        model.path().to_str().unwrap(),
        at.to_str().unwrap(),
    ];
    for redirection in ["2>&-", "2>/dev/full", "2</dev/null", "2>/dev/null"] {
        let ran = redirected(redirection, &args);
        let is_there = at.join("tensors/b/raw").exists();
        let unmounted = umount(&at);
        assert_eq!(ran.code, 0, "{redirection}: {ran:?}");
        assert!(
            is_there && ran.out.starts_with("stfs: "),
            "{redirection}: {ran:?}"
        );
        unmounted.ok();
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let out = crate::common::mount::command(args).stderr(writer).output();
    let is_there = Path::exists(&at.join("tensors/b/raw"));
    let unmounted = umount(&at);
    assert!(out.unwrap().status.success() && is_there);
    unmounted.ok();
}

/// A bar is drawn on a terminal alone: here on one whose other end is closed.
#[test]
fn a_terminal_that_is_gone_changes_nothing() {
    let model = model();
    let (dir, sums) = (model.path(), model.join("sums"));
    let word = Path::new;
    for args in [
        vec![word("stat"), dir],
        vec![word("diff"), dir, dir],
        vec![word("verify"), word("--checksum"), &sums, dir],
        vec![word("verify"), word("--checksum"), &sums, dir],
        vec![word("ls"), dir],
    ] {
        let (theirs, ours) = terminal();
        let expected = crate::common::mount::command(&args).output().unwrap();
        let _ = std::fs::remove_file(&sums);
        drop(ours);
        let out = crate::common::mount::command(&args).stderr(theirs).output();
        let out = out.unwrap();
        assert_eq!(out.status.code(), Some(0), "{args:?}: {out:?}");
        assert!(out.stdout == expected.stdout, "{args:?}: {out:?}");
    }
}
