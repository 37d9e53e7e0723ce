//! What a daemon uses: descriptors, threads, memory.

use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::sys::getxattr;

/// How long a daemon may take to become idle, on a busy machine.
const AT_LAST: Duration = Duration::from_secs(30);
/// How much memory may come on top of what an idle daemon had when it was warm: allocators keep what
/// they had at the peak, and a fault makes another peak. A leak grows with time: a long run shows it.
const MEMORY: u64 = 48 << 20;

/// What a process uses.
#[derive(Clone, Copy, Debug)]
pub struct Usage {
    descriptors: Option<usize>,
    threads: usize,
    /// Bytes of memory of its own, without pages of files.
    memory: u64,
}

/// The process that serves a mount, as the mount reports it.
pub fn server(mount: &Path) -> i32 {
    let status = getxattr(mount, "user.stfs.status").expect("the mount answers");
    let status: serde_json::Value = serde_json::from_slice(&status).expect("JSON");
    status["pid"].as_i64().expect("a process id") as i32
}

/// How many descriptors a process has open; `None` if only root may know, because it cannot be traced.
pub fn descriptors(pid: i32) -> Option<usize> {
    match std::fs::read_dir(format!("/proc/{pid}/fd")) {
        Ok(open) => Some(open.count()),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => None,
        Err(e) => panic!("process {pid}: {e}"),
    }
}

fn usage(pid: i32) -> Usage {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let field = |name: &str| {
        let line = status
            .lines()
            .find_map(|l| l.strip_prefix(name))
            .unwrap_or(" 0");
        let number = line.trim_start_matches(':').split_whitespace().next();
        number.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0)
    };
    Usage {
        descriptors: descriptors(pid),
        threads: field("Threads") as usize,
        memory: (field("RssAnon") + field("RssShmem")) << 10,
    }
}

/// What the server of a mount uses that nobody reads from.
pub fn idle(mount: &Path) -> Usage {
    usage(server(mount))
}

/// Asserts that a mount that nobody reads from uses no more than before. The kernel tells the server of
/// closed files after the fact, and threads without work end after a while.
#[track_caller]
pub fn is_flat(mount: &Path, before: Usage) {
    let until = Instant::now() + AT_LAST;
    loop {
        let now = idle(mount);
        let flat = now.descriptors <= before.descriptors
            && now.threads <= before.threads
            && now.memory <= before.memory + before.memory / 2 + MEMORY;
        if flat {
            return;
        }
        assert!(
            Instant::now() < until,
            "{mount:?} has grown from {before:?} to {now:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}
