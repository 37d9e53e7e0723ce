//! QUERY and RELEASE, and what becomes of memory without a lease.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::state::State;
use super::{Core, LONGEST_WAIT};
use crate::gpu::allocation::Selector;
use crate::gpu::answer::{Ask, Outbox};
use crate::gpu::table::{Found, Intent};
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

    fn may_release(&self, state: &State, ask: &Ask, found: Option<Found>) -> Result<Found, i32> {
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
        // A tensor is not freed out of the middle of its model: that takes a RELEASE of `tensors/`.
        let others = a.leases.len() > usize::from(own.is_some());
        if others || found.place.is_some() {
            return Err(libc::EBUSY);
        }
        if a.pin && !self.trusts(ask.caller.uid) {
            return Err(libc::EACCES);
        }
        Ok(found)
    }

    /// Frees what the caller asked to have freed, and answers when that is done.
    fn evict_for(self: &Arc<Self>, state: &mut State, ask: Ask, found: Found, out: &mut Outbox) {
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
        state.evict(found.id, Box::new(answer), out);
    }

    /// An allocation has lost its last lease.
    pub fn unleased(self: &Arc<Self>, state: &State, id: u64, out: &mut Outbox) {
        let Some(a) = state.table.get(id).filter(|a| a.auto_free) else {
            return;
        };
        // Whoever comes meanwhile touches it.
        let then = a.last_used;
        self.later(out, AUTO_FREE_AFTER, move |core| {
            core.with(|state, out| {
                let free = state
                    .table
                    .get(id)
                    .is_some_and(|a| a.auto_free && a.leases.is_empty() && a.last_used == then);
                if free {
                    state.evict(id, Box::new(|| {}), out);
                }
            });
        });
    }

    /// An open file is no more.
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
