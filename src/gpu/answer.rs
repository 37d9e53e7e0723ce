//! Decodes requests, checks them and the caller's permissions, and fills in the answers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::allocation::{Allocation, Phase, Selector};
use super::core::Core;
use super::driver::Device;
use super::table::{Hit, Want};
use super::target::{FileState, Target, generation};
use super::{Access, Caller, Failure, Reply};
use crate::ioctl::{self, GpuDevice, GpuEntry, GpuIo, Header, MAX_DIMS};

/// An UPLOAD, QUERY or RELEASE that is being answered.
pub struct Ask {
    /// The request, and then the answer.
    pub io: GpuIo,
    /// What it is about.
    pub target: Target,
    /// The state of its source files now.
    pub states: Vec<FileState>,
    /// The same as a number.
    pub generation: u64,
    /// The caller.
    pub caller: Caller,
    /// The caller's uid, unless it is the mount's owner or root: file permissions apply to it.
    pub stranger: Option<u32>,
    /// Where the answer goes.
    pub reply: Reply,
}

/// Answers to be sent once no lock is held.
#[derive(Default)]
pub struct Outbox(Vec<Box<dyn FnOnce() + Send>>);

impl Outbox {
    /// Adds a task.
    pub fn then(&mut self, task: impl FnOnce() + Send + 'static) {
        self.0.push(Box::new(task));
    }

    /// Adds an answer.
    pub fn answer(&mut self, ask: Ask, errno: i32) {
        self.then(move || (ask.reply)(errno, bytemuck::bytes_of(&ask.io)));
    }

    /// Runs all tasks.
    pub fn send(self) {
        for task in self.0 {
            task();
        }
    }
}

/// Answers an ioctl, or hands it on to [`Core`].
pub fn dispatch(
    core: &Arc<Core>,
    code: u32,
    input: &[u8],
    target: Result<Option<Target>, i32>,
    caller: Caller,
    reply: Reply,
) {
    match code {
        ioctl::UPLOAD | ioctl::QUERY | ioctl::RELEASE => match target {
            Ok(Some(target)) => tensor(core, code, input, target, caller, reply),
            Ok(None) => reply(libc::ENOTTY, &[]),
            Err(errno) => unreadable(core, code, input, errno, caller, reply),
        },
        ioctl::DEVICES => match opened::<GpuDevice>(core, input, caller) {
            Ok(device) => core.device(device, reply),
            Err((errno, device)) => give(reply, errno, device),
        },
        ioctl::LIST => match opened::<GpuEntry>(core, input, caller) {
            Ok(entry) => core.entry(entry, reply),
            Err((errno, entry)) => give(reply, errno, entry),
        },
        _ => reply(libc::ENOTTY, &[]),
    }
}

fn give<T: Header>(reply: Reply, errno: i32, answer: Option<T>) {
    match answer {
        Some(answer) => reply(errno, bytemuck::bytes_of(&answer)),
        None => reply(errno, &[]),
    }
}

/// Decodes a request, and checks that the GPU is switched on, that the caller may use it, and that the
/// version is the right one.
fn opened<T: Header>(core: &Core, input: &[u8], caller: Caller) -> Result<T, (i32, Option<T>)> {
    let Some(request) = T::decode(input) else {
        return Err((libc::EINVAL, None));
    };
    let refused = match core.config.access {
        Access::Off => Some(libc::EOPNOTSUPP),
        Access::Owner if !core.trusts(caller.uid) => Some(libc::EACCES),
        _ if !request.header_ok() => Some(libc::EINVAL),
        _ => None,
    };
    let request = request.unanswered();
    match refused {
        Some(errno) => Err((errno, Some(request))),
        None => Ok(request),
    }
}

/// Answers about a tensor whose shape could not be read.
fn unreadable(core: &Core, code: u32, input: &[u8], errno: i32, caller: Caller, reply: Reply) {
    match opened::<GpuIo>(core, input, caller) {
        Ok(mut io) => {
            begin(&mut io);
            if code == ioctl::UPLOAD {
                io.state = ioctl::FAILED;
            }
            reply(errno, bytemuck::bytes_of(&io));
        }
        Err((errno, io)) => give(reply, errno, io),
    }
}

