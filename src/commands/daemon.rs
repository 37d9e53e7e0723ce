//! Going to the background: the parent waits until the child's mount answers, prints the line that
//! the child sends, and exits with the child's exit code.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::process::ExitCode;

use anyhow::{Context, Result};
use rustix::process::{Pid, WaitOptions};

/// The pipe from the child to its parent.
pub(super) struct Parent(File);

/// Which of the two processes this is.
pub(super) enum Side {
    /// The child, which serves the mount.
    Child(Parent),
    /// The process that was started; it exits with this code.
    Parent(ExitCode),
}

/// Closes every inherited descriptor but the standard three: a lock or a pipe of the caller would
/// otherwise be held until the unmount. Must be called before anything is opened.
pub(super) fn close_inherited() {
    // By number, because older C libraries have no close_range. Before Linux 5.9 nothing is closed.
    //
    // SAFETY: no value in this process owns a descriptor above 2: nothing has been opened yet.
    unsafe { libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0) };
}

/// Splits the process in two. Must be called before there is any other thread (and before CUDA).
///
/// # Errors
/// The pipe or the process cannot be created.
pub(super) fn split() -> Result<Side> {
    let (reader, writer) = io::pipe().context("create a pipe")?;
    // SAFETY: fork is unsound only if the child relies on state that another thread was changing at
    // that moment: a lock that stays locked, a half-done allocation. There is no other thread here:
    // `mount::run` forks before it opens the model or starts anything, and nothing linked into the
    // program starts threads by itself. Both sides own their copies of all descriptors and memory.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).context("fork"),
        0 => {
            drop(reader);
            // Fails only for the leader of a process group, which a new child is not.
            let _ = rustix::process::setsid();
            let writer = File::from(OwnedFd::from(writer));
            Ok(Side::Child(Parent(writer)))
        }
        child => {
            drop(writer);
            let reader = File::from(OwnedFd::from(reader));
            wait_for(Pid::from_raw(child), reader).map(Side::Parent)
        }
    }
}

/// Prints the child's line once it is ready. If the child ended before, returns its exit code.
fn wait_for(child: Option<Pid>, mut reader: File) -> Result<ExitCode> {
    let mut line = Vec::new();
    reader
        .read_to_end(&mut line)
        .context("wait for the mount")?;
    if !line.is_empty() {
        super::print(&line)?;
        return Ok(ExitCode::SUCCESS);
    }
    let status =
        rustix::process::waitpid(child, WaitOptions::empty()).context("wait for the mount")?;
    let code = status
        .and_then(|(_, status)| status.exit_status())
        .map_or(1, |code| code.clamp(1, 255));
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

impl Parent {
    /// Reports success to the parent, which prints `line` and exits, and detaches from the terminal.
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
        // The mount keeps running even if the parent has been killed meanwhile.
        let _ = self.0.write_all(line.as_bytes());
        drop(self);
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        Ok(())
    }
}
