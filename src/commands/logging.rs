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

struct Logger {
    sink: Sink,
    last: Mutex<Last>,
}

/// The last message, and how often it has come again since: a reader that tries a cut file again and
/// again must not fill the disk with what is known.
#[derive(Default)]
struct Last {
    text: String,
    again: u64,
}

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
        let logger = Logger {
            sink,
            last: Mutex::default(),
        };
        if log::set_boxed_logger(Box::new(logger)).is_ok() {
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
        let Ok(mut last) = self.last.lock() else {
            return;
        };
        if last.text == text {
            last.again += 1;
            return;
        }
        match std::mem::take(&mut last.again) {
            0 => {}
            1 => self.write(Level::Info, "the last message came once more"),
            n => self.write(
                Level::Info,
                &format!("the last message came {n} times more"),
            ),
        }
        self.write(record.level(), &text);
        last.text = text.into_owned();
    }

    fn flush(&self) {}
}

impl Logger {
    fn write(&self, level: Level, text: &str) {
        // A log that cannot be written must not stop the mount.
        let _ = match &self.sink {
            Sink::Stderr => writeln!(std::io::stderr(), "stfs: {text}").is_ok(),
            Sink::File(f) => f.lock().is_ok_and(|mut f| {
                let now = std::time::SystemTime::now()
                    .duration_since(std::time::UNIX_EPOCH)
                    .map_or(0.0, |d| d.as_secs_f64());
                writeln!(f, "{now:.3} {level} {text}").is_ok()
            }),
            Sink::Syslog(c) => c.lock().is_ok_and(|mut c| {
                to_syslog(&mut c, level, text)
                    // The syslog daemon was started anew since: its socket is another one.
                    || connect_to_syslog().is_some_and(|new| {
                        *c = new;
                        to_syslog(&mut c, level, text)
                    })
            }),
        };
    }
}
