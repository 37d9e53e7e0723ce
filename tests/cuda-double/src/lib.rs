//! A TEST DOUBLE of the CUDA driver. It is not CUDA, needs no GPU, and is never shipped.
//!
//! It implements the driver entry points that stfs reaches (and a few that a consumer of a handle
//! needs) over host memory: "device" memory is a memfd, so that a second process really opens a
//! handle; streams are threads that copy in order; events come when their stream reaches them.
//! It is stricter than a driver where that finds mistakes: no current context, an unknown pointer,
//! a copy out of memory that is not pinned or past an end, a second free are all errors.
//!
//! | environment variable | meaning |
//! |---|---|
//! | `STFS_CUDA_DOUBLE_DEVICES` | how many devices; 2 if unset |
//! | `STFS_CUDA_DOUBLE_MEMORY` | bytes of each; 1 GiB if unset |
//! | `STFS_CUDA_DOUBLE_BANDWIDTH` | bytes a second that a stream copies; unlimited if unset |
//! | `STFS_CUDA_DOUBLE_FAIL` | `name:nth:code,…`: that call, counted from 1, fails so; 0 is every |
//! | `STFS_CUDA_DOUBLE_RUIN` | the same, and from then on every call in that context does, until all have released it |
//! | `STFS_CUDA_DOUBLE_HANG` | `name:nth:milliseconds,…`: that call takes so long |
//! | `STFS_CUDA_DOUBLE_LEDGER` | a file: a line `+kind` for what is handed out, `-kind` for what comes back |
#![allow(non_snake_case, clippy::missing_safety_doc)]

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

mod faults;
mod memory;
mod streams;
mod world;

use faults::enter;
use memory::Kind;
use world::{Code, current, world};

pub(crate) const SUCCESS: u32 = 0;
pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const OUT_OF_MEMORY: u32 = 2;
pub(crate) const NOT_INITIALIZED: u32 = 3;
pub(crate) const NO_DEVICE: u32 = 100;
pub(crate) const INVALID_DEVICE: u32 = 101;
pub(crate) const INVALID_CONTEXT: u32 = 201;
pub(crate) const INVALID_HANDLE: u32 = 400;
pub(crate) const CONTEXT_IS_DESTROYED: u32 = 709;
pub(crate) const NOT_SUPPORTED: u32 = 801;

const UNIFIED_ADDRESSING: c_int = 41;

/// A `CUipcMemHandle`.
#[repr(C)]
pub struct IpcHandle([u8; 64]);

