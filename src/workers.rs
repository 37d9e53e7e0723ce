//! Threads for what a request thread must not wait for.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

type Job = Box<dyn FnOnce() + Send>;

/// A pool that starts a thread when a job finds none idle, up to a limit; idle threads stay. Jobs
/// beyond the limit wait their turn.
#[derive(Clone)]
pub struct Workers(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    limit: usize,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

impl Workers {
    /// At most `limit` threads (at least 1). None is started yet.
    pub fn new(limit: usize) -> Workers {
        Workers(Arc::new(Shared {
            state: Mutex::new(State::default()),
            wake: Condvar::new(),
            limit: limit.max(1),
        }))
    }

    /// Runs `job` on some thread of the pool, soon.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() || state.threads >= self.0.limit {
            self.0.wake.notify_one();
            return;
        }
        let shared = self.0.clone();
        let started = std::thread::Builder::new()
            .name("stfs-slow".into())
            .spawn(move || shared.work());
        match started {
            Ok(_) => state.threads += 1,
            // No thread to be had: one that runs will come to it, or else it is done right here.
            Err(_) if state.threads > 0 => {}
            Err(_) => {
                let job = state.jobs.pop_back();
                drop(state);
                if let Some(job) = job {
                    job();
                }
            }
        }
    }
}

impl Shared {
    fn work(&self) {
        loop {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let job = loop {
                match state.jobs.pop_front() {
                    Some(job) => break job,
                    None => {
                        state.idle += 1;
                        state = self
                            .wake
                            .wait(state)
                            .unwrap_or_else(PoisonError::into_inner);
                        state.idle -= 1;
                    }
                }
            };
            drop(state);
            // A job that panics drops its reply object, which answers EIO; the thread goes on.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn jobs_run_also_after_one_panicked_and_beyond_the_limit() {
        let pool = Workers::new(2);
        let (tx, rx) = mpsc::channel();
        pool.run(|| panic!("on purpose"));
        for i in 0..50 {
            let tx = tx.clone();
            pool.run(move || tx.send(i).unwrap());
        }
        drop(tx);
        let mut got: Vec<i32> = rx.iter().collect();
        got.sort_unstable();
        assert_eq!(got, (0..50).collect::<Vec<_>>());
    }
}