/// Fills in what is the same in every answer.
fn begin(io: &mut GpuIo) {
    io.size = size_of::<GpuIo>() as u32;
    io.version = ioctl::ABI_VERSION;
    io.state = ioctl::ABSENT;
    io.device_ordinal = -1;
    io.exporter_pid = std::process::id();
}

fn tensor(core: &Arc<Core>, code: u32, input: &[u8], target: Target, caller: Caller, reply: Reply) {
    let (io, refused) = match opened::<GpuIo>(core, input, caller) {
        Ok(io) => (io, check(core, code, &io, &target, caller).err()),
        Err((errno, Some(io))) => (io, Some(errno)),
        Err((errno, None)) => return reply(errno, &[]),
    };
    let mut ask = Ask {
        io,
        generation: 0,
        target,
        states: Vec::new(),
        stranger: (!core.trusts(caller.uid)).then_some(caller.uid),
        caller,
        reply,
    };
    ask.clear();
    if let Some(errno) = refused {
        let mut out = Outbox::default();
        out.answer(ask, errno);
        return out.send();
    }
    let engine = core.clone();
    // Looking at the files may wait for a slow disk.
    let looked_up = move || {
        ask.look();
        match code {
            ioctl::UPLOAD => engine.upload(ask),
            ioctl::QUERY => engine.query(ask),
            _ => engine.release(ask),
        }
    };
    // Dropped if there is no room for it, which answers EIO.
    let _ = core.lookups.run(looked_up);
}

/// The checks that do not need the table.
fn check(core: &Core, code: u32, io: &GpuIo, target: &Target, caller: Caller) -> Result<(), i32> {
    let allowed = match code {
        ioctl::UPLOAD => ioctl::AUTO_FREE | ioctl::PIN,
        ioctl::RELEASE => ioctl::EVICT,
        _ => 0,
    };
    let reserved = io.rsvd0 != 0 || io.rsvd_in != [0; 2];
    if io.op_flags & !allowed != 0 || reserved || target.shape.len() > MAX_DIMS {
        return Err(libc::EINVAL);
    }
    let trusted = core.trusts(caller.uid);
    if io.op_flags & ioctl::PIN != 0 && !trusted {
        return Err(libc::EACCES);
    }
    // A caller that opened a file may read it; one that opened a directory may not be able to read the
    // files in it.
    if caller.fh.is_none() && !trusted && !target.sources.readable_by(caller.uid) {
        return Err(libc::EACCES);
    }
    Ok(())
}

impl Selector {
    /// The device that the request names.
    pub fn of(io: &GpuIo) -> Selector {
        match (io.want_uuid == [0; 16], io.device) {
            (false, _) => Selector::Uuid(io.want_uuid),
            (true, -1) => Selector::Ordinal(0),
            (true, ordinal) => Selector::Ordinal(ordinal),
        }
    }
}

