//! A copy that all handles on it share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};

use crate::error::Result;
use crate::patience;

/// Something that is made when it is opened, shared by all opens meanwhile, and dropped when the last of
/// them is closed.
///
/// A copy is known here through a `Weak`, which keeps the memory of the value itself: so what is large must
/// be in an allocation of its own.
pub struct Shared<T: ?Sized>(Mutex<Option<Weak<T>>>);

impl<T: ?Sized> Default for Shared<T> {
    fn default() -> Self {
        Shared(Mutex::new(None))
    }
}

impl<T: ?Sized> std::fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shared")
    }
}

impl<T: ?Sized> Shared<T> {
    /// The copy that somebody holds, or a new one. Concurrent callers wait for it rather than make another.
    ///
    /// # Errors
    /// It is being made, or what it is made of was refused, and the thread must not wait; or that of `make`.
    /// None of this is remembered.
    pub fn get(&self, make: impl FnOnce() -> Result<Arc<T>>) -> Result<Arc<T>> {
        let mut made = self.lock()?;
        if let Some(held) = made.as_ref().and_then(Weak::upgrade) {
            return Ok(held);
        }
        let new = make()?;
        if patience::is_refused() {
            // It may lack what the thread must not wait for. Refused, too.
            patience::take_long()?;
        }
        *made = Some(Arc::downgrade(&new));
        Ok(new)
    }

    /// Whether no copy is held or being made.
    pub fn is_unused(&self) -> bool {
        let is_dead = |made: &Option<Weak<T>>| made.as_ref().is_none_or(|m| m.strong_count() == 0);
        self.0.try_lock().is_ok_and(|made| is_dead(&made))
    }

    fn lock(&self) -> Result<MutexGuard<'_, Option<Weak<T>>>> {
        match self.0.try_lock() {
            Ok(made) => Ok(made),
            Err(TryLockError::Poisoned(e)) => Ok(e.into_inner()),
            Err(TryLockError::WouldBlock) => {
                patience::take_long()?;
                Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::patience::{Patience, attempt, with};

    #[test]
    fn there_is_one_copy_until_its_last_holder_goes() {
        let shared = Shared::<u32>::default();
        let failed = shared.get(|| Err(Error::data("t", "p")));
        assert!(failed.is_err() && shared.is_unused());
        let first = shared.get(|| Ok(1.into())).unwrap();
        let second = shared.get(|| Ok(2.into())).unwrap();
        assert!(Arc::ptr_eq(&first, &second) && !shared.is_unused());
        drop((first, second));
        assert!(shared.is_unused());
        assert_eq!(*shared.get(|| Ok(3.into())).unwrap(), 3);
    }

    #[test]
    fn a_request_thread_does_not_wait_for_the_maker() {
        let shared = Shared::<u32>::default();
        let _making = shared.0.lock().unwrap();
        let impatient = || attempt(|| shared.get(|| Ok(1.into())).is_ok());
        assert_eq!(with(Patience::Sources, impatient), (false, true));
        assert!(!shared.is_unused());
    }

    #[test]
    fn what_was_made_of_a_refusal_is_not_shared() {
        let shared = Shared::<u32>::default();
        let made = || Ok(Arc::new(patience::take_long().map_or(0, |()| 1)));
        let impatient = || attempt(|| shared.get(made).is_ok());
        assert_eq!(with(Patience::Sources, impatient), (false, true));
        assert_eq!(*shared.get(made).unwrap(), 1);
    }
}
