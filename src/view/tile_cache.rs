//! Caches computed pieces of views (tiles, tables of scales) for a short time: a sequential reader
//! repeatedly asks, from several threads, for less than a view can cheaply compute at once.
//!
//! The whole process has one budget, however many views are open: a program that maps every layer
//! of a model must not keep a tile in memory for each. The least recently used pieces are evicted
//! first.

use std::any::Any;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, TryLockError};

use crate::catalog::steady;
use crate::error::Result;
use crate::{memory, patience};

static CACHE: LazyLock<Mutex<Lru>> = LazyLock::new(|| Lru::of(memory::budget().tiles).into());
static OWNERS: AtomicU64 = AtomicU64::new(0);

/// Held by tests: shared by those that count what the cache saves, alone by those that fill it.
#[cfg(test)]
pub(super) static FILLED: std::sync::RwLock<()> = std::sync::RwLock::new(());

/// Owner and index of a piece.
type Key = (u64, u64);
type Piece = Arc<dyn Any + Send + Sync>;
/// One lock per piece: two readers of the same piece wait for one computation, but readers of
/// different pieces do not wait for each other.
type Slot = Arc<Mutex<Option<Piece>>>;

struct Lru {
    /// The most bytes that all kept pieces take together.
    budget: usize,
    slots: BTreeMap<Key, Entry>,
    /// By time of last use, oldest first.
    order: BTreeMap<u64, Key>,
    clock: u64,
    bytes: usize,
}

struct Entry {
    slot: Slot,
    bytes: usize,
    used: u64,
}

impl Lru {
    fn of(budget: usize) -> Lru {
        Lru {
            budget,
            slots: BTreeMap::new(),
            order: BTreeMap::new(),
            clock: 0,
            bytes: 0,
        }
    }

    fn lock() -> MutexGuard<'static, Lru> {
        CACHE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of a piece, which is created if it does not exist, and the slots evicted for it.
    /// The caller drops those after it releases the lock: freeing some MiB takes longer than
    /// everything else here.
    /// No more than `most` bytes of one owner are kept.
    fn slot(&mut self, key: Key, bytes: usize, most: usize) -> (Slot, Vec<Slot>) {
        let entry = self.slots.entry(key).or_insert_with(|| {
            self.bytes += bytes;
            Entry {
                slot: Slot::default(),
                bytes,
                used: 0,
            }
        });
        let slot = entry.slot.clone();
        self.use_now(key);
        let mut evicted = Vec::new();
        while most < self.budget && self.bytes_of(key.0) > most {
            let others = self.slots.range((key.0, 0)..=(key.0, u64::MAX));
            let others = others.filter(|(other, _)| **other != key);
            let Some((&oldest, _)) = others.min_by_key(|(_, entry)| entry.used) else {
                break;
            };
            evicted.extend(self.remove(oldest));
        }
        while self.bytes > self.budget && self.slots.len() > 1 {
            let Some((_, &oldest)) = self.order.first_key_value() else {
                break;
            };
            evicted.extend(self.remove(oldest));
        }
        (slot, evicted)
    }

    /// Makes a piece the most recently used.
    fn use_now(&mut self, key: Key) {
        self.clock += 1;
        if let Some(entry) = self.slots.get_mut(&key) {
            self.order.remove(&entry.used);
            entry.used = self.clock;
            self.order.insert(self.clock, key);
        }
    }

    fn remove(&mut self, key: Key) -> Option<Slot> {
        let entry = self.slots.remove(&key)?;
        self.order.remove(&entry.used);
        self.bytes -= entry.bytes;
        Some(entry.slot)
    }

    fn bytes_of(&self, owner: u64) -> usize {
        let all = self.slots.range((owner, 0)..=(owner, u64::MAX));
        all.map(|(_, entry)| entry.bytes).sum()
    }

    /// The slot of a piece, if there is one.
    fn find(&mut self, key: Key) -> Option<Slot> {
        let slot = self.slots.get(&key)?.slot.clone();
        self.use_now(key);
        Some(slot)
    }

    /// Removes all pieces of an owner, for the caller to drop.
    fn forget(&mut self, owner: u64) -> Vec<Slot> {
        let all = (owner, 0)..=(owner, u64::MAX);
        let of_owner = self.slots.extract_if(all, |_, _| true);
        let forgotten = of_owner.map(|(_, entry)| {
            self.order.remove(&entry.used);
            self.bytes -= entry.bytes;
            entry.slot
        });
        forgotten.collect()
    }
}

/// The recently computed pieces of one view, by index.
pub struct TileCache<T> {
    owner: u64,
    /// The most bytes that are kept of it.
    most: usize,
    piece: PhantomData<fn() -> T>,
}

