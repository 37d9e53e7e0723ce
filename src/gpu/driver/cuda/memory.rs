//! Contexts, device memory and pinned host memory.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::{Device, call, warn};
use crate::gpu::driver::{CudaError, CudaResult};

/// A device's primary context, for as long as anything lives in it.
pub struct Context {
    device: sys::CUdevice,
    raw: sys::CUcontext,
}

// SAFETY: the driver's contexts may be used from any thread that makes them current.
unsafe impl Send for Context {}
// SAFETY: as above; the driver does its own locking.
unsafe impl Sync for Context {}

impl Context {
    /// Creates the device's primary context, or shares the existing one.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(device: &Device) -> CudaResult<Arc<Context>> {
        // SAFETY: the device was returned by cuDeviceGet (`describe` is the only maker of Device).
        let raw = call("cuDevicePrimaryCtxRetain", || unsafe {
            result::primary_ctx::retain(device.raw)
        })?;
        Ok(Arc::new(Context {
            device: device.raw,
            raw,
        }))
    }

    /// Makes it current on this thread, which everything else here needs.
    ///
    /// # Errors
    /// The driver's.
    pub fn enter(&self) -> CudaResult<()> {
        // SAFETY: the context is retained until this struct is dropped.
        call("cuCtxSetCurrent", || unsafe {
            result::ctx::set_current(self.raw)
        })
    }

    /// Free bytes of the device.
    ///
    /// # Errors
    /// The driver's.
    pub fn free_bytes(&self) -> CudaResult<u64> {
        self.enter()?;
        let (free, _total) = call("cuMemGetInfo_v2", result::mem_get_info)?;
        Ok(free as u64)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: retained in `new` and released only here; all that lives in it holds an Arc.
        warn(call("cuDevicePrimaryCtxRelease_v2", || unsafe {
            result::primary_ctx::release(self.device)
        }));
    }
}

/// Device memory from `cuMemAlloc`: memory from the async pools cannot be exported.
pub struct DeviceMemory {
    pub(super) raw: sys::CUdeviceptr,
    pub(super) len: u64,
    pub(super) context: Arc<Context>,
}

impl DeviceMemory {
    /// Allocates `len` bytes, which must not be 0.
    ///
    /// # Errors
    /// The driver's, most often `CUDA_ERROR_OUT_OF_MEMORY`.
    pub fn new(context: &Arc<Context>, len: u64) -> CudaResult<DeviceMemory> {
        context.enter()?;
        // SAFETY: the memory is only ever written to by copies (its first content is never read
        // here), and freed once, in Drop.
        let raw = call("cuMemAlloc_v2", || unsafe {
            result::malloc_sync(len as usize)
        })?;
        Ok(DeviceMemory {
            raw,
            len,
            context: context.clone(),
        })
    }

    /// A handle with which another process can map it.
    ///
    /// # Errors
    /// The driver's.
    pub fn export(&self) -> CudaResult<[u8; 64]> {
        let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
        // SAFETY: `raw` is the base of a live allocation, and `handle` outlives the call.
        call("cuIpcGetMemHandle", || unsafe {
            sys::cuIpcGetMemHandle(&mut handle, self.raw).result()
        })?;
        Ok(handle.reserved.map(|b| b as u8))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        warn(self.context.enter());
        // SAFETY: allocated in `new`, freed only here. Copies into it hold an Arc of it.
        warn(call("cuMemFree_v2", || unsafe {
            result::free_sync(self.raw)
        }));
    }
}

/// Host memory that the GPU reads from directly.
pub struct Pinned {
    raw: NonNull<u8>,
    len: usize,
    pub(super) context: Arc<Context>,
}

// SAFETY: plain memory with one owner.
unsafe impl Send for Pinned {}

impl Pinned {
    /// Allocates `len` bytes.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(context: &Arc<Context>, len: usize) -> CudaResult<Pinned> {
        context.enter()?;
        // SAFETY: the memory is initialized below before a reference to it exists.
        let raw = call("cuMemHostAlloc", || unsafe { result::malloc_host(len, 0) })?;
        let Some(raw) = NonNull::new(raw.cast::<u8>()) else {
            return Err(CudaError {
                call: "cuMemHostAlloc",
                code: 0,
                name: "no memory came back".into(),
            });
        };
        // SAFETY: `raw` points to `len` bytes that nothing else refers to. Writing them makes them
        // initialized, and touches every page before the first upload waits for it.
        unsafe { raw.as_ptr().write_bytes(0, len) };
        Ok(Pinned {
            raw,
            len,
            context: context.clone(),
        })
    }
}

impl Deref for Pinned {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `len` initialized bytes, owned, and borrowed with `self`.
        unsafe { std::slice::from_raw_parts(self.raw.as_ptr(), self.len) }
    }
}

impl DerefMut for Pinned {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.raw.as_ptr(), self.len) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        warn(self.context.enter());
        // SAFETY: allocated in `new`, freed only here.
        warn(call("cuMemFreeHost", || unsafe {
            result::free_host(self.raw.as_ptr().cast())
        }));
    }
}
