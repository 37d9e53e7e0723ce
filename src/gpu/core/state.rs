//! The engine's state, and the changes to it under the lock.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use super::devices::Once;
use crate::gpu::Failure;
use crate::gpu::allocation::{Allocation, Phase, Selector};
use crate::gpu::answer::{Ask, Outbox};
use crate::gpu::device::Order;
use crate::gpu::driver::Device;
use crate::gpu::readers::Readers;
use crate::gpu::table::{Hit, Intent, Table};

/// For this long after a failure that no caller waited for, a caller without a lease gets it.
const FAILURE_IS_NEWS: Duration = Duration::from_secs(10);

/// Everything that the one lock guards.
#[derive(Default)]
pub struct State {
    /// The allocations.
    pub table: Table,
    /// The callers that wait.
    pub waiting: Waiting,
    /// Whether CUDA has been started.
    pub driver: Driver,
    /// The reading threads, once they have been started.
    pub readers: Option<Arc<Readers>>,
    /// The mount is going away.
    pub stopping: bool,
}

/// The callers that wait for an upload, in order of arrival, each with its allocation.
#[derive(Default)]
pub struct Waiting {
    callers: BTreeMap<u64, (u64, Ask)>,
    last: u64,
}

impl Waiting {
    /// Adds a caller, and numbers it.
    pub fn add(&mut self, allocation: u64, ask: Ask) -> u64 {
        self.last += 1;
        self.callers.insert(self.last, (allocation, ask));
        self.last
    }

    /// Removes a caller, if it still waits.
    pub fn take(&mut self, caller: u64) -> Option<(u64, Ask)> {
        self.callers.remove(&caller)
    }

    /// Removes all callers that wait for an allocation.
    pub fn take_all(&mut self, allocation: u64) -> Vec<Ask> {
        let theirs = self.callers.iter().filter(|(_, (id, _))| *id == allocation);
        let theirs: Vec<u64> = theirs.map(|(&caller, _)| caller).collect();
        let taken = theirs.iter().filter_map(|caller| self.take(*caller));
        taken.map(|(_, ask)| ask).collect()
    }

    /// Moves the callers that wait for one allocation to another.
    pub fn redirect(&mut self, from: u64, to: u64) {
        for (id, _) in self.callers.values_mut().filter(|(id, _)| *id == from) {
            *id = to;
        }
    }

    /// The allocations that callers wait for.
    pub fn allocations(&self) -> BTreeSet<u64> {
        self.callers.values().map(|(id, _)| *id).collect()
    }
}

/// The state of CUDA.
#[derive(Default)]
pub enum Driver {
    /// Not started, or not available.
    #[default]
    Down,
    /// Starting, with the DEVICES requests that wait for it.
    Starting(Vec<Once>),
    /// Started, with its devices.
    Up(Vec<DeviceSlot>),
}

/// A device, and its thread once it has been used.
pub struct DeviceSlot {
    /// The device.
    pub device: Device,
    /// Orders to its thread.
    pub orders: Option<Sender<Order>>,
    /// Its context is ruined: nothing can be uploaded until all memory in it is freed.
    pub ruined: bool,
}

impl State {
    /// The device that the caller named; `None` until the driver has started.
    pub fn resolve(&self, selector: Selector) -> Result<Option<i32>, Failure> {
        let Driver::Up(slots) = &self.driver else {
            return Ok(None);
        };
        let found = slots.iter().map(|s| &s.device).find(|d| match selector {
            Selector::Ordinal(ordinal) => d.ordinal == ordinal,
            Selector::Uuid(uuid) => d.uuid == uuid,
        });
        match found {
            Some(device) => Ok(Some(device.ordinal)),
            None => Err(Failure::new(libc::ENXIO, "there is no such device")),
        }
    }

    fn device(&self, ordinal: Option<i32>) -> Option<&Device> {
        match &self.driver {
            Driver::Up(slots) => slots
                .iter()
                .map(|s| &s.device)
                .find(|d| Some(d.ordinal) == ordinal),
            _ => None,
        }
    }

    /// Fills in the state of the allocation and answers.
    pub fn answer(&self, mut ask: Ask, errno: i32, found: Option<Hit>, out: &mut Outbox) {
        let allocation = found.and_then(|f| Some((self.table.get(f.id)?, f)));
        let device = match allocation {
            Some((a, _)) if a.device.is_some() => a.device,
            _ => self.resolve(Selector::of(&ask.io)).unwrap_or(None),
        };
        ask.on(self.device(device));
        if let Some((allocation, found)) = allocation {
            ask.found(allocation, found);
        }
        out.answer(ask, errno);
    }

    /// Answers with a failure.
    pub fn refuse(&self, mut ask: Ask, failure: &Failure, out: &mut Outbox) {
        let device = self.resolve(Selector::of(&ask.io)).unwrap_or(None);
        ask.on(self.device(device));
        ask.failed(failure);
        out.answer(ask, failure.errno);
    }

    /// Answers all callers that wait for an allocation.
    pub fn wake(&mut self, id: u64, out: &mut Outbox) {
        for ask in self.waiting.take_all(id) {
            let found = self.table.get(id).map(|a| hit_for(a, &ask));
            self.answer(ask, 0, found, out);
        }
    }

    /// An upload has failed: answers the callers that wait, and keeps the error for those that do not.
    pub fn fail(&mut self, id: u64, failure: &Failure, out: &mut Outbox) {
        let Some(a) = self.table.get(id) else {
            return;
        };
        log::warn!("gpu: {}: {}", a.target.path, failure.why);
        let waiters = self.waiting.take_all(id);
        let told: HashSet<u64> = waiters.iter().filter_map(|w| w.caller.fh).collect();
        let untold_other = waiters.is_empty() && a.leases.is_empty();
        self.table.fail(id, failure.clone(), &told, untold_other);
        for ask in waiters {
            self.refuse(ask, failure, out);
        }
    }

    /// A device and its thread.
    pub fn slot(&mut self, device: Option<i32>) -> Option<&mut DeviceSlot> {
        match &mut self.driver {
            Driver::Up(slots) => slots.iter_mut().find(|s| Some(s.device.ordinal) == device),
            _ => None,
        }
    }

    /// Orders to a device's thread, if it has one.
    pub fn orders(&mut self, device: Option<i32>) -> Option<&Sender<Order>> {
        self.slot(device)?.orders.as_ref()
    }

    /// A failure that this caller has not got yet. It is removed from the table.
    pub fn news(&mut self, ask: &Ask, device: Option<i32>) -> Option<Failure> {
        let id = self.table.find(&ask.want(device), Intent::Join)?.id;
        let a = self.table.get_mut(id)?;
        let Phase::Failed(failure, when) = &a.phase else {
            return None;
        };
        let news = match ask.caller.fh {
            Some(fh) => a.untold.remove(&fh),
            None => a.untold_other && when.elapsed() < FAILURE_IS_NEWS,
        };
        let failure = news.then(|| failure.clone());
        if ask.caller.fh.is_none() {
            a.untold_other = false;
        }
        if a.untold.is_empty() && !a.untold_other {
            self.table.remove(id);
        }
        failure
    }
}

/// The allocation, and the place in it of the tensor that the caller asks about.
pub fn hit_for(a: &Allocation, ask: &Ask) -> Hit {
    let place = match &a.target.arena {
        Some(arena) if a.target.key != ask.target.key => arena.place(ask.target.key.ino),
        _ => None,
    };
    Hit { id: a.id, place }
}
