//! QUERY and RELEASE, and what happens to memory without a lease.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::state::State;
use super::{Core, LONGEST_WAIT};
use crate::gpu::allocation::{Allocation, Phase, Selector};
use crate::gpu::answer::{Ask, Outbox};
use crate::gpu::device::{Done, Order};
use crate::gpu::table::{Hit, Intent};
use crate::ioctl;

/// AUTO_FREE memory stays this long without a lease.
const AUTO_FREE_AFTER: Duration = Duration::from_secs(2);

impl Core {
    /// QUERY.
    pub fn query(&self, ask: Ask) {
        self.with(|state, out| {
            let device = match state.resolve(Selector::of(&ask.io)) {
                Ok(device) => device,
                Err(failure) => return state.answer(ask, failure.errno, None, out),
            };
            let found = state.table.find(&ask.want(device), Intent::Look);
            let stale = ask.refuses(ask.generation);
            state.answer(ask, if stale { libc::ESTALE } else { 0 }, found, out);
        });
    }

    /// RELEASE.
    pub fn release(self: &Arc<Self>, ask: Ask) {
        self.with(|state, out| {
            let device = match state.resolve(Selector::of(&ask.io)) {
                Ok(device) => device,
                Err(failure) => return state.answer(ask, failure.errno, None, out),
            };
            let found = state.table.find(&ask.want(device), Intent::Release);
            match self.may_release(state, &ask, found) {
                Err(errno) => state.answer(ask, errno, found, out),
                Ok(found) if ask.has(ioctl::EVICT) => self.evict_for(state, ask, found, out),
                Ok(found) => {
                    if let Some(fh) = ask.caller.fh
                        && state.table.unlease(found.id, fh) == Some(0)
                    {
                        self.unleased(state, found.id, out);
                    }
                    state.answer(ask, 0, Some(found), out);
                }
            }
        });
    }

    fn may_release(&self, state: &State, ask: &Ask, found: Option<Hit>) -> Result<Hit, i32> {
        let found = found.ok_or(libc::ENOENT)?;
        let a = state.table.get(found.id).filter(|a| !a.failed());
        let a = a.ok_or(libc::ENOENT)?;
        let own = ask.caller.fh.and_then(|fh| a.leases.get(&fh));
        let generation = match (own, found.place) {
            (Some(&leased), _) => leased,
            (None, Some(_)) => ask.generation,
            (None, None) => a.generation,
        };
        if ask.refuses(generation) {
            return Err(libc::ESTALE);
        }
        if !ask.has(ioctl::EVICT) {
            return own.map(|_| found).ok_or(libc::ENOENT);
        }
        // A tensor cannot be freed out of an arena: that takes a RELEASE of `tensors/`.
        let others = a.leases.len() > usize::from(own.is_some());
        if others || found.place.is_some() {
            return Err(libc::EBUSY);
        }
        if a.pin && !self.trusts(ask.caller.uid) {
            return Err(libc::EACCES);
        }
        Ok(found)
    }

    /// Evicts an allocation for a caller, and answers when it is freed.
    fn evict_for(self: &Arc<Self>, state: &mut State, ask: Ask, found: Hit, out: &mut Outbox) {
        let waiter = Arc::new(Mutex::new(Some(ask)));
        let core = Arc::downgrade(self);
        let answer = move || {
            let ask = waiter.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let (Some(ask), Some(core)) = (ask, core.upgrade()) {
                core.with(|state, out| state.answer(ask, 0, None, out));
            }
        };
        let late = answer.clone();
        self.later(out, LONGEST_WAIT, move |_| late());
        self.evict(state, found.id, Box::new(answer), out);
    }

    /// Removes an allocation from the table and has it freed; then calls `done`. Callers that wait for
    /// it get ENOENT.
    pub fn evict(self: &Arc<Self>, state: &mut State, id: u64, done: Done, out: &mut Outbox) {
        let Some(a) = state.table.remove(id) else {
            return out.then(done);
        };
        a.progress.cancel.store(true, Ordering::Relaxed);
        for ask in state.waiting.take_all(id) {
            state.answer(ask, libc::ENOENT, None, out);
        }
        let done = self.given_back(&a, done);
        match state.orders(a.device) {
            Some(orders) => {
                if let Err(lost) = orders.send(Order::Free(id, done))
                    && let Order::Free(_, done) = lost.0
                {
                    out.then(done);
                }
            }
            None => out.then(done),
        }
    }

    /// The device's thread frees resident memory before it allocates anything newer. Memory that is being
    /// loaded is freed when its copies are over, and counts against the limit until then.
    fn given_back(self: &Arc<Self>, a: &Allocation, done: Done) -> Done {
        let Phase::Loading = a.phase else {
            return done;
        };
        let (core, device, bytes) = (Arc::downgrade(self), a.device, a.alloc_bytes);
        Box::new(move || {
            if let Some(core) = core.upgrade() {
                core.with(|state, _| state.table.give_back(device, bytes));
            }
            done();
        })
    }

    /// An allocation has lost its last lease, or was used without one: with AUTO_FREE, its time starts to
    /// run.
    pub fn unleased(self: &Arc<Self>, state: &mut State, id: u64, out: &mut Outbox) {
        let Some(a) = state.table.get(id).filter(|a| a.leases.is_empty()) else {
            return;
        };
        let (device, ends) = (a.device, a.ends_with_leases());
        // A request in the meantime changes this.
        let then = a.last_used;
        if state.slot(device).is_some_and(|slot| slot.ruined) {
            return self.evict(state, id, Box::new(|| {}), out);
        }
        if !ends {
            return;
        }
        self.later(out, AUTO_FREE_AFTER, move |core| {
            core.with(|state, out| {
                let a = state.table.get(id).filter(|a| a.last_used == then);
                if a.is_some_and(|a| a.leases.is_empty() && a.ends_with_leases()) {
                    core.evict(state, id, Box::new(|| {}), out);
                }
            });
        });
    }

    /// A device's context is ruined. Its memory cannot be handed out any more, and nothing new is allocated
    /// until all of it is freed: memory without a lease now, the rest with its last lease.
    pub fn ruined(self: &Arc<Self>, state: &mut State, device: i32, out: &mut Outbox) {
        if let Some(slot) = state.slot(Some(device)) {
            slot.ruined = true;
        }
        let idle = |a: &&Allocation| a.leases.is_empty() && matches!(a.phase, Phase::Resident(_));
        let ids: Vec<u64> = state.table.on(device).filter(idle).map(|a| a.id).collect();
        for id in ids {
            self.evict(state, id, Box::new(|| {}), out);
        }
    }

    /// An open file was closed.
    pub fn released(self: &Arc<Self>, fh: u64) {
        if !self.used.load(Ordering::Relaxed) {
            return;
        }
        self.with(|state, out| {
            for id in state.table.forget_file(fh) {
                self.unleased(state, id, out);
            }
        });
    }
}
