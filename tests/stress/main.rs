//! Sixty-four readers of several mounts, every byte compared with bytes computed beforehand, while faults
//! from a seed happen to the sources, to other readers and to the machine.
//!
//! In `cargo test` it runs for a few seconds, in CI for a minute, and by hand for as long as you like:
//!
//! ```text
//! STRESS_SECONDS=7200 cargo test --release --test stress -- --nocapture
//! ```
//!
//! Beside it ([`fsx`]), one reader compares long random sequences of operations with a file in memory.
//!
//! `STRESS_SEED` repeats the choices of a run (not the timing of its threads), `STRESS_READERS` sets the
//! number of readers, and with `STRESS_DROP_CACHES=1` root also drops the machine's page cache now and then.

#[path = "../common/mod.rs"]
mod common;

mod faults;
mod fsx;
mod models;
mod numbers;
mod process;
mod readers;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use numbers::Numbers;
use readers::{File, Shared};

/// A number from the environment.
fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name}={value} is not a number"))
    })
}

/// The seed, which is printed, and how long to run.
fn seed_and_time() -> (u64, Duration) {
    let time = setting("STRESS_SECONDS", 4);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = setting("STRESS_SEED", now.map_or(1, |d| d.as_nanos() as u64));
    println!("STRESS_SEED={seed} STRESS_SECONDS={time}");
    (seed, Duration::from_secs(time))
}

/// Readers of all files.
fn start_readers(files: &Arc<Vec<File>>, shared: &Arc<Shared>, seed: u64) -> Vec<Reader> {
    let count = setting("STRESS_READERS", 64);
    let start = |i: u64| {
        let (files, shared) = (files.clone(), shared.clone());
        let numbers = Numbers::new(seed ^ (i + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        std::thread::spawn(move || readers::run(&files, &shared, numbers))
    };
    (0..count).map(start).collect()
}

type Reader = std::thread::JoinHandle<()>;

fn join(readers: Vec<Reader>, shared: &Shared) {
    shared.stop.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.join().expect("a reader does not panic");
    }
}

/// Sleeps until then, or until a reader has found something wrong.
fn until(then: Instant, shared: &Shared) {
    while Instant::now() < then && !shared.failed() {
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn every_byte_is_right_through_faults_and_nothing_grows() {
    let (seed, time) = seed_and_time();
    let mut scene = models::Scene::new(seed);
    let files = Arc::new(std::mem::take(&mut scene.files));
    println!(
        "{} mounts, {} files, {:.1} MB in all of their views",
        scene.mounts().len(),
        files.len(),
        files.iter().map(|f| f.want.len()).sum::<usize>() as f64 / 1e6
    );
    // Warmed up without faults: all threads and buffers are there afterwards.
    let shared = Arc::new(Shared::default());
    let readers = start_readers(&files, &shared, !seed);
    until(Instant::now() + time / 4, &shared);
    join(readers, &shared);
    shared.check();
    let before: Vec<_> = scene.mounts().iter().map(|m| process::idle(m)).collect();

    let shared = Arc::new(Shared::default());
    let readers = start_readers(&files, &shared, seed);
    let stop = Arc::new(AtomicBool::new(false));
    let faults = faults::start(&scene, &files, &shared, &stop, seed);
    until(Instant::now() + time - time / 4, &shared);
    stop.store(true, Ordering::SeqCst);
    let happened = faults
        .into_iter()
        .map(|f| f.join().expect("a fault does not panic"));
    let happened: Vec<String> = happened.collect();
    join(readers, &shared);
    println!("{}", shared.report());
    println!("{}", happened.join("\n"));
    shared.check();

    // The sources are whole again, and each file is, to whoever opens it.
    for file in files.iter() {
        let got = std::fs::read(&file.path).unwrap_or_else(|e| panic!("{:?}: {e}", file.path));
        assert!(got == file.want[..], "{:?} at the end", file.path);
    }
    for (mount, before) in scene.mounts().iter().zip(before) {
        process::is_flat(mount, before);
    }
}
