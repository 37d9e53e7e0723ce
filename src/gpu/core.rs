//! The engine's center: one lock around the table, which changes when callers ask, devices report and
//! deadlines pass. Nothing here blocks: a caller that has to wait is recorded with a deadline.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::answer::Outbox;
use super::clock::Clock;
use super::device::Order;
use super::table::Table;
use super::{Config, Failure};
use crate::workers::Workers;

mod devices;
mod place;
mod release;
mod start;
mod state;
mod upload;

use state::{Driver, State};

/// No ioctl waits longer than this: a caller that is killed in an ioctl cannot exit before it returns.
const LONGEST_WAIT: Duration = Duration::from_millis(1000);

/// A driver that hangs must not keep the daemon from ending. The kernel then frees its memory.
const LONGEST_FAREWELL: Duration = Duration::from_secs(10);

/// The state of an engine, and the threads that change it.
pub struct Core {
    /// The settings.
    pub config: Config,
    state: Mutex<State>,
    clock: Clock,
    /// Threads that look at source files: a disk that hangs must not delay other requests.
    pub lookups: Workers,
    /// Whether there has been an UPLOAD. Before the first one, no open file has a lease.
    used: AtomicBool,
    /// Held while everything is freed.
    farewell: Mutex<()>,
}

impl Core {
    /// An engine without allocations, which looks at source files on threads of `lookups`.
    pub fn new(mut config: Config, lookups: Workers) -> Core {
        config.limit = config.limit.filter(|&bytes| bytes > 0);
        Core {
            config,
            state: Mutex::default(),
            clock: Clock::new(),
            lookups,
            used: AtomicBool::new(false),
            farewell: Mutex::default(),
        }
    }

    /// Whether the user is the mount's owner or root.
    pub fn trusts(&self, uid: u32) -> bool {
        uid == 0 || uid == self.config.owner
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `f` on the state, then its tasks without the lock.
    fn with<T>(&self, f: impl FnOnce(&mut State, &mut Outbox) -> T) -> T {
        let mut out = Outbox::default();
        let result = f(&mut self.lock(), &mut out);
        out.send();
        result
    }

    /// Calls `f` later, if the engine still exists then.
    fn later(
        self: &Arc<Self>,
        out: &mut Outbox,
        after: Duration,
        f: impl FnOnce(&Arc<Core>) + Send + 'static,
    ) {
        let core = self.clone();
        out.then(move || {
            let weak = Arc::downgrade(&core);
            core.clock.after(after, move || {
                if let Some(core) = weak.upgrade() {
                    f(&core);
                }
            });
        });
    }

    /// The mount is going away: answers all waiting callers, and frees everything. A second call
    /// returns when the first is done.
    pub fn stop(self: &Arc<Self>) {
        let _alone = self.farewell.lock().unwrap_or_else(PoisonError::into_inner);
        let (ended, over) = channel();
        let threads = self.with(|state, out| end_all(state, &ended, out));
        let until = Instant::now() + LONGEST_FAREWELL;
        for _ in 0..threads {
            let left = until.saturating_duration_since(Instant::now());
            if over.recv_timeout(left).is_err() {
                log::warn!("gpu: the driver does not answer; its memory is freed when stfs ends");
                return;
            }
        }
    }
}

/// Answers all waiting callers, empties the table, and has the devices' threads free the memory. Each
/// thread sends on `ended` when it is done. Returns how many will.
fn end_all(state: &mut State, ended: &Sender<()>, out: &mut Outbox) -> usize {
    state.stopping = true;
    state.readers = None;
    for id in state.waiting.allocations() {
        state.fail(id, &Failure::canceled(), out);
    }
    // No caller may get a handle to memory that is about to be freed.
    state.table = Table::default();
    let slots = match std::mem::take(&mut state.driver) {
        Driver::Up(slots) => slots,
        Driver::Starting(asked) => {
            for once in asked {
                out.then(move || once.give(libc::ENODEV, |_| {}));
            }
            return 0;
        }
        Driver::Down => return 0,
    };
    let threads = slots.into_iter().filter_map(|slot| slot.orders);
    let stopped = threads.filter(|orders| {
        let ended = ended.clone();
        let done = move || {
            let _ = ended.send(());
        };
        orders.send(Order::Stop(Box::new(done))).is_ok()
    });
    stopped.count()
}
