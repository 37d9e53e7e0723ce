//! An answer, or the work that produces it.

use super::Fs;
use crate::patience;

/// Work that produces an answer on a thread that may wait.
pub type Work<T> = Box<dyn FnOnce(&Fs) -> T + Send>;

/// The answer to a request.
///
/// The request is attempted with the calling thread's patience ([`crate::patience`]). If nothing in it
/// has to wait longer than that, the answer is `Ready`, otherwise `Wait` with the same work. So nothing
/// has to predict separately whether the work waits. On a thread with full patience every answer is
/// `Ready`.
#[must_use = "a request that is not answered hangs its caller"]
pub enum Answer<T> {
    /// The answer.
    Ready(T),
    /// This thread must not wait for it: run the work on one that may.
    Wait(Work<T>),
}

impl<T> Answer<T> {
    /// Attempts `work`.
    pub(super) fn of(fs: &Fs, work: impl Fn(&Fs) -> T + Send + 'static) -> Answer<T> {
        match patience::attempt(|| work(fs)) {
            (value, false) => Answer::Ready(value),
            (_, true) => Answer::Wait(Box::new(work)),
        }
    }

    /// The answer, however long it takes.
    pub fn wait(self, fs: &Fs) -> T {
        match self {
            Answer::Ready(value) => value,
            Answer::Wait(work) => patience::with(patience::Patience::Full, || work(fs)),
        }
    }
}