impl Ask {
    /// What to look for in the table.
    pub fn want(&self, device: Option<i32>) -> Want<'_> {
        Want {
            key: self.target.key,
            states: &self.states,
            generation: self.generation,
            selector: Selector::of(&self.io),
            default_device: self.io.device == -1 && self.io.want_uuid == [0; 16],
            device,
            fh: self.caller.fh,
            stranger: self.stranger,
        }
    }

    /// Looks at the source files.
    fn look(&mut self) {
        self.states = self.target.sources.states();
        self.generation = generation(&self.states);
        self.io.generation = self.generation;
    }

    /// Whether the caller asked for EVICT, AUTO_FREE or PIN.
    pub fn has(&self, flag: u32) -> bool {
        self.io.op_flags & flag != 0
    }

    /// Whether the caller wants a generation that is not this one.
    pub fn refuses(&self, generation: u64) -> bool {
        self.io.want_generation != 0 && self.io.want_generation != generation
    }

    /// Fills in what is known without the table: the tensor, absent.
    fn clear(&mut self) {
        let io = &mut self.io;
        begin(io);
        io.nbytes = self.target.view.len();
        io.dtype = self.target.dtype;
        let shape = &self.target.shape[..self.target.shape.len().min(MAX_DIMS)];
        io.ndim = shape.len() as u32;
        io.shape[..shape.len()].copy_from_slice(shape);
        let mut stride = 1i64;
        for (out, &dim) in io.strides[..shape.len()].iter_mut().zip(shape).rev() {
            *out = stride;
            stride = stride.saturating_mul(i64::try_from(dim).unwrap_or(i64::MAX));
        }
    }

    /// Fills in the device, if it is known.
    pub fn on(&mut self, device: Option<&Device>) {
        if let Some(device) = device {
            self.io.device_ordinal = device.ordinal;
            self.io.dev_uuid = device.uuid;
        }
    }

    /// Fills in the state of an allocation.
    pub fn found(&mut self, allocation: &Allocation, found: Hit) {
        // A handle of the arena opens the whole model, so the caller must be able to read all of it.
        let may_open = found.place.is_none() || allocation.open_to(self.stranger);
        let io = &mut self.io;
        let done = allocation.progress.done.load(Ordering::Relaxed);
        let offset = found.place.map_or(0, |place| place.offset);
        io.alloc_id = allocation.id;
        io.leases = allocation.leases.len() as u32;
        io.flags = flags(allocation);
        io.base_offset = offset;
        io.alloc_bytes = allocation.alloc_bytes;
        // Copies arrive almost in order, so everything before an offset counts as copied.
        io.done_bytes = done.saturating_sub(offset).min(io.nbytes);
        io.generation = match (self.caller.fh, found.place) {
            (Some(fh), _) if allocation.leases.contains_key(&fh) => allocation.leases[&fh],
            (_, Some(_)) => io.generation,
            (_, None) => allocation.generation,
        };
        match &allocation.phase {
            Phase::Loading => io.state = ioctl::LOADING,
            Phase::Failed(failure, _) => self.failed(failure),
            Phase::Resident(handle) => {
                io.state = ioctl::RESIDENT;
                io.done_bytes = io.nbytes;
                if let Some(handle) = handle.filter(|_| may_open) {
                    io.handle_kind = ioctl::HANDLE_CUDA_IPC;
                    io.handle_len = handle.len() as u32;
                    io.handle = handle;
                }
            }
        }
    }

    /// Fills in a failure.
    pub fn failed(&mut self, failure: &Failure) {
        self.io.state = ioctl::FAILED;
        self.io.cu_error = failure.cu_error;
    }
}

fn flags(allocation: &Allocation) -> u32 {
    let auto_free = if allocation.auto_free {
        ioctl::AUTO_FREE
    } else {
        0
    };
    auto_free | if allocation.pin { ioctl::PIN } else { 0 }
}

/// Fills in an entry of LIST.
pub fn entry(out: &mut GpuEntry, allocation: &Allocation) {
    out.state = match allocation.phase {
        Phase::Resident(_) => ioctl::RESIDENT,
        _ => ioctl::LOADING,
    };
    out.flags = flags(allocation);
    out.leases = allocation.leases.len() as u32;
    out.device_ordinal = allocation.device.unwrap_or(-1);
    out.nbytes = allocation.target.view.len();
    out.done_bytes = allocation.progress.done.load(Ordering::Relaxed);
    out.alloc_id = allocation.id;
    out.path = ioctl::terminated(&allocation.target.path);
}

/// Fills in a device of DEVICES, all but what is free.
pub fn device(out: &mut GpuDevice, device: &Device, limit: Option<u64>) {
    out.uuid = device.uuid;
    out.ordinal = device.ordinal;
    out.flags = if device.can_export {
        ioctl::DEVICE_CAN_EXPORT
    } else {
        0
    };
    out.total = device.total;
    out.cap = limit.unwrap_or(0);
    out.name = ioctl::terminated(&device.name);
}
