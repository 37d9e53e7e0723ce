//! Mounts on, over and beside each other: nothing here may unmount, or wait for, another's.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use crate::common::mount::{BIN, Background, umount, wait_for};
use crate::common::sys::{kill, stop};
use crate::common::{Mounted, Ran, stfs};
use crate::{small_model, with_small_model};

#[test]
fn a_daemon_that_ends_leaves_the_mount_that_took_its_place() {
    let model = small_model();
    let old = Mounted::new(model.path());
    let open = File::open(old.join("tensors/a.weight/raw")).unwrap();
    stfs([Path::new("umount"), "--lazy".as_ref(), old.root()]).ok();
    let new = stfs([Path::new("mount"), model.path(), old.root()]);
    assert_eq!(new.code, 0, "{new:?}");
    kill(old.pid(), libc::SIGTERM);
    let (mut child, root, _dir) = old.into_parts();
    assert!(wait_for(&mut child).expect("it ends").success());
    drop(open);
    let seen = root.join("tensors/a.weight/raw").exists();
    umount(&root).ok();
    assert!(seen, "the newer mount went with the older daemon");
}

#[test]
fn a_daemon_that_was_unmounted_leaves_what_came_after_it() {
    let ran = with_small_model(
        r#"
        "$BIN/stfs" mount "$MODEL" "$DIR/m" >/dev/null
        pid=$("$BIN/stfs" mounts --json | tr -d ' ,' | awk -F: -v m="\"$DIR/m\"" '$1 == "\"mountpoint\"" { here = $2 == m } here && $1 == "\"pid\"" { print $2 }')
        kill -STOP $pid
        "$BIN/stfs" umount --lazy "$DIR/m"
        mount -t tmpfs tmpfs "$DIR/m"
        echo kept > "$DIR/m/file"
        kill -CONT $pid
        while [ -e /proc/$pid/exe ]; do sleep 0.05; done
        cat "$DIR/m/file"
        umount "$DIR/m"
        "#,
    );
    assert_eq!((ran.code, ran.out.as_str()), (0, "kept\n"), "{ran:?}");
}

#[test]
fn a_mountpoint_serves_one_mount_after_another() {
    let model = small_model();
    let at = model.join("m");
    for round in 0..100 {
        let ran = stfs([Path::new("mount"), model.path(), &at]);
        assert_eq!(ran.code, 0, "round {round}: {ran:?}");
        assert!(at.join("tensors/a.weight/raw").exists(), "round {round}");
        umount(&at).ok();
    }
}

#[test]
fn the_daemon_holds_nothing_open_of_its_callers() {
    let model = small_model();
    let script = r#"
        exec 9>"$2/lock"; flock -n 9
        "$0" mount "$1" "$2/m" >/dev/null
        exec 9>&-
        flock -n "$2/lock" echo free
        until "$0" umount "$2/m" 2>/dev/null; do :; done
    "#;
    let out = Command::new("timeout")
        .args(["60", "sh", "-c", script, BIN])
        .args([model.path(), model.path()])
        .output()
        .unwrap();
    // The shell's own lock is on a descriptor that is closed: only a daemon could still hold it.
    assert_eq!(Ran::of(out).ok().out, "free\n");
}

#[test]
fn umount_leaves_what_covers_a_mount_alone() {
    let ran = with_small_model(
        r#"
        "$BIN/stfs" mount "$MODEL" "$DIR/m" >/dev/null
        mount -t tmpfs tmpfs "$DIR/m"
        echo kept > "$DIR/m/file"
        "$BIN/stfs" mounts | grep -o "covered by another mount"
        "$BIN/stfs" umount "$DIR/m" && exit 9
        cat "$DIR/m/file"
        umount "$DIR/m"
        "$BIN/stfs" umount "$DIR/m"
        "#,
    );
    assert_eq!(
        (ran.code, ran.out.as_str()),
        (0, "covered by another mount\nkept\n"),
        "{ran:?}"
    );
    assert!(ran.err.contains("topmost"), "{ran:?}");
}

#[test]
fn a_daemon_that_does_not_answer_holds_nobody_up() {
    let model = small_model();
    let stopped = Background::new(model.path(), &[]);
    let beside = Mounted::new(model.path());
    stop(stopped.pid());
    // On a busy machine one attempt may miss what takes no time on an idle one.
    let seen = (0..10).any(|_| {
        let listed = stfs(["mounts"]);
        let line = |root: &Path| {
            let line = listed
                .out
                .lines()
                .find(|l| l.contains(root.to_str().unwrap()));
            line.unwrap_or_else(|| panic!("{listed:?}"))
                .trim_end()
                .to_string()
        };
        assert!(line(&stopped.root).ends_with("daemon does not answer"));
        line(beside.root()).ends_with("ok")
    });
    kill(stopped.pid(), libc::SIGCONT);
    assert!(seen, "the mount beside it does not answer");
}

/// Nobody reads the log of a mount that works: a config that cannot be used, without which quantized
/// and tied weights are missing, is reported where the mount was asked for.
#[test]
fn a_config_that_is_not_used_is_reported_in_the_terminal_and_in_the_log() {
    let model = small_model();
    model.file("config.json", "{\"tie_word_embeddings\": tru");
    let (at, log) = (model.join("m"), model.join("log"));
    let at = at.to_str().unwrap();
    let args = ["mount", "--log-file", log.to_str().unwrap()];
    let ran = stfs(args.into_iter().chain([model.path().to_str().unwrap(), at]));
    let unmounted = stfs(["umount", at]);
    let expected = "stfs: not used: config.json: is not JSON";
    assert!(ran.code == 0 && ran.err.starts_with(expected), "{ran:?}");
    assert_eq!(ran.err.lines().count(), 1, "{ran:?}");
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains("not used: config.json"), "{text}");
    unmounted.ok();
}

#[test]
fn what_is_said_while_mounting_is_in_the_background_log() {
    let model = small_model();
    let shard = model.join("here.safetensors");
    std::fs::rename(model.join("model.safetensors"), shard).unwrap();
    model.index(
        "model.safetensors.index.json",
        [("a.weight", "here.safetensors"), ("b", "gone.safetensors")],
    );
    let log = model.join("log");
    let m = Background::new(
        model.path(),
        &["--allow-missing", "--log-file", log.to_str().unwrap()],
    );
    let text = std::fs::read_to_string(&log).unwrap();
    assert!(text.contains("gone.safetensors"), "{text}");
    drop(m);
}
