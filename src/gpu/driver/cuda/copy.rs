//! Copies from pinned memory to the device, and the events that complete with them.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::memory::Pinned;
use super::{Context, DeviceMemory, call, warn};
use crate::gpu::driver::{CudaError, CudaResult};

/// A staging buffer: pinned memory, and the event that completes when a copy out of it is over.
pub struct Staging {
    /// The bytes.
    pub bytes: Pinned,
    event: sys::CUevent,
}

// SAFETY: the driver's events may be used from any thread; this one has one owner.
unsafe impl Send for Staging {}

impl Staging {
    /// `len` bytes and an event.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Arc<Context>, len: usize) -> CudaResult<Staging> {
        let bytes = Pinned::new(context, len)?;
        // A waiting thread sleeps: spinning would take a core from the readers.
        let flags = sys::CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32
            | sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        let mut event = std::ptr::null_mut();
        // SAFETY: `event` outlives the call, which fills it; destroyed once, in Drop.
        call("cuEventCreate", || unsafe {
            sys::cuEventCreate(&mut event, flags).result()
        })?;
        Ok(Staging { bytes, event })
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        warn(self.bytes.context.enter());
        // SAFETY: created in `new`, destroyed only here.
        warn(call("cuEventDestroy_v2", || unsafe {
            result::event::destroy(self.event)
        }));
    }
}

/// A stream of copies to the device.
pub struct Stream {
    raw: sys::CUstream,
    context: Arc<Context>,
}

// SAFETY: the driver's streams may be used from any thread; this one has one owner.
unsafe impl Send for Stream {}

impl Stream {
    /// A stream that does not wait for the default one.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Arc<Context>) -> CudaResult<Stream> {
        context.enter()?;
        let raw = call("cuStreamCreate", || {
            result::stream::create(result::stream::StreamKind::NonBlocking)
        })?;
        Ok(Stream {
            raw,
            context: context.clone(),
        })
    }

    /// Starts copying the first `len` bytes of `from` to `to` at `offset`. The buffer comes back
    /// from [`Copying::wait`].
    pub fn copy(&self, from: Staging, len: usize, to: Arc<DeviceMemory>, offset: u64) -> Copying {
        let started = self.start(&from, len, &to, offset);
        if started.is_err() {
            // The copy may be under way although its event is not recorded: wait for all of it.
            // SAFETY: the stream is alive.
            warn(call("cuStreamSynchronize", || unsafe {
                result::stream::synchronize(self.raw)
            }));
        }
        Copying {
            from: Some(from),
            to,
            len,
            started,
        }
    }

    fn start(&self, from: &Staging, len: usize, to: &DeviceMemory, offset: u64) -> CudaResult<()> {
        let bytes = from.bytes.get(..len);
        let fits = offset.checked_add(len as u64).is_some_and(|n| n <= to.len);
        let Some(bytes) = bytes.filter(|_| fits) else {
            return Err(CudaError {
                call: "cuMemcpyHtoDAsync_v2",
                code: sys::CUresult::CUDA_ERROR_INVALID_VALUE as u32,
                name: format!("{len} bytes at {offset} do not fit {}", to.len),
            });
        };
        self.context.enter()?;
        // SAFETY: source and destination were just checked to hold `len` bytes. Both outlive the
        // copy: `Copying` owns the one and a share of the other until the event has completed.
        call("cuMemcpyHtoDAsync_v2", || unsafe {
            result::memcpy_htod_async(to.raw + offset, bytes, self.raw)
        })?;
        // SAFETY: event and stream are alive and of the same context.
        call("cuEventRecord", || unsafe {
            result::event::record(from.event, self.raw)
        })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        warn(self.context.enter());
        // SAFETY: created in `new`, destroyed only here.
        warn(call("cuStreamDestroy_v2", || unsafe {
            result::stream::destroy(self.raw)
        }));
    }
}

/// A copy under way: owns its source, so that nothing can write to it meanwhile.
pub struct Copying {
    from: Option<Staging>,
    to: Arc<DeviceMemory>,
    /// Bytes.
    pub len: usize,
    started: CudaResult<()>,
}

impl Copying {
    /// Waits until the copy is over. The buffer comes back either way.
    pub fn wait(mut self) -> (Option<Staging>, CudaResult<()>) {
        let outcome = self.settle();
        (self.from.take(), outcome)
    }

    fn settle(&self) -> CudaResult<()> {
        self.started.clone()?;
        let Some(from) = &self.from else {
            return Ok(());
        };
        self.to.context.enter()?;
        // SAFETY: the event is alive and was recorded in `start`.
        call("cuEventSynchronize", || unsafe {
            result::event::synchronize(from.event)
        })
    }
}

impl Drop for Copying {
    fn drop(&mut self) {
        if self.from.is_some() {
            warn(self.settle());
        }
    }
}
