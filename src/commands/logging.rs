//! Where a daemon's log goes: standard error in the foreground, syslog or a file in the background.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, Result};
use log::{Level, LevelFilter, Log, Metadata, Record};

type SyslogConnection = syslog::Logger<syslog::LoggerBackend, syslog::Formatter3164>;

enum Sink {
    Stderr,
    File(Mutex<File>),
    Syslog(Mutex<SyslogConnection>),
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

struct Logger(Sink);

/// Opened before the process goes to the background (relative paths), used after.
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

    /// Sends all further log messages there.
    pub(super) fn install(self, verbose: bool) {
        let sink = match self {
            Destination::Stderr => Some(Sink::Stderr),
            Destination::File(f) => Some(Sink::File(Mutex::new(f))),
            Destination::Syslog => connect_to_syslog().map(|c| Sink::Syslog(Mutex::new(c))),
        };
        // No syslog on this machine: nobody listens, and that is no reason not to mount.
        let Some(sink) = sink else { return };
        if log::set_boxed_logger(Box::new(Logger(sink))).is_ok() {
            log::set_max_level(if verbose {
                LevelFilter::Debug
            } else {
                LevelFilter::Info
            });
        }
    }
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
        // A log that cannot be written must not stop the mount.
        let _ = match &self.0 {
            Sink::Stderr => writeln!(std::io::stderr(), "stfs: {text}").is_ok(),
            Sink::File(f) => f.lock().is_ok_and(|mut f| {
                let now = std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .map_or(0.0, |d| d.as_secs_f64());
                writeln!(f, "{now:.3} {} {text}", record.level()).is_ok()
            }),
            Sink::Syslog(c) => c.lock().is_ok_and(|mut c| {
                to_syslog(&mut c, record.level(), &text)
                    // The syslog daemon was started anew since: its socket is another one.
                    || connect_to_syslog().is_some_and(|new| {
                        *c = new;
                        to_syslog(&mut c, record.level(), &text)
                    })
            }),
        };
    }

    fn flush(&self) {}
}
