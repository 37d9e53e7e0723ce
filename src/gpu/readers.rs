//! Fills staging buffers: threads that read pieces of views in parallel.
//!
//! A buffer is cut into pieces; each piece is filled by one thread through `View::read_at`, so
//! widening and dequantizing happen here. The thread that drops the last piece of a buffer sends the
//! buffer on, even if reading failed or a view panicked.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::driver::Staging;
use crate::view::SharedView;

/// Smaller pieces cost more to hand over than they gain in parallelism.
const MIN_PIECE: u64 = 1 << 20;

/// Where pieces end if the view has no grain: at whole pages of the source.
const PAGE: u64 = 4096;

/// Readers yield to the threads that answer the file system if both need a core.
const NICENESS: i32 = 5;

/// A range of a view on its way through a staging buffer.
pub struct Chunk {
    /// Which load it belongs to.
    pub load: u64,
    /// Its first byte in the view, and so in the device memory.
    pub offset: u64,
    /// Its length.
    pub len: usize,
    /// The buffer; its first `len` bytes are the chunk's, if there is no `failure`.
    pub staging: Staging,
    /// Why it could not be read.
    pub failure: Option<String>,
}

/// A chunk being filled, shared by its pieces.
struct Filling {
    chunk: Mutex<Option<Chunk>>,
    filled: AtomicUsize,
    failure: Mutex<Option<String>>,
    done: Box<dyn Fn(Chunk) + Send + Sync>,
}

impl Drop for Filling {
    fn drop(&mut self) {
        let failure = self
            .failure
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        let chunk = self.chunk.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(mut chunk) = chunk.take() {
            chunk.failure = failure.take();
            if *self.filled.get_mut() < chunk.len {
                // Some pieces were never read.
                chunk
                    .failure
                    .get_or_insert_with(|| "the mount is going away".into());
            }
            (self.done)(chunk);
        }
    }
}

/// A part of a chunk's buffer and what to fill it with.
struct Piece {
    view: SharedView,
    offset: u64,
    bytes: NonNull<u8>,
    len: usize,
    filling: Arc<Filling>,
}

// SAFETY: `bytes` points to a range of the buffer that no other piece has: `cut` yields disjoint
// ranges. Nothing else touches the buffer until `Filling` is dropped, and each piece keeps that alive.
unsafe impl Send for Piece {}

impl Piece {
    fn fill(self) {
        // SAFETY: `len` initialized bytes of the pinned buffer that `filling` keeps; disjoint from
        // all other pieces (see above), so this is the only reference to them.
        let buf = unsafe { std::slice::from_raw_parts_mut(self.bytes.as_ptr(), self.len) };
        let read = catch_unwind(AssertUnwindSafe(|| self.view.read_at(self.offset, buf)));
        let failure = match read {
            Ok(Ok(())) => {
                self.filling.filled.fetch_add(self.len, Ordering::Relaxed);
                return;
            }
            Ok(Err(e)) => e.to_string(),
            Err(_) => "reading it panicked, which is a bug in stfs".to_string(),
        };
        let mut slot = self
            .filling
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        slot.get_or_insert(failure);
    }
}

/// The reading threads.
pub struct Readers {
    queue: Arc<Queue>,
    threads: u64,
}

#[derive(Default)]
struct Queue {
    state: Mutex<(VecDeque<Piece>, bool)>,
    changed: Condvar,
}

impl Readers {
    /// Starts `threads` of them, or as many as the system allows.
    ///
    /// # Errors
    /// Not even one thread could be started.
    pub fn new(threads: usize) -> std::io::Result<Readers> {
        let readers = Readers {
            queue: Arc::default(),
            threads: threads.max(1) as u64,
        };
        for i in 0..threads.max(1) {
            let queue = readers.queue.clone();
            let spawned = std::thread::Builder::new()
                .name(format!("stfs-gpu-read{i}"))
                .spawn(move || run(&queue));
            match spawned {
                Ok(_) => {}
                Err(e) if i == 0 => return Err(e),
                Err(_) => break,
            }
        }
        Ok(readers)
    }

