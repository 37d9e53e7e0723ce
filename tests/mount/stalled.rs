//! A source that stalls blocks only its own readers.
//!
//! One shard of the model lies on a FUSE filesystem that stops answering: a second stfs mount, whose
//! `files/` holds the shard and whose daemon is stopped with a signal.

use std::io;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use safetensors::Dtype;

use crate::common::gguf::{V, counting, splits};
use crate::common::model::{ModelDir, T, tensor};
use crate::common::mount::Mounted;
pub use crate::common::sys::Stopped;
use crate::common::sys::{getxattr, read_direct};

const READERS: usize = 64;
/// The distance between readers, so that one's read-ahead does not fetch another's bytes.
const APART: usize = 1 << 20;
const READ: usize = 64 << 10;
/// The first mebibytes may have been read ahead with the header: nobody reads them.
const READ_AHEAD: usize = 8 << 20;
/// How long other requests may take meanwhile. On an idle machine they take milliseconds; those that
/// do wait for the shard wait until it continues.
pub const SOON: Duration = Duration::from_secs(20);

/// A model of two shards, one of them on another mount.
pub struct Model {
    stuck: T,
    healthy: T,
    pub upper: Mounted,
    pub lower: Mounted,
    _dirs: [ModelDir; 2],
}

pub fn model(threads: &str) -> Model {
    let stuck = tensor(
        "stuck",
        Dtype::BF16,
        &[(READ_AHEAD + (READERS + 1) * APART) / 2],
    );
    let healthy = tensor("healthy", Dtype::BF16, &[4 * APART / 2]);
    let below = ModelDir::of(&[tensor("a", Dtype::U8, &[1])]);
    below.shard("stuck.safetensors", std::slice::from_ref(&stuck));
    let lower = Mounted::new(below.path());
    let dir = ModelDir::new();
    dir.shard("healthy.safetensors", std::slice::from_ref(&healthy));
    let shard = lower.join("files/stuck.safetensors");
    symlink(shard, dir.join("stuck.safetensors")).unwrap();
    let pairs = [
        ("stuck", "stuck.safetensors"),
        ("healthy", "healthy.safetensors"),
    ];
    dir.index("model.safetensors.index.json", pairs);
    let upper = Mounted::with(dir.path(), &["--threads", threads]);
    Model {
        stuck,
        healthy,
        upper,
        lower,
        _dirs: [below, dir],
    }
}

/// Readers of the stalled shard, half of them of its `f32`. Each checks its bytes.
pub fn readers(m: &Model, done: &Arc<AtomicUsize>) -> Vec<JoinHandle<io::Result<bool>>> {
    let read = |i: usize| {
        let at = READ_AHEAD + i * APART;
        let (file, offset) = match i % 2 {
            0 => ("raw", at),
            _ => ("f32", 2 * at),
        };
        let path = m.upper.join(&format!("tensors/stuck/{file}"));
        let raw = m.stuck.data[at..at + READ].to_vec();
        let done = done.clone();
        move || {
            let got = read_direct(&path, offset as u64, READ);
            done.fetch_add(1, Ordering::SeqCst);
            let want = match file {
                "raw" => raw,
                _ => crate::common::naive::f32_bytes(Dtype::BF16, &raw[..READ / 2]).unwrap(),
            };
            got.map(|bytes| bytes == want)
        }
    };
    (0..READERS).map(|i| std::thread::spawn(read(i))).collect()
}

/// Runs `work`, which must not take long.
fn soon<R: Send + 'static>(what: &str, work: impl FnOnce() -> R + Send + 'static) -> R {
    let (tx, rx) = std::sync::mpsc::channel();
    let start = Instant::now();
    std::thread::spawn(move || tx.send(work()));
    let result = rx.recv_timeout(SOON);
    println!("{what}: {:.1?}", start.elapsed());
    result.unwrap_or_else(|_| panic!("{what} waits while a shard stalls"))
}

