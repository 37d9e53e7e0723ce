//! A bounded number of places for work that takes memory. Who finds none waits for one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::error::Result;
use crate::patience;

/// If nobody leaves for this long, those inside wait for something that stalls: a source whose server is
/// gone. One more is let in then, because readers of a healthy source must not wait for it, too.
const STALLED: Duration = Duration::from_millis(250);

/// Places for work that takes memory while it runs.
pub struct Room {
    most: usize,
    inside: AtomicUsize,
    waiting: AtomicUsize,
    /// How often somebody left, or was let in because nobody did.
    moves: Mutex<u64>,
    moved: Condvar,
}

/// A place in a [`Room`], until it is dropped.
pub struct Place<'a>(&'a Room);

impl Room {
    /// A room with that many places.
    pub const fn new(most: usize) -> Room {
        Room {
            most,
            inside: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            moves: Mutex::new(0),
            moved: Condvar::new(),
        }
    }

    /// A place, if there is one.
    fn try_enter(&self) -> Option<Place<'_>> {
        // SeqCst, here and in `drop`: either the one who leaves sees that somebody waits, or the one who
        // begins to wait sees the free place.
        let order = Ordering::SeqCst;
        let one_more = |inside| (inside < self.most).then_some(inside + 1);
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
            let waited = self.moved.wait_timeout(moves, STALLED);
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            moves = now;
            if timeout.timed_out() && *moves == seen {
                *moves += 1;
                self.inside.fetch_add(1, Ordering::SeqCst);
                return Place(self);
            }
        }
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
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
        let room = Room::new(3);
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
        // One more only if the machine stopped for long.
        assert!((3..=5).contains(&most.load(Ordering::SeqCst)), "{most:?}");
        assert_eq!(room.inside.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn those_who_stall_do_not_stop_the_others() {
        let room = Room::new(1);
        let stalled = room.enter().unwrap();
        let start = Instant::now();
        drop(room.enter().unwrap());
        assert!(start.elapsed() >= STALLED);
        drop(stalled);
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
