//! One thread for each device. Only that thread allocates, copies and frees there.
//!
//! ```text
//! load ─▶ idle buffer ─▶ readers fill it ─▶ copy on the stream ─▶ drain thread waits for its event
//!              ▲                                                              │
//!              └──────────────────────────────────────────────────────────────┘
//! ```
//!
//! All buffers are in use at once, so reading, converting and copying overlap. Several loads take turns
//! by buffer, so that a small tensor does not wait for a large one.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::allocation::Progress;
use super::driver::{Device, DeviceMemory, Staging, ruins_context};
use super::readers::{Chunk, Readers, chunk_end};
use super::target::{FileState, Target};
use super::{Failure, StagingPool};

mod session;

pub use session::Copied;
use session::Session;

/// After this long without memory in use, a device's context and staging buffers (some hundred megabytes
/// of device memory, and the pool's host memory) are freed.
const IDLE: Duration = Duration::from_secs(10);

/// To be called when something is done.
pub type Done = Box<dyn FnOnce() + Send>;

/// To be called with a device's free bytes, if it is in use.
pub type Measured = Box<dyn FnOnce(Option<u64>) + Send>;

/// The result of a load: the IPC handle (none if there are no bytes), or the failure.
pub type Outcome = Result<Option<[u8; 64]>, Failure>;

/// To be called with a load's outcome.
pub type Report = Arc<dyn Fn(u64, Outcome) + Send + Sync>;

/// Bytes to bring to the device.
pub struct Job {
    /// The allocation's number.
    pub id: u64,
    /// What to upload.
    pub target: Target,
    /// The state of the source files when it was requested.
    pub states: Vec<FileState>,
    /// How many bytes to allocate; 0 only if there is nothing to upload.
    pub alloc_bytes: u64,
    /// Shared progress, and the flag that cancels it.
    pub progress: Arc<Progress>,
}

/// A message to the device's thread.
pub enum Order {
    /// Upload.
    Load(Job),
    /// Free what was uploaded, or stop uploading it.
    Free(u64, Done),
    /// Report how much memory is free.
    Measure(Measured),
    /// From the readers: a buffer is full.
    Filled(Chunk),
    /// From the drain thread: a copy is over.
    Copied(Copied),
    /// Free everything and end.
    Stop(Done),
}

/// Starts the thread of a device.
///
/// # Errors
/// No thread can be started.
pub fn spawn(
    device: Device,
    pool: StagingPool,
    readers: Arc<Readers>,
    report: Report,
) -> std::io::Result<Sender<Order>> {
    let (orders, inbox) = channel();
    let worker = Worker {
        pool,
        readers,
        report,
        orders: orders.clone(),
        session: None,
        active: VecDeque::new(),
        resident: HashMap::new(),
        ending: None,
        device,
    };
    std::thread::Builder::new()
        .name(format!("stfs-gpu{}", worker.device.ordinal))
        .spawn(move || worker.run(&inbox))?;
    Ok(orders)
}

struct Worker {
    device: Device,
    pool: StagingPool,
    readers: Arc<Readers>,
    report: Report,
    orders: Sender<Order>,
    session: Option<Session>,
    active: VecDeque<Active>,
    resident: HashMap<u64, Arc<DeviceMemory>>,
    ending: Option<Done>,
}

/// A load under way.
struct Active {
    job: Job,
    memory: Option<Arc<DeviceMemory>>,
    handle: Option<[u8; 64]>,
    /// The first byte that is not being read yet.
    next: u64,
    /// Chunks that are being filled or copied.
    pending: usize,
    failed: Option<Failure>,
    freed: Vec<Done>,
}

impl Active {
    fn wants_more(&self) -> bool {
        self.failed.is_none() && !self.canceled() && self.next < self.job.target.view.len()
    }

    fn canceled(&self) -> bool {
        self.job.progress.cancel.load(Ordering::Relaxed)
    }

    fn over(&self) -> bool {
        self.pending == 0 && !self.wants_more()
    }

    fn fail(&mut self, failure: Failure) {
        self.failed.get_or_insert(failure);
    }
}

impl Worker {
    fn run(mut self, inbox: &Receiver<Order>) {
        loop {
            let idle = self.active.is_empty() && self.resident.is_empty();
            let order = if idle && self.session.is_some() {
                inbox.recv_timeout(IDLE)
            } else {
                inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
            };
            // A bug must not leave callers waiting for a thread that has ended.
            let handled = catch_unwind(AssertUnwindSafe(|| match order {
                Ok(order) => self.obey(order),
                Err(_) => self.session = None,
            }));
            if handled.is_err() {
                self.fail_all(&Failure::cuda_thread());
            }
            if self.ending.is_some() && self.active.is_empty() {
                break;
            }
        }
        let ending = self.ending.take();
        drop(self);
        if let Some(done) = ending {
            done();
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Load(job) => self.begin(job),
            Order::Free(id, done) => self.free(id, done),
            Order::Measure(answer) => {
                let context = self.session.as_ref().map(|s| &s.context);
                answer(context.and_then(|c| c.free_bytes().ok()));
            }
            Order::Filled(chunk) => self.filled(chunk),
            Order::Copied(copied) => self.copied(copied),
            Order::Stop(done) => {
                for load in &self.active {
                    load.job.progress.cancel.store(true, Ordering::Relaxed);
                }
                self.ending = Some(done);
            }
        }
        self.pump();
    }

    fn begin(&mut self, job: Job) {
        let mut load = Active {
            job,
            memory: None,
            handle: None,
            next: 0,
            pending: 0,
            failed: None,
            freed: Vec::new(),
        };
        if load.job.alloc_bytes > 0 && !load.canceled() {
            match self.allocate(load.job.alloc_bytes) {
                Ok((memory, handle)) => {
                    load.memory = Some(memory);
                    load.handle = Some(handle);
                }
                Err(failure) => load.fail(failure),
            }
        }
        self.active.push_back(load);
    }

