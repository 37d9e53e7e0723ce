//! The keeper's server: its end, and signals to it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal};
use serde_json::Value;

/// Between looks at the server's state. A descriptor reports the end of a process once its last thread has
/// ended, and that may be inside a stalled file system: it closes the files there.
pub(super) const LOOK_AT_SERVER: Duration = Duration::from_secs(1);
/// `PF_EXITING` among the flags in `/proc/PID/stat`: the thread is ending, however long that takes.
const EXITING: u32 = 4;

/// A server has ended when its main thread has, or has begun to. If threads are inside a stalled file system,
/// its process goes on as long as they are.
pub(super) struct Server {
    pid: Pid,
    /// `None` before Linux 5.3.
    descriptor: Option<OwnedFd>,
}

impl Server {
    /// The parent of this process, which had this number.
    pub(super) fn new(pid: Pid) -> Result<Server> {
        let descriptor = rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok();
        let server = Server { pid, descriptor };
        // If it has ended, the number may be another's by now.
        match rustix::process::getppid() == Some(pid) {
            true => Ok(server),
            false => bail!("the server has ended"),
        }
    }

    /// Becomes readable when the last thread of the server has ended.
    pub(super) fn end(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_ref()?.as_fd())
    }

    /// Whether its main thread has ended, or is ending.
    pub(super) fn has_ended(&self) -> bool {
        match std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero())) {
            Ok(stat) => is_ending(&stat),
            // A /proc that hides it, no descriptor or no memory: none of these is its end.
            Err(_) => rustix::process::test_kill_process(self.pid) == Err(Errno::SRCH),
        }
    }

    /// Asks it to end.
    pub(super) fn terminate(&self) {
        let _ = match &self.descriptor {
            Some(descriptor) => rustix::process::pidfd_send_signal(descriptor, Signal::TERM),
            None => rustix::process::kill_process(self.pid, Signal::TERM),
        };
    }

    /// Whether this process id, from a mount's status, is the server's.
    pub(super) fn is(&self, pid: &Value) -> bool {
        pid.as_i64() == Some(self.pid.as_raw_nonzero().get().into())
    }
}

/// `PID (NAME) STATE PARENT GROUP SESSION TERMINAL ITS_GROUP FLAGS …`, and the name may hold anything.
fn is_ending(stat: &str) -> bool {
    let mut fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    let state = fields.next().unwrap_or_default();
    let flags = fields.nth(5).and_then(|flags| flags.parse().ok());
    state.starts_with(['Z', 'X']) || flags.is_some_and(|flags: u32| flags & EXITING != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_ending_has_a_state_or_a_flag_that_shows_it() {
        let own = std::fs::read_to_string("/proc/self/stat").unwrap();
        assert!(!is_ending(&own));
        assert!(is_ending("7 (a) Z) Z 1 7 7 0 -1 4194624 4723 0"));
        assert!(!is_ending("7 (a) Z) S 1 7 7 0 -1 4194624 4723 0"));
        assert!(is_ending("7 (stfs) D 1 7 7 0 -1 4194628 4723 0"));
        assert!(!is_ending(""));
    }
}
