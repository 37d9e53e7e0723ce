//! The keeper's server: its end, and signals to it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use anyhow::{Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal};
use serde_json::Value;

/// `PIDFD_THREAD` (Linux 6.9): of the main thread.
const OF_THREAD: PidfdFlags = PidfdFlags::from_bits_retain(libc::O_EXCL as u32);
/// Between looks at the server's state on kernels that cannot report the end of its main thread.
const SECOND: Duration = Duration::from_secs(1);

/// A server has ended when its main thread has. If other threads are inside a stalled file system, its
/// process goes on as long as they are.
pub(super) struct Server {
    pid: Pid,
    /// `None` before Linux 5.3.
    descriptor: Option<OwnedFd>,
    /// Whether the descriptor is of the main thread.
    of_thread: bool,
}

impl Server {
    /// The parent of this process, which had this number.
    pub(super) fn new(pid: Pid) -> Result<Server> {
        let of_thread = rustix::process::pidfd_open(pid, OF_THREAD);
        let is_of_thread = of_thread.is_ok();
        let of_process = |_| rustix::process::pidfd_open(pid, PidfdFlags::empty());
        let server = Server {
            pid,
            descriptor: of_thread.or_else(of_process).ok(),
            of_thread: is_of_thread,
        };
        // If it has ended, the number may be another's by now.
        match rustix::process::getppid() == Some(pid) {
            true => Ok(server),
            false => bail!("the server has ended"),
        }
    }

    /// Becomes readable when the server ends.
    pub(super) fn end(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_ref()?.as_fd())
    }

    /// How often to call [`Server::has_ended`]; `None`: [`Server::end`] is enough.
    pub(super) fn look_every(&self) -> Option<Duration> {
        (!self.of_thread).then_some(SECOND)
    }

    /// Whether its main thread has ended.
    pub(super) fn has_ended(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid.as_raw_nonzero()));
        // `PID (NAME) STATE …`, and the name may hold anything.
        let state = |stat: String| stat.rsplit(") ").next().map(|s| s.starts_with(['Z', 'X']));
        stat.ok().and_then(state).unwrap_or(true)
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
