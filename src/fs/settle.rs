//! Brings the sources into a state from which no write goes unseen, in the background.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use super::Fs;
use crate::catalog::Object;
use crate::workers::run_aside;

// Pauses between looks at sources that are not settled yet: usually the second look suffices, and a large
// download takes its minutes to be written back.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// After so long without a sign of life, a job waits for a stalled source, and another takes over.
const STALLED: Duration = Duration::from_secs(15);

/// The most jobs that may wait for stalled sources.
const MOST: usize = 8;

/// The jobs of a mount.
#[derive(Default)]
pub(super) struct Settling(Mutex<Jobs>);

#[derive(Default)]
struct Jobs {
    /// The last that was started, and its last sign of life; `None` once it has ended.
    current: Option<(u64, Instant)>,
    started: u64,
    /// All that go on.
    running: usize,
}

impl Settling {
    fn lock(&self) -> MutexGuard<'_, Jobs> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a new job, if one is needed.
    fn begin(&self) -> Option<u64> {
        let mut jobs = self.lock();
        let is_alive = |(_, seen): (u64, Instant)| seen.elapsed() < STALLED;
        if jobs.running >= MOST || jobs.current.is_some_and(is_alive) {
            return None;
        }
        jobs.started += 1;
        jobs.running += 1;
        jobs.current = Some((jobs.started, Instant::now()));
        Some(jobs.started)
    }

    /// A job's sign of life; `false` if another has taken over.
    fn goes_on(&self, job: u64) -> bool {
        let mut jobs = self.lock();
        let is_current = jobs.current.is_some_and(|(current, _)| current == job);
        if is_current {
            jobs.current = Some((job, Instant::now()));
        }
        is_current
    }
}

/// Ends a job, also if it panics or could not be started.
struct Job {
    number: u64,
    of: Weak<Settling>,
}

impl Drop for Job {
    fn drop(&mut self) {
        let Some(settling) = self.of.upgrade() else {
            return;
        };
        let mut jobs = settling.lock();
        jobs.running -= 1;
        jobs.current = jobs.current.filter(|(current, _)| *current != self.number);
    }
}

impl Job {
    /// Until all are settled, another job has taken over, or the mount is gone.
    fn work(&self, sources: &[Arc<dyn Object>]) {
        let goes_on = || self.of.upgrade().is_some_and(|of| of.goes_on(self.number));
        let mut pause = FIRST_PAUSE;
        loop {
            let mut all = true;
            // All of them each time: one that is settled may have changed since.
            for file in sources {
                all &= file.settle();
                if !goes_on() {
                    return;
                }
            }
            if all {
                return;
            }
            std::thread::sleep(pause);
            pause = LAST_PAUSE.min(2 * pause);
        }
    }
}

impl Fs {
    /// Sees to it, in the background, that no later write to a source goes unseen. Never waits, and costs
    /// nothing once that is so.
    pub fn settle_sources(&self) {
        let Some(number) = self.settling.begin() else {
            return;
        };
        let of = Arc::downgrade(&self.settling);
        let (job, sources) = (Job { number, of }, self.layout.all_sources());
        if run_aside(move || job.work(&sources)).is_err() {
            log::debug!("no thread can be started to watch the sources; the next open tries again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_job_at_a_time_until_it_stalls() {
        let settling = Arc::new(Settling::default());
        let job = |number| Job {
            number,
            of: Arc::downgrade(&settling),
        };
        let first = job(settling.begin().unwrap());
        assert_eq!(settling.begin(), None);
        assert!(settling.goes_on(first.number));
        let stall = || {
            let long_ago = Instant::now().checked_sub(STALLED).unwrap();
            settling.lock().current.as_mut().unwrap().1 = long_ago;
        };
        stall();
        let second = job(settling.begin().unwrap());
        assert!(!settling.goes_on(first.number));
        drop(first);
        assert!(settling.goes_on(second.number), "the first ended late");
        drop(second);
        let mut stalled = Vec::new();
        for _ in 0..MOST {
            stalled.push(job(settling.begin().unwrap()));
            stall();
        }
        assert_eq!(settling.begin(), None);
        stalled.pop();
        assert!(settling.begin().is_some());
    }
}
