//! Facts that lie in tensor data: fetched in the background, or by the first request that needs one.

use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Model;
use crate::reason::Missing;
use crate::{parallel, patience};

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

    /// Whether a layer can be decoded, as far as that is known.
    pub fn may_be_decoded(&self, index: u32) -> bool {
        !matches!(self.settled_layer(index), Err(Missing::Reason(_)))
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
            let unsettled = |layer: &u32| !self.is_layer_settled(*layer);
            let layers: Vec<u32> = (0..self.layer_count()).filter(unsettled).collect();
            let _ = parallel::ordered_on(threads, layers.len(), |i| {
                let _ = self.settled_layer(layers[i]);
                Ok(())
            });
            if !layers.iter().any(unsettled) {
                self.ready.store(true, Ordering::Release);
            }
        }
        self.gave_up.store(true, Ordering::Relaxed);
    }
}
