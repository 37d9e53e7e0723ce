//! A cell that is filled on first use, and tried again as long as something it depends on cannot be
//! read.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::patience;

/// What a request thread gets instead of an answer that it would have to wait for. No user sees it: the
/// request is answered from another thread.
const NOT_NOW: &str = "not worked out yet";

/// A computed answer, and whether it is final.
pub(super) struct Answer<A> {
    pub(super) answer: A,
    /// `false`: something it depends on could not be read, so the next caller tries again.
    pub(super) certain: bool,
}

/// `T`, or the reason why there is none, computed on demand.
pub(super) struct Lazy<T> {
    certain: OnceLock<Result<T, String>>,
    /// The first answer that was not certain; callers borrow it, so it is not replaced.
    for_now: OnceLock<Result<T, String>>,
    /// Held while the answer is computed, so that two callers do not compute it twice.
    making: Mutex<()>,
}

impl<T> Lazy<T> {
    pub(super) const fn new() -> Lazy<T> {
        Lazy {
            certain: OnceLock::new(),
            for_now: OnceLock::new(),
            making: Mutex::new(()),
        }
    }

    /// Whether the answer is known and final.
    pub(super) fn is_certain(&self) -> bool {
        self.certain.get().is_some()
    }

    /// The answer, remembered or computed now. On a thread without the patience to compute it
    /// ([`crate::patience`]) this is an uncertain refusal, which is not remembered.
    pub(super) fn get(
        &self,
        make: impl FnOnce() -> Answer<Result<T, String>>,
    ) -> Answer<Result<&T, &str>> {
        let certain = |answer| Answer {
            answer: borrowed(answer),
            certain: true,
        };
        let not_now = Answer {
            answer: Err(NOT_NOW),
            certain: false,
        };
        if let Some(known) = self.certain.get() {
            return certain(known);
        }
        let Some(_making) = self.lock() else {
            return not_now;
        };
        if let Some(known) = self.certain.get() {
            return certain(known);
        }
        let made = make();
        if patience::is_refused() {
            return not_now;
        }
        match made.certain {
            true => certain(self.certain.get_or_init(|| made.answer)),
            false => Answer {
                answer: borrowed(self.for_now.get_or_init(|| made.answer)),
                certain: false,
            },
        }
    }

    /// The lock, unless another thread has it and this one must not wait.
    fn lock(&self) -> Option<MutexGuard<'_, ()>> {
        use std::sync::TryLockError::{Poisoned, WouldBlock};
        match self.making.try_lock() {
            Ok(guard) => Some(guard),
            Err(Poisoned(e)) => Some(e.into_inner()),
            Err(WouldBlock) => patience::take_long()
                .ok()
                .map(|()| self.making.lock().unwrap_or_else(PoisonError::into_inner)),
        }
    }
}

fn borrowed<T>(answer: &Result<T, String>) -> Result<&T, &str> {
    answer.as_ref().map_err(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patience::{Patience, attempt, touch_source, with};

    fn made(value: u32) -> Answer<Result<u32, String>> {
        Answer {
            answer: Ok(value),
            certain: true,
        }
    }

    #[test]
    fn an_answer_that_was_refused_its_sources_is_not_remembered() {
        let cell = Lazy::new();
        let make = || match touch_source() {
            Ok(()) => made(1),
            // As if the refusal had been kept as an answer.
            Err(_) => made(2),
        };
        with(Patience::None, || {
            let (got, void) = attempt(|| cell.get(make).answer.is_err());
            assert!(got && void && !cell.is_certain());
        });
        assert_eq!(cell.get(make).answer, Ok(&1));
        with(Patience::None, || {
            assert_eq!(attempt(|| cell.get(make).answer), (Ok(&1), false));
        });
    }

    #[test]
    fn a_request_thread_does_not_wait_for_another_that_works_it_out() {
        let cell = Lazy::new();
        let (entered, is_in) = std::sync::mpsc::channel();
        let (go, gate) = std::sync::mpsc::channel::<()>();
        std::thread::scope(|scope| {
            let cell = &cell;
            scope.spawn(move || {
                cell.get(|| {
                    entered.send(()).unwrap();
                    gate.recv().unwrap();
                    made(3)
                });
            });
            is_in.recv().unwrap();
            let (_, void) = with(Patience::Sources, || {
                attempt(|| cell.get(|| made(4)).certain)
            });
            assert!(void);
            go.send(()).unwrap();
        });
        assert_eq!(cell.get(|| made(5)).answer, Ok(&3));
    }
}
