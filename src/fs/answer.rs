//! An answer that is there, or the work that gives it.

use super::Fs;
use crate::patience;

/// Work that gives an answer on a thread that may wait.
pub type Work<T> = Box<dyn FnOnce(&Fs) -> T + Send>;

/// What a request is answered.
///
/// The request is attempted with the calling thread's patience ([`crate::patience`]): it answers
/// `Ready` if nothing in it had to wait for longer, and otherwise `Wait`, with the same work again. So
/// there is nothing beside the work that has to know when it waits. On a thread with full patience
/// every answer is `Ready`.
#[must_use = "a request that is not answered hangs its caller"]
pub enum Answer<T> {
    /// Here it is.
    Ready(T),
    /// The thread must not wait for it: to be run on one that may.
    Wait(Work<T>),
}

impl<T> Answer<T> {
    /// The answer that `work` gives.
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
