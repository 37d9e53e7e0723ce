//! Threads for work that a request thread must not wait for.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The most threads in a mount's pool. A thread that waits for a stalled source costs only a stack
/// that it has hardly touched, so there may be many. If 256 requests stall at the same time, only
/// requests that need the pool are blocked.
pub const MOUNT_LIMIT: usize = 256;

/// The most jobs that may wait for a thread. The kernel sends a process's next request only when
/// the last is answered, so only thousands of blocked processes come near this limit.
const QUEUE: usize = 4096;

/// How long an idle thread stays.
const IDLE: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

/// A pool that starts a thread, up to a limit, when no thread is idle for a job. Jobs beyond the
/// limit wait their turn. Threads end when the pool has had one too many for a while, and when the last
/// clone of the pool is dropped; jobs that still wait then are dropped, too.
#[derive(Clone)]
pub struct Workers(Arc<Owner>);

/// Shared by all clones but not by the threads, so that it is dropped with the last clone.
struct Owner(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    limit: usize,
    /// [`IDLE`], but in tests.
    patience: Duration,
}

struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
    /// Since when some thread has always been idle. Not each thread's own time: a few jobs now and then,
    /// which wake one thread after the other, would keep all that a burst has started.
    spare_since: Instant,
    closed: bool,
}

/// The queue is full, or no thread can be started: the job was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Full;

impl Workers {
    /// At most `limit` threads (at least 1). None is started yet.
    pub fn new(limit: usize) -> Workers {
        Workers::with_patience(limit, IDLE)
    }

    fn with_patience(limit: usize, patience: Duration) -> Workers {
        let state = State {
            jobs: VecDeque::new(),
            threads: 0,
            idle: 0,
            spare_since: Instant::now(),
            closed: false,
        };
        Workers(Arc::new(Owner(Arc::new(Shared {
            state: Mutex::new(state),
            wake: Condvar::new(),
            limit: limit.max(1),
            patience,
        }))))
    }

    /// Runs `job` on a thread of the pool, soon. If the pool has no thread and none can be started,
    /// the calling thread runs it.
    ///
    /// # Errors
    /// Too many jobs are already waiting. The job is dropped, and with it a reply that it holds,
    /// which answers EIO. Waiting for room would block the caller, which is what the pool is there
    /// to prevent.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) -> Result<(), Full> {
        let shared = &self.0.0;
        let mut state = shared.lock();
        if state.jobs.len() >= QUEUE {
            return Err(Full);
        }
        state.jobs.push_back(Box::new(job));
        if state.idle >= state.jobs.len() || state.threads >= shared.limit {
            drop(state);
            shared.wake.notify_one();
            return Ok(());
        }
        let of_thread = shared.clone();
        let started = std::thread::Builder::new()
            .name("stfs-pool".into())
            .spawn(move || of_thread.work());
        match started {
            Ok(_) => state.threads += 1,
            // A running thread will get to it.
            Err(_) if state.threads > 0 => {}
            Err(_) => {
                let job = state.jobs.pop_back();
                drop(state);
                job.into_iter().for_each(run_logged);
            }
        }
        Ok(())
    }
}

/// Runs `job`, which may take as long as the mount, on a thread of its own: on one of a pool that cannot
/// start another, requests would wait for it.
///
/// # Errors
/// No thread can be started. The job is dropped, and never runs on the calling thread.
pub fn run_aside(job: impl FnOnce() + Send + 'static) -> Result<(), Full> {
    let builder = std::thread::Builder::new().name("stfs-aside".into());
    let started = builder.spawn(move || run_logged(Box::new(job)));
    started.map(drop).map_err(|_| Full)
}

impl Drop for Owner {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.closed = true;
        // Dropped outside the lock: a job may own anything.
        let unrun = std::mem::take(&mut state.jobs);
        drop(state);
        self.0.wake.notify_all();
        drop(unrun);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            run_logged(job);
        }
    }

    /// The next job; `None` if the thread must end, and then it is no longer counted.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            let no_other_is_idle = state.idle == 0;
            if let Some(job) = state.jobs.pop_front() {
                if no_other_is_idle {
                    state.spare_since = Instant::now();
                }
                return Some(job);
            }
            let is_spare = !no_other_is_idle && state.spare_since.elapsed() >= self.patience;
            if state.closed || is_spare {
                state.threads -= 1;
                return None;
            }
            if no_other_is_idle {
                state.spare_since = Instant::now();
            }
            state.idle += 1;
            let (woken, waited) = self
                .wake
                .wait_timeout(state, self.patience)
                .unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if waited.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }
}

