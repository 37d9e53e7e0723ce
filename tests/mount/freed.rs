//! A mount of which the source stalls can be ended all the same: its readers are freed, and what had not
//! been mounted yet is not mounted later.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use safetensors::Dtype;

use crate::common::model::{ModelDir, tensor};
use crate::common::mount::{BIN, Mounted, has_ended, is_mounted, soon, stfs, wait_for};
use crate::common::sys::{is_root, kill};
use crate::stalled::{SOON, Stopped, model, readers};

/// Readers wait in the kernel. Only who may end the connection (root here) can free them.
fn frees_readers(what: &str, end: impl FnOnce(&Mounted)) {
    if !is_root() {
        return;
    }
    let m = model("4");
    let done = Arc::new(AtomicUsize::new(0));
    let stopped = Stopped::new(m.lower.pid());
    let readers = readers(&m, &done);
    std::thread::sleep(Duration::from_millis(500));
    let start = Instant::now();
    end(&m.upper);
    assert!(soon(|| !is_mounted(m.upper.root())));
    let freed = |r: &std::thread::JoinHandle<_>| r.is_finished();
    while !readers.iter().all(freed) {
        assert!(start.elapsed() < SOON, "after {what} readers still wait");
        std::thread::sleep(Duration::from_millis(2));
    }
    println!("{what}: {:.1?}", start.elapsed());
    for reader in readers {
        let e = reader.join().unwrap().expect_err("an error").raw_os_error();
        let ended = [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO];
        assert!(e.is_some_and(|e| ended.contains(&e)), "{e:?}");
    }
    drop(stopped);
    let (mut child, _, _dir) = m.upper.into_parts();
    assert!(wait_for(&mut child).is_some(), "the process goes on");
}

#[test]
fn sigterm_frees_the_readers_of_a_stalled_source() {
    frees_readers("SIGTERM", |m| kill(m.pid(), libc::SIGTERM));
}

#[test]
fn sigkill_frees_the_readers_of_a_stalled_source() {
    frees_readers("SIGKILL", |m| kill(m.pid(), libc::SIGKILL));
}

#[test]
fn a_lazy_umount_frees_the_readers_of_a_stalled_source() {
    frees_readers("umount --lazy", |m| {
        stfs([Path::new("umount"), "--lazy".as_ref(), m.root()]).ok();
    });
}

#[test]
fn a_caller_that_ends_while_the_model_stalls_leaves_nothing_that_mounts_later() {
    let below = ModelDir::of(&[tensor("a", Dtype::U8, &[1])]);
    below.shard("b.safetensors", &[tensor("b", Dtype::U8, &[9])]);
    for args in [&[][..], &["-f"]] {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGKILL] {
            let lower = Mounted::new(below.path());
            let dir = tempfile::tempdir().unwrap();
            let at = dir.path().join("m");
            let stopped = Stopped::new(lower.pid());
            let mut caller = Command::new(BIN)
                .arg("mount")
                .args(args)
                .args([&lower.join("files/b.safetensors"), &at])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(300));
            let all = family(caller.id() as i32);
            assert!(all.len() >= 2, "the caller has ended before: {all:?}");
            kill(caller.id() as i32, signal);
            // In front it is the process itself that hangs; what it waits for cannot be interrupted.
            if args.is_empty() {
                assert!(wait_for(&mut caller).is_some());
            }
            drop(stopped);
            assert!(wait_for(&mut caller).is_some());
            assert!(soon(|| all.iter().all(|&pid| has_ended(pid))), "{all:?}");
            assert!(!is_mounted(&at) && !at.exists());
        }
    }
}

/// A process and its descendants.
fn family(pid: i32) -> Vec<i32> {
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    let below = children.split_whitespace();
    let below = below.flat_map(|child| family(child.parse().expect("a process id")));
    [pid].into_iter().chain(below).collect()
}
