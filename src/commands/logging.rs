//! A daemon's log: standard error in the foreground, syslog or a file in the background.
//!
//! A thread that logs never waits: messages go into a bounded queue, and one thread writes them. If the log
//! does not take them (a stopped syslog, a pipe that is not read, a file system that stalls), only that thread
//! waits, and messages that find no room in the queue are counted.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use anyhow::Result;
use log::{LevelFilter, Log, Metadata, Record};

mod file;
mod panics;
mod queue;
mod repeats;
mod sink;

use queue::Queue;
use sink::Sink;

/// How long [`start`] and the end of the process wait for a log that takes nothing.
const DEADLINE: Duration = Duration::from_millis(500);

/// Stack of the thread that writes. It calls nothing deep, and a small one can be had where memory is short.
const STACK: usize = 256 << 10;

/// Chosen before the process goes to the background, because the path may be relative.
pub(super) enum Destination {
    Stderr,
    File(File),
    Syslog,
}

impl Destination {
    /// The log file opened for appending; else standard error or syslog.
    ///
    /// # Errors
    /// The file cannot be opened or created.
    pub(super) fn open(file: Option<&Path>, foreground: bool) -> Result<Destination> {
        match (file, foreground) {
            (Some(path), _) => Ok(Destination::File(sink::open(path)?)),
            (None, true) => Ok(Destination::Stderr),
            (None, false) => Ok(Destination::Syslog),
        }
    }

    /// Takes all further log messages, panics included, and all further complaints. They are queued
    /// until [`start`]. A panic is printed to standard error too as long as the process is in the
    /// foreground.
    ///
    /// To be called in the process that logs, before it has threads: a log file is written by a child, and
    /// a copy of the queue made by a later `fork` would be written, too.
    pub(super) fn install(self, verbose: bool, foreground: bool) {
        let logs_to_stderr = matches!(self, Destination::Stderr);
        let writer = Writer {
            queue: Queue::new(),
            sink: Mutex::new(Some(Sink::new(self))),
            started: Mutex::new(false),
        };
        if WRITER.set(writer).is_ok() && log::set_logger(&Logger).is_ok() {
            log::set_max_level(match verbose {
                true => LevelFilter::Debug,
                false => LevelFilter::Info,
            });
            panics::log_from_now_on(foreground && !logs_to_stderr);
        }
    }
}

/// Starts the thread that writes, and lets it write what has been queued, for a moment at most. Separate
/// from `install`, because a sandbox must be entered before there are threads.
///
/// # Errors
/// The thread cannot start.
pub(super) fn start() -> io::Result<()> {
    let Some(writer) = WRITER.get() else {
        return Ok(());
    };
    writer.start()?;
    writer.queue.wait_until_written(DEADLINE);
    Ok(())
}

/// Queues a line for standard error. False if there is no log: then the caller writes it.
pub(super) fn complain(line: &str) -> bool {
    let writer = WRITER.get();
    writer.inspect(|w| w.queue.complain(line)).is_some()
}

/// The log of this process.
static WRITER: OnceLock<Writer> = OnceLock::new();

struct Writer {
    queue: Queue,
    /// Until the thread takes it.
    sink: Mutex<Option<Sink>>,
    started: Mutex<bool>,
}

impl Writer {
    fn start(&'static self) -> io::Result<()> {
        let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
        if !*started {
            let thread = std::thread::Builder::new().name("stfs-log".into());
            thread
                .stack_size(STACK)
                .spawn(|| self.write_from_now_on())?;
            *started = true;
        }
        Ok(())
    }

    fn take_sink(&self) -> Option<Sink> {
        let mut sink = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        sink.take()
    }

    fn write_from_now_on(&self) {
        let Some(mut sink) = self.take_sink() else {
            return;
        };
        loop {
            let line = self.queue.next();
            let written = sink.write(&line);
            self.queue.done(&line, written.is_ok());
        }
    }

    /// Without a thread: writes what can be written at once.
    fn write_here(&self) {
        let Some(mut sink) = self.take_sink() else {
            return;
        };
        while let Some(line) = self.queue.try_next() {
            let written = sink.is_ready(&line) && sink.write(&line).is_ok();
            self.queue.done(&line, written);
            if !written {
                return;
            }
        }
    }
}

struct Logger;

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        crate::fuse::worth_logging(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if let Some(writer) = WRITER.get()
            && self.enabled(record.metadata())
        {
            let text = record.args().to_string();
            writer.queue.log(record.level(), &text);
        }
    }

    /// Writes what is queued and what has been counted and not yet reported. Gives up on a log that takes
    /// nothing.
    fn flush(&self) {
        let Some(writer) = WRITER.get() else { return };
        writer.queue.report_counts();
        match writer.start() {
            Ok(()) => writer.queue.wait_until_written(DEADLINE),
            Err(_) => writer.write_here(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One test, because a process has one log.
    #[test]
    fn an_installed_log_has_panics_and_counts_repeats() {
        const NAME: &str = "panics-on-purpose";
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("log");
        let log = Destination::open(Some(&path), true).unwrap();
        log.install(false, true);
        let panics = || {
            let number = 7;
            let caught = std::panic::catch_unwind(|| panic!("number {number}"));
            assert!(caught.is_err());
        };
        let thread = std::thread::Builder::new().name(NAME.into());
        thread.spawn(panics).unwrap().join().unwrap();
        for _ in 0..3 {
            log::warn!("logged beside {NAME}");
        }
        // Nothing is written before there is a thread.
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "");
        start().unwrap();
        log::logger().flush();
        let ours = || -> Vec<String> {
            let text = std::fs::read_to_string(&path).unwrap();
            // Other tests of this process log and panic, too.
            let ours = text.lines().filter(|line| line.contains(NAME));
            ours.filter_map(|l| Some(l.split_once(' ')?.1.into()))
                .collect()
        };
        // On a busy machine the thread may need longer than `flush` waits.
        let until = std::time::Instant::now() + Duration::from_secs(60);
        while ours().len() < 3 && std::time::Instant::now() < until {
            std::thread::sleep(Duration::from_millis(2));
        }
        let ours = ours();
        let [panic, first, count] = &ours[..] else {
            panic!("{ours:?}")
        };
        assert!(panic.starts_with("ERROR panic: number 7, at src/commands/logging.rs:"));
        assert!(panic.contains(&format!("in thread {NAME}")), "{panic}");
        assert_eq!(*first, format!("WARN logged beside {NAME}"));
        assert_eq!(
            *count,
            format!("WARN repeated 2 times: logged beside {NAME}")
        );
    }
}
