//! Buffers for reads whose bytes are not one piece of a source file.

use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::patience;

/// The size of the largest read that the kernel sends by default (256 pages).
const USUAL: usize = 1 << 20;
/// Buffers kept for the threads of the pool: as many threads as the cores of a large machine keep busy.
/// The pool may have hundreds; those that stall beyond this number allocate their own.
const KEPT: usize = 32;

thread_local! {
    /// A request thread's own.
    static OWN: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// The buffers that no thread of the pool is using.
#[derive(Default)]
pub(super) struct Buffers(Mutex<Vec<Vec<u64>>>);

impl Buffers {
    /// Calls `work` with `len` bytes of unspecified contents, aligned for 64-bit words.
    ///
    /// # Errors
    /// ENOMEM: there is no memory for a read that is so large.
    pub fn with<R>(&self, len: usize, work: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        if len > USUAL {
            return Ok(work(bytes(&mut Vec::new(), len)?));
        }
        // Request threads are few, and each keeps its own buffer: a healthy read takes no lock.
        if !patience::is_full() {
            return OWN.with_borrow_mut(|own| bytes(own, len).map(work));
        }
        let kept = self.lock().pop();
        let mut buffer = kept.unwrap_or_default();
        let result = bytes(&mut buffer, len).map(work);
        let mut free = self.lock();
        if free.len() < KEPT {
            free.push(buffer);
        }
        result
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Vec<u64>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
    use crate::patience::{Patience, with};

    #[test]
    fn buffers_are_used_again_and_few_are_kept() {
        let buffers = Buffers::default();
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
        nested(&buffers, KEPT + 9);
        assert_eq!(buffers.lock().len(), KEPT);
    }

    #[test]
    fn no_memory_is_an_error() {
        let none = Buffers::default().with(usize::MAX >> 1, |_| ());
        assert_eq!(none.unwrap_err().errno(), libc::ENOMEM);
    }
}
