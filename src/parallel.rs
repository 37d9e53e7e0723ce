//! Runs numbered pieces of work on all cores and returns the results in order.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::error::Result;

/// The results of `work(0)`, `work(1)` … `work(n - 1)`. Pieces are started in that order, so that
/// files are read forward. A single piece runs on the caller's thread.
///
/// # Errors
/// The error of the lowest piece that failed. Pieces after it may not have been started.
pub fn ordered<T: Send>(n: usize, work: impl Fn(usize) -> Result<T> + Sync) -> Result<Vec<T>> {
    ordered_on(threads(), n, work)
}

/// How many threads can run at the same time.
pub fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// As [`ordered`], on at most that many threads, of which one is the caller's.
///
/// # Errors
/// As [`ordered`].
pub fn ordered_on<T: Send>(
    threads: usize,
    n: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    if threads <= 1 || n <= 1 {
        return (0..n).map(work).collect();
    }
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let done: Mutex<Vec<Option<Result<T>>>> = Mutex::new((0..n).map(|_| None).collect());
    let worker = || {
        while !failed.load(Ordering::Relaxed) {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= n {
                break;
            }
            let result = work(i);
            if result.is_err() {
                failed.store(true, Ordering::Relaxed);
            }
            done.lock().unwrap_or_else(PoisonError::into_inner)[i] = Some(result);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(n) {
            let started = std::thread::Builder::new().spawn_scoped(scope, worker);
            if started.is_err() {
                // Those that there are do all the work.
                break;
            }
        }
        worker();
    });
    // Pieces are started in order, so a piece that was not started comes after one that failed.
    let done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Error;

    #[test]
    fn results_come_in_order_and_the_first_error_wins() {
        for threads in [1, 2, 5] {
            let squares = ordered_on(threads, 100, |i| Ok(i * i)).unwrap();
            assert_eq!(squares, (0..100).map(|i| i * i).collect::<Vec<_>>());
            let error = ordered_on(threads, 100, |i| match i {
                40.. => Err(Error::data(i.to_string(), "bad")),
                _ => Ok(()),
            });
            assert_eq!(error.unwrap_err().to_string(), "40: bad");
        }
        assert!(ordered(0, Ok).unwrap().is_empty());
    }
}
