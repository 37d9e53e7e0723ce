//! A progress bar on standard error, if that is a terminal.

use std::io::{self, Write};
use std::time::Duration;

use anyhow::Result;
use indicatif::{ProgressBar, ProgressStyle};

/// Progress through some number of stored bytes.
pub struct Progress {
    bar: ProgressBar,
    /// The bytes before the current piece.
    start: u64,
}

impl Progress {
    /// A bar for `bytes` in all. Hidden if standard error is not a terminal.
    pub fn new(bytes: u64) -> Progress {
        let bar = ProgressBar::new(bytes);
        let style = ProgressStyle::with_template(
            "{wide_bar} {decimal_bytes}/{decimal_total_bytes}  {decimal_bytes_per_sec}  {eta} left",
        );
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        // Before it is first drawn: an interrupt may arrive right after.
        clear_on_interrupt(&bar);
        // Redrawn regularly, so that a slow disk does not look like a hang.
        if !bar.is_hidden() {
            bar.enable_steady_tick(Duration::from_millis(200));
        }
        Progress { bar, start: 0 }
    }

    /// Sets how many bytes are done.
    pub fn at(&self, done: u64) {
        self.bar.set_position(done);
    }

    /// Begins a piece of `values` values that take `bytes` stored bytes. Call the result with the number
    /// of values that are done, from any thread.
    pub fn piece(&mut self, values: u64, bytes: u64) -> impl Fn(u64) + Sync + use<> {
        self.bar.set_position(self.start);
        self.start += bytes;
        let bar = self.bar.clone();
        let per_value = bytes as f64 / values.max(1) as f64;
        move |done| bar.inc((done as f64 * per_value) as u64)
    }

    /// Writes to standard output without tearing the bar.
    ///
    /// # Errors
    /// As `write`.
    pub fn print(&self, out: &mut impl Write, text: &str) -> Result<()> {
        if self.bar.is_hidden() {
            return Ok(out.write_all(text.as_bytes())?);
        }
        // The bar is locked here, so this closure must not use it.
        self.bar.suspend(|| -> io::Result<()> {
            out.write_all(text.as_bytes())?;
            out.flush()
        })?;
        Ok(())
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Ctrl-C clears the bar before it ends the program as usual.
fn clear_on_interrupt(bar: &ProgressBar) {
    use signal_hook::consts::{SIGINT, SIGTERM};
    if bar.is_hidden() {
        return;
    }
    let Ok(mut signals) = signal_hook::iterator::Signals::new([SIGINT, SIGTERM]) else {
        return;
    };
    let bar = bar.clone();
    let wait = move || {
        if let Some(signal) = signals.forever().next() {
            bar.finish_and_clear();
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    };
    // If the system refuses another thread, Ctrl-C does nothing, but the command still runs.
    let _ = std::thread::Builder::new().spawn(wait);
}
