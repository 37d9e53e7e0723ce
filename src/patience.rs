//! How long the current thread may wait.
//!
//! A request thread of the mount must not wait for what may take long: every other request needs it.
//! Whether a request has to wait depends on everything that it touches, so nothing predicts it. The
//! request is *attempted* with the patience that the thread has ([`attempt`]). Each place that would
//! wait asks first ([`touch_source`], [`take_long`]), and is refused on a thread without the patience for
//! it. A refusal is an error like any other on its way out, and is remembered besides, so that an
//! attempt that met one is void even if a layer between swallowed the error. The same work then runs
//! again on a thread of the pool, which may wait for anything.
//!
//! Threads have full patience unless they are inside [`with`].

use std::cell::Cell;

use crate::error::{Error, Result};

/// What a thread may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Patience {
    /// For nothing but the processor, and for that not long.
    None,
    /// For source files, as a read of the mount does; for no other long work.
    Sources,
    /// For anything: the default.
    Full,
}

thread_local! {
    static PATIENCE: Cell<Patience> = const { Cell::new(Patience::Full) };
    /// Whether something was refused in the attempt that is being made; `None` outside of one.
    static REFUSED: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Puts a thread-local value back, also when a panic unwinds.
struct Restore<T: Copy + 'static>(&'static std::thread::LocalKey<Cell<T>>, T);

impl<T: Copy> Drop for Restore<T> {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

/// Runs `work` with that much patience.
pub fn with<T>(patience: Patience, work: impl FnOnce() -> T) -> T {
    let _restore = Restore(&PATIENCE, PATIENCE.replace(patience));
    work()
}

/// Runs `work` with the thread's patience, and returns its result and whether it is void: something
/// in it was refused.
pub fn attempt<T>(work: impl FnOnce() -> T) -> (T, bool) {
    let _restore = Restore(&REFUSED, REFUSED.replace(Some(false)));
    let result = work();
    (result, is_refused())
}

/// Whether the attempt that is being made has met a refusal: what is worked out now is void, and must
/// not be remembered.
pub fn is_refused() -> bool {
    REFUSED.get() == Some(true)
}

/// Whether the thread has full patience: it may wait for a lock that another thread holds while it
/// reads or computes.
pub fn is_full() -> bool {
    PATIENCE.get() == Patience::Full
}

/// To be called before a source file is touched in any way (read, `fstat`, fetched).
///
/// # Errors
/// The thread must not wait for a source. In debug builds that is a panic outside of an attempt: a
/// request thread would have stopped there.
pub fn touch_source() -> Result<()> {
    need(Patience::Sources)
}

/// To be called before anything that takes long: milliseconds of computing, or waiting for another
/// thread that does it.
///
/// # Errors
/// As [`touch_source`].
pub fn take_long() -> Result<()> {
    need(Patience::Full)
}

fn need(patience: Patience) -> Result<()> {
    if PATIENCE.get() >= patience {
        return Ok(());
    }
    debug_assert!(
        REFUSED.get().is_some(),
        "a request thread would wait, outside of an answer that can be given later"
    );
    REFUSED.set(REFUSED.get().map(|_| true));
    Err(Error::other(libc::EAGAIN, "a request thread must not wait"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_has_full_patience_unless_told_otherwise() {
        assert!(is_full());
        assert!(take_long().is_ok() && touch_source().is_ok());
        with(Patience::Sources, || {
            assert!(touch_source().is_ok() && !is_full());
            with(Patience::Full, || assert!(take_long().is_ok()));
            assert!(attempt(|| take_long().is_err()) == (true, true));
        });
        with(Patience::None, || {
            assert!(attempt(|| touch_source().is_err()) == (true, true));
        });
        assert!(is_full());
    }

    #[test]
    fn an_attempt_that_swallows_a_refusal_is_void() {
        with(Patience::None, || {
            let swallow = || touch_source().map_or(5, |()| 6);
            assert_eq!(attempt(swallow), (5, true));
            assert_eq!(attempt(|| 7), (7, false));
            // An attempt within another does not void it: it is made on its own account.
            assert_eq!(attempt(|| attempt(touch_source).1), (true, false));
            assert!(!is_refused());
        });
    }

    #[test]
    fn patience_comes_back_after_a_panic() {
        let work = || with(Patience::None, || panic!("on purpose"));
        assert!(std::panic::catch_unwind(work).is_err());
        assert!(is_full());
    }

    #[test]
    #[cfg(debug_assertions)]
    fn waiting_outside_of_an_attempt_is_a_mistake() {
        let work = || with(Patience::None, touch_source);
        assert!(std::panic::catch_unwind(work).is_err());
    }
}