/// If a job panics, its reply is dropped, which answers EIO, and the thread continues.
fn run_logged(job: Job) {
    // The calling thread may be the one that runs it, and it may have less patience.
    let job = || crate::patience::with(crate::patience::Patience::Full, job);
    if let Err(panic) = catch_unwind(AssertUnwindSafe(job)) {
        log::error!(
            "a request failed inside stfs: {}; please report this",
            crate::text::printable(message(&*panic))
        );
    }
}

/// The message of a panic.
fn message(panic: &(dyn std::any::Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn jobs_run_also_after_one_panicked_and_beyond_the_limit() {
        let pool = Workers::new(2);
        let (tx, rx) = mpsc::channel();
        pool.run(|| panic!("on purpose")).unwrap();
        for i in 0..50 {
            let tx = tx.clone();
            pool.run(move || tx.send(i).unwrap()).unwrap();
        }
        drop(tx);
        let mut got: Vec<i32> = rx.iter().collect();
        got.sort_unstable();
        assert_eq!(got, (0..50).collect::<Vec<_>>());
    }

    /// Other tests of this process also have threads with the pool's name, so each thread here
    /// holds something that can be counted.
    #[test]
    fn threads_end_with_their_owner_and_waiting_jobs_are_dropped() {
        let pool = Workers::new(3);
        let (started, is_started) = mpsc::channel();
        let (go, gate) = mpsc::channel::<()>();
        let gate = Arc::new(Mutex::new(gate));
        let counted = Arc::new(());
        for _ in 0..3 {
            let (started, gate, counted) = (started.clone(), gate.clone(), counted.clone());
            let job = move || {
                let _counted = counted;
                started.send(()).unwrap();
                let _ = gate.lock().unwrap().recv();
            };
            pool.run(job).unwrap();
        }
        for _ in 0..3 {
            is_started.recv().unwrap();
        }
        let waiting = counted.clone();
        pool.run(move || drop(waiting)).unwrap();
        assert_eq!(Arc::strong_count(&counted), 5);
        let shared = Arc::downgrade(&pool.0.0);
        let clone = pool.clone();
        drop(pool);
        assert_eq!(Arc::strong_count(&counted), 5, "a clone keeps the pool");
        drop(clone);
        assert_eq!(Arc::strong_count(&counted), 4, "the waiting job is gone");
        drop(go);
        let until = Instant::now() + Duration::from_secs(10);
        while shared.strong_count() > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(shared.strong_count(), 0, "its threads go on");
    }

    /// One job at a time, more often than a thread takes to tire of waiting: all but one or two have nothing
    /// to do.
    #[test]
    fn threads_of_a_burst_end_although_jobs_go_on() {
        let pool = Workers::with_patience(20, Duration::from_millis(200));
        let barrier = Arc::new(std::sync::Barrier::new(20));
        for _ in 0..20 {
            let barrier = barrier.clone();
            let job = move || {
                barrier.wait();
            };
            pool.run(job).unwrap();
        }
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            let (done, is_done) = mpsc::channel();
            pool.run(move || done.send(()).unwrap()).unwrap();
            is_done.recv().unwrap();
            let threads = pool.0.0.lock().threads;
            if threads <= 2 {
                break;
            }
            assert!(
                Instant::now() < until,
                "{threads} threads for one job at a time"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_full_queue_refuses_and_does_not_wait() {
        let pool = Workers::new(1);
        let (go, gate) = mpsc::channel::<()>();
        let (started, is_started) = mpsc::channel();
        let first = move || {
            started.send(()).unwrap();
            let _ = gate.recv();
        };
        pool.run(first).unwrap();
        is_started.recv().unwrap();
        for _ in 0..QUEUE {
            pool.run(|| {}).unwrap();
        }
        assert_eq!(pool.run(|| {}), Err(Full));
        drop(go);
    }

    #[test]
    fn a_panic_is_logged_with_its_message() {
        assert_eq!(message(&"a"), "a");
        assert_eq!(message(&String::from("b")), "b");
        assert_eq!(message(&7), "a panic without a message");
    }
}
