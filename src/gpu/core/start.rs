//! Starting the driver, and the requests that were made before it had started.

use std::sync::Arc;

use super::Core;
use super::state::{DeviceSlot, Driver, State};
use crate::gpu::Failure;
use crate::gpu::answer::Outbox;
use crate::gpu::driver::{self, Device, NoDriver};

impl Core {
    /// Starts the driver, on a thread of its own, unless it has been started.
    pub fn start_driver(self: &Arc<Self>, state: &mut State, out: &mut Outbox) {
        if state.stopping || !matches!(state.driver, Driver::Down) {
            return;
        }
        state.driver = Driver::Starting(Vec::new());
        let core = self.clone();
        let spawned = std::thread::Builder::new()
            .name("stfs-gpu-start".into())
            .spawn(move || core.started(driver::start()));
        if let Err(e) = spawned {
            let (core, why) = (self.clone(), format!("no thread to start CUDA: {e}"));
            out.then(move || core.started(Err(NoDriver::Missing(why))));
        }
    }

    /// The driver has started, or could not be started.
    fn started(self: &Arc<Self>, outcome: Result<Vec<Device>, NoDriver>) {
        let asked = self.with(|state, out| {
            let waiting: Vec<u64> = state
                .table
                .listed()
                .filter(|a| a.device.is_none())
                .map(|a| a.id)
                .collect();
            let (driver, failure) = match outcome {
                _ if state.stopping => (Driver::Down, Some(Failure::canceled())),
                Ok(devices) => {
                    let slot = |device| DeviceSlot {
                        device,
                        orders: None,
                        ruined: false,
                    };
                    (Driver::Up(devices.into_iter().map(slot).collect()), None)
                }
                Err(e) => (Driver::Down, Some(Failure::from(e))),
            };
            let before = std::mem::replace(&mut state.driver, driver);
            for id in waiting {
                match &failure {
                    None => self.settle(state, id, out),
                    Some(failure) => state.fail(id, failure, out),
                }
            }
            match before {
                Driver::Starting(asked) => (asked, failure),
                _ => (Vec::new(), failure),
            }
        });
        let (asked, failure) = asked;
        for once in asked {
            match &failure {
                Some(failure) => once.give(failure.errno, |_| {}),
                None => self.describe(&once),
            }
        }
    }

    /// Places the allocations that were requested before the driver had started, unless one turns out to
    /// be the same as another (one by ordinal, the other by uuid).
    fn settle(self: &Arc<Self>, state: &mut State, id: u64, out: &mut Outbox) {
        let Some(a) = state.table.get(id) else {
            return;
        };
        let device = state.resolve(a.selector).unwrap_or(None);
        let (key, generation) = (a.target.key, a.generation);
        let twin = state.table.listed().find(|other| {
            let same = other.target.key == key && other.generation == generation;
            same && other.id != id && device.is_some() && other.device == device
        });
        let Some(twin) = twin.map(|t| t.id) else {
            return self.place(state, id, out);
        };
        let Some(gone) = state.table.remove(id) else {
            return;
        };
        for (&fh, &generation) in &gone.leases {
            state.table.lease(twin, fh, generation);
        }
        if let Some(kept) = state.table.get_mut(twin) {
            kept.pin |= gone.pin;
            kept.auto_free &= gone.auto_free;
        }
        state.waiting.redirect(id, twin);
    }
}
