//! Going to the background. The process that was started waits until the mount answers, prints the line
//! about it, and exits; its child serves. Until then the child goes with its parent, so that Ctrl-C
//! leaves nothing that mounts later. Either the line is printed, or there is no mount.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, WaitOptions};

/// The child's connection to its parent.
pub(super) struct Caller(UnixStream);

/// Which of the two processes this is.
pub(super) enum Side {
    /// The child, which serves the mount.
    Server(Caller),
    /// The process that was started; it exits with this code.
    Caller(ExitCode),
}

/// Closes all inherited descriptors but the standard three and these: a lock or a pipe of the caller would
/// otherwise be held until the unmount. Nothing else may be open that a value owns and will use.
pub(super) fn close_all_but(kept: &[BorrowedFd<'_>]) {
    let mut kept: Vec<u32> = kept.iter().map(|fd| fd.as_raw_fd() as u32).collect();
    kept.sort_unstable();
    let mut first = 3;
    for next in kept.into_iter().map(Some).chain([None]) {
        let last = next.map_or(u32::MAX, |next| next.wrapping_sub(1));
        if first <= last {
            // By number, because older C libraries have no close_range. Before Linux 5.9 nothing is
            // closed.
            //
            // SAFETY: descriptors that no value of this process uses again, as this function demands.
            unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
        }
        first = next.map_or(u32::MAX, |next| next.saturating_add(1));
    }
}

/// Splits the process in two. Must be called before there is any other thread (and before CUDA).
///
/// # Errors
/// The process cannot be created.
pub(super) fn split() -> Result<Side> {
    let (ours, childs) = UnixStream::pair().context("create a socket")?;
    let parent = rustix::process::getpid();
    // SAFETY: fork is unsound only if the child relies on state that another thread was changing at
    // that moment: a lock that stays locked, a half-done allocation. There is no other thread here:
    // `mount::run` forks before it opens the model or starts anything, and nothing linked into the
    // program starts threads by itself. Both sides own their copies of all descriptors and memory.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()).context("fork"),
        0 => {
            drop(ours);
            go_with_parent(parent);
            // Fails only for the leader of a process group, which a new child is not.
            let _ = rustix::process::setsid();
            Ok(Side::Server(Caller(childs)))
        }
        child => {
            drop(childs);
            wait_for(Pid::from_raw(child), ours).map(Side::Caller)
        }
    }
}

/// Has the kernel kill this process when its parent ends.
fn go_with_parent(parent: Pid) {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    // It may have ended before. A parent in another PID namespace has no number.
    if rustix::process::getppid().is_some_and(|now| now != parent) {
        std::process::exit(1);
    }
}

/// Prints the child's line once it is ready. If the child ended before, returns its exit code.
fn wait_for(child: Option<Pid>, mut socket: UnixStream) -> Result<ExitCode> {
    let mut line = Vec::new();
    let _ = BufReader::new(&socket).read_until(b'\n', &mut line);
    if line.is_empty() {
        return exit_code_of(child);
    }
    // A pipe that nobody reads any more is not an error.
    if let Err(e) = crate::commands::print(&line)
        && !crate::commands::is_closed_pipe(&e)
    {
        // The child unmounts. It and the keeper have gone when the socket is closed.
        let _ = socket.shutdown(Shutdown::Write);
        let _ = socket.read_to_end(&mut line);
        return Err(e);
    }
    // Last, so that one that is killed before takes the mount with it.
    match socket.write_all(b"!") {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(_) => exit_code_of(child),
    }
}

/// Waits for a child that has failed.
fn exit_code_of(child: Option<Pid>) -> Result<ExitCode> {
    let status =
        rustix::process::waitpid(child, WaitOptions::empty()).context("wait for the mount")?;
    let status = status.map(|(_, status)| status);
    if let Some(signal) = status.and_then(|s| s.terminating_signal()) {
        anyhow::bail!(
            "the process that was to serve the mount was ended by signal {signal}; memory may have run out ('ulimit -v', the cgroup's limit)"
        );
    }
    let code = status.and_then(|s| s.exit_status()).unwrap_or(1);
    Ok(ExitCode::from(
        u8::try_from(code.clamp(1, 255)).unwrap_or(1),
    ))
}

impl Caller {
    /// Detaches from the terminal, and has the parent print `line` and exit. If the parent cannot print
    /// it, this process exits.
    ///
    /// # Errors
    /// `/dev/null` cannot be opened.
    pub(super) fn ready(mut self, line: &str) -> Result<()> {
        std::env::set_current_dir("/").context("change to /")?;
        to_null(&null()?)?;
        // The end of the socket, which this waits for, reports the parent's end from now on.
        let _ = rustix::process::set_parent_process_death_signal(None);
        // Without an answer the parent could not print the line, and has said why; or it was killed.
        if self.0.write_all(line.as_bytes()).is_err() || self.0.read_exact(&mut [0]).is_err() {
            std::process::exit(1);
        }
        Ok(())
    }
}

impl AsFd for Caller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// `/dev/null`, open.
pub(super) fn null() -> Result<File> {
    let null = File::options().read(true).write(true).open("/dev/null");
    null.context("open /dev/null")
}

/// Replaces standard input, output and error.
pub(super) fn to_null(null: &File) -> Result<()> {
    rustix::stdio::dup2_stdin(null)?;
    rustix::stdio::dup2_stdout(null)?;
    rustix::stdio::dup2_stderr(null)?;
    Ok(())
}
