//! Panics in the log. A daemon's standard error is `/dev/null`, and its threads catch panics so that
//! one request cannot end the mount: without this, a panic would leave no trace.

use std::panic::PanicHookInfo;

/// Logs every panic from now on; `print` also has it printed to standard error as usual.
pub(super) fn log_from_now_on(print: bool) {
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        log::error!("{}", describe(info));
        if print {
            default(info);
        }
    }));
}

/// The message, the place in the source, and the thread, on one line.
fn describe(info: &PanicHookInfo<'_>) -> String {
    let message = info.payload_as_str().unwrap_or("(no message)");
    let thread = std::thread::current();
    let thread = thread.name().unwrap_or("without a name");
    let place = info
        .location()
        .map_or_else(|| "an unknown place".into(), ToString::to_string);
    format!("panic: {message}, at {place}, in thread {thread}; this is a bug in stfs")
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());
    const NAME: &str = "panics-on-purpose";

    struct Collect;

    impl log::Log for Collect {
        fn enabled(&self, _: &log::Metadata<'_>) -> bool {
            true
        }

        fn log(&self, record: &log::Record<'_>) {
            // Other tests of this process log and panic too.
            if std::thread::current().name() == Some(NAME) {
                SEEN.lock().unwrap().push(record.args().to_string());
            }
        }

        fn flush(&self) {}
    }

    #[test]
    fn a_caught_panic_is_logged_with_message_place_and_thread() {
        log::set_logger(&Collect).unwrap();
        log::set_max_level(log::LevelFilter::Error);
        log_from_now_on(true);
        let panics = || {
            let number = 7;
            let caught = std::panic::catch_unwind(|| panic!("number {number}"));
            assert!(caught.is_err());
        };
        let thread = std::thread::Builder::new().name(NAME.into());
        thread.spawn(panics).unwrap().join().unwrap();
        let seen = SEEN.lock().unwrap();
        let [line] = &seen[..] else {
            panic!("{seen:?}")
        };
        assert!(line.starts_with("panic: number 7, at src/commands/logging/panics.rs:"));
        assert!(line.contains(&format!("in thread {NAME}")));
    }
}
