//! One piece of device memory in the residency table: its bytes, its device, its leases.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

use super::Failure;
use super::target::{FileState, Target, generation};

/// A device, as a caller names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Selector {
    /// By the driver's number.
    Ordinal(i32),
    /// By uuid.
    Uuid([u8; 16]),
}

/// The progress of an upload, shared with the thread that does it.
#[derive(Debug, Default)]
pub struct Progress {
    /// Bytes that have arrived in device memory.
    pub done: AtomicU64,
    /// Set to stop it.
    pub cancel: AtomicBool,
}

/// The state of an allocation.
#[derive(Debug, Clone)]
pub enum Phase {
    /// Being uploaded.
    Loading,
    /// In device memory, with its IPC handle (none if it has no bytes).
    Resident(Option<[u8; 64]>),
    /// Failed. Kept until every caller that waits for the result has got it.
    Failed(Failure, Instant),
}

/// Memory of a device that holds, or is to hold, the bytes of a target.
pub struct Allocation {
    /// Its number, never reused.
    pub id: u64,
    /// What it holds.
    pub target: Target,
    /// How many bytes are allocated for it.
    pub alloc_bytes: u64,
    /// What the source files looked like when the upload began.
    pub states: Vec<FileState>,
    /// The same as a number.
    pub generation: u64,
    /// The device, as the caller named it.
    pub selector: Selector,
    /// The device, once the driver has started.
    pub device: Option<i32>,
    /// Its state.
    pub phase: Phase,
    /// The progress of its upload.
    pub progress: Arc<Progress>,
    /// The open files that hold a lease, each with the generation it asked for.
    pub leases: HashMap<u64, u64>,
    /// Free it two seconds after the last lease.
    pub auto_free: bool,
    /// Never evict it.
    pub pin: bool,
    /// When it was last uploaded, joined or released: larger is later.
    pub last_used: u64,
    /// If it failed: the open files that have not got the error yet.
    pub untold: HashSet<u64>,
    /// If it failed: whether a caller without a lease has not got the error yet.
    pub untold_other: bool,
}

impl Allocation {
    /// A new one, about to be loaded; `Table::insert` numbers it.
    pub fn new(target: Target, states: Vec<FileState>, selector: Selector) -> Allocation {
        Allocation {
            id: 0,
            alloc_bytes: 0,
            generation: generation(&states),
            target,
            states,
            selector,
            device: None,
            phase: Phase::Loading,
            progress: Arc::default(),
            leases: HashMap::new(),
            auto_free: false,
            pin: false,
            last_used: 0,
            untold: HashSet::new(),
            untold_other: false,
        }
    }

    /// Whether it may be evicted to make room.
    pub fn evictable(&self) -> bool {
        matches!(self.phase, Phase::Resident(_)) && self.leases.is_empty() && !self.pin
    }

    /// Whether it is freed some time after its last lease. PIN overrides AUTO_FREE.
    pub fn ends_with_leases(&self) -> bool {
        self.auto_free && !self.pin
    }

    /// Whether this user may read every file that the bytes come from; `None` is the owner or root.
    pub fn open_to(&self, stranger: Option<u32>) -> bool {
        stranger.is_none_or(|uid| self.target.sources.readable_by(uid))
    }

    /// Whether the upload failed.
    pub fn failed(&self) -> bool {
        matches!(self.phase, Phase::Failed(..))
    }
}
