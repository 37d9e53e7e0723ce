//! Buffers for reads whose bytes are not one piece of a source file.

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::memory::{Budget, Room};
use crate::patience;

/// The size of the largest read that the kernel sends by default (256 pages).
const USUAL: usize = 1 << 20;
thread_local! {
    /// A request thread's own, once it has one.
    static OWN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The buffers of a mount, and how many reads use one.
pub(super) struct Buffers {
    /// Those that no thread of the pool is using.
    free: Mutex<Vec<Vec<u64>>>,
    /// How many are kept: a half of them by request threads, each its own, and the others for the pool,
    /// which may have hundreds of threads. What is needed beyond that is allocated for each read.
    kept: usize,
    owners: AtomicUsize,
    reads: Room,
}

impl Buffers {
    /// None yet, within that budget.
    pub fn of(budget: &Budget) -> Buffers {
        Buffers {
            free: Mutex::default(),
            kept: budget.replies / USUAL,
            owners: AtomicUsize::new(0),
            reads: Room::new(budget.reads),
        }
    }

    /// Calls `work` with `len` bytes of unspecified contents, aligned for 64-bit words. If memory is short
    /// it waits until fewer others do the same.
    ///
    /// # Errors
    /// ENOMEM: there is no memory for a read that is so large. Or it would wait, and the thread must not.
    pub fn with<R>(&self, len: usize, work: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let _place = self.reads.enter()?;
        if len > USUAL {
            return Ok(work(bytes(&mut Vec::new(), len)?));
        }
        // Request threads are few, and each keeps its own buffer: a healthy read takes no lock.
        if !patience::is_full() && self.is_owner() {
            return OWN.with_borrow_mut(|own| bytes(own, len).map(work));
        }
        let kept = self.lock().pop();
        let mut buffer = kept.unwrap_or_default();
        let result = bytes(&mut buffer, len).map(work);
        let mut free = self.lock();
        if free.len() < self.kept / 2 {
            free.push(buffer);
        }
        result
    }

    /// Whether the thread has a buffer of its own, or may have one from now on.
    fn is_owner(&self) -> bool {
        let one_more = |owners| (owners < self.kept.div_ceil(2)).then_some(owners + 1);
        let order = Ordering::Relaxed;
        !OWN.with_borrow(Vec::is_empty) || self.owners.fetch_update(order, order, one_more).is_ok()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u64>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes(buffer: &mut Vec<u64>, len: usize) -> Result<&mut [u8]> {
    let words = len.max(USUAL).div_ceil(8);
    let more = words.saturating_sub(buffer.len());
    buffer
        .try_reserve_exact(more)
        .map_err(|_| Error::other(libc::ENOMEM, format!("no memory for a read of {len} bytes")))?;
    buffer.resize(words, 0);
    Ok(&mut bytemuck::cast_slice_mut(buffer)[..len])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory;
    use crate::patience::{Patience, with};

    #[test]
    fn buffers_are_used_again_and_few_are_kept() {
        let buffers = Buffers::of(memory::budget());
        for len in [0, 1, 4096, USUAL, 3 * USUAL + 5] {
            let got = buffers.with(len, |b| b.len()).unwrap();
            assert_eq!(got, len);
        }
        assert_eq!(buffers.lock().len(), 1);
        with(Patience::Sources, || buffers.with(9, |_| ()).unwrap());
        assert_eq!(buffers.lock().len(), 1);
        fn nested(buffers: &Buffers, depth: usize) {
            if depth > 0 {
                buffers.with(8, |_| nested(buffers, depth - 1)).unwrap();
            }
        }
        nested(&buffers, buffers.kept);
        assert_eq!(buffers.lock().len(), buffers.kept / 2);
    }

    #[test]
    fn no_memory_is_an_error() {
        let none = Buffers::of(memory::budget()).with(usize::MAX >> 1, |_| ());
        assert_eq!(none.unwrap_err().errno(), libc::ENOMEM);
    }
}
