//! What copies to a device need: its context, a stream, the staging buffers, and the thread that waits
//! for copies to be over.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use super::Order;
use crate::gpu::driver::{Context, Copying, CudaResult, Device, Staging, Stream};
use crate::gpu::{Failure, StagingPool};

/// A copy that is over.
pub struct Copied {
    /// Which load it belongs to.
    pub load: u64,
    /// How many bytes.
    pub len: u64,
    /// The buffer, free again.
    pub staging: Option<Staging>,
    /// How it went.
    pub outcome: CudaResult<()>,
}

/// What is needed to copy.
pub struct Session {
    /// Where copies are queued.
    pub stream: Stream,
    /// Buffers that are not in use.
    pub idle: Vec<Staging>,
    /// Buffers that are being filled or copied from.
    pub busy: usize,
    /// Where copies go to be waited for.
    pub drain: Sender<(u64, Copying)>,
    /// A call failed. Nothing is started until all copies under way are over, and then only in a new
    /// session.
    pub broken: bool,
    /// The context that all of this belongs to.
    pub context: Arc<Context>,
}

impl Copied {
    /// Waits for it.
    pub fn wait(load: u64, copying: Copying) -> Copied {
        let len = copying.len as u64;
        let (staging, outcome) = copying.wait();
        Copied {
            load,
            len,
            staging,
            outcome,
        }
    }
}

impl Session {
    /// Makes one on a device.
    ///
    /// # Errors
    /// The driver's, or no thread can be started.
    pub fn new(
        device: &Device,
        pool: StagingPool,
        orders: &Sender<Order>,
    ) -> Result<Session, Failure> {
        let context = Context::new(device)?;
        let stream = Stream::new(&context)?;
        let idle = (0..pool.buffers.max(1))
            .map(|_| Staging::new(&context, pool.bytes.max(1)))
            .collect::<CudaResult<Vec<_>>>()?;
        let (drain, copies) = channel::<(u64, Copying)>();
        let orders = orders.clone();
        std::thread::Builder::new()
            .name(format!("stfs-gpu{}-drain", device.ordinal))
            .spawn(move || {
                for (load, copying) in copies {
                    let _ = orders.send(Order::Copied(Copied::wait(load, copying)));
                }
            })
            .map_err(Failure::no_thread)?;
        Ok(Session {
            stream,
            idle,
            busy: 0,
            drain,
            broken: false,
            context,
        })
    }
}
