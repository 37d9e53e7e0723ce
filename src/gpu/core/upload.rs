//! UPLOAD: join an allocation that is resident or loading, or start one.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::state::{Driver, State, hit_for};
use super::{Core, LONGEST_WAIT};
use crate::gpu::Failure;
use crate::gpu::allocation::{Allocation, Phase, Selector};
use crate::gpu::answer::{Ask, Outbox};
use crate::gpu::device::Outcome;
use crate::gpu::table::{Hit, Intent};
use crate::ioctl;

impl Core {
    /// UPLOAD.
    pub fn upload(self: &Arc<Self>, ask: Ask) {
        self.used.store(true, Ordering::Relaxed);
        self.with(|state, out| self.upload_in(state, ask, out));
    }

    fn upload_in(self: &Arc<Self>, state: &mut State, ask: Ask, out: &mut Outbox) {
        if ask.refuses(ask.generation) {
            let failure = Failure::new(libc::ESTALE, "its file changed");
            return state.refuse(ask, &failure, out);
        }
        if ask.states.iter().any(|s| s.replaced) {
            let why = "its file was replaced by another; mount the model again";
            return state.refuse(ask, &Failure::new(libc::ESTALE, why), out);
        }
        let device = match state.resolve(Selector::of(&ask.io)) {
            Ok(device) => device,
            Err(failure) => return state.refuse(ask, &failure, out),
        };
        if state.stopping {
            return state.refuse(ask, &Failure::canceled(), out);
        }
        if let Some(failure) = state.news(&ask, device) {
            return state.refuse(ask, &failure, out);
        }
        let found = state.table.find(&ask.want(device), Intent::Join);
        let found = found.filter(|f| state.table.get(f.id).is_some_and(|a| !a.failed()));
        match found {
            Some(found) => self.join(state, ask, found, out),
            None => self.begin(state, ask, device, out),
        }
    }

    /// Joins what is resident or on its way.
    fn join(self: &Arc<Self>, state: &mut State, ask: Ask, found: Hit, out: &mut Outbox) {
        let id = found.id;
        if let Some(fh) = ask.caller.fh {
            state.table.lease(id, fh, ask.generation);
        }
        state.table.touch(id);
        let Some(a) = state.table.get_mut(id) else {
            return;
        };
        a.pin |= ask.has(ioctl::PIN);
        // A caller that does not ask for AUTO_FREE expects the memory to stay. A request for one tensor
        // does not change the arena that contains it.
        if a.target.key == ask.target.key {
            a.auto_free &= ask.has(ioctl::AUTO_FREE);
        }
        match a.phase {
            Phase::Loading => self.wait(state, ask, found, out),
            _ => {
                self.supersede(state, id, out);
                // An ioctl on a directory takes no lease, so the memory may be freed later.
                self.unleased(state, id, out);
                state.answer(ask, 0, Some(found), out);
            }
        }
    }

    /// A resident allocation replaces the older ones that its leaseholders had.
    fn supersede(self: &Arc<Self>, state: &mut State, id: u64, out: &mut Outbox) {
        for left in state.table.supersede(id) {
            self.unleased(state, left, out);
        }
    }

    /// Starts an upload.
    fn begin(self: &Arc<Self>, state: &mut State, ask: Ask, device: Option<i32>, out: &mut Outbox) {
        for id in state.table.replaced(&ask.want(device)) {
            self.evict(state, id, Box::new(|| {}), out);
        }
        let selector = Selector::of(&ask.io);
        let mut allocation = Allocation::new(ask.target.clone(), ask.states.clone(), selector);
        allocation.auto_free = ask.has(ioctl::AUTO_FREE);
        allocation.pin = ask.has(ioctl::PIN);
        let id = state.table.insert(allocation);
        if let Some(fh) = ask.caller.fh {
            state.table.lease(id, fh, ask.generation);
        }
        self.wait(state, ask, Hit { id, place: None }, out);
        match state.driver {
            Driver::Up(_) => self.place(state, id, out),
            _ => self.start_driver(state, out),
        }
    }

    /// Records a caller, which is answered when the upload ends or its timeout passes.
    fn wait(self: &Arc<Self>, state: &mut State, ask: Ask, found: Hit, out: &mut Outbox) {
        let wait = Duration::from_millis(u64::from(ask.io.timeout_ms)).min(LONGEST_WAIT);
        let waiter = state.waiting.add(found.id, ask);
        if wait.is_zero() {
            // After the rest of the caller's work, in which the upload may fail at once.
            let core = self.clone();
            out.then(move || core.expire(waiter));
        } else {
            self.later(out, wait, move |core| core.expire(waiter));
        }
    }

    /// A caller's timeout has passed.
    fn expire(&self, waiter: u64) {
        self.with(|state, out| {
            if let Some((id, ask)) = state.waiting.take(waiter) {
                let found = state.table.get(id).map(|a| hit_for(a, &ask));
                let errno = if found.is_some() { 0 } else { libc::ENOENT };
                state.answer(ask, errno, found, out);
            }
        });
    }

    /// A device reports the end of an upload.
    pub fn loaded(self: &Arc<Self>, id: u64, device: i32, outcome: Outcome) {
        self.with(|state, out| match outcome {
            Ok(handle) => {
                if let Some(slot) = state.slot(Some(device)) {
                    slot.ruined = false;
                }
                if let Some(a) = state.table.get_mut(id) {
                    a.phase = Phase::Resident(handle);
                    state.table.touch(id);
                }
                self.supersede(state, id, out);
                state.wake(id, out);
                // Its last lease may have been released meanwhile, or it never had one.
                self.unleased(state, id, out);
            }
            Err(failure) => {
                state.fail(id, &failure, out);
                if failure.ruins_context() {
                    self.ruined(state, device, out);
                }
            }
        });
    }
}
