//! A cell that is filled on first use, and tried again as long as something it depends on cannot be
//! read.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::patience;
use crate::reason::{Missing, Reason};

/// What a request thread gets instead of an answer that it would have to wait for. No user sees it:
/// the request is answered from another thread.
const NOT_NOW: &str = "not computed yet";

/// `T`, or the reason why there is none, computed on demand.
pub(super) struct Lazy<T> {
    certain: OnceLock<Result<T, Reason>>,
    /// Held while the answer is computed, so that two callers do not compute it twice.
    making: Mutex<()>,
}

impl<T> Lazy<T> {
    pub(super) const fn new() -> Lazy<T> {
        Lazy {
            certain: OnceLock::new(),
            making: Mutex::new(()),
        }
    }

    /// Whether the answer is known and final.
    pub(super) fn is_certain(&self) -> bool {
        self.certain.get().is_some()
    }

    /// The answer, remembered or computed now. A [`Missing::Unread`] is not remembered, so the next
    /// caller tries again. A caller without the patience to compute it ([`crate::patience`]) gets one.
    pub(super) fn get(&self, make: impl FnOnce() -> Result<T, Missing>) -> Result<&T, Missing> {
        if let Some(known) = self.certain.get() {
            return lasting(known);
        }
        let Some(_making) = self.lock() else {
            return Err(Missing::Unread(NOT_NOW.into()));
        };
        if let Some(known) = self.certain.get() {
            return lasting(known);
        }
        let made = make();
        if patience::is_refused() {
            return Err(Missing::Unread(NOT_NOW.into()));
        }
        let certain = match made {
            Ok(value) => Ok(value),
            Err(Missing::Reason(why)) => Err(why),
            Err(unread) => return Err(unread),
        };
        lasting(self.certain.get_or_init(|| certain))
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

fn lasting<T>(answer: &Result<T, Reason>) -> Result<&T, Missing> {
    answer.as_ref().map_err(|why| why.clone().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::patience::{Patience, attempt, touch_source, with};

    #[test]
    fn an_answer_that_was_refused_its_sources_is_not_remembered() {
        let cell = Lazy::new();
        let make = || match touch_source() {
            Ok(()) => Ok(1),
            // As if the refusal had been kept as an answer.
            Err(_) => Ok(2),
        };
        with(Patience::None, || {
            let (got, void) = attempt(|| cell.get(make).is_err());
            assert!(got && void && !cell.is_certain());
        });
        assert_eq!(cell.get(make), Ok(&1));
        with(Patience::None, || {
            assert_eq!(attempt(|| cell.get(make)), (Ok(&1), false));
        });
    }

    #[test]
    fn what_could_not_be_read_is_tried_again_and_a_reason_lasts() {
        let cell = Lazy::<u32>::new();
        let unread = Missing::Unread("truncated".into());
        assert_eq!(cell.get(|| Err(unread.clone())), Err(unread.clone()));
        assert!(!cell.is_certain());
        let reason = Missing::Reason("too small".into());
        assert_eq!(cell.get(|| Err(reason.clone())), Err(reason.clone()));
        assert_eq!(cell.get(|| Ok(7)), Err(reason));
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
                    Ok(3)
                })
                .unwrap();
            });
            is_in.recv().unwrap();
            let (_, void) = with(Patience::Sources, || attempt(|| cell.get(|| Ok(4)).is_ok()));
            assert!(void);
            go.send(()).unwrap();
        });
        assert_eq!(cell.get(|| Ok(5)), Ok(&3));
    }
}
