//! Facts that lie in tensor data: fetched in the background, or by the first request that needs one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use super::Model;
use crate::patience;

/// How long to wait before each try to fetch facts. A disk or a network that fails for longer is
/// reported: the next request tries again.
const RETRIES: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(100),
    Duration::from_millis(300),
    Duration::from_secs(1),
];

/// Threads that fetch facts for a listing: they wait for the disk, not for a core.
pub(super) const LISTING_THREADS: usize = 4;

impl Model {
    /// Whether all facts are known, so that no answer needs tensor data any more.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Fetches the facts that are not known yet, and returns whether all are known now. Only then is
    /// anything that depends on all of them final.
    pub fn is_whole(&self) -> bool {
        if !self.is_ready() && patience::take_long().is_ok() {
            self.fetch_facts(LISTING_THREADS);
        }
        self.is_ready()
    }

    /// Fetches the facts that lie in tensor data, on `threads` threads. Returns when all are known, or
    /// when the retries are used up. Runs in the background; a request that needs a fact earlier, or
    /// after it could not be read, fetches it itself.
    pub fn fetch_facts(&self, threads: usize) {
        // Wait only once.
        let tries = match self.gave_up.load(Ordering::Relaxed) {
            true => 1,
            false => RETRIES.len(),
        };
        for &wait in &RETRIES[..tries] {
            if self.is_ready() {
                return;
            }
            std::thread::sleep(wait);
            self.fetch_facts_once(threads);
            let all = (0..self.layer_count()).all(|i| self.is_layer_settled(i));
            self.ready.store(all, Ordering::Release);
        }
        self.gave_up.store(true, Ordering::Relaxed);
    }

    fn fetch_facts_once(&self, threads: usize) {
        let next = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    loop {
                        let i = next.fetch_add(1, Ordering::Relaxed);
                        if i >= self.layer_count() {
                            break;
                        }
                        if !self.is_layer_settled(i) {
                            let _ = self.settled_layer(i);
                        }
                    }
                });
            }
        });
    }
}