/// Writes through a caller's pointer.
///
/// # Safety
/// `to` is null or valid for a write.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), Code> {
    if to.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null, and the caller's to write to.
    unsafe { to.write(value) };
    Ok(())
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(flags: c_uint) -> u32 {
    enter("cuInit", || {
        if flags != 0 {
            return Err(INVALID_VALUE);
        }
        if world().devices == 0 {
            return Err(NO_DEVICE);
        }
        world().started.store(true, Ordering::SeqCst);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> u32 {
    enter("cuDeviceGetCount", || {
        // SAFETY: the caller's pointer, as the driver's documentation has it; likewise below.
        unsafe { put(count, world().up()?.devices) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> u32 {
    enter("cuDeviceGet", || {
        let device_of = world().device(ordinal)?;
        // SAFETY: see cuDeviceGetCount.
        unsafe { put(device, device_of) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, device: c_int) -> u32 {
    enter("cuDeviceGetName", || {
        let text = format!("stfs test double {}\0", world().device(device)?);
        if name.is_null() || (len as usize) < text.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller gives room for `len` bytes, and the text is no longer.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len()) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> u32 {
    enter("cuDeviceGetUuid_v2", || {
        let mut bytes = *b"stfs test doubl\0";
        bytes[15] = world().device(device)? as u8;
        // SAFETY: see cuDeviceGetCount.
        unsafe { put(uuid, bytes) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) -> u32 {
    enter("cuDeviceTotalMem_v2", || {
        world().device(device)?;
        // SAFETY: see cuDeviceGetCount.
        unsafe { put(bytes, world().capacity) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(
    value: *mut c_int,
    attribute: c_int,
    device: c_int,
) -> u32 {
    enter("cuDeviceGetAttribute", || {
        world().device(device)?;
        // SAFETY: see cuDeviceGetCount.
        unsafe { put(value, c_int::from(attribute == UNIFIED_ADDRESSING)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> u32 {
    enter("cuDevicePrimaryCtxRetain", || {
        let raw = world().retain(device)?;
        // SAFETY: see cuDeviceGetCount.
        unsafe { put(context, raw) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(device: c_int) -> u32 {
    enter("cuDevicePrimaryCtxRelease_v2", || world().release(device))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: usize) -> u32 {
    enter("cuCtxSetCurrent", || world().make_current(context))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> u32 {
    enter("cuCtxSynchronize", || {
        current()?;
        streams::drain_all();
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32 {
    enter("cuMemGetInfo_v2", || {
        let used = memory::used(current()?);
        let capacity = world().capacity;
        // SAFETY: see cuDeviceGetCount.
        unsafe { put(free, capacity.saturating_sub(used)) }?;
        // SAFETY: see cuDeviceGetCount.
        unsafe { put(total, capacity) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(pointer: *mut usize, bytes: usize) -> u32 {
    enter("cuMemAlloc_v2", || {
        let address = memory::allocate(current()?, bytes, Kind::Device)?;
        // SAFETY: see cuDeviceGetCount.
        unsafe { put(pointer, address) }
    })
}

/// What the driver's memory pools give: cannot be exported.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(pointer: *mut usize, bytes: usize, _stream: usize) -> u32 {
    enter("cuMemAllocAsync", || {
        let address = memory::allocate(current()?, bytes, Kind::Pool)?;
        // SAFETY: see cuDeviceGetCount.
        unsafe { put(pointer, address) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(pointer: usize) -> u32 {
    enter("cuMemFree_v2", || {
        current()?;
        streams::drain_all();
        memory::free(pointer, &[Kind::Device, Kind::Pool])
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(pointer: *mut usize, bytes: usize, _flags: c_uint) -> u32 {
    enter("cuMemHostAlloc", || {
        let address = memory::allocate(current()?, bytes, Kind::Pinned)?;
        // SAFETY: see cuDeviceGetCount.
        unsafe { put(pointer, address) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(pointer: usize) -> u32 {
    enter("cuMemFreeHost", || {
        current()?;
        streams::drain_all();
        memory::free(pointer, &[Kind::Pinned])
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyHtoDAsync_v2(
    to: usize,
    from: *const c_void,
    bytes: usize,
    stream: usize,
) -> u32 {
    enter("cuMemcpyHtoDAsync_v2", || {
        current()?;
        memory::check(to, bytes, &[Kind::Device, Kind::Pool, Kind::Opened])?;
        memory::check(from as usize, bytes, &[Kind::Pinned])?;
        streams::copy(stream, to, from as usize, bytes)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: usize, from: *const u8, bytes: usize) -> u32 {
    enter("cuMemcpyHtoD_v2", || {
        current()?;
        memory::check(to, bytes, &[Kind::Device, Kind::Pool, Kind::Opened])?;
        // SAFETY: the destination was just checked; the source is the caller's to give.
        unsafe { std::ptr::copy_nonoverlapping(from, to as *mut u8, bytes) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut u8, from: usize, bytes: usize) -> u32 {
    enter("cuMemcpyDtoH_v2", || {
        current()?;
        memory::check(from, bytes, &[Kind::Device, Kind::Pool, Kind::Opened])?;
        // SAFETY: the source was just checked; the destination is the caller's to give.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to, bytes) };
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut usize, _flags: c_uint) -> u32 {
    enter("cuStreamCreate", || {
        current()?;
        // SAFETY: see cuDeviceGetCount.
        unsafe { put(stream, streams::create()) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: usize) -> u32 {
    enter("cuStreamSynchronize", || {
        current()?;
        streams::drain(stream)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: usize) -> u32 {
    enter("cuStreamDestroy_v2", || {
        current()?;
        streams::destroy(stream)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut usize, _flags: c_uint) -> u32 {
    enter("cuEventCreate", || {
        current()?;
        // SAFETY: see cuDeviceGetCount.
        unsafe { put(event, streams::create_event()) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: usize, stream: usize) -> u32 {
    enter("cuEventRecord", || {
        current()?;
        streams::record(event, stream)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: usize) -> u32 {
    enter("cuEventSynchronize", || {
        current()?;
        streams::wait(event)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: usize) -> u32 {
    enter("cuEventDestroy_v2", || {
        current()?;
        streams::destroy_event(event)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcGetMemHandle(handle: *mut IpcHandle, pointer: usize) -> u32 {
    enter("cuIpcGetMemHandle", || {
        current()?;
        let bytes = memory::export(pointer)?;
        // SAFETY: see cuDeviceGetCount.
        unsafe { put(handle, IpcHandle(bytes)) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuIpcOpenMemHandle_v2(
    pointer: *mut usize,
    handle: IpcHandle,
    flags: c_uint,
) -> u32 {
    enter("cuIpcOpenMemHandle_v2", || {
        // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS is the one flag there is.
        if flags > 1 {
            return Err(INVALID_VALUE);
        }
        let address = memory::open(current()?, &handle.0)?;
        // SAFETY: see cuDeviceGetCount.
        unsafe { put(pointer, address) }
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuIpcCloseMemHandle(pointer: usize) -> u32 {
    enter("cuIpcCloseMemHandle", || {
        current()?;
        memory::free(pointer, &[Kind::Opened])
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(_error: u32, text: *mut *const c_char) -> u32 {
    // SAFETY: see cuDeviceGetCount.
    match unsafe { put(text, c"an error of the test double".as_ptr()) } {
        Ok(()) => SUCCESS,
        Err(code) => code,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: u32, text: *mut *const c_char) -> u32 {
    // SAFETY: the same contract.
    unsafe { cuGetErrorName(error, text) }
}
