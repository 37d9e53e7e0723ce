//! The engine's center: one lock around the table, and what happens to it when callers ask, devices
//! report and time goes by. Nothing here waits: whoever must wait is put down with a deadline.

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

/// No ioctl waits longer than this: a caller that is killed meanwhile cannot die before.
const LONGEST_WAIT: Duration = Duration::from_millis(1000);

/// A driver that hangs must not keep the daemon from ending: then the kernel frees what it holds.
const LONGEST_FAREWELL: Duration = Duration::from_secs(10);

/// Callers whose source files are looked at side by side.
const LOOKUPS: usize = 4;

/// The state of an engine, and the threads that change it.
pub struct Core {
    /// How it is set up.
    pub config: Config,
    state: Mutex<State>,
    clock: Clock,
    /// Where the state of source files is looked up: a disk that hangs must hold up nobody else.
    pub lookups: Workers,
    /// Whether there ever was an UPLOAD: before it, closing files is none of our business.
    used: AtomicBool,
    /// Held while everything is given back.
    farewell: Mutex<()>,
}

impl Core {
    /// A core with nothing in it.
    pub fn new(mut config: Config) -> Core {
        config.limit = config.limit.filter(|&bytes| bytes > 0);
        Core {
            config,
            state: Mutex::default(),
            clock: Clock::new(),
            lookups: Workers::new(LOOKUPS),
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

    /// Runs `f` on the state, then does what it wants done without the lock.
    fn with<T>(&self, f: impl FnOnce(&mut State, &mut Outbox) -> T) -> T {
        let mut out = Outbox::default();
        let result = f(&mut self.lock(), &mut out);
        out.send();
        result
    }

    /// Calls `f` later, if the core is still there then.
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

    /// The mount is going away: answers whoever waits, and frees everything. Who calls this while
    /// another does returns when that is over.
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

/// Answers whoever waits, forgets what there is, and has the devices' threads free it: each says so
/// through `ended`. Returns how many will.
fn end_all(state: &mut State, ended: &Sender<()>, out: &mut Outbox) -> usize {
    state.stopping = true;
    state.readers = None;
    for id in state.waiting.allocations() {
        state.fail(id, &Failure::canceled(), out);
    }
    // Nobody may be shown a handle of what is about to be freed.
    state.table = Table::default();
    let seats = match std::mem::take(&mut state.driver) {
        Driver::Up(seats) => seats,
        Driver::Starting(asked) => {
            for once in asked {
                out.then(move || once.give(libc::ENODEV, |_| {}));
            }
            return 0;
        }
        Driver::Down => return 0,
    };
    let threads = seats.into_iter().filter_map(|seat| seat.orders);
    let stopped = threads.filter(|orders| {
        let ended = ended.clone();
        let done = move || {
            let _ = ended.send(());
        };
        orders.send(Order::Stop(Box::new(done))).is_ok()
    });
    stopped.count()
}