impl<T: Send + Sync + 'static> TileCache<T> {
    /// An empty cache.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        TileCache::of_at_most(usize::MAX)
    }

    /// An empty cache that keeps no more than `most` bytes, or one piece if that is larger.
    pub fn of_at_most(most: usize) -> Self {
        TileCache {
            owner: OWNERS.fetch_add(1, Ordering::Relaxed),
            most,
            piece: PhantomData,
        }
    }

    /// Drops a piece that nobody will ask for again.
    pub fn remove(&self, index: u64) {
        let removed = Lru::lock().remove((self.owner, index));
        drop(removed);
    }

    /// The bytes of it that are kept.
    #[cfg(test)]
    pub fn bytes(&self) -> usize {
        Lru::lock().bytes_of(self.owner)
    }

    /// Piece `index`, if it is in the cache. Does not wait for a thread that makes it.
    pub fn find(&self, index: u64) -> Option<Arc<T>> {
        let slot = Lru::lock().find((self.owner, index))?;
        let piece = slot.try_lock().ok()?.clone();
        piece?.downcast().ok()
    }

    /// Piece `index`, from the cache or made now. `bytes` is its size in memory. A reader that asks
    /// for a piece that another thread is making waits for it.
    ///
    /// # Errors
    /// The error of `make`; the next call tries again. Another thread makes it, and this one must not wait.
    pub fn get(
        &self,
        index: u64,
        bytes: usize,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        self.get_in(index, bytes, |evicted| {
            drop(evicted);
            make()
        })
    }

    /// As [`TileCache::get`]; `make` is given a piece that was evicted and that nobody uses, if there is
    /// one: its memory can be used again.
    ///
    /// # Errors
    /// As [`TileCache::get`].
    pub fn get_in(
        &self,
        index: u64,
        bytes: usize,
        make: impl FnOnce(Option<T>) -> Result<T>,
    ) -> Result<Arc<T>> {
        // The lock is released at the end of this line; the evicted pieces are freed after that.
        let (slot, evicted) = Lru::lock().slot((self.owner, index), bytes, self.most);
        let evicted = evicted.into_iter().filter_map(unused).last();
        let mut slot = match slot.try_lock() {
            Ok(slot) => slot,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => {
                // Another thread makes it, and may wait for a source meanwhile.
                patience::take_long()?;
                slot.lock().unwrap_or_else(PoisonError::into_inner)
            }
        };
        if let Some(piece) = slot.clone().and_then(|piece| piece.downcast().ok()) {
            return Ok(piece);
        }
        let (piece, may_be_kept) = steady::kept(|| make(evicted))?;
        let piece = Arc::new(piece);
        if may_be_kept {
            *slot = Some(piece.clone());
        }
        Ok(piece)
    }
}

/// The piece of a slot that nobody else has.
fn unused<T: Send + Sync + 'static>(slot: Slot) -> Option<T> {
    let slot = Arc::into_inner(slot)?;
    let piece = slot.into_inner().unwrap_or_else(PoisonError::into_inner)?;
    Arc::into_inner(piece.downcast().ok()?)
}

impl<T> Drop for TileCache<T> {
    fn drop(&mut self) {
        let forgotten = Lru::lock().forget(self.owner);
        drop(forgotten);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc;
    use std::time::Duration;

    use super::*;
    use crate::error::Error;

    const BUDGET: usize = 256 << 20;

    #[test]
    fn a_piece_is_made_once_and_a_failure_is_not_kept() {
        let cache = TileCache::<u32>::new();
        let made = Cell::new(0);
        let failed = cache.get(7, 4, || Err(Error::data("t", "p")));
        assert!(failed.is_err());
        for _ in 0..3 {
            let piece = cache.get(7, 4, || {
                made.set(made.get() + 1);
                Ok(42)
            });
            assert_eq!(*piece.unwrap(), 42);
        }
        assert_eq!(made.get(), 1);
        let other = TileCache::<u32>::new();
        assert_eq!(*other.get(7, 4, || Ok(43)).unwrap(), 43);
    }

    /// As many readers as read a model's layers in parallel, with large pieces.
    #[test]
    fn there_is_room_for_32_readers_that_take_turns() {
        let mut lru = Lru::of(BUDGET);
        let turn = |lru: &mut Lru| {
            (0..32)
                .map(|r| lru.slot((r, 0), 5 << 20, usize::MAX).0)
                .collect()
        };
        let first: Vec<Slot> = turn(&mut lru);
        let second: Vec<Slot> = turn(&mut lru);
        assert!(first.iter().zip(&second).all(|(a, b)| Arc::ptr_eq(a, b)));
    }

    #[test]
    fn the_budget_holds_and_the_least_recently_used_goes_first() {
        let mut lru = Lru::of(BUDGET);
        let piece = BUDGET / 4;
        for index in 0..4 {
            lru.slot((0, index), piece, BUDGET);
        }
        let (first, _) = lru.slot((0, 0), piece, BUDGET);
        let (_, evicted) = lru.slot((0, 4), piece, BUDGET);
        assert_eq!(evicted.len(), 1);
        assert!(Arc::ptr_eq(&first, &lru.slot((0, 0), piece, BUDGET).0));
        assert!(!lru.slots.contains_key(&(0, 1)));
        assert_eq!(lru.bytes, BUDGET);
        let (_, evicted) = lru.slot((1, 0), 3 * BUDGET, BUDGET);
        assert_eq!(
            (lru.slots.len(), evicted.len()),
            (1, 4),
            "one piece, however large"
        );
        assert_eq!(lru.forget(1).len(), 1);
        assert_eq!((lru.bytes, lru.slots.len(), lru.order.len()), (0, 0, 0));
    }

    /// A piece that uses the cache itself when it is freed.
    struct Late(TileCache<u8>);

    impl Drop for Late {
        fn drop(&mut self) {
            assert_eq!(*self.0.get(0, 1, || Ok(1)).unwrap(), 1);
        }
    }

    #[test]
    fn pieces_are_freed_outside_the_lock() {
        let _alone = FILLED.write().unwrap_or_else(PoisonError::into_inner);
        let (done, wait) = mpsc::channel();
        std::thread::spawn(move || {
            let cache = TileCache::<Late>::new();
            for index in 0..2 {
                let late = || Ok(Late(TileCache::new()));
                drop(cache.get(index, memory::budget().tiles, late).unwrap());
            }
            drop(cache);
            done.send(()).unwrap();
        });
        let freed = wait.recv_timeout(Duration::from_secs(20));
        assert_eq!(freed, Ok(()), "it waits for the lock that it holds");
    }
}
