//! Streams: a thread each, which does what it is given in order; and events.

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use crate::INVALID_HANDLE;
use crate::world::{Code, lock, world};

enum Work {
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    Signal(Arc<Event>),
}

/// How often it was recorded, and how often that has been reached.
#[derive(Default)]
struct Event {
    counts: Mutex<(u64, u64)>,
    reached: Condvar,
}

impl Event {
    fn wait(&self) {
        let mut counts = lock(&self.counts);
        let target = counts.0;
        while counts.1 < target {
            counts = self
                .reached
                .wait(counts)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

#[derive(Default)]
struct Table {
    streams: HashMap<usize, Sender<Work>>,
    events: HashMap<usize, Arc<Event>>,
    last: usize,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

fn with<T>(f: impl FnOnce(&mut Table) -> T) -> T {
    f(lock(&TABLE).get_or_insert_default())
}

pub fn create() -> usize {
    let (work, queue) = channel();
    std::thread::spawn(move || {
        for one in queue {
            match one {
                Work::Copy { to, from, bytes } => copy_now(to, from, bytes),
                Work::Signal(event) => {
                    lock(&event.counts).1 += 1;
                    event.reached.notify_all();
                }
            }
        }
    });
    world().note("+stream");
    with(|t| {
        t.last += 1;
        t.streams.insert(t.last, work);
        t.last
    })
}

fn copy_now(to: usize, from: usize, bytes: usize) {
    let start = Instant::now();
    // SAFETY: both ranges were checked when the copy was asked for, and neither is freed before
    // all streams have been drained.
    unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
    if let Some(bandwidth) = world().bandwidth {
        let should_take = Duration::from_secs_f64(bytes as f64 / bandwidth);
        std::thread::sleep(should_take.saturating_sub(start.elapsed()));
    }
}

fn stream(raw: usize) -> Result<Sender<Work>, Code> {
    with(|t| t.streams.get(&raw).cloned()).ok_or(INVALID_HANDLE)
}

pub fn copy(raw: usize, to: usize, from: usize, bytes: usize) -> Result<(), Code> {
    let work = Work::Copy { to, from, bytes };
    stream(raw)?.send(work).map_err(|_| INVALID_HANDLE)
}

pub fn drain(raw: usize) -> Result<(), Code> {
    let event = Arc::new(Event::default());
    signal(&event, &stream(raw)?)?;
    event.wait();
    Ok(())
}

/// What freeing memory does with a driver, too: waits for all that is under way.
pub fn drain_all() {
    let all: Vec<usize> = with(|t| t.streams.keys().copied().collect());
    for raw in all {
        let _ = drain(raw);
    }
}

pub fn destroy(raw: usize) -> Result<(), Code> {
    drain(raw)?;
    with(|t| t.streams.remove(&raw)).ok_or(INVALID_HANDLE)?;
    world().note("-stream");
    Ok(())
}

fn signal(event: &Arc<Event>, stream: &Sender<Work>) -> Result<(), Code> {
    lock(&event.counts).0 += 1;
    let sent = stream.send(Work::Signal(event.clone()));
    sent.map_err(|_| INVALID_HANDLE)
}

pub fn create_event() -> usize {
    world().note("+event");
    with(|t| {
        t.last += 1;
        t.events.insert(t.last, Arc::default());
        t.last
    })
}

fn event(raw: usize) -> Result<Arc<Event>, Code> {
    with(|t| t.events.get(&raw).cloned()).ok_or(INVALID_HANDLE)
}

pub fn record(raw: usize, on: usize) -> Result<(), Code> {
    signal(&event(raw)?, &stream(on)?)
}

pub fn wait(raw: usize) -> Result<(), Code> {
    event(raw)?.wait();
    Ok(())
}

pub fn destroy_event(raw: usize) -> Result<(), Code> {
    with(|t| t.events.remove(&raw)).ok_or(INVALID_HANDLE)?;
    world().note("-event");
    Ok(())
}
