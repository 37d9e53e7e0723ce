//! The driver of a build without the feature `gpu`: it never starts, so there is never a device, and what
//! needs one cannot be called. No value of these types exists.

use std::convert::Infallible;
use std::sync::Arc;

use super::{CudaError, CudaResult, NoDriver};

impl CudaError {
    /// The errno that the ioctl answers with.
    pub fn errno(&self) -> i32 {
        libc::ENODEV
    }
}

/// As in the other build; no call fails, because none is made.
pub fn ruins_context(_code: u32) -> bool {
    false
}

/// A GPU.
#[derive(Debug, Clone)]
pub struct Device {
    /// Its number in the driver, from 0.
    pub ordinal: i32,
    /// The uuid.
    pub uuid: [u8; 16],
    /// The name.
    pub name: String,
    /// Bytes of memory.
    pub total: u64,
    /// Whether IPC handles can be expected to work.
    pub can_export: bool,
    never: Infallible,
}

/// This build has no driver.
///
/// # Errors
/// Always.
pub fn start() -> Result<Vec<Device>, NoDriver> {
    Err(NoDriver::Missing(
        "this stfs was built without the feature 'gpu'".into(),
    ))
}

/// A device's context.
pub struct Context(Infallible);

impl Context {
    /// Never called.
    pub fn new(device: &Device) -> CudaResult<Arc<Context>> {
        match device.never {}
    }

    /// Never called.
    pub fn free_bytes(&self) -> CudaResult<u64> {
        match self.0 {}
    }
}

/// Device memory.
pub struct DeviceMemory(Infallible);

impl DeviceMemory {
    /// Never called.
    pub fn new(context: &Arc<Context>, _len: u64) -> CudaResult<DeviceMemory> {
        match context.0 {}
    }

    /// Never called.
    pub fn export(&self) -> CudaResult<[u8; 64]> {
        match self.0 {}
    }
}

/// A staging buffer.
pub struct Staging {
    /// The buffer.
    pub bytes: Box<[u8]>,
}

impl Staging {
    /// Never called.
    pub fn new(context: &Arc<Context>, _len: usize) -> CudaResult<Staging> {
        match context.0 {}
    }
}

/// A stream of copies.
pub struct Stream(Infallible);

impl Stream {
    /// Never called.
    pub fn new(context: &Arc<Context>) -> CudaResult<Stream> {
        match context.0 {}
    }

    /// Never called.
    pub fn copy(&self, _: Staging, _: usize, _: Arc<DeviceMemory>, _: u64) -> Copying {
        match self.0 {}
    }
}

/// A copy under way.
pub struct Copying {
    /// Bytes.
    pub len: usize,
    never: Infallible,
}

impl Copying {
    /// Never called.
    pub fn wait(self) -> (Option<Staging>, CudaResult<()>) {
        match self.never {}
    }
}
