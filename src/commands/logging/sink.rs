//! Where lines go. Only the thread that writes the log waits here.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use log::Level;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;

use super::Destination;
use super::file::FileWriter;
use super::queue::{Line, To};

type Connection = syslog::Logger<syslog::LoggerBackend, syslog::Formatter3164>;

pub(super) enum Sink {
    Stderr,
    File(FileWriter),
    /// A pipe or a terminal, which can be let go at any time.
    Device(File),
    /// Connected when the first message is written: a machine without syslog can still mount.
    Syslog(Option<Connection>),
}

/// Opens a log file for appending. What is not a regular file (a FIFO, a terminal, /dev/stderr) must be
/// ready to be written to: opening it does not wait.
///
/// # Errors
/// It cannot be opened or created, or nothing could read what is written there.
pub(super) fn open(path: &Path) -> Result<File> {
    let what = || format!("open log file {}", path.display());
    // Names in messages are not for everyone, but the group may follow what goes on, unless the caller's umask
    // forbids it.
    let opened = File::options()
        .append(true)
        .create(true)
        .mode(0o640)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32)
        .open(path);
    let file = match opened {
        Err(e) if e.raw_os_error() == Some(libc::ENXIO) => bail!(
            "{}: is a FIFO that no process reads, or a socket; name a regular file, or start the reader first",
            what()
        ),
        opened => opened.with_context(what)?,
    };
    let kind = file.metadata().with_context(what)?.file_type();
    if !(kind.is_file() || kind.is_fifo() || kind.is_char_device()) {
        bail!("{}: is neither a regular file nor a FIFO", what());
    }
    // From here on one thread writes, and it may wait.
    let flags = rustix::fs::fcntl_getfl(&file).map_err(io::Error::from);
    flags
        .and_then(|f| Ok(rustix::fs::fcntl_setfl(&file, f - OFlags::NONBLOCK)?))
        .with_context(what)?;
    Ok(file)
}

impl Sink {
    pub(super) fn new(destination: Destination) -> Sink {
        match destination {
            Destination::Stderr => Sink::Stderr,
            Destination::File(file) => {
                let is_file = file.metadata().is_ok_and(|m| m.is_file());
                match is_file.then(|| FileWriter::start(&file)) {
                    Some(Ok(writer)) => Sink::File(writer),
                    _ => Sink::Device(file),
                }
            }
            Destination::Syslog => Sink::Syslog(None),
        }
    }

    /// Writes a line; waits if the log does.
    ///
    /// # Errors
    /// The log cannot be written.
    pub(super) fn write(&mut self, line: &Line) -> io::Result<()> {
        let text = &line.text;
        match (line.to, self) {
            // One write for each line, here and below: lines of several processes do not mix.
            (To::Log(..), Sink::Stderr) => write_stderr(&format!("stfs: {text}\n")),
            (To::Stderr, Sink::Stderr) => write_stderr(&format!("{text}\n")),
            // The log must not wait for a terminal that it does not go to.
            (To::Stderr, _) => {
                complain(&format!("{text}\n"));
                Ok(())
            }
            (To::Log(level, time), Sink::File(writer)) => writer.write(&dated(level, time, text)),
            (To::Log(level, time), Sink::Device(file)) => {
                file.write_all(dated(level, time, text).as_bytes())
            }
            (To::Log(level, _), Sink::Syslog(connection)) => to_syslog(connection, level, text),
        }
    }

    /// Whether a line can be written now without waiting long.
    pub(super) fn is_ready(&self, line: &Line) -> bool {
        match (line.to, self) {
            (_, Sink::Stderr) => is_writable(rustix::stdio::stderr()),
            (To::Stderr, _) => true,
            (To::Log(..), Sink::Device(file)) => is_writable(file.as_fd()),
            (To::Log(..), Sink::File(writer)) => writer.wait_at_most(super::DEADLINE),
            (To::Log(..), Sink::Syslog(_)) => false,
        }
    }
}

/// A line of a log file.
fn dated(level: Level, time: SystemTime, text: &str) -> String {
    let time = time.duration_since(UNIX_EPOCH);
    let time = time.map_or(0.0, |d| d.as_secs_f64());
    format!("{time:.3} {level} {text}\n")
}

fn write_stderr(text: &str) -> io::Result<()> {
    write_to(rustix::stdio::stderr(), text.as_bytes())
}

/// `io::stderr` would take a closed descriptor for one that has been written to.
fn write_to(fd: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match rustix::io::write(fd, bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
}

/// Writes to standard error as far as it takes the text at once.
fn complain(text: &str) {
    // A pipe that is writable has room for this many bytes.
    for piece in text.as_bytes().chunks(libc::PIPE_BUF) {
        let stderr = rustix::stdio::stderr();
        if !is_writable(stderr) || write_to(stderr, piece).is_err() {
            return;
        }
    }
}

/// Whether a pipe or a terminal takes something now. Others always do.
fn is_writable(fd: BorrowedFd<'_>) -> bool {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
}

fn connect() -> Option<Connection> {
    syslog::unix(syslog::Formatter3164 {
        facility: syslog::Facility::LOG_DAEMON,
        hostname: None,
        process: "stfs".into(),
        pid: std::process::id(),
    })
    .ok()
}

fn to_syslog(connection: &mut Option<Connection>, level: Level, text: &str) -> io::Result<()> {
    let send = |connection: &mut Option<Connection>| {
        let sent = connection.as_mut().map(|c| match level {
            Level::Error => c.err(text),
            Level::Warn => c.warning(text),
            Level::Info => c.info(text),
            Level::Debug | Level::Trace => c.debug(text),
        });
        sent.is_some_and(|sent| sent.is_ok())
    };
    if send(connection) {
        return Ok(());
    }
    // After a restart of the syslog daemon its socket is a different one.
    *connection = connect();
    match send(connection) {
        true => Ok(()),
        false => Err(io::ErrorKind::NotConnected.into()),
    }
}
