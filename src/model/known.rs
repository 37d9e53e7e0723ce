//! An answer that is worked out when it is first asked for, and remembered once it is certain.

use std::sync::{Mutex, OnceLock, PoisonError};

/// What was worked out, and whether it stays.
pub(super) struct Answer<A> {
    pub(super) answer: A,
    /// `false`: something it depends on could not be read, so the next who asks tries again.
    pub(super) certain: bool,
}

/// Something about the model: `T`, or the reason why there is none.
pub(super) struct Known<T> {
    certain: OnceLock<Result<T, String>>,
    /// What is said while it is not certain: the first such answer, for it is borrowed from here.
    for_now: OnceLock<Result<T, String>>,
    /// Two who ask at once wait for one answer.
    making: Mutex<()>,
}

impl<T> Known<T> {
    pub(super) const fn new() -> Known<T> {
        Known {
            certain: OnceLock::new(),
            for_now: OnceLock::new(),
            making: Mutex::new(()),
        }
    }

    /// Whether the answer is known, and stays.
    pub(super) fn is_certain(&self) -> bool {
        self.certain.get().is_some()
    }

    /// The answer, from before or made now.
    pub(super) fn get(
        &self,
        make: impl FnOnce() -> Answer<Result<T, String>>,
    ) -> Answer<Result<&T, &str>> {
        let certain = |answer| Answer {
            answer: borrowed(answer),
            certain: true,
        };
        if let Some(known) = self.certain.get() {
            return certain(known);
        }
        let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = self.certain.get() {
            return certain(known);
        }
        let made = make();
        match made.certain {
            true => certain(self.certain.get_or_init(|| made.answer)),
            false => Answer {
                answer: borrowed(self.for_now.get_or_init(|| made.answer)),
                certain: false,
            },
        }
    }
}

fn borrowed<T>(answer: &Result<T, String>) -> Result<&T, &str> {
    answer.as_ref().map_err(String::as_str)
}
