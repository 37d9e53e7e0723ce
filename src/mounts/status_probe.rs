//! Asks a mount for its status from a process of its own. A process inside a request that is never
//! answered cannot be killed, so nothing must depend on it.

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions};

use super::Daemon;

/// The longest status that is read, in bytes.
const LONGEST: usize = 64 << 10;

/// A request for a mount's status that is on its way; `None` if it could not be sent.
pub struct StatusProbe(Option<Asked>);

struct Asked {
    child: Pid,
    /// An errno (0: there is an answer), then the answer.
    reply: File,
}

impl StatusProbe {
    /// Asks for the root's `user.stfs.status`. Not `stat`: the kernel remembers attributes for longer
    /// than the daemon lives.
    pub fn send(mountpoint: &Path) -> StatusProbe {
        StatusProbe(ask(mountpoint).ok())
    }

    /// Becomes readable when the answer is here.
    pub fn reply(&self) -> Option<BorrowedFd<'_>> {
        Some(self.0.as_ref()?.reply.as_fd())
    }

    /// The answer, if it comes before `deadline`.
    pub fn answer(self, deadline: Instant) -> Daemon {
        let Some(Asked { child, mut reply }) = self.0 else {
            return Daemon::Silent;
        };
        let mut bytes = Vec::new();
        if !readable(&reply, deadline) || reply.read_to_end(&mut bytes).is_err() {
            return Daemon::Silent;
        }
        let _ = rustix::process::waitpid(Some(child), WaitOptions::empty());
        let Some((errno, status)) = bytes.split_first_chunk() else {
            return Daemon::Silent;
        };
        match i32::from_ne_bytes(*errno) {
            0 => serde_json::from_slice(status).map_or(Daemon::Private, Daemon::Answers),
            // A request that is in flight when the daemon ends gets ECONNABORTED.
            libc::ENOTCONN | libc::ECONNABORTED => Daemon::Died,
            _ => Daemon::Private,
        }
    }
}

fn ask(mountpoint: &Path) -> io::Result<Asked> {
    let path = CString::new(mountpoint.as_os_str().as_bytes())?;
    let (reader, writer) = io::pipe()?;
    // Allocated before the fork: the child must not allocate.
    let mut message = vec![0u8; size_of::<i32>() + LONGEST];
    // SAFETY: other threads may hold any lock, the allocator's included, at the moment of the fork; so
    // the child calls only what is async-signal-safe (system calls on memory that exists already), and
    // ends with `_exit`, without returning into frames or running destructors that it shares.
    let child = match unsafe { libc::fork() } {
        -1 => return Err(io::Error::last_os_error()),
        0 => answer_for(&path, writer.as_raw_fd(), &mut message),
        child => child,
    };
    Ok(Asked {
        child: Pid::from_raw(child).ok_or(Errno::CHILD)?,
        reply: File::from(OwnedFd::from(reader)),
    })
}

/// The child: closes all descriptors but the pipe, asks, passes the answer on, and ends.
fn answer_for(path: &CString, pipe: libc::c_int, message: &mut [u8]) -> ! {
    let (errno, value) = message.split_at_mut(size_of::<i32>());
    // SAFETY: descriptors of this process alone are replaced and closed, which nothing here uses
    // again; strings end in NUL; lengths are those of the buffers; `_exit` runs nothing of std's.
    unsafe {
        libc::dup2(pipe, 0);
        libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0);
        let name = c"user.stfs.status".as_ptr();
        let n = libc::getxattr(path.as_ptr(), name, value.as_mut_ptr().cast(), value.len());
        let error = if n < 0 { *libc::__errno_location() } else { 0 };
        errno.copy_from_slice(&error.to_ne_bytes());
        let len = errno.len() + usize::try_from(n).unwrap_or(0);
        libc::write(0, message.as_ptr().cast(), len);
        libc::_exit(0)
    }
}

/// Waits until there is something to read, or the writer has closed its end; `false`: neither happened
/// before `deadline`.
fn readable(file: &File, deadline: Instant) -> bool {
    let mut polled = [PollFd::new(file, PollFlags::IN)];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match rustix::event::poll(&mut polled, Timespec::try_from(left).ok().as_ref()) {
            Err(Errno::INTR) => {}
            answer => return answer.is_ok_and(|n| n > 0),
        }
    }
}
