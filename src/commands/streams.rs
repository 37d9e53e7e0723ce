//! Standard output and standard error, also when they are closed or cannot be written.

use std::io::{self, Write};
use std::process::ExitCode;

use anyhow::Result;

use super::logging;
use super::terminal::{Colors, Screen};

/// Fills the standard descriptors that are closed, so that no file that is opened later takes their
/// numbers, and is written to by mistake. Unlike Rust's runtime, with what cannot be written: writing fails with
/// EBADF as if they were closed. To be called before anything is opened.
pub fn reserve_closed_descriptors() {
    for fd in 0..=2 {
        // SAFETY: asks about a number; no memory is involved.
        let is_open = unsafe { libc::fcntl(fd, libc::F_GETFD) } != -1;
        // SAFETY: the string ends with a NUL. The lowest free number is `fd`: those below are open.
        if !is_open && unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDONLY) } != fd {
            std::process::abort();
        }
    }
}

/// Standard output, named in its errors. `io::stdout` takes a descriptor that cannot be written to (EBADF) for one that has been
/// written to, so this writes to the descriptor itself.
pub(super) struct Stdout;

pub(super) fn stdout() -> Stdout {
    Stdout
}

impl Write for Stdout {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        rustix::io::write(rustix::stdio::stdout(), buf).map_err(|e| of_stdout(e.into()))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn of_stdout(e: io::Error) -> io::Error {
    match e.kind() {
        // The caller of `write` retries.
        io::ErrorKind::Interrupted => e,
        kind => io::Error::new(kind, format!("standard output: {e}")),
    }
}

/// Writes to standard output.
///
/// # Errors
/// It cannot be written.
pub fn print(text: &[u8]) -> Result<ExitCode> {
    stdout().write_all(text)?;
    Ok(ExitCode::SUCCESS)
}

/// As [`print()`], with styles if standard output is a terminal that has them.
///
/// # Errors
/// It cannot be written.
pub fn print_styled(text: &clap::builder::StyledStr) -> Result<ExitCode> {
    match Screen::of_stdout().colors {
        Colors::None => print(text.to_string().as_bytes()),
        _ => print(text.ansi().to_string().as_bytes()),
    }
}

/// Writes a line to standard error. If that cannot be written (a closed pipe, a full disk), the exit
/// code still reports what happened; `eprintln!` would panic. A daemon must not wait for it: there the
/// thread that writes the log writes this, too.
pub fn complain(line: &str) {
    if !logging::complain(line) {
        let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
    }
}
