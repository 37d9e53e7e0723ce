//! The driver itself: loaded when it is first needed, never linked. Every call goes through [`call`],
//! which turns a panic of the binding (a symbol that an old driver lacks) into an error.

use std::panic::{AssertUnwindSafe, catch_unwind};

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use super::{CudaError, CudaResult, NoDriver};

mod copy;
mod memory;

pub use copy::{Copying, Staging, Stream};
pub use memory::{Context, DeviceMemory};

/// The functions that stfs needs. They are looked up by name before the first is called, because the
/// binding panics on a missing one.
const NEEDED: &[&str] = &[
    "cuInit",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRetain",
    "cuDevicePrimaryCtxRelease_v2",
    "cuCtxSetCurrent",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuStreamCreate",
    "cuStreamSynchronize",
    "cuStreamDestroy_v2",
    "cuEventCreate",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuEventDestroy_v2",
    "cuIpcGetMemHandle",
];

impl CudaError {
    /// The errno that the ioctl answers with.
    pub fn errno(&self) -> i32 {
        use sys::CUresult as C;
        const OUT_OF_MEMORY: u32 = C::CUDA_ERROR_OUT_OF_MEMORY as u32;
        /// No device, or no driver that fits it.
        const NO_DEVICE: [u32; 5] = [
            C::CUDA_ERROR_STUB_LIBRARY as u32,
            C::CUDA_ERROR_NO_DEVICE as u32,
            C::CUDA_ERROR_SYSTEM_NOT_READY as u32,
            C::CUDA_ERROR_SYSTEM_DRIVER_MISMATCH as u32,
            C::CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE as u32,
        ];
        match self.code {
            OUT_OF_MEMORY => libc::ENOMEM,
            code if NO_DEVICE.contains(&code) => libc::ENODEV,
            _ => libc::EREMOTEIO,
        }
    }
}

/// Whether every later call in the context fails after this error. Only a new context works again, and it
/// can be created only after everything in the old one has been freed.
pub fn ruins_context(code: u32) -> bool {
    use sys::CUresult as C;
    const RUINOUS: [u32; 12] = [
        C::CUDA_ERROR_ECC_UNCORRECTABLE as u32,
        C::CUDA_ERROR_NVLINK_UNCORRECTABLE as u32,
        C::CUDA_ERROR_ILLEGAL_ADDRESS as u32,
        C::CUDA_ERROR_LAUNCH_TIMEOUT as u32,
        C::CUDA_ERROR_CONTEXT_IS_DESTROYED as u32,
        C::CUDA_ERROR_ASSERT as u32,
        C::CUDA_ERROR_HARDWARE_STACK_ERROR as u32,
        C::CUDA_ERROR_ILLEGAL_INSTRUCTION as u32,
        C::CUDA_ERROR_MISALIGNED_ADDRESS as u32,
        C::CUDA_ERROR_INVALID_ADDRESS_SPACE as u32,
        C::CUDA_ERROR_INVALID_PC as u32,
        C::CUDA_ERROR_LAUNCH_FAILED as u32,
    ];
    RUINOUS.contains(&code)
}

/// Runs one call of the binding.
fn call<T>(name: &'static str, f: impl FnOnce() -> Result<T, DriverError>) -> CudaResult<T> {
    match catch_unwind(AssertUnwindSafe(f)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(DriverError(code))) => Err(CudaError {
            call: name,
            code: code as u32,
            name: format!("{code:?}"),
        }),
        Err(_) => Err(CudaError {
            call: name,
            code: 0,
            name: "the driver has no such function".into(),
        }),
    }
}

/// Logs the failure of a call that cannot be handled (freeing).
fn warn(outcome: CudaResult<()>) {
    if let Err(e) = outcome {
        log::warn!("gpu: {e}");
    }
}

