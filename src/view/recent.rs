//! Computed pieces of views, kept for a moment: a sequential reader asks for less at a time than a
//! view can cheaply compute, from several threads, and again and again.
//!
//! One budget for the whole process, however many views are open: a program that maps every layer
//! of a model must not leave a tile in memory for each.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};

use crate::error::Result;

/// What all kept pieces may take together, in bytes. A sequential reader needs a band of a quantized
/// layer or two (1 to 5 MiB each); so this is enough for some fifty of them at a time. It must be:
/// readers that take turns and together need more find nothing of what they left, and read fifty
/// times slower (32 readers of 4-bit layers of 14336 inputs, with a quarter of this).
const BUDGET: usize = 256 << 20;

static KEPT: LazyLock<Mutex<Kept>> = LazyLock::new(Mutex::default);
static OWNERS: AtomicU64 = AtomicU64::new(0);

/// Owner and index of a piece.
type Key = (u64, u64);
type Piece = Arc<dyn Any + Send + Sync>;
/// One lock a piece: two readers of the same piece wait for one computation, readers of different
/// pieces do not wait for each other.
type Slot = Arc<Mutex<Option<Piece>>>;

#[derive(Default)]
struct Kept {
    slots: HashMap<Key, Entry>,
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

impl Kept {
    fn lock() -> MutexGuard<'static, Kept> {
        KEPT.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of a piece, made if it is not there; the least recently used ones drop out.
    fn slot(&mut self, key: Key, bytes: usize) -> Slot {
        self.clock += 1;
        let now = self.clock;
        let entry = self.slots.entry(key).or_insert_with(|| {
            self.bytes += bytes;
            Entry {
                slot: Slot::default(),
                bytes,
                used: now,
            }
        });
        self.order.remove(&entry.used);
        entry.used = now;
        self.order.insert(now, key);
        let slot = entry.slot.clone();
        while self.bytes > BUDGET && self.slots.len() > 1 {
            let Some((_, oldest)) = self.order.pop_first() else {
                break;
            };
            if let Some(entry) = self.slots.remove(&oldest) {
                self.bytes -= entry.bytes;
            }
        }
        slot
    }

    fn forget(&mut self, owner: u64) {
        let (slots, order, bytes) = (&mut self.slots, &mut self.order, &mut self.bytes);
        slots.retain(|key, entry| {
            let keep = key.0 != owner;
            if !keep {
                order.remove(&entry.used);
                *bytes -= entry.bytes;
            }
            keep
        });
    }
}

/// The recently computed pieces of one view, by index.
pub struct Recent<T> {
    owner: u64,
    piece: PhantomData<fn() -> T>,
}

impl<T: Send + Sync + 'static> Recent<T> {
    /// None yet.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        Recent {
            owner: OWNERS.fetch_add(1, Ordering::Relaxed),
            piece: PhantomData,
        }
    }

    /// Piece `index`, kept from before or made now. `bytes` is what it takes in memory. Who asks
    /// for a piece that is being made waits for it.
    ///
    /// # Errors
    /// Whatever `make` could not do; the next who asks tries again.
    pub fn get(
        &self,
        index: u64,
        bytes: usize,
        make: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<T>> {
        let slot = Kept::lock().slot((self.owner, index), bytes);
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(piece) = slot.clone().and_then(|piece| piece.downcast().ok()) {
            return Ok(piece);
        }
        let piece = Arc::new(make()?);
        *slot = Some(piece.clone());
        Ok(piece)
    }
}

impl<T> Drop for Recent<T> {
    fn drop(&mut self) {
        Kept::lock().forget(self.owner);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::error::Error;

    #[test]
    fn a_piece_is_made_once_and_a_failure_is_not_kept() {
        let recent = Recent::<u32>::new();
        let made = Cell::new(0);
        let failed = recent.get(7, 4, || Err(Error::data("t", "p")));
        assert!(failed.is_err());
        for _ in 0..3 {
            let piece = recent.get(7, 4, || {
                made.set(made.get() + 1);
                Ok(42)
            });
            assert_eq!(*piece.unwrap(), 42);
        }
        assert_eq!(made.get(), 1);
        let other = Recent::<u32>::new();
        assert_eq!(*other.get(7, 4, || Ok(43)).unwrap(), 43);
    }

    /// As many as read the layers of a model in parallel, each a large one.
    #[test]
    fn there_is_room_for_32_readers_that_take_turns() {
        let mut kept = Kept::default();
        let turn = |kept: &mut Kept| (0..32).map(|r| kept.slot((r, 0), 5 << 20)).collect();
        let first: Vec<Slot> = turn(&mut kept);
        let second: Vec<Slot> = turn(&mut kept);
        assert!(first.iter().zip(&second).all(|(a, b)| Arc::ptr_eq(a, b)));
    }

    #[test]
    fn the_budget_holds_and_the_least_recently_used_goes_first() {
        let mut kept = Kept::default();
        let piece = BUDGET / 4;
        for index in 0..4 {
            kept.slot((0, index), piece);
        }
        let first = kept.slot((0, 0), piece);
        kept.slot((0, 4), piece);
        assert!(Arc::ptr_eq(&first, &kept.slot((0, 0), piece)));
        assert!(!kept.slots.contains_key(&(0, 1)));
        assert_eq!(kept.bytes, BUDGET);
        kept.slot((1, 0), 3 * BUDGET);
        assert_eq!(kept.slots.len(), 1, "one piece, however large");
        kept.forget(1);
        assert_eq!((kept.bytes, kept.slots.len(), kept.order.len()), (0, 0, 0));
    }
}