    /// Memory and its handle. The handle is requested before anything is copied, so that a device that
    /// cannot export fails early. It is not published before the copy is over.
    fn allocate(&mut self, bytes: u64) -> Result<(Arc<DeviceMemory>, [u8; 64]), Failure> {
        let session = self.session()?;
        let given = DeviceMemory::new(&session.context, bytes).and_then(|memory| {
            let handle = memory.export()?;
            Ok((Arc::new(memory), handle))
        });
        given.map_err(|e| {
            session.broken |= ruins_context(e.code);
            e.into()
        })
    }

    /// The session. A new one is created if there is none, or if it is broken and nothing is under way in it.
    fn session(&mut self) -> Result<&mut Session, Failure> {
        let session = self.session.take().filter(|s| !s.broken || s.busy > 0);
        let session = match session {
            Some(session) => session,
            None => Session::new(&self.device, self.pool, &self.orders)?,
        };
        Ok(self.session.insert(session))
    }

    fn free(&mut self, id: u64, done: Done) {
        if let Some(load) = self.active.iter_mut().find(|l| l.job.id == id) {
            load.job.progress.cancel.store(true, Ordering::Relaxed);
            load.freed.push(done);
        } else {
            self.resident.remove(&id);
            done();
        }
    }

    /// Finishes loads that are over, and starts reads for those that are not.
    fn pump(&mut self) {
        self.retire();
        while let Some(i) = self.active.iter().position(Active::wants_more) {
            if self
                .session
                .as_ref()
                .is_some_and(|s| s.broken && s.busy > 0)
            {
                break;
            }
            let staging = match self.session() {
                Ok(session) => match session.idle.pop() {
                    Some(staging) => {
                        session.busy += 1;
                        staging
                    }
                    None if session.busy > 0 => break,
                    None => {
                        session.broken = true;
                        continue;
                    }
                },
                Err(failure) => {
                    self.active[i].fail(failure);
                    continue;
                }
            };
            self.read(i, staging);
        }
        self.retire();
    }

    /// Has the next chunk of a load read, and puts the load last in turn.
    fn read(&mut self, i: usize, staging: Staging) {
        let Some(mut load) = self.active.remove(i) else {
            return;
        };
        let view = &load.job.target.view;
        let max = staging.bytes.len() as u64;
        let end = chunk_end(load.next, view.len(), max, view.grain());
        let chunk = Chunk {
            load: load.job.id,
            offset: load.next,
            len: (end - load.next) as usize,
            staging,
            failure: None,
        };
        load.next = end;
        load.pending += 1;
        let orders = self.orders.clone();
        self.readers.fill(view, chunk, move |chunk| {
            // The worker exists until everything pending has come back.
            let _ = orders.send(Order::Filled(chunk));
        });
        self.active.push_back(load);
    }

    fn filled(&mut self, chunk: Chunk) {
        let load = self.active.iter_mut().find(|l| l.job.id == chunk.load);
        let (Some(load), Some(session)) = (load, self.session.as_mut()) else {
            return;
        };
        let memory = match (&load.memory, chunk.failure) {
            (Some(memory), None) if load.failed.is_none() && !load.canceled() => memory,
            (_, failure) => {
                if let Some(why) = failure {
                    load.fail(Failure::reading(why));
                }
                load.pending -= 1;
                session.busy -= 1;
                session.idle.push(chunk.staging);
                return;
            }
        };
        let copying = session
            .stream
            .copy(chunk.staging, chunk.len, memory.clone(), chunk.offset);
        if let Err(lost) = session.drain.send((chunk.load, copying)) {
            // The drain thread is gone: wait here.
            let (load, copying) = lost.0;
            self.copied(Copied::wait(load, copying));
        }
    }

    fn copied(&mut self, copied: Copied) {
        if let Some(session) = &mut self.session {
            session.busy -= 1;
            session.idle.extend(copied.staging);
            session.broken |= copied.outcome.is_err();
        }
        let Some(load) = self.active.iter_mut().find(|l| l.job.id == copied.load) else {
            return;
        };
        load.pending -= 1;
        match copied.outcome {
            Ok(()) => {
                let done = &load.job.progress.done;
                done.fetch_add(copied.len, Ordering::Relaxed);
            }
            Err(e) => load.fail(e.into()),
        }
    }

    /// Finishes the loads that are over: publishes them, or frees them and reports why.
    fn retire(&mut self) {
        while let Some(i) = self.active.iter().position(Active::over) {
            let Some(mut load) = self.active.remove(i) else {
                return;
            };
            let failed = load.failed.take();
            if failed.is_none()
                && !load.canceled()
                && load.job.states != load.job.target.sources.states()
            {
                load.fail(Failure::changed());
            }
            let outcome = match failed.or(load.failed.take()) {
                Some(failure) => Err(failure),
                None if load.canceled() => Err(Failure::canceled()),
                None => Ok(load.handle),
            };
            match (&outcome, load.memory.take()) {
                (Ok(_), Some(memory)) => {
                    self.resident.insert(load.job.id, memory);
                }
                (_, memory) => drop(memory),
            }
            load.freed.drain(..).for_each(|done| done());
            (self.report)(load.job.id, outcome);
        }
    }

    fn fail_all(&mut self, failure: &Failure) {
        for load in &mut self.active {
            load.fail(failure.clone());
        }
        if let Some(session) = &mut self.session {
            session.broken = true;
        }
        let _ = catch_unwind(AssertUnwindSafe(|| self.retire()));
    }
}