    /// Has `chunk` filled from `view`; `done` gets it back.
    pub fn fill(
        &self,
        view: &SharedView,
        mut chunk: Chunk,
        done: impl Fn(Chunk) + Send + Sync + 'static,
    ) {
        let (start, end) = (chunk.offset, chunk.offset + chunk.len as u64);
        let base: NonNull<u8> = NonNull::from(&mut *chunk.staging.bytes).cast();
        assert!(chunk.len <= chunk.staging.bytes.len());
        let filling = Arc::new(Filling {
            chunk: Mutex::new(Some(chunk)),
            filled: AtomicUsize::new(0),
            failure: Mutex::new(None),
            done: Box::new(done),
        });
        let pieces = cut(start, end, view.grain(), self.threads).map(|(from, to)| Piece {
            view: view.clone(),
            offset: from,
            // SAFETY: from - start < chunk.len, which lies within the buffer (asserted above, and
            // `cut` yields ranges within start..end only).
            bytes: unsafe { base.add((from - start) as usize) },
            len: (to - from) as usize,
            filling: filling.clone(),
        });
        let mut state = self
            .queue
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        state.0.extend(pieces);
        self.queue.changed.notify_all();
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        let mut state = self
            .queue
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        state.1 = true;
        let left = std::mem::take(&mut state.0);
        self.queue.changed.notify_all();
        drop(state);
        drop(left);
    }
}

fn run(queue: &Queue) {
    // On Linux this is the calling thread's own. It keeps its priority if this fails.
    let _ = rustix::process::setpriority_process(None, NICENESS);
    let mut state = queue.state.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if state.1 {
            return;
        }
        match state.0.pop_front() {
            Some(piece) => {
                drop(state);
                piece.fill();
                state = queue.state.lock().unwrap_or_else(PoisonError::into_inner);
            }
            None => {
                state = queue
                    .changed
                    .wait(state)
                    .unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}

/// Where to end a range that begins at `start` and may be at most `max` long: at a multiple of the
/// view's grain, so that no row or tile is computed twice, if there is one in reach.
pub fn chunk_end(start: u64, len: u64, max: u64, grain: u64) -> u64 {
    let end = len.min(start.saturating_add(max));
    if end == len || grain <= 1 {
        return end;
    }
    let whole = end / grain * grain;
    if whole > start { whole } else { end }
}

/// Cuts `start..end` into about `parts` ranges that end at multiples of `grain` (pages if that is
/// 1, or too large for it).
fn cut(start: u64, end: u64, grain: u64, parts: u64) -> impl Iterator<Item = (u64, u64)> {
    let piece = ((end - start) / parts).max(MIN_PIECE);
    let step = if (2..=piece).contains(&grain) {
        grain
    } else {
        PAGE
    };
    let mut at = start;
    std::iter::from_fn(move || {
        (at < end).then(|| {
            let stop = at.saturating_add(piece).next_multiple_of(step).min(end);
            let range = (at, stop);
            at = stop;
            range
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_cover_the_range_once_and_end_at_grains() {
        for (start, end, grain, parts) in [
            (0, 1, 1, 8),
            (0, 70_000, 1, 4),
            (7, 32 << 20, 1, 8),
            (96_000_000, 129_000_000, 48_000, 5),
            (0, 33_000_000, 40 << 20, 2),
        ] {
            let ranges: Vec<_> = cut(start, end, grain, parts).collect();
            assert_eq!(ranges[0].0, start);
            assert_eq!(ranges[ranges.len() - 1].1, end);
            for pair in ranges.windows(2) {
                assert_eq!(pair[0].1, pair[1].0);
                let step = if grain > 1 && grain < 20 << 20 {
                    grain
                } else {
                    PAGE
                };
                assert_eq!(pair[0].1 % step, 0);
            }
        }
    }

    #[test]
    fn chunks_end_at_grains_where_they_can() {
        assert_eq!(chunk_end(0, 100, 64, 1), 64);
        assert_eq!(chunk_end(0, 100, 64, 48), 48);
        assert_eq!(chunk_end(48, 100, 64, 48), 100);
        assert_eq!(chunk_end(0, 1000, 64, 500), 64);
        assert_eq!(chunk_end(u64::MAX - 1, u64::MAX, 64, 1), u64::MAX);
    }
}
