//! Where a mount cannot be, and machines on which it cannot be made.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use safetensors::Dtype;

use crate::common::mount::{Background, umount, wait_for_text};
use crate::common::sys::kill;
use crate::common::{ModelDir, Mounted, Ran, stfs, tensor};
use crate::{BIN, small_model, with_small_model};

fn mount(model: &Path, at: &Path) -> Ran {
    stfs([Path::new("mount"), model, at])
}

#[test]
fn mountpoints_that_are_taken() {
    let model = small_model();
    let file = model.file("file", "x");
    mount(model.path(), &file).fails(&["file", "not a directory"]);
    mount(model.path(), &file.join("below")).fails(&["below"]);
    mount(model.path(), model.path()).fails(&["not empty", "give an empty directory"]);
    let dangling = model.join("dangling");
    std::os::unix::fs::symlink("/nonexistent/x", &dangling).unwrap();
    mount(model.path(), &dangling).fails(&["dangling"]);
    let m = Mounted::new(model.path());
    let words = [
        "mounted there already",
        "stfs umount",
        model.path().to_str().unwrap(),
    ];
    mount(model.path(), m.root()).fails(&words);
    mount(model.path(), &m.join("tensors")).fails(&["tensors"]);
    mount(model.path(), &m.join("new")).fails(&["new"]);
    // The existing mount keeps running.
    assert!(m.join("model.json").exists());
    stfs([Path::new("umount"), &m.join("tensors")]).fails(&["not an stfs mount"]);
}

#[test]
fn a_mountpoint_that_was_made_goes_again_when_the_mount_fails() {
    let model = ModelDir::new();
    let at = model.join("made");
    mount(model.path(), &at).fails(&["holds no model"]);
    assert!(!at.exists());
    std::fs::create_dir(&at).unwrap();
    mount(model.path(), &at).fails(&["holds no model"]);
    assert!(at.exists(), "one that was there stays");
    let f = stfs([Path::new("mount"), Path::new("-f"), model.path(), &at]);
    f.fails(&["holds no model"]);
}

#[test]
fn usage_is_exit_code_2() {
    let model = small_model();
    let (dir, at) = (model.path().to_str().unwrap(), model.join("m"));
    let at = at.to_str().unwrap();
    for args in [
        &[][..],
        &["frobnicate"],
        &["mount"],
        &["mount", dir],
        &["mount", dir, at, "extra"],
        &["mount", dir, at, "--threads", "0"],
        &["mount", dir, at, "--threads", "x"],
        &["mount", dir, at, "--bogus"],
        &["mount", dir, at, "-o", "bogus"],
        &["mount", dir, at, "-o", "threads=0"],
        &["mount", dir, at, "-o", "threads=99999"],
        &["umount"],
        &["ls"],
        &["ls", dir, "[z-a"],
        &["ls", dir, "--tree", "--why"],
        &["cat", dir],
        &["cat", dir, "a.weight", "--view", "bogus"],
        &["completions", "bogus"],
    ] {
        let ran = stfs(args);
        assert_eq!((ran.code, ran.out.as_str()), (2, ""), "{args:?}: {ran:?}");
        assert!(
            !ran.err.is_empty() && !ran.err.contains("panicked"),
            "{ran:?}"
        );
    }
    assert!(!Path::new(at).exists());
    for args in [&["--help"][..], &["--version"], &["mount", "--help"]] {
        assert!(!stfs(args).ok().out.is_empty());
    }
    let log = ["mount", dir, at, "--log-file", "/nonexistent/log"];
    stfs(log).fails(&["/nonexistent/log"]);
}

fn truncate(model: &ModelDir) {
    let shard = File::options()
        .write(true)
        .open(model.join("model.safetensors"));
    shard.unwrap().set_len(9).unwrap();
}

#[test]
fn a_log_file_is_appended_to() {
    let model = small_model();
    let log = model.file("log", "before\n");
    let option = format!("log_file={}", log.display());
    let m = Background::new(model.path(), &["-v", "-o", &option]);
    truncate(&model);
    assert!(std::fs::read(m.root.join("tensors/a.weight/raw")).is_err());
    let text = wait_for_text(&log, "needs");
    assert!(text.starts_with("before\n"), "{text}");
    for words in ["INFO", "WARN", "model.safetensors", "has 9"] {
        assert!(text.contains(words), "{words}: {text}");
    }
}

#[test]
fn errors_that_repeat_are_counted_at_the_end() {
    for signal in [None, Some(libc::SIGTERM)] {
        let model = small_model();
        let log = model.join("log");
        let m = Background::new(model.path(), &["--log-file", log.to_str().unwrap()]);
        truncate(&model);
        for _ in 0..5 {
            assert!(std::fs::read(m.root.join("tensors/a.weight/raw")).is_err());
        }
        match signal {
            None => drop(umount(&m.root).ok()),
            Some(signal) => kill(m.pid(), signal),
        }
        assert!(m.ended());
        let text = std::fs::read_to_string(&log).unwrap();
        assert_eq!(text.matches("has 9").count(), 3, "{text}");
        let count = text.lines().filter(|l| l.contains("repeated "));
        assert!(count.clone().all(|l| l.contains("has 9")), "{text}");
        assert_eq!(count.count(), 1, "{text}");
    }
}

