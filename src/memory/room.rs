//! A bounded number of places for work that takes memory. A thread that finds none waits for one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::error::Result;
use crate::patience;

/// If no place becomes free for this long, the threads inside wait for something that stalls: a source whose
/// server is gone. The room gets one more place then, because readers of a healthy source must not wait for
/// it, too. It keeps that place until the stalled threads have left: otherwise each healthy read would wait
/// this long again.
const STALLED: Duration = Duration::from_millis(50);

/// Places for work that takes memory while it runs.
pub struct Room {
    /// [`STALLED`], but in tests.
    stalled: Duration,
    base: usize,
    /// `base`, and the places that were added for stalled ones.
    most: AtomicUsize,
    inside: AtomicUsize,
    waiting: AtomicUsize,
    /// How often a place became free or was added.
    moves: Mutex<u64>,
    moved: Condvar,
}

/// A place in a [`Room`], until it is dropped.
pub struct Place<'a>(&'a Room);

impl Room {
    /// A room with that many places.
    pub const fn new(places: usize) -> Room {
        Room {
            stalled: STALLED,
            base: places,
            most: AtomicUsize::new(places),
            inside: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            moves: Mutex::new(0),
            moved: Condvar::new(),
        }
    }

    /// A place, if there is one.
    fn try_enter(&self) -> Option<Place<'_>> {
        // SeqCst, here and in `drop`: either the thread that leaves sees that another waits, or the one that
        // begins to wait sees the free place.
        let order = Ordering::SeqCst;
        let most = self.most.load(order);
        let one_more = |inside| (inside < most).then_some(inside + 1);
        let entered = self.inside.fetch_update(order, order, one_more);
        entered.is_ok().then(|| Place(self))
    }

    /// A place; waits for one if there is none.
    ///
    /// # Errors
    /// There is none, and the thread must not wait.
    pub fn enter(&self) -> Result<Place<'_>> {
        if let Some(place) = self.try_enter() {
            return Ok(place);
        }
        patience::take_long()?;
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let place = self.wait();
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        Ok(place)
    }

    fn wait(&self) -> Place<'_> {
        let mut moves = self.moves.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(place) = self.try_enter() {
                return place;
            }
            let seen = *moves;
            let waited = self.moved.wait_timeout(moves, self.stalled);
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            moves = now;
            if timeout.timed_out() && *moves == seen {
                // Stays until the room drains.
                *moves += 1;
                self.most.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let left = self.0.inside.fetch_sub(1, Ordering::SeqCst) - 1;
        if left <= self.0.base / 2 {
            self.0.most.store(self.0.base, Ordering::SeqCst);
        }
        if self.0.waiting.load(Ordering::SeqCst) > 0 {
            let mut moves = self.0.moves.lock().unwrap_or_else(PoisonError::into_inner);
            *moves += 1;
            self.0.moved.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Instant;

    use super::*;
    use crate::patience::{Patience, attempt, with};

    #[test]
    fn no_more_work_at_a_time_than_there_are_places() {
        // The machine may stop for long.
        let room = Room {
            stalled: Duration::from_secs(3600),
            ..Room::new(3)
        };
        let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..12 {
                scope.spawn(|| {
                    for _ in 0..300 {
                        let _place = room.enter().unwrap();
                        let inside = now.fetch_add(1, Ordering::SeqCst) + 1;
                        most.fetch_max(inside, Ordering::SeqCst);
                        std::thread::yield_now();
                        now.fetch_sub(1, Ordering::SeqCst);
                    }
                });
            }
        });
        assert_eq!(most.into_inner(), 3);
        assert_eq!(room.inside.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn stalled_places_do_not_stop_the_others() {
        for places in [1, 4] {
            let room = Room::new(places);
            let stalled: Vec<_> = (0..places).map(|_| room.enter().unwrap()).collect();
            let start = Instant::now();
            drop(room.enter().unwrap());
            assert!(start.elapsed() >= STALLED);
            // Only the first waits.
            for _ in 0..100 {
                drop(room.enter().unwrap());
            }
            assert!(start.elapsed() < 40 * STALLED, "{:?}", start.elapsed());
            assert_eq!(room.most.load(Ordering::SeqCst), places + 1);
            drop(stalled);
            assert_eq!(room.most.load(Ordering::SeqCst), places);
        }
    }

    #[test]
    fn a_request_thread_does_not_wait() {
        let room = Room::new(1);
        let impatient = || with(Patience::Sources, || attempt(|| room.enter().is_ok()));
        assert_eq!(impatient(), (true, false));
        let place = room.enter().unwrap();
        assert_eq!(impatient(), (false, true));
        let entered = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _place = room.enter().unwrap();
                entered.store(true, Ordering::SeqCst);
            });
            drop(place);
        });
        assert!(entered.into_inner());
    }
}