/// A GPU, as the driver describes it without a context.
#[derive(Debug, Clone)]
pub struct Device {
    /// Its number in the driver, from 0.
    pub ordinal: i32,
    /// The driver's own handle.
    raw: sys::CUdevice,
    /// Zeros if the driver cannot report it.
    pub uuid: [u8; 16],
    /// The name.
    pub name: String,
    /// Bytes of memory.
    pub total: u64,
    /// Whether IPC handles can be expected to work.
    pub can_export: bool,
}

/// Loads the driver, starts it, and lists the devices. No context is created and no memory allocated.
///
/// # Errors
/// No driver, one too old, or one that fails; never an empty list.
pub fn start() -> Result<Vec<Device>, NoDriver> {
    // SAFETY: loading a library runs its initializers; the CUDA driver is meant to be loaded like this.
    // The function only tries the library names and closes what it opened.
    let present = catch_unwind(|| unsafe { sys::is_culib_present() }).unwrap_or(false);
    if !present {
        return Err(NoDriver::Missing(
            "no CUDA driver (libcuda.so.1) is found".into(),
        ));
    }
    let missing: Vec<&str> = NEEDED.iter().copied().filter(|n| !has(n)).collect();
    if !missing.is_empty() {
        let list = missing.join(", ");
        return Err(NoDriver::Missing(format!(
            "the CUDA driver is too old, it lacks {list}; stfs needs one of CUDA 11.4 or newer"
        )));
    }
    call("cuInit", result::init)?;
    let count = call("cuDeviceGetCount", result::device::get_count)?;
    if count <= 0 {
        return Err(NoDriver::Missing("the CUDA driver sees no device".into()));
    }
    Ok((0..count).map(describe).collect::<CudaResult<_>>()?)
}

/// Whether the loaded driver has a function of that name.
fn has(name: &str) -> bool {
    // SAFETY: the symbol is only looked up; its address is never called through this type.
    catch_unwind(|| unsafe {
        sys::culib()
            .get::<unsafe extern "C" fn()>(name.as_bytes())
            .is_ok()
    })
    .unwrap_or(false)
}

fn describe(ordinal: i32) -> CudaResult<Device> {
    let raw = call("cuDeviceGet", || result::device::get(ordinal))?;
    let name = call("cuDeviceGetName", || result::device::get_name(raw))?;
    // SAFETY: `raw` was returned by cuDeviceGet just above.
    let total = call("cuDeviceTotalMem_v2", || unsafe {
        result::device::total_mem(raw)
    })?;
    Ok(Device {
        ordinal,
        raw,
        uuid: uuid(raw),
        total: total as u64,
        can_export: can_export(raw, &name),
        name,
    })
}

/// `_v2` returns a MIG instance's own uuid; drivers before CUDA 11.4 have only the other function.
fn uuid(raw: sys::CUdevice) -> [u8; 16] {
    let mut uuid = sys::CUuuid { bytes: [0; 16] };
    // Asked first, because the binding panics on a missing function.
    let answered = has("cuDeviceGetUuid_v2")
        // SAFETY: `raw` is a device of this driver, and `uuid` outlives the call, which fills it.
        && call("cuDeviceGetUuid_v2", || unsafe {
            sys::cuDeviceGetUuid_v2(&mut uuid, raw).result()
        })
        .is_ok();
    if !answered {
        // SAFETY: as above.
        warn(call("cuDeviceGetUuid", || unsafe {
            sys::cuDeviceGetUuid(&mut uuid, raw).result()
        }));
    }
    uuid.bytes.map(|b| b as u8)
}

/// IPC needs unified addressing, and does not work across MIG instances, which have `MIG` in their name.
fn can_export(raw: sys::CUdevice, name: &str) -> bool {
    let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING;
    // SAFETY: `raw` is a device of this driver.
    let unified = call("cuDeviceGetAttribute", || unsafe {
        result::device::get_attribute(raw, attribute)
    });
    unified == Ok(1) && !name.contains(" MIG ")
}
