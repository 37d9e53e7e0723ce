//! What happens to the sources, to other readers and to the machine while files are read.

use std::fs::File as StdFile;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use stfs::ioctl::{self, GpuIo, Header};

use crate::common::{stfs, sys};
use crate::models::Scene;
use crate::numbers::Numbers;
use crate::process::server;
use crate::readers::{Danger, File, Shared};

/// A thread of faults. It returns what it did, once everything is as before.
pub type Faults = JoinHandle<String>;

/// One kind of fault after another, until it is told to stop.
fn thread(
    stop: &Arc<AtomicBool>,
    pause: u64,
    mut numbers: Numbers,
    name: &'static str,
    mut fault: impl FnMut(&mut Numbers) + Send + 'static,
) -> Faults {
    let stop = stop.clone();
    std::thread::spawn(move || {
        let mut count = 0;
        while !stop.load(Ordering::SeqCst) {
            fault(&mut numbers);
            count += 1;
            std::thread::sleep(Duration::from_millis(numbers.next() % pause));
        }
        format!("{count} times: {name}")
    })
}

/// Starts all of them.
pub fn start(
    scene: &Scene,
    files: &Arc<Vec<File>>,
    shared: &Arc<Shared>,
    stop: &Arc<AtomicBool>,
    seed: u64,
) -> Vec<Faults> {
    let numbers = |i: u64| Numbers::new(seed.rotate_left(17) ^ i);
    let harmless = scene.harmless.clone();
    let cut = scene.cut.clone();
    let below = server(scene.below.root());
    let (healthy, paths) = (shared.clone(), paths(files));
    let mountpoints: Vec<PathBuf> = scene.mounts().iter().map(|m| m.to_path_buf()).collect();
    let (any, uploads, reports) = (paths.clone(), shared.clone(), shared.clone());
    let mut all = vec![
        thread(
            stop,
            100,
            numbers(1),
            "a source touched, replaced, or overwritten with the same bytes",
            move |n| {
                unnoticed(n.of::<PathBuf>(&harmless), n.below(3));
            },
        ),
        thread(
            stop,
            150,
            numbers(2),
            "a source cut and restored",
            move |n| truncate(n.of::<PathBuf>(&cut), n),
        ),
        thread(stop, 2_000, numbers(3), "a source stalled", move |n| {
            stall(below, &healthy, n)
        }),
        thread(stop, 300, numbers(4), "a reader killed", move |n| {
            kill_a_reader(n.of::<PathBuf>(&paths), n)
        }),
        thread(
            stop,
            1_500,
            numbers(5),
            "stfs mounts, beside it",
            move |_| list(&mountpoints, &reports),
        ),
        thread(
            stop,
            200,
            numbers(6),
            "an upload to a GPU, refused",
            move |n| gpu(n.of::<PathBuf>(&any), &uploads),
        ),
    ];
    if std::env::var("STRESS_DROP_CACHES").is_ok_and(|v| v == "1") && sys::is_root() {
        all.push(thread(
            stop,
            3_000,
            numbers(7),
            "the page cache dropped",
            |_| {
                std::fs::write("/proc/sys/vm/drop_caches", "1").expect("root may");
            },
        ));
    }
    all
}

/// Those that never wait for long.
fn paths(files: &[File]) -> Vec<PathBuf> {
    let quick = files
        .iter()
        .filter(|f| f.danger == Danger::None && f.want.len() > 100_000);
    quick.map(|f| f.path.clone()).collect()
}

/// What leaves the bytes as they are.
fn unnoticed(source: &Path, kind: usize) {
    let bytes = std::fs::read(source).expect("read the source");
    match kind {
        0 => {
            let file = StdFile::options()
                .write(true)
                .open(source)
                .expect("open the source");
            file.set_modified(SystemTime::now()).expect("touch");
        }
        // The old file lives on for the mount that has it open.
        1 => {
            let new = source.with_extension("part");
            std::fs::write(&new, bytes).expect("write a copy");
            std::fs::rename(new, source).expect("replace the source");
        }
        _ => {
            let file = StdFile::options()
                .write(true)
                .open(source)
                .expect("open the source");
            for (i, piece) in (0u64..).zip(bytes.chunks(64 << 10)) {
                file.write_all_at(piece, i * (64 << 10)).expect("overwrite");
            }
        }
    }
}

fn truncate(source: &Path, numbers: &mut Numbers) {
    let bytes = std::fs::read(source).expect("read the source");
    let file = StdFile::options()
        .write(true)
        .open(source)
        .expect("open the source");
    let left = numbers.below(bytes.len());
    file.set_len(left as u64).expect("truncate");
    std::thread::sleep(Duration::from_millis(numbers.next() % 60));
    file.write_all_at(&bytes[left..], left as u64)
        .expect("restore");
}

/// Stops the mount below another. Whoever reads from elsewhere goes on.
fn stall(below: i32, shared: &Shared, numbers: &mut Numbers) {
    let stopped = sys::Stopped::new(below);
    std::thread::sleep(Duration::from_millis(300 + numbers.next() % 700));
    // Readers choose among all files, so that sooner or later all of them wait for this one.
    let reads = shared.reads.load(Ordering::SeqCst);
    drop(stopped);
    std::thread::sleep(Duration::from_millis(200));
    assert!(shared.reads.load(Ordering::SeqCst) >= reads);
}

/// A process that reads a file and dies of it.
fn kill_a_reader(path: &Path, numbers: &mut Numbers) {
    let mut reader = Command::new("cat")
        .args([path, path, path])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("run cat");
    std::thread::sleep(Duration::from_micros(numbers.next() % 20_000));
    let _ = reader.kill();
    reader.wait().expect("wait for cat");
}

/// All mounts are listed, also while one stalls.
fn list(mountpoints: &[PathBuf], shared: &Shared) {
    let listed = stfs(["mounts", "--json"]);
    let all = || serde_json::from_str::<serde_json::Value>(&listed.out).ok();
    let there = |all: serde_json::Value| {
        let all = all.as_array().cloned().unwrap_or_default();
        mountpoints.iter().all(|m| {
            all.iter()
                .any(|l| l["mountpoint"] == m.to_str().unwrap_or(""))
        })
    };
    if listed.code != 0 || !all().is_some_and(there) {
        shared.fail(format!("stfs mounts: {listed:?}"));
    }
}

/// There is no GPU here, or there is none for us: the file is as good as before. Pictures and documents
/// cannot be uploaded at all, and what was changed meanwhile not any more.
fn gpu(path: &Path, shared: &Shared) {
    let mut io = GpuIo {
        device: -1,
        timeout_ms: 1000,
        ..GpuIo::request()
    };
    let uploaded = StdFile::open(path).and_then(|file| ioctl::upload(file.as_fd(), &mut io));
    match uploaded.err().and_then(|e| e.raw_os_error()) {
        None | Some(libc::ENODEV | libc::ENOTTY | libc::ESTALE) => {}
        Some(errno) => shared.fail(format!("an upload of {path:?}: errno {errno}")),
    }
}
