//! The CUDA driver, as little of it as stfs needs, behind types that own what they hold.
//!
//! Without the cargo feature `gpu` the same types exist, but no device does: [`start`] fails, and the
//! ioctl answers ENODEV.

use std::fmt;

#[cfg(not(feature = "gpu"))]
mod absent;
#[cfg(feature = "gpu")]
mod cuda;

#[cfg(not(feature = "gpu"))]
pub use absent::{Context, Copying, Device, DeviceMemory, Staging, Stream, ruins_context, start};
#[cfg(feature = "gpu")]
pub use cuda::{Context, Copying, Device, DeviceMemory, Staging, Stream, ruins_context, start};

/// Device memory is taken in steps of this size, which is the granularity at which the driver maps
/// it into another process: a smaller allocation would share its pages, and so its IPC handle, with
/// a neighbor.
pub const GRANULE: u64 = 2 << 20;

/// A call of the driver that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CudaError {
    /// The function.
    pub call: &'static str,
    /// Its `CUresult`; 0 if the function could not be called at all.
    pub code: u32,
    /// The code's name, or why it could not be called.
    pub name: String,
}

impl fmt::Display for CudaError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.call, self.name, self.code)
    }
}

/// `Result` with [`CudaError`].
pub type CudaResult<T> = Result<T, CudaError>;

/// Why the driver cannot be used.
#[derive(Debug, Clone)]
pub enum NoDriver {
    /// It is not installed, or too old: in words.
    Missing(String),
    /// A call failed.
    Cuda(CudaError),
}

impl From<CudaError> for NoDriver {
    fn from(e: CudaError) -> Self {
        NoDriver::Cuda(e)
    }
}