#[test]
fn without_dev_fuse() {
    let ran = with_small_model(
        r#"
        mount -t tmpfs tmpfs /dev && mknod -m 666 /dev/null c 1 3
        "$BIN/stfs" mount "$MODEL" "$DIR/m" </dev/null
        "#,
    );
    ran.fails(&[
        "/dev/fuse is missing",
        "modprobe fuse",
        "--device /dev/fuse",
    ]);
}

#[test]
fn with_a_dev_fuse_that_may_not_be_opened() {
    // As in a container that was not given the device: even root may not open it.
    let ran = with_small_model(
        r#"
        mkdir "$DIR/dev"
        mount -t tmpfs -o nodev tmpfs "$DIR/dev" && mknod "$DIR/dev/fuse" c 10 229
        mount --bind "$DIR/dev/fuse" /dev/fuse
        "$BIN/stfs" mount "$MODEL" "$DIR/m"
        "#,
    );
    ran.fails(&[
        "/dev/fuse",
        "Permission denied",
        "--device /dev/fuse --cap-add SYS_ADMIN",
    ]);
    let ran = with_small_model(
        r#"
        device 600
        nobody "$BIN/stfs" mount "$MODEL" "$DIR/m"
        "#,
    );
    ran.fails(&["/dev/fuse", "Permission denied", "chmod 666 /dev/fuse"]);
}

#[test]
fn root_without_the_right_to_mount() {
    let ran = with_small_model(
        r#"
        setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin -- "$BIN/stfs" mount "$MODEL" "$DIR/m"
        "#,
    );
    ran.fails(&["/m", "Operation not permitted", "--cap-add SYS_ADMIN"]);
}

#[test]
fn without_fusermount3() {
    let ran = with_small_model(
        r#"
        device 666
        FUSERMOUNT_PATH=/nonexistent nobody "$BIN/stfs" mount "$MODEL" "$DIR/m"
        "#,
    );
    ran.fails(&["fusermount3 is missing", "only root", "apt install fuse3"]);
    // Root does not need it.
    let ran = with_small_model(
        r#"
        FUSERMOUNT_PATH=/nonexistent PATH=/nonexistent "$BIN/stfs" mount "$MODEL" "$DIR/m"
        test -e "$DIR/m/model.json"
        FUSERMOUNT_PATH=/nonexistent PATH=/nonexistent "$BIN/stfs" umount "$DIR/m"
        "#,
    );
    assert_eq!((ran.code, ran.err.as_str()), (0, ""), "{ran:?}");
}

#[test]
fn more_shards_than_the_limit_on_open_files() {
    let dir = ModelDir::new();
    for i in 0..40 {
        dir.shard(
            &format!("{i}.safetensors"),
            &[tensor(&format!("t{i}"), Dtype::U8, &[1])],
        );
    }
    for command in ["ls", "verify", "stat"] {
        let script = "ulimit -Sn 20 && exec \"$0\" \"$@\"";
        let mut shell = Command::new("sh");
        shell.args(["-c", script, BIN, command]).arg(dir.path());
        Ran::of(shell.output().unwrap()).ok();
    }
}

/// For every command but `mount`, which would only make a copy that depends on the first.
#[test]
fn a_mountpoint_stands_for_the_model_mounted_there() {
    let model = small_model();
    let mounted = Mounted::new(model.path());
    let run =
        |of: &Path| ["ls", "stat", "verify"].map(|command| stfs([Path::new(command), of]).ok().out);
    assert_eq!(run(mounted.root()), run(model.path()));
    let diff = stfs([Path::new("diff"), mounted.root(), model.path()]).ok();
    assert_eq!(diff.out, "0 added, 0 removed, 0 changed, 2 unchanged\n");
    let words = ["is itself a mount", model.path().to_str().unwrap()];
    mount(mounted.root(), &model.join("at")).fails(&words);
    // A directory in a mount is only a directory.
    stfs([Path::new("ls"), &mounted.join("tensors")]).fails(&["holds no model"]);
}

/// Each request thread needs a descriptor of its own.
#[test]
fn without_descriptors_for_the_threads_mounting_fails_and_leaves_nothing() {
    let model = small_model();
    let tmp = tempfile::tempdir().unwrap();
    let mountpoint = tmp.path().join("m");
    let script = "ulimit -n 24 && exec \"$0\" \"$@\"";
    let mut limited = Command::new("timeout");
    limited.args(["-k", "5", "60", "sh", "-c", script, BIN, "mount", "-f"]);
    let ran = limited.args([model.path(), &mountpoint]).output().unwrap();
    Ran::of(ran).fails(&["request threads: Too many open files", "ulimit -n"]);
    assert!(!mountpoint.exists(), "neither a mount nor its directory");
}
