//! Devices, contexts, and what the environment says of them.

use std::cell::Cell;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::{CONTEXT_IS_DESTROYED, INVALID_CONTEXT, INVALID_DEVICE, NOT_INITIALIZED};

/// A `CUresult` that is not success.
pub type Code = u32;

pub struct World {
    pub devices: i32,
    pub capacity: usize,
    pub bandwidth: Option<f64>,
    pub started: AtomicBool,
    /// Each device's primary context.
    contexts: Mutex<Vec<Context>>,
    ledger: Option<Mutex<std::fs::File>>,
}

/// A primary context: how often it is retained, and what every call in it fails with, if it does.
#[derive(Clone, Default)]
struct Context {
    retained: u32,
    ruined: Option<Code>,
}

thread_local! {
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The number that an environment variable gives.
fn number(name: &str) -> Option<usize> {
    std::env::var(name).ok()?.parse().ok()
}

pub fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(|| {
        let devices = number("STFS_CUDA_DOUBLE_DEVICES").unwrap_or(2);
        let ledger = std::env::var_os("STFS_CUDA_DOUBLE_LEDGER").map(|path| {
            let file = std::fs::File::options()
                .create(true)
                .append(true)
                .open(path);
            Mutex::new(file.expect("open the ledger"))
        });
        World {
            devices: devices as i32,
            capacity: number("STFS_CUDA_DOUBLE_MEMORY").unwrap_or(1 << 30),
            bandwidth: number("STFS_CUDA_DOUBLE_BANDWIDTH").map(|b| b as f64),
            started: AtomicBool::new(false),
            contexts: Mutex::new(vec![Context::default(); devices]),
            ledger,
        }
    })
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The device of this thread's current context.
pub fn current() -> Result<i32, Code> {
    let world = world().up()?;
    let device = CURRENT.get().checked_sub(1).ok_or(INVALID_CONTEXT)?;
    let contexts = lock(&world.contexts);
    let alive = contexts.get(device).filter(|c| c.retained > 0);
    match alive.ok_or(CONTEXT_IS_DESTROYED)?.ruined {
        Some(code) => Err(code),
        None => Ok(device as i32),
    }
}

impl World {
    pub fn up(&self) -> Result<&World, Code> {
        match self.started.load(Ordering::SeqCst) {
            true => Ok(self),
            false => Err(NOT_INITIALIZED),
        }
    }

    pub fn device(&self, ordinal: i32) -> Result<i32, Code> {
        match (0..self.up()?.devices).contains(&ordinal) {
            true => Ok(ordinal),
            false => Err(INVALID_DEVICE),
        }
    }

    /// The context is the device's number + 1.
    pub fn retain(&self, device: i32) -> Result<usize, Code> {
        let device = self.device(device)? as usize;
        lock(&self.contexts)[device].retained += 1;
        self.note("+context");
        Ok(device + 1)
    }

    pub fn release(&self, device: i32) -> Result<(), Code> {
        let device = self.device(device)?;
        let ended = {
            let context = &mut lock(&self.contexts)[device as usize];
            context.retained = context.retained.checked_sub(1).ok_or(INVALID_CONTEXT)?;
            match context.retained {
                0 => std::mem::take(context),
                _ => Context::default(),
            }
        };
        self.note("-context");
        if ended.ruined.is_some() {
            // Memory that was not freed goes with its context.
            crate::streams::drain_all();
            crate::memory::free_all(device);
        }
        Ok(())
    }

    /// From now on nothing works in a device's context.
    pub fn ruin(&self, device: i32, code: Code) {
        lock(&self.contexts)[device as usize].ruined = Some(code);
    }

    pub fn make_current(&self, context: usize) -> Result<(), Code> {
        self.up()?;
        if context > self.devices as usize {
            return Err(INVALID_CONTEXT);
        }
        CURRENT.set(context);
        Ok(())
    }

    /// Writes a line to the ledger.
    pub fn note(&self, line: &str) {
        if let Some(ledger) = &self.ledger {
            let _ = lock(ledger).write_all(format!("{line}\n").as_bytes());
        }
    }
}