fn nothing_else_stops(threads: &str) {
    let m = model(threads);
    let done = Arc::new(AtomicUsize::new(0));
    let stopped = Stopped::new(m.lower.pid());
    let readers = readers(&m, &done);
    // Give them time to start: whether they wait cannot be observed.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(done.load(Ordering::SeqCst), 0, "the shard does not stall");

    let at = |path: &str| m.upper.join(path);
    let read = |path: &str, offset: u64, len: usize| {
        let file = at(path);
        soon(path, move || read_direct(&file, offset, len).unwrap())
    };
    let raw = read("tensors/healthy/raw", 5, READ);
    assert!(raw == m.healthy.data[5..5 + READ]);
    let f32 = read("tensors/healthy/f32", 0, READ);
    assert!(
        f32 == crate::common::naive::f32_bytes(Dtype::BF16, &m.healthy.data[..READ / 2]).unwrap()
    );
    let whole = at("tensors/healthy/raw");
    let whole = soon("all of healthy/raw, buffered", move || {
        std::fs::read(whole).unwrap()
    });
    assert!(whole == m.healthy.data);
    for dir in ["", "tensors", "npy", "tree", "export", "tensors/stuck"] {
        let path = at(dir);
        let list = move || std::fs::read_dir(path).unwrap().count();
        assert!(soon(&format!("ls {dir}"), list) > 0);
    }
    for file in ["tensors/stuck/f32", "npy/stuck.npy", "index.json"] {
        let path = at(file);
        assert!(
            soon(&format!("stat {file}"), move || path
                .metadata()
                .unwrap()
                .len())
                > 0
        );
    }
    let index = at("index.json");
    soon("cat index.json", move || std::fs::read(index).unwrap());
    let root = m.upper.root().to_path_buf();
    for _ in 0..3 {
        let root = root.clone();
        let status = soon("user.stfs.status", move || status(&root));
        assert_eq!(status["source_changed"], false);
    }
    assert_eq!(m.upper.status()["pid"], m.upper.pid(), "stfs mounts");
    assert_eq!(done.load(Ordering::SeqCst), 0, "the readers still wait");

    drop(stopped);
    for reader in readers {
        assert!(reader.join().unwrap().unwrap(), "its bytes are right");
    }
}

/// `metadata.json`, and the exports of a set of splits, are made from the file.
#[test]
fn a_stalled_gguf_is_listed() {
    let below = ModelDir::of(&[tensor("a", Dtype::U8, &[1])]);
    // An array of 64-bit numbers. It is passed over when the model is opened, so that no cache has it.
    let count = READ_AHEAD / 4;
    let mut array = 10u32.to_le_bytes().to_vec();
    array.extend((count as u64).to_le_bytes());
    array.resize(array.len() + 8 * count, 0);
    let long = V::Raw(9, array);
    let tensors = [counting("t", 4, 0.0)];
    for (name, file) in splits("m", &[("long", long)], &[&tensors, &[]]) {
        below.file(&name, file.bytes());
    }
    let lower = Mounted::new(below.path());
    let upper = Mounted::new(&lower.join("files/m-00001-of-00002.gguf"));
    let stopped = Stopped::new(lower.pid());
    let list = |dir: &'static str| {
        let path = upper.join(dir);
        soon(&format!("ls {dir}"), move || {
            std::fs::read_dir(path).unwrap().count()
        })
    };
    assert_eq!(list(""), 9);
    assert_eq!(list("export"), 6);
    drop(stopped);
    let json = upper.json("metadata.json");
    assert_eq!(json["long"]["value"].as_array().unwrap().len(), count);
}

fn status(root: &Path) -> serde_json::Value {
    let status = getxattr(root, "user.stfs.status").unwrap();
    serde_json::from_slice(&status).unwrap()
}

#[test]
fn readers_of_a_stalled_shard_stop_nothing_else() {
    nothing_else_stops("16");
}

#[test]
fn not_even_with_one_reading_thread() {
    nothing_else_stops("1");
}
