//! Going to the background: the parent waits until the child's mount answers, prints what the
//! child says, and leaves with its exit code.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::ExitCode;

use anyhow::{Context, Result};

/// The child's line to its parent.
pub(super) struct Parent(File);

/// Which of the two processes this is.
pub(super) enum Side {
    /// The one that goes on: it serves the mount.
    Child(Parent),
    /// The one that was started: it leaves with this code.
    Parent(ExitCode),
}

/// Closes what the caller had open beside the standard descriptors: a lock or a pipe that the
/// daemon held would be held until the unmount. To be called before anything is opened.
pub(super) fn close_inherited() {
    // Straight to the kernel: not every C library knows it. Before Linux 5.9 nothing is closed.
    //
    // SAFETY: std has opened no descriptor above 2 yet, and no other code of this process has run.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// Splits the process in two. Must be called before there is any other thread (and before CUDA).
///
/// # Errors
/// No pipe or no process to be had.
pub(super) fn split() -> Result<Side> {
    let (reader, writer) = pipe().context("make a pipe")?;
    // SAFETY: there is one thread, so the child may do anything its parent could; it never
    // returns into the parent's stack frames but goes on as an ordinary process.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).context("fork"),
        0 => {
            drop(reader);
            // SAFETY: no preconditions; fails only for a process group leader, which a child is not.
            unsafe { libc::setsid() };
            Ok(Side::Child(Parent(writer)))
        }
        child => {
            drop(writer);
            wait_for(child, reader).map(Side::Parent)
        }
    }
}

fn pipe() -> io::Result<(File, File)> {
    let mut fds = [0; 2];
    // SAFETY: `fds` has room for the two descriptors that are written to it.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both descriptors were just made and belong to nobody else.
    let both = fds.map(|fd| File::from(unsafe { OwnedFd::from_raw_fd(fd) }));
    let [reader, writer] = both;
    Ok((reader, writer))
}

/// Prints what the child has to say once it is ready; or, where it died before, its exit code.
fn wait_for(child: libc::pid_t, mut reader: File) -> Result<ExitCode> {
    let mut line = Vec::new();
    reader
        .read_to_end(&mut line)
        .context("wait for the mount")?;
    if !line.is_empty() {
        super::print(&line)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut status = 0;
    // SAFETY: `status` is written to; `child` is a child of this process that nobody else reaps.
    unsafe { libc::waitpid(child, &mut status, 0) };
    let code = match libc::WIFEXITED(status) {
        true => libc::WEXITSTATUS(status),
        false => 1,
    };
    Ok(ExitCode::from(u8::try_from(code.max(1)).unwrap_or(1)))
}

impl Parent {
    /// Tells the parent that all is well, which then prints `line` and leaves, and lets go of the
    /// terminal.
    ///
    /// # Errors
    /// `/dev/null` cannot be opened.
    pub(super) fn ready(mut self, line: &str) -> Result<()> {
        std::env::set_current_dir("/").context("change to /")?;
        let null = File::options()
            .read(true)
            .write(true)
            .open("/dev/null")
            .context("open /dev/null")?;
        // A parent that was killed meanwhile is no reason to end the mount.
        let _ = self.0.write_all(line.as_bytes());
        drop(self);
        for fd in 0..3 {
            // SAFETY: replaces the standard descriptors, which std never closes or caches.
            unsafe { libc::dup2(null.as_raw_fd(), fd) };
        }
        Ok(())
    }
}
