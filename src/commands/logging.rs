//! Where a daemon's log goes: standard error in the foreground, syslog or a file in the background.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use log::{Level, LevelFilter, Log, Metadata, Record};

mod panics;
mod repeats;

use repeats::{Line, Repeats};

type SyslogConnection = syslog::Logger<syslog::LoggerBackend, syslog::Formatter3164>;

/// Chosen before the process goes to the background, because the path may be relative.
pub(super) enum Destination {
    Stderr,
    File(File),
    Syslog,
}

impl Destination {
    /// The log file opened for appending; else standard error or syslog.
    pub(super) fn open(file: Option<&Path>, foreground: bool) -> Result<Destination> {
        match (file, foreground) {
            (Some(path), _) => {
                let file = File::options()
                    .append(true)
                    .create(true)
                    .open(path)
                    .with_context(|| format!("open log file {}", path.display()))?;
                Ok(Destination::File(file))
            }
            (None, true) => Ok(Destination::Stderr),
            (None, false) => Ok(Destination::Syslog),
        }
    }

    /// Sends all further log messages there, panics included. A panic is printed to standard error
    /// too as long as the process is in the foreground.
    pub(super) fn install(self, verbose: bool, foreground: bool) {
        let sink = match self {
            Destination::Stderr => Some(Sink::Stderr),
            Destination::File(f) => Some(Sink::File(f)),
            Destination::Syslog => connect_to_syslog().map(|c| Sink::Syslog(Mutex::new(c))),
        };
        // A machine without syslog can still mount; its log is lost.
        let Some(sink) = sink else { return };
        let logs_to_stderr = matches!(sink, Sink::Stderr);
        let logger = Logger {
            sink,
            repeats: Mutex::new(Repeats::new()),
        };
        if log::set_boxed_logger(Box::new(logger)).is_ok() {
            log::set_max_level(match verbose {
                true => LevelFilter::Debug,
                false => LevelFilter::Info,
            });
            panics::log_from_now_on(foreground && !logs_to_stderr);
        }
    }
}

struct Logger {
    sink: Sink,
    repeats: Mutex<Repeats>,
}

impl Log for Logger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        crate::fuse::worth_logging(metadata)
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let text = record.args().to_string();
        let text = crate::text::printable(&text);
        let lines = self.repeats().add(record.level(), &text, Instant::now());
        self.write(&lines);
    }

    /// Writes what has been counted and not yet reported.
    fn flush(&self) {
        let lines = self.repeats().drain();
        self.write(&lines);
    }
}

impl Logger {
    fn repeats(&self) -> std::sync::MutexGuard<'_, Repeats> {
        self.repeats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, lines: &[Line]) {
        for line in lines {
            // A log that cannot be written must not stop the mount.
            let _ = self.sink.write(line.level, &line.text);
        }
    }
}

enum Sink {
    Stderr,
    File(File),
    Syslog(Mutex<SyslogConnection>),
}

impl Sink {
    fn write(&self, level: Level, text: &str) -> io::Result<()> {
        match self {
            // One write for each line, here and below: lines of several threads do not mix.
            Sink::Stderr => io::stderr().write_all(format!("stfs: {text}\n").as_bytes()),
            Sink::File(file) => {
                let now = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .map_or(0.0, |d| d.as_secs_f64());
                let mut file: &File = file;
                file.write_all(format!("{now:.3} {level} {text}\n").as_bytes())
            }
            Sink::Syslog(connection) => {
                let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
                if to_syslog(&mut connection, level, text) {
                    return Ok(());
                }
                // After a restart of the syslog daemon its socket is a different one.
                if let Some(new) = connect_to_syslog() {
                    *connection = new;
                    to_syslog(&mut connection, level, text);
                }
                Ok(())
            }
        }
    }
}

fn connect_to_syslog() -> Option<SyslogConnection> {
    syslog::unix(syslog::Formatter3164 {
        facility: syslog::Facility::LOG_DAEMON,
        hostname: None,
        process: "stfs".into(),
        pid: std::process::id(),
    })
    .ok()
}

fn to_syslog(connection: &mut SyslogConnection, level: Level, text: &str) -> bool {
    match level {
        Level::Error => connection.err(text),
        Level::Warn => connection.warning(text),
        Level::Info => connection.info(text),
        Level::Debug | Level::Trace => connection.debug(text),
    }
    .is_ok()
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
        log::logger().flush();
        let text = std::fs::read_to_string(&path).unwrap();
        // Other tests of this process log and panic, too.
        let ours = text.lines().filter(|line| line.contains(NAME));
        let ours: Vec<&str> = ours.filter_map(|l| Some(l.split_once(' ')?.1)).collect();
        let [panic, first, count] = ours[..] else {
            panic!("{text}")
        };
        assert!(panic.starts_with("ERROR panic: number 7, at src/commands/logging.rs:"));
        assert!(panic.contains(&format!("in thread {NAME}")), "{panic}");
        assert_eq!(first, format!("WARN logged beside {NAME}"));
        assert_eq!(
            count,
            format!("WARN repeated 2 times: logged beside {NAME}")
        );
    }
}
