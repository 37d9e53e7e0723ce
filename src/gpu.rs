//! Tensors in GPU memory, for any process on this machine: the engine behind [`crate::ioctl`].
//!
//! ```text
//! ioctl ─▶ core ──▶ table: what is where, leases, generations, limit
//!            │          ▲
//!            │          └── clock: callers that waited long enough, memory without a lease
//!            └──▶ device: one thread each ──▶ readers fill pinned buffers ──▶ driver copies
//! ```
//!
//! The engine knows neither FUSE nor inode numbers: it gets a [`Target`] and answers through a closure,
//! from the thread that has the answer. CUDA is loaded at the first UPLOAD (or DEVICES), on a thread of
//! its own, and only these ioctls ever wait for it.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::workers::Workers;

mod allocation;
mod answer;
mod arena;
mod clock;
mod core;
mod device;
mod driver;
mod readers;
mod table;
mod target;

pub use arena::{ALIGNMENT, Arena, Member, Span};
pub use driver::GRANULE;
pub use target::{FileState, Key, Part, Sources, Target, generation};

/// Whether this build can use a GPU: the cargo feature `gpu`.
pub const BUILT_IN: bool = cfg!(feature = "gpu");

/// Which users may use the GPU through a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Access {
    /// No user.
    Off,
    /// The mount's owner and root.
    #[default]
    Owner,
    /// Every user that can open the file. A handle gives write access to memory that others read.
    All,
}

impl FromStr for Access {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "off" => Ok(Access::Off),
            "owner" => Ok(Access::Owner),
            "all" => Ok(Access::All),
            _ => Err(format!("'{s}' is not one of off, owner, all")),
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Access::Off => "off",
            Access::Owner => "owner",
            Access::All => "all",
        })
    }
}

/// The staging buffers of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StagingPool {
    /// How many.
    pub buffers: usize,
    /// Bytes of each.
    pub bytes: usize,
}

impl Default for StagingPool {
    /// One buffer is being copied, one waits for the bus and two are being filled; each is large
    /// enough that handing it over costs little beside copying it.
    fn default() -> Self {
        StagingPool {
            buffers: 4,
            bytes: 16 << 20,
        }
    }
}

/// Settings of the engine.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    /// Which users may use it.
    pub access: Access,
    /// Most bytes that may be resident on each device; `None` is as many as fit.
    pub limit: Option<u64>,
    /// The mount's owner.
    pub owner: u32,
    /// Threads that read the model for uploads; 0 is as many as suit the machine.
    pub readers: usize,
    /// Staging buffers of each device in use.
    pub staging: StagingPool,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            access: Access::Owner,
            limit: None,
            owner: rustix::process::geteuid().as_raw(),
            readers: 0,
            staging: StagingPool::default(),
        }
    }
}

/// The caller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// The user.
    pub uid: u32,
    /// The open file, unique among those open; `None` on a directory, which takes no lease.
    pub fh: Option<u64>,
}

/// Takes an ioctl's result: 0 or an errno, and the struct to return (empty only for ENOTTY and for a
/// request of the wrong size).
pub type Reply = Box<dyn FnOnce(i32, &[u8]) + Send>;

/// Why an upload did not succeed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// For the caller.
    pub errno: i32,
    /// CUDA's error code; 0 if the error is not from CUDA.
    pub cu_error: u32,
    /// For the log.
    pub why: String,
}

impl Failure {
    fn new(errno: i32, why: impl Into<String>) -> Failure {
        Failure {
            errno,
            cu_error: 0,
            why: why.into(),
        }
    }

    fn reading(why: String) -> Failure {
        Failure::new(libc::EIO, why)
    }

    fn changed() -> Failure {
        Failure::new(libc::ESTALE, "its file changed while it was being uploaded")
    }

    fn canceled() -> Failure {
        Failure::new(libc::EIO, "the upload was canceled")
    }

    /// Whether every later call in the CUDA context fails, too.
    fn ruins_context(&self) -> bool {
        driver::ruins_context(self.cu_error)
    }

    fn cuda_thread() -> Failure {
        Failure::new(
            libc::EREMOTEIO,
            "the device's thread panicked, which is a bug in stfs",
        )
    }

    fn no_thread(e: std::io::Error) -> Failure {
        Failure::new(libc::ENOMEM, format!("no thread for the GPU: {e}"))
    }
}

impl From<driver::CudaError> for Failure {
    fn from(e: driver::CudaError) -> Failure {
        Failure {
            errno: e.errno(),
            cu_error: e.code,
            why: e.to_string(),
        }
    }
}

impl From<driver::NoDriver> for Failure {
    fn from(e: driver::NoDriver) -> Failure {
        match e {
            driver::NoDriver::Missing(why) => Failure::new(libc::ENODEV, why),
            driver::NoDriver::Cuda(e) => e.into(),
        }
    }
}

/// The engine of one mount. Dropping it frees all memory it holds on any device.
pub struct Gpu {
    core: Arc<core::Core>,
}

impl Gpu {
    /// An engine, which looks at source files on threads of `pool`. Nothing is loaded or started
    /// before it is used.
    pub fn new(config: Config, pool: Workers) -> Gpu {
        Gpu {
            core: Arc::new(core::Core::new(config, pool)),
        }
    }

    /// Answers an ioctl through `reply`: now, or later from another thread, after at most a second.
    ///
    /// `input` is the caller's struct. `target` is what the ioctl was called on, `None` if it cannot be
    /// uploaded, or the errno of trying to find out. Never waits for CUDA, a disk or another caller.
    pub fn ioctl(
        &self,
        code: u32,
        input: &[u8],
        target: Result<Option<Target>, i32>,
        caller: Caller,
        reply: Reply,
    ) {
        answer::dispatch(&self.core, code, input, target, caller, reply);
    }

    /// An open file was closed: its leases end.
    pub fn released(&self, fh: u64) {
        self.core.released(fh);
    }

    /// Ends the engine: waiting callers get EIO, uploads are canceled, and all memory goes back to the
    /// driver. Later ioctls find nothing, and an UPLOAD fails with EIO. Takes at most ten seconds, and
    /// more than one only if the driver or the bus is very slow. A second call does nothing.
    pub fn stop(&self) {
        self.core.stop();
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.stop();
    }
}
