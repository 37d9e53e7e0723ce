//! One thread for deadlines: it answers callers whose timeout has passed, and frees memory that has been
//! without a lease for long enough.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

type Task = Box<dyn FnOnce() + Send>;

/// Runs tasks at given times, on a thread of its own that lives as long as the clock.
pub struct Clock(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Soonest first; the number keeps the order of those due at the same time.
    due: BinaryHeap<Reverse<(Instant, u64)>>,
    tasks: std::collections::HashMap<u64, Task>,
    next: u64,
    running: bool,
    stopped: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock {
    /// A clock; its thread starts with the first task.
    pub fn new() -> Clock {
        Clock(Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
        }))
    }

    /// Runs `task` after this time; at once, on this thread, if no thread can be started.
    pub fn after(&self, after: Duration, task: impl FnOnce() + Send + 'static) {
        let mut state = self.0.lock();
        if state.stopped {
            return;
        }
        if !state.running {
            let shared = self.0.clone();
            let spawned = std::thread::Builder::new()
                .name("stfs-gpu-clock".into())
                .spawn(move || run(&shared));
            if let Err(e) = spawned {
                drop(state);
                log::warn!("gpu: no thread for the clock: {e}");
                return task();
            }
            state.running = true;
        }
        let number = state.next;
        state.next += 1;
        state.due.push(Reverse((Instant::now() + after, number)));
        state.tasks.insert(number, Box::new(task));
        self.0.changed.notify_one();
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.stopped = true;
        state.tasks.clear();
        self.0.changed.notify_one();
    }
}

fn run(shared: &Shared) {
    let mut state = shared.lock();
    while !state.stopped {
        let now = Instant::now();
        match state.due.peek() {
            Some(Reverse((at, _))) if *at <= now => {
                let task = state
                    .due
                    .pop()
                    .and_then(|Reverse((_, number))| state.tasks.remove(&number));
                drop(state);
                // A task that panics must not leave later callers without an answer.
                let run = AssertUnwindSafe(|| task.map(|task| task()));
                if catch_unwind(run).is_err() {
                    log::error!("gpu: a timed task failed inside stfs; please report this");
                }
                state = shared.lock();
            }
            Some(Reverse((at, _))) => {
                let wait = *at - now;
                state = match shared.changed.wait_timeout(state, wait) {
                    Ok((state, _)) => state,
                    Err(poisoned) => poisoned.into_inner().0,
                };
            }
            None => {
                state = shared
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn tasks_run_in_the_order_of_their_times() {
        let clock = Clock::new();
        let (tx, rx) = mpsc::channel();
        for ms in [60u64, 20, 40] {
            let tx = tx.clone();
            clock.after(Duration::from_millis(ms), move || {
                let _ = tx.send(ms);
            });
        }
        let order: Vec<u64> = rx.iter().take(3).collect();
        assert_eq!(order, [20, 40, 60]);
    }

    #[test]
    fn a_task_that_panics_does_not_stop_the_clock() {
        let clock = Clock::new();
        let (tx, rx) = mpsc::channel();
        clock.after(Duration::ZERO, || panic!("on purpose"));
        clock.after(Duration::from_millis(10), move || tx.send(()).unwrap());
        assert!(rx.recv_timeout(Duration::from_secs(10)).is_ok());
    }
}
