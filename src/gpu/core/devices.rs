//! LIST and DEVICES.

use std::sync::{Arc, Mutex, PoisonError};

use super::state::Driver;
use super::{Core, LONGEST_WAIT};
use crate::gpu::Reply;
use crate::gpu::answer;
use crate::gpu::device::Order;
use crate::ioctl::{GpuDevice, GpuEntry};

/// A reply that two threads may give: the first one does.
#[derive(Clone)]
pub struct Once(Arc<Mutex<Option<(GpuDevice, Reply)>>>);

impl Once {
    fn new(request: GpuDevice, reply: Reply) -> Once {
        Once(Arc::new(Mutex::new(Some((request, reply)))))
    }

    fn take(&self) -> Option<(GpuDevice, Reply)> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Answers, unless that has happened already.
    pub fn give(&self, errno: i32, fill: impl FnOnce(&mut GpuDevice)) {
        if let Some((mut answer, reply)) = self.take() {
            fill(&mut answer);
            reply(errno, bytemuck::bytes_of(&answer));
        }
    }
}

impl Core {
    /// LIST.
    pub fn entry(&self, mut entry: GpuEntry, reply: Reply) {
        self.with(|state, out| {
            entry.count = u32::try_from(state.table.listed_count()).unwrap_or(u32::MAX);
            let found = state.table.nth_listed(entry.index as usize);
            let errno = match found {
                Some(a) => {
                    answer::entry(&mut entry, a);
                    0
                }
                None => libc::ENXIO,
            };
            out.then(move || reply(errno, bytemuck::bytes_of(&entry)));
        });
    }

    /// DEVICES.
    pub fn device(self: &Arc<Self>, request: GpuDevice, reply: Reply) {
        let once = Once::new(request, reply);
        self.with(|state, out| {
            self.start_driver(state, out);
            let late = once.clone();
            match &mut state.driver {
                Driver::Starting(asked) => {
                    asked.push(once);
                    // The driver is slow to start: the caller asks again.
                    self.later(out, LONGEST_WAIT, move |_| late.give(libc::EAGAIN, |_| {}));
                }
                _ => {
                    let core = self.clone();
                    out.then(move || core.describe(&once));
                }
            }
        });
    }

    /// Answers a DEVICES. Only the device's thread can ask for the free bytes, if the device is in use.
    pub fn describe(self: &Arc<Self>, once: &Once) {
        let Some((mut request, reply)) = once.take() else {
            return;
        };
        self.with(|state, out| {
            let Driver::Up(slots) = &state.driver else {
                return out.then(move || reply(libc::ENODEV, bytemuck::bytes_of(&request)));
            };
            request.count = slots.len() as u32;
            let Some(slot) = slots.get(request.index as usize) else {
                return out.then(move || reply(libc::ENXIO, bytemuck::bytes_of(&request)));
            };
            answer::device(&mut request, &slot.device, self.config.limit);
            let once = Once::new(request, reply);
            let measurable = once.clone();
            let measured = move |free: Option<u64>| {
                measurable.give(0, |device| device.free = free.unwrap_or(0));
            };
            match &slot.orders {
                Some(orders) if orders.send(Order::Measure(Box::new(measured))).is_ok() => {
                    self.later(out, LONGEST_WAIT, move |_| once.give(0, |_| {}));
                }
                _ => out.then(move || once.give(0, |_| {})),
            }
        });
    }
}
