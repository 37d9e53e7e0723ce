//! Placing an allocation on a device: the limit, eviction, and the threads that do the work.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Weak};

use super::Core;
use super::state::{Driver, State};
use crate::gpu::Failure;
use crate::gpu::answer::Outbox;
use crate::gpu::device::{self, Job, Order};
use crate::gpu::driver::GRANULE;
use crate::gpu::readers::Readers;
use crate::view::View;

impl Core {
    /// Places an allocation on a device, and has it loaded.
    pub fn place(self: &Arc<Self>, state: &mut State, id: u64, out: &mut Outbox) {
        if let Err(failure) = self.try_place(state, id, out) {
            state.fail(id, &failure, out);
        }
    }

    fn try_place(
        self: &Arc<Self>,
        state: &mut State,
        id: u64,
        out: &mut Outbox,
    ) -> Result<(), Failure> {
        let Some(a) = state.table.get(id) else {
            return Ok(());
        };
        let Some(device) = state.resolve(a.selector)? else {
            return Ok(());
        };
        let (target, states) = (a.target.clone(), a.states.clone());
        let (progress, nbytes) = (a.progress.clone(), a.target.view.len());
        let bytes = nbytes.checked_next_multiple_of(GRANULE).ok_or_else(|| {
            Failure::new(
                libc::ENOMEM,
                format!("{nbytes} bytes are more than any device has"),
            )
        })?;
        self.make_room(state, device, bytes, out)?;
        let orders = self.thread_of(state, device)?;
        state.table.place(id, device, bytes);
        let job = Job {
            id,
            target,
            states,
            alloc_bytes: bytes,
            progress,
        };
        orders
            .send(Order::Load(job))
            .map_err(|_| Failure::cuda_thread())
    }

    /// Evicts as much as needed for `bytes` more to stay within the limit.
    fn make_room(
        self: &Arc<Self>,
        state: &mut State,
        device: i32,
        bytes: u64,
        out: &mut Outbox,
    ) -> Result<(), Failure> {
        let Some(limit) = self.config.limit else {
            return Ok(());
        };
        let victims = state.table.victims(device, bytes, limit).ok_or_else(|| {
            let why = format!(
                "needs {bytes} bytes, --gpu-limit is {limit} and what else is resident is leased or pinned"
            );
            Failure::new(libc::EDQUOT, why)
        })?;
        for victim in victims {
            self.evict(state, victim, Box::new(|| {}), out);
        }
        Ok(())
    }

    /// The thread of a device, started if it is not.
    fn thread_of(
        self: &Arc<Self>,
        state: &mut State,
        ordinal: i32,
    ) -> Result<Sender<Order>, Failure> {
        if let Some(orders) = state.orders(Some(ordinal)) {
            return Ok(orders.clone());
        }
        let readers = self.readers(state).map_err(Failure::no_thread)?;
        let Driver::Up(slots) = &mut state.driver else {
            return Err(Failure::canceled());
        };
        let slot = slots.iter_mut().find(|s| s.device.ordinal == ordinal);
        let slot = slot.ok_or_else(|| Failure::new(libc::ENXIO, "there is no such device"))?;
        let weak = Arc::downgrade(self);
        let report = Arc::new(move |id, outcome| {
            if let Some(core) = Weak::upgrade(&weak) {
                core.loaded(id, ordinal, outcome);
            }
        });
        let pool = self.config.staging;
        let orders = device::spawn(slot.device.clone(), pool, readers, report)
            .map_err(Failure::no_thread)?;
        Ok(slot.orders.insert(orders).clone())
    }

    fn readers(&self, state: &mut State) -> std::io::Result<Arc<Readers>> {
        if let Some(readers) = &state.readers {
            return Ok(readers.clone());
        }
        let threads = match self.config.readers {
            // One core reads about 8 GB/s from the page cache, and a fast bus takes 55.
            0 => std::thread::available_parallelism().map_or(4, |n| n.get().clamp(2, 16)),
            n => n,
        };
        let readers = Arc::new(Readers::new(threads)?);
        state.readers = Some(readers.clone());
        Ok(readers)
    }
}
