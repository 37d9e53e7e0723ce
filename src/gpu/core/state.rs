//! What the engine knows, and how it is changed under the lock.

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
use crate::gpu::table::{Found, Intent, Table};

/// A failure that nobody came to hear of is told to someone without a lease for this long.
const FAILURE_IS_NEWS: Duration = Duration::from_secs(10);

/// What the one lock guards.
#[derive(Default)]
pub struct State {
    /// What is where.
    pub table: Table,
    /// The callers that wait.
    pub waiting: Waiting,
    /// Whether CUDA has been started.
    pub driver: Driver,
    /// The threads that read, once there are any.
    pub readers: Option<Arc<Readers>>,
    /// The mount is going away.
    pub stopping: bool,
}

/// The callers that wait for an upload, in the order they came, each with its allocation.
#[derive(Default)]
pub struct Waiting {
    callers: BTreeMap<u64, (u64, Ask)>,
    last: u64,
}

impl Waiting {
    /// Puts a caller down, and numbers it.
    pub fn add(&mut self, allocation: u64, ask: Ask) -> u64 {
        self.last += 1;
        self.callers.insert(self.last, (allocation, ask));
        self.last
    }

    /// Takes a caller away, if it still waits.
    pub fn take(&mut self, caller: u64) -> Option<(u64, Ask)> {
        self.callers.remove(&caller)
    }

    /// Takes away all that wait for an allocation.
    pub fn take_all(&mut self, allocation: u64) -> Vec<Ask> {
        let theirs = self.callers.iter().filter(|(_, (id, _))| *id == allocation);
        let theirs: Vec<u64> = theirs.map(|(&caller, _)| caller).collect();
        let taken = theirs.iter().filter_map(|caller| self.take(*caller));
        taken.map(|(_, ask)| ask).collect()
    }

    /// Has those who wait for one allocation wait for another.
    pub fn redirect(&mut self, from: u64, to: u64) {
        for (id, _) in self.callers.values_mut().filter(|(id, _)| *id == from) {
            *id = to;
        }
    }

    /// The allocations that anyone waits for.
    pub fn allocations(&self) -> BTreeSet<u64> {
        self.callers.values().map(|(id, _)| *id).collect()
    }
}

/// How far CUDA has come.
#[derive(Default)]
pub enum Driver {
    /// Not asked for yet, or not to be had.
    #[default]
    Down,
    /// With those who want to know what devices there are.
    Starting(Vec<Once>),
    /// With its devices.
    Up(Vec<Seat>),
}

/// A device, and its thread once it has been used.
pub struct Seat {
    /// The device.
    pub device: Device,
    /// Where its thread takes orders.
    pub orders: Option<Sender<Order>>,
    /// Its context is ruined: nothing can be uploaded before all that lives in it is freed.
    pub ruined: bool,
}

impl State {
    /// The device that is meant, `None` while the driver is not up.
    pub fn resolve(&self, selector: Selector) -> Result<Option<i32>, Failure> {
        let Driver::Up(seats) = &self.driver else {
            return Ok(None);
        };
        let found = seats.iter().map(|s| &s.device).find(|d| match selector {
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
            Driver::Up(seats) => seats
                .iter()
                .map(|s| &s.device)
                .find(|d| Some(d.ordinal) == ordinal),
            _ => None,
        }
    }

    /// Fills in what is found and answers.
    pub fn answer(&self, mut ask: Ask, errno: i32, found: Option<Found>, out: &mut Outbox) {
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

    /// Answers all who wait for an allocation.
    pub fn wake(&mut self, id: u64, out: &mut Outbox) {
        for ask in self.waiting.take_all(id) {
            let found = self.table.get(id).map(|a| found_for(a, &ask));
            self.answer(ask, 0, found, out);
        }
    }

    /// An upload has failed: tells those who wait, and remembers it for those who do not.
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
    pub fn seat(&mut self, device: Option<i32>) -> Option<&mut Seat> {
        match &mut self.driver {
            Driver::Up(seats) => seats.iter_mut().find(|s| Some(s.device.ordinal) == device),
            _ => None,
        }
    }

    /// Where a device's thread takes orders, if it has one.
    pub fn orders(&mut self, device: Option<i32>) -> Option<&Sender<Order>> {
        self.seat(device)?.orders.as_ref()
    }

    /// A failure that this caller has not been told of: told now, and forgotten.
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

/// The allocation as the one who asks for it sees it.
pub fn found_for(a: &Allocation, ask: &Ask) -> Found {
    let place = match &a.target.arena {
        Some(arena) if a.target.key != ask.target.key => arena.place(ask.target.key.ino),
        _ => None,
    };
    Found { id: a.id, place }
}
