//! Whatever ends a mount, nothing remains: no dead mount, no process, no mount that is made later.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::mount::{
    BIN, Background, has_ended, is_mounted, keeper_of, soon, umount, wait_for,
};
use crate::common::sys::kill;
use crate::common::{ModelDir, Mounted, Ran, stfs, tensor};
use crate::{as_root, small_model, with_small_model};

/// The processes of which the command line names `path`.
fn processes(path: &Path) -> Vec<i32> {
    let wanted = path.to_str().unwrap().as_bytes();
    let all = std::fs::read_dir("/proc").unwrap();
    let ids = all.filter_map(|e| e.unwrap().file_name().to_str()?.parse().ok());
    let names = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|&b| b == 0).any(|arg| arg == wanted)
    };
    ids.filter(names).collect()
}

/// Waits until neither a mount nor a process is left.
#[track_caller]
fn nothing_is_left(at: &Path) {
    assert!(soon(|| !is_mounted(at)), "the mount stays");
    assert!(soon(|| processes(at).is_empty()), "{:?}", states(at));
}

fn states(at: &Path) -> Vec<String> {
    let status = |pid| std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    processes(at).into_iter().map(status).collect()
}

fn start(args: &[&str], model: &ModelDir, at: &Path) -> Child {
    Command::new(BIN)
        .arg("mount")
        .args(args)
        .args([model.path(), at])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Starts a mount that prints its line to a file.
fn start_to(line: File, model: &ModelDir, at: &Path) -> Child {
    Command::new(BIN)
        .arg("mount")
        .args([model.path(), at])
        .stdin(Stdio::null())
        .stdout(line)
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Whether a mount is ready: not only mounted, but with the thread that waits for signals.
fn is_ready(at: &Path) -> bool {
    if !is_mounted(at) || !at.join("model.json").exists() {
        return false;
    }
    let threads = std::fs::read_dir(format!("/proc/{}/task", server_at(at))).unwrap();
    let mut names = threads.map(|t| std::fs::read_to_string(t.unwrap().path().join("comm")));
    names.any(|name| name.is_ok_and(|n| n == "stfs-signals\n"))
}

#[test]
fn a_server_that_is_killed_leaves_no_mount() {
    let model = small_model();
    let m = Background::new(model.path(), &[]);
    let keeper = keeper_of(m.pid());
    kill(m.pid(), libc::SIGKILL);
    nothing_is_left(&m.root);
    assert!(m.ended() && has_ended(keeper));
    let m = Mounted::new(model.path());
    kill(m.pid(), libc::SIGKILL);
    let (mut child, root, _dir) = m.into_parts();
    assert!(!wait_for(&mut child).expect("it ends").success());
    nothing_is_left(&root);
}

#[test]
fn a_server_without_its_keeper_goes_on() {
    let model = small_model();
    let m = Background::new(model.path(), &[]);
    let keeper = keeper_of(m.pid());
    kill(keeper, libc::SIGKILL);
    assert!(soon(|| has_ended(keeper)));
    assert!(m.root.join("tensors/a.weight/raw").exists());
    umount(&m.root).ok();
    assert!(m.ended());
}

#[test]
fn a_signal_to_the_keeper_ends_the_mount() {
    let model = small_model();
    let m = Background::new(model.path(), &[]);
    kill(keeper_of(m.pid()), libc::SIGTERM);
    nothing_is_left(&m.root);
}

#[test]
fn a_signal_to_the_whole_group_ends_it_once() {
    let model = small_model();
    let dir = tempfile::tempdir().unwrap();
    let (at, log) = (dir.path().join("m"), dir.path().join("log"));
    let mut child = Command::new(BIN)
        .args(["mount", "-f"])
        .args([model.path(), &at])
        .stdout(Stdio::null())
        .stderr(File::create(&log).unwrap())
        .process_group(0)
        .spawn()
        .unwrap();
    assert!(soon(|| at.join("model.json").exists()));
    // Ready, and not only mounted: from then on a signal is an orderly end.
    assert!(soon(|| stfs(["mounts"])
        .ok()
        .out
        .contains(at.to_str().unwrap())));
    std::thread::sleep(Duration::from_millis(200));
    kill(-(child.id() as i32), libc::SIGINT);
    assert!(wait_for(&mut child).expect("it ends").success());
    assert!(!is_mounted(&at));
    nothing_is_left(&at);
    let log = std::fs::read_to_string(log).unwrap();
    assert_eq!(log.matches("signal 2").count(), 1, "{log}");
}

/// Killed at any moment of its start, it leaves nothing.
#[test]
fn killed_while_it_starts() {
    let model = small_model();
    let dir = tempfile::tempdir().unwrap();
    for round in 0..60u64 {
        let at = dir.path().join(format!("{round}"));
        let mut child = start(&["-f"], &model, &at);
        std::thread::sleep(Duration::from_micros(2000 + 7000 * round / 60));
        child.kill().unwrap();
        assert!(
            wait_for(&mut child).is_some(),
            "round {round}: {:?}",
            states(&at)
        );
        nothing_is_left(&at);
    }
}

/// The same for one that goes to the background: either it is ready, or nothing is left.
#[test]
fn a_caller_that_is_killed_takes_the_mount_with_it() {
    let model = small_model();
    let dir = tempfile::tempdir().unwrap();
    for round in 0..60u64 {
        let at = dir.path().join(format!("{round}"));
        let line = dir.path().join(format!("{round}.line"));
        let mut child = start_to(File::create(&line).unwrap(), &model, &at);
        std::thread::sleep(Duration::from_micros(500 + 250 * round));
        let signal = [libc::SIGINT, libc::SIGTERM, libc::SIGKILL][round as usize % 3];
        kill(child.id() as i32, signal);
        let status = wait_for(&mut child).expect("it ends");
        if status.success() {
            assert!(at.join("model.json").exists(), "round {round}");
        }
        // Once the line is printed there may be a mount, however soon after that the caller is killed.
        if std::fs::metadata(&line).unwrap().len() > 0 {
            let _ = umount(&at);
        }
        nothing_is_left(&at);
    }
}

fn limited(limit: &str, args: &[&str], model: &ModelDir, at: &Path) -> Ran {
    let script = format!("{limit} && exec \"$0\" \"$@\"");
    let mut command = Command::new("timeout");
    command.args(["-k", "5", "60", "sh", "-c", &script, BIN, "mount"]);
    Ran::of(
        command
            .args(args)
            .args([model.path(), at])
            .output()
            .unwrap(),
    )
}

#[test]
fn without_address_space_for_the_threads_it_fails_and_leaves_nothing() {
    let model = small_model();
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("m");
    for args in [&[][..], &["-f"]] {
        let ran = limited("ulimit -v 100000", args, &model, &at);
        ran.fails(&["request threads", "ulimit -v", "--threads"]);
        nothing_is_left(&at);
        assert!(!at.exists());
    }
    limited("ulimit -v 4000000", &[], &model, &at).ok();
    assert!(at.join("model.json").exists());
    umount(&at).ok();
    nothing_is_left(&at);
}

#[test]
fn too_few_descriptors_for_the_shards() {
    let model = ModelDir::new();
    for i in 0..40 {
        let t = tensor(&format!("t{i}"), safetensors::Dtype::U8, &[1]);
        model.shard(&format!("{i}.safetensors"), &[t]);
    }
    let at = model.path().with_extension("m");
    let ran = limited("ulimit -n 30", &[], &model, &at);
    ran.fails(&["Too many open files", "is 30", "ulimit -Hn", "LimitNOFILE"]);
    nothing_is_left(&at);
}

#[test]
fn either_the_line_is_printed_or_there_is_no_mount() {
    let model = small_model();
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("m");
    let mount = |args: &[&str], out: Stdio| {
        let mut command = Command::new("timeout");
        command.args(["-k", "5", "60", BIN, "mount"]).args(args);
        command.args([model.path(), &at]).stdout(out);
        command
    };
    for args in [&[][..], &["-f"]] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let ran = Ran::of(mount(args, full.into()).output().unwrap());
        ran.fails(&["standard output", "No space left"]);
        assert!(!is_mounted(&at) && !at.exists());
        nothing_is_left(&at);
    }
    // Nobody reads any more: not an error.
    let closed = || Stdio::from(std::io::pipe().unwrap().1);
    let status = mount(&[], closed()).status().unwrap();
    assert!(status.success() && is_mounted(&at));
    umount(&at).ok();
    nothing_is_left(&at);
    let mut child = mount(&["-f"], closed()).spawn().unwrap();
    assert!(soon(|| is_ready(&at)));
    umount(&at).ok();
    assert!(wait_for(&mut child).expect("it ends").success());
}

#[test]
fn a_stale_mount_goes_only_when_the_new_one_can_be_made() {
    let model = small_model();
    let m = Background::new(model.path(), &[]);
    m.kill_with_keeper();
    let none = ModelDir::new();
    stfs([Path::new("mount"), none.path(), &m.root]).fails(&["holds no model"]);
    assert!(is_mounted(&m.root), "it has been detached");
    // A note that cannot be written changes nothing.
    let full = File::options().write(true).open("/dev/full").unwrap();
    let mut command = Command::new("timeout");
    command
        .args(["60", BIN, "mount"])
        .args([model.path(), &m.root]);
    assert!(command.stderr(full).status().unwrap().success());
    assert!(m.root.join("model.json").exists());
}

#[test]
fn a_helper_that_prints_no_reason() {
    let ran = with_small_model(
        r#"
        device 666
        FUSERMOUNT_PATH=/bin/false nobody "$BIN/stfs" mount "$MODEL" "$DIR/m"
        "#,
    );
    ran.fails(&[
        "mount at ",
        "/bin/false printed no reason",
        "exit status: 1",
    ]);
}

#[test]
fn a_mount_of_which_the_parent_was_renamed_goes_all_the_same() {
    let model = small_model();
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    type End = fn(i32, &Path);
    let ends: [End; 3] = [
        |pid, _| kill(pid, libc::SIGTERM),
        |pid, _| kill(pid, libc::SIGKILL),
        |_, at| drop(umount(at).ok()),
    ];
    for end in ends {
        let _ = std::fs::remove_dir_all(&new);
        stfs([Path::new("mount"), model.path(), &old.join("m")]).ok();
        std::fs::rename(&old, &new).unwrap();
        let at = new.join("m");
        let server = server_at(&at);
        // Something else may have taken the old place.
        std::fs::create_dir_all(old.join("m")).unwrap();
        end(server, &at);
        assert!(soon(|| !is_mounted(&at)), "a dead mount stays");
        assert!(soon(|| has_ended(server)));
        std::fs::remove_dir_all(&old).unwrap();
    }
}

fn server_at(at: &Path) -> i32 {
    let status = crate::common::sys::getxattr(at, "user.stfs.status").unwrap();
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    status["pid"].as_i64().unwrap() as i32
}

#[test]
fn umount_takes_the_model_for_its_mount() {
    let model = small_model();
    let dir = tempfile::tempdir().unwrap();
    let at: Vec<PathBuf> = ["a", "b"].iter().map(|n| dir.path().join(n)).collect();
    for at in &at {
        stfs([Path::new("mount"), model.path(), at]).ok();
    }
    let [a, b] = [&at[0], &at[1]].map(|p| p.to_str().unwrap());
    stfs([Path::new("umount"), model.path()]).fails(&["mounted 2 times", a, b]);
    umount(&at[0]).ok();
    umount(model.path()).ok();
    assert!(!is_mounted(&at[1]));
    stfs([Path::new("umount"), model.path()]).fails(&["is not an stfs mount"]);
}

/// An ordinary user, whose mounts fusermount3 makes and unmounts.
#[test]
fn nothing_is_left_of_an_ordinary_users_mounts() {
    let ran = as_root(
        &small_model(),
        r#"
        device 666
        cat > "$DIR/run" <<'END'
        status() { getfattr --absolute-names --only-values -n user.stfs.status "$DIR/m"; }
        pid() { status | grep -o '"pid":[0-9]*' | cut -d: -f2; }
        gone() { for i in $(seq 500); do mountpoint -q "$DIR/m" || { echo "gone after $1"; return; }; sleep 0.02; done; echo "stays after $1"; }
        "$BIN/stfs" mount "$MODEL" "$DIR/m" > /dev/null; kill -9 "$(pid)"; gone kill
        "$BIN/stfs" mount -f "$MODEL" "$DIR/m" > /dev/null & until mountpoint -q "$DIR/m"; do sleep 0.02; done
        kill -9 $!; wait $! 2> /dev/null; gone "kill in front"
        "$BIN/stfs" mount "$MODEL" "$DIR/m" > /dev/full 2> "$DIR/why"; echo $?; gone "full output"
        mkdir "$DIR/old"; "$BIN/stfs" mount "$MODEL" "$DIR/old/m" > /dev/null; mv "$DIR/old" "$DIR/new"
        kill "$(getfattr --absolute-names --only-values -n user.stfs.status "$DIR/new/m" | grep -o '"pid":[0-9]*' | cut -d: -f2)"
        for i in $(seq 500); do mountpoint -q "$DIR/new/m" || { echo "gone after rename"; break; }; sleep 0.02; done
END
        nobody sh "$DIR/run"
        "#,
    );
    let want = [
        "gone after kill",
        "gone after kill in front",
        "1",
        "gone after full output",
        "gone after rename",
    ];
    assert_eq!(ran.out.lines().collect::<Vec<_>>(), want, "{ran:?}");
}
