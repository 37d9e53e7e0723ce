//! Buffers for bytes that a view reads from its sources. Each thread keeps them from one read to
//! the next.
//!
//! Views nest, and a whole read happens on one thread: while a view reads its source, it still
//! holds its own buffers. So a buffer is taken out of the thread's store while it is in use and put
//! back when it is dropped, and a source that is itself a computed view takes other buffers.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};

use bytemuck::Pod;

use crate::memory;

/// The most buffers that a thread keeps. No format takes more than six at a time; nested views take
/// them at each level.
const MOST_KEPT: usize = 8;
/// The most bytes that the buffers of a thread take together. A read works on blocks of 64 Ki values, so the
/// largest usual buffer takes 256 KiB. Larger ones go back to the allocator.
const MOST_BYTES: usize = 4 << 20;
/// Bytes that all threads keep together: there may be hundreds of threads.
static ALL_KEPT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static KEPT: RefCell<Kept> = const { RefCell::new(Kept { buffers: Vec::new(), bytes: 0 }) };
}

/// A buffer in units whose alignment suffices for every element type in use.
type Buffer = Vec<u64>;

/// A thread's buffers that are not in use.
struct Kept {
    buffers: Vec<Buffer>,
    bytes: usize,
}

impl Kept {
    /// The smallest buffer of at least `units`, else the largest one, else a new one.
    fn take(&mut self, units: usize) -> Buffer {
        let key = |buffer: &Buffer| match buffer.len() {
            len if len >= units => (0, len),
            len => (1, usize::MAX - len),
        };
        let best = (0..self.buffers.len()).min_by_key(|&i| key(&self.buffers[i]));
        let Some(best) = best else {
            return Buffer::new();
        };
        let buffer = self.buffers.swap_remove(best);
        self.forget(size_of_val(&*buffer));
        buffer
    }

    fn put(&mut self, buffer: Buffer) {
        let bytes = size_of_val(&*buffer);
        if self.buffers.len() >= MOST_KEPT || self.bytes + bytes > MOST_BYTES {
            return;
        }
        self.bytes += bytes;
        if ALL_KEPT.fetch_add(bytes, Ordering::Relaxed) + bytes > memory::budget().scratch {
            return self.forget(bytes);
        }
        self.buffers.push(buffer);
    }

    /// Counts bytes as no longer kept.
    fn forget(&mut self, bytes: usize) {
        self.bytes -= bytes;
        ALL_KEPT.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.forget(self.bytes);
    }
}

/// A buffer of elements, which goes back to the thread's store when it is dropped.
pub struct Scratch<T: Pod> {
    buffer: Buffer,
    len: usize,
    element: PhantomData<T>,
}

impl<T: Pod> Scratch<T> {
    /// A buffer of `len` elements, with contents left over from earlier uses.
    pub fn take(len: usize) -> Scratch<T> {
        const { assert!(align_of::<T>() <= align_of::<u64>() && 8 % size_of::<T>() == 0) };
        let units = (len * size_of::<T>()).div_ceil(8);
        // A thread that is ending no longer has a store.
        let mut buffer = KEPT
            .try_with(|kept| kept.borrow_mut().take(units))
            .unwrap_or_default();
        if buffer.len() < units {
            buffer.resize(units, 0);
        }
        Scratch {
            buffer,
            len,
            element: PhantomData,
        }
    }
}

impl<T: Pod> Deref for Scratch<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.buffer)[..self.len]
    }
}

impl<T: Pod> DerefMut for Scratch<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.buffer)[..self.len]
    }
}

impl<T: Pod> Drop for Scratch<T> {
    fn drop(&mut self) {
        let buffer = std::mem::take(&mut self.buffer);
        let _ = KEPT.try_with(|kept| kept.borrow_mut().put(buffer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept() -> (usize, usize) {
        KEPT.with_borrow(|kept| (kept.buffers.len(), kept.bytes))
    }

    #[test]
    fn buffers_in_use_are_apart_and_come_back() {
        let mut first = Scratch::<f32>::take(1000);
        let mut second = Scratch::<u8>::take(3);
        first.fill(1.0);
        second.fill(7);
        assert!(first.iter().all(|&v| v == 1.0));
        assert_eq!((first.len(), second.len()), (1000, 3));
        let at = first.as_ptr().addr();
        drop((first, second));
        assert_eq!(kept(), (2, 4000 + 8));
        // The smallest sufficient buffer, so that the large one is left for a larger request.
        let small = Scratch::<u8>::take(5);
        assert_eq!(kept(), (1, 4000));
        let large = Scratch::<u16>::take(2000);
        assert_eq!(large.as_ptr().addr(), at);
        assert!(Scratch::<u64>::take(0).is_empty());
        drop((small, large));
    }

    #[test]
    fn a_thread_keeps_only_so_many_and_so_much() {
        let many: Vec<_> = (0..40).map(|_| Scratch::<u8>::take(64)).collect();
        drop(many);
        assert_eq!(kept(), (MOST_KEPT, 64 * MOST_KEPT));
        drop(Scratch::<u8>::take(MOST_BYTES + 1));
        assert!(kept().1 <= MOST_BYTES);
        let halves: Vec<_> = (0..3)
            .map(|_| Scratch::<u8>::take(MOST_BYTES / 2))
            .collect();
        drop(halves);
        assert!(kept().1 <= MOST_BYTES);
    }

    #[test]
    fn a_panic_puts_them_back() {
        let before = kept().0;
        let caught = std::panic::catch_unwind(|| {
            let _room = Scratch::<u8>::take(8);
            panic!("as a damaged source might");
        });
        assert!(caught.is_err());
        assert_eq!(kept().0, before.max(1));
    }
}
