//! Panics in the log. A daemon's standard error is `/dev/null`, and its threads catch panics so that
//! one request cannot end the mount: without this, a panic would leave no trace.

use std::panic::PanicHookInfo;

/// Logs every panic from now on; `print` also has it printed to standard error. Both go through the
/// queue: a thread that panics must not wait for a terminal that is stopped.
pub(super) fn log_from_now_on(print: bool) {
    std::panic::set_hook(Box::new(move |info| {
        let panic = describe(info);
        log::error!("{panic}");
        if print {
            let shown = crate::text::printable(&panic);
            crate::commands::complain(&format!("stfs: {shown}"));
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
