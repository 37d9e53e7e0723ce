//! How long the current thread may wait.
//!
//! A request thread of the mount must not wait for anything slow, because every other request needs
//! it. Whether a request has to wait depends on everything that it touches, so nothing predicts it.
//! The request is *attempted* with the patience that the thread has ([`attempt`]). Each place that
//! would wait asks first ([`touch_source`], [`take_long`]), and is refused if the thread does not
//! have the patience for it. A refusal returns as an ordinary error, and is also remembered, so
//! that the attempt is void even if a layer in between swallowed the error. The same work then runs
//! again on a pool thread, which may wait for anything.
//!
//! Threads have full patience unless they are inside [`with`].

use std::cell::Cell;

use crate::error::{Error, Result};

/// What a thread may wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Patience {
    /// Only for short computations.
    None,
    /// Also for source files, as a read of the mount does, but not for other long work.
    Sources,
    /// For anything: the default.
    Full,
}

thread_local! {
    static PATIENCE: Cell<Patience> = const { Cell::new(Patience::Full) };
    /// Whether something was refused in the attempt that is being made; `None` outside of one.
    static REFUSED: Cell<Option<bool>> = const { Cell::new(None) };
    /// Nanoseconds of computing that were announced in the attempt that is being made.
    static SPENT: Cell<u64> = const { Cell::new(0) };
}

/// More computing than this is not for a thread that others wait for.
const LONG: u64 = 1_000_000;

/// Restores a thread-local value, also if a panic unwinds.
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

/// Runs `work` with the thread's patience. Returns its result, and whether the result is void
/// because something was refused.
pub fn attempt<T>(work: impl FnOnce() -> T) -> (T, bool) {
    let _restore = Restore(&REFUSED, REFUSED.replace(Some(false)));
    let _spent = Restore(&SPENT, SPENT.replace(0));
    let result = work();
    (result, is_refused())
}

/// Whether something in the current attempt was refused. If so, its results are void and must not
/// be cached.
pub fn is_refused() -> bool {
    REFUSED.get() == Some(true)
}

/// Whether the thread has full patience: it may wait for a lock that another thread holds while it
/// reads or computes.
pub fn is_full() -> bool {
    PATIENCE.get() == Patience::Full
}

/// To be called before any access to a source file (read, `fstat`, prefetch).
///
/// # Errors
/// The thread must not wait for a source. Outside of an attempt this is a panic in debug builds,
/// because a request thread would have blocked there.
pub fn touch_source() -> Result<()> {
    need(Patience::Sources)
}

/// To be called before long work: milliseconds of computing, or waiting for another thread that
/// computes.
///
/// # Errors
/// As [`touch_source`].
pub fn take_long() -> Result<()> {
    need(Patience::Full)
}

/// To be called before computing that takes about so long. It may be short by itself: what a read consists of
/// adds up, however it is nested.
///
/// # Errors
/// As [`take_long`], once it all takes longer than a millisecond.
pub fn take_time(nanoseconds: u64) -> Result<()> {
    if is_full() {
        return Ok(());
    }
    let spent = SPENT.get().saturating_add(nanoseconds);
    SPENT.set(spent);
    match spent > LONG {
        true => take_long(),
        false => Ok(()),
    }
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
            // A refusal in a nested attempt does not void the outer one.
            assert_eq!(attempt(|| attempt(touch_source).1), (true, false));
            assert!(!is_refused());
        });
    }

    #[test]
    fn short_work_adds_up() {
        let piece = || take_time(LONG / 10).is_ok();
        with(Patience::Sources, || {
            assert_eq!(attempt(|| (0..10).all(|_| piece())), (true, false));
            assert_eq!(attempt(|| (0..11).all(|_| piece())), (false, true));
            assert_eq!(attempt(piece), (true, false), "each attempt by itself");
        });
        assert!((0..100).all(|_| piece()) && take_time(u64::MAX).is_ok());
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
