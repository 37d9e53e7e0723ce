//! What is answered at once, and what waits.

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::*;
use crate::dtype::Dtype;
use crate::ioctl;
use crate::layout::TensorFile;
use crate::model::{Model, ModelOptions};
use crate::patience::{Patience, with};
use crate::quant::testing::{Stored, TestModel, stored};

mod listing;

const ROOT: u64 = 1;

const CALLER: Caller = Caller {
    uid: 0,
    gid: 0,
    pid: 0,
};

/// A 4-bit layer of bitsandbytes, whose shape is in tensor data.
fn layer_with_facts(module: &str) -> Vec<Stored> {
    let state = json!({"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [8, 8]});
    let state = state.to_string();
    let floats = |n: usize| [0u8, 0, 128, 63].repeat(n);
    let name = |end: &str| format!("{module}.weight{end}");
    vec![
        stored(&name(""), Dtype::U8, &[32, 1], vec![0x21; 32]),
        stored(&name(".absmax"), Dtype::F32, &[1], floats(1)),
        stored(&name(".quant_map"), Dtype::F32, &[16], floats(16)),
        stored(
            &name(".quant_state.bitsandbytes__nf4"),
            Dtype::U8,
            &[state.len() as u64],
            state,
        ),
    ]
}

/// A mount's answers for a model with and without facts.
struct Mount {
    fs: Arc<Fs>,
    _dir: tempfile::TempDir,
}

fn mount() -> Mount {
    let mut tensors = vec![stored("plain", Dtype::F32, &[2, 2], vec![7; 16])];
    tensors.extend(layer_with_facts("q_proj"));
    let TestModel { catalog, _dir } = TestModel::safetensors(&tensors, Value::Null);
    let model = Model::new(catalog, ModelOptions::default());
    let fs = Arc::new(Fs::new(Layout::new(model.into())));
    Mount { fs, _dir }
}

fn is_ready<T>(answer: &Answer<T>) -> bool {
    matches!(answer, Answer::Ready(_))
}

/// With the patience of a request thread that may wait for nothing.
fn at_once<T>(ask: impl FnOnce() -> Answer<T>) -> Answer<T> {
    with(Patience::None, ask)
}

/// With that of one that may wait for sources.
fn from_sources<T>(ask: impl FnOnce() -> Answer<T>) -> Answer<T> {
    with(Patience::Sources, ask)
}

#[derive(Default)]
struct Names {
    all: Vec<(u64, String, Attr)>,
    /// Names of those that have attributes.
    known: Vec<String>,
}

impl Entries for Names {
    fn add(&mut self, next: u64, name: &str, attr: &Attr, known: bool) -> bool {
        self.all.push((next, name.into(), *attr));
        self.known.extend(known.then(|| name.into()));
        true
    }
}

impl Mount {
    fn ino(&self, path: &[&str]) -> u64 {
        path.iter().fold(ROOT, |dir, name| {
            self.fs.lookup(dir, name).wait(&self.fs).unwrap().ino
        })
    }

    fn open(&self, path: &[&str]) -> u64 {
        self.fs
            .open(self.ino(path), CALLER)
            .wait(&self.fs)
            .unwrap()
            .0
    }

    /// Every inode, found with all patience.
    fn all(&self) -> Vec<u64> {
        let mut all = vec![ROOT];
        let mut at = 0;
        while at < all.len() {
            let listed = self.fs.readdir(all[at], 2, true, Names::default());
            all.extend(
                listed
                    .wait(&self.fs)
                    .0
                    .all
                    .iter()
                    .map(|(.., attr)| attr.ino),
            );
            at += 1;
        }
        all
    }
}

#[test]
fn what_headers_settle_is_ready_and_what_needs_facts_waits() {
    let m = mount();
    let fs = &m.fs;
    let dir = |name| at_once(|| fs.lookup(ROOT, name));
    for name in ["tensors", "npy", "preview", "tree", "files"] {
        assert!(is_ready(&dir(name)), "{name}");
    }
    let tensors = Node::Top(Top::Tensors).ino();
    assert!(is_ready(&at_once(|| fs.getattr(tensors))));
    assert!(is_ready(&at_once(|| fs.lookup(tensors, "none"))));
    assert!(is_ready(&at_once(|| fs.lookup(tensors, "plain"))));
    let layer = |name| at_once(|| fs.lookup(tensors, name));
    let waits = layer("q_proj.weight");
    assert!(!is_ready(&waits));
    let attr = waits.wait(fs).unwrap();
    assert!(is_ready(&layer("q_proj.weight")));
    let weight = attr.ino;
    for name in ["raw", "f32", "meta.json"] {
        assert!(is_ready(&at_once(|| fs.lookup(weight, name))), "{name}");
    }
}

#[test]
fn generated_files_wait_until_they_are_measured() {
    let m = mount();
    let fs = &m.fs;
    for name in ["index.json", "model.json"] {
        assert!(!is_ready(&at_once(|| fs.lookup(ROOT, name))), "{name}");
        let attr = at_once(|| fs.lookup(ROOT, name)).wait(fs).unwrap();
        assert!(attr.size > 0);
        assert!(is_ready(&at_once(|| fs.lookup(ROOT, name))), "{name}");
        assert!(!is_ready(&at_once(|| fs.open(attr.ino, CALLER))), "{name}");
        let (fh, _) = at_once(|| fs.open(attr.ino, CALLER)).wait(fs).unwrap();
        // What is in memory is read on any thread, and opened again as long as it is held.
        assert!(is_ready(&at_once(|| fs.read(fh, 0, 9, |_| ()))));
        assert!(is_ready(&at_once(|| fs.open(attr.ino, CALLER))));
    }
}

#[test]
fn a_read_touches_a_source_only_where_it_may() {
    let m = mount();
    let fs = &m.fs;
    let raw = m.ino(&["tensors", "plain", "raw"]);
    assert!(!is_ready(&at_once(|| fs.open(raw, CALLER))));
    let Answer::Ready(Ok((fh, _))) = from_sources(|| fs.open(raw, CALLER)) else {
        panic!("it opens");
    };
    fs.release(fh);
    for (path, want) in [
        (&["tensors", "plain", "raw"][..], vec![7; 4]),
        (&["tensors", "plain", "f32"], vec![7; 4]),
        (&["npy", "plain.npy"], b"\x93NUM".to_vec()),
        (&["export", "model.safetensors"], Vec::new()),
    ] {
        let fh = m.open(path);
        let (tx, rx) = mpsc::channel();
        let read = |tx: mpsc::Sender<Vec<u8>>| {
            fs.read(fh, 0, 4, move |b| tx.send(b.unwrap().to_vec()).unwrap())
        };
        let waits = at_once(|| read(tx.clone()));
        assert!(!is_ready(&waits) && rx.try_recv().is_err(), "{path:?}");
        waits.wait(fs);
        let waited = rx.try_recv().unwrap();
        assert!(is_ready(&from_sources(|| read(tx))), "{path:?}");
        assert_eq!(rx.try_recv().unwrap(), waited);
        assert!(want.is_empty() || want == waited, "{path:?}");
        assert!(rx.try_recv().is_err(), "it is answered once");
        fs.release(fh);
    }
    let none = fs.handles.get(1).is_none();
    assert!(
        none,
        "an attempt to open that does not count keeps no handle"
    );
}

#[test]
fn a_picture_is_not_made_on_a_request_thread() {
    let m = mount();
    let fs = &m.fs;
    let fh = m.open(&["preview", "plain.png"]);
    let read = || {
        fs.read(fh, 1, 3, |bytes| {
            assert_eq!(bytes.unwrap().to_vec(), b"PNG")
        })
    };
    assert!(!is_ready(&from_sources(read)));
    from_sources(read).wait(fs);
    assert!(is_ready(&from_sources(read)));
}

#[test]
fn a_read_is_as_long_as_it_was_asked_for() {
    const LEN: usize = 5 << 20;
    let tensors = [stored("long", Dtype::BF16, &[LEN as u64 / 2], vec![1; LEN])];
    let model = TestModel::safetensors(&tensors, Value::Null);
    let TestModel { catalog, _dir } = model;
    let model = Model::new(catalog, ModelOptions::default());
    let fs = Arc::new(Fs::new(Layout::new(model.into())));
    let m = Mount { fs, _dir };
    for (file, len) in [("raw", LEN), ("f32", 2 * LEN)] {
        let fh = m.open(&["tensors", "long", file]);
        for patience in [Patience::Sources, Patience::Full] {
            let answer = with(patience, || {
                m.fs.read(fh, 1, u32::MAX, move |b| {
                    assert_eq!(b.unwrap().len(), len - 1)
                })
            });
            assert!(is_ready(&answer));
        }
    }
}

#[test]
fn attributes_and_ioctls_wait_as_their_files_do() {
    let m = mount();
    let fs = &m.fs;
    assert!(!is_ready(
        &at_once(|| fs.getxattr(ROOT, "user.stfs.status"))
    ));
    assert!(is_ready(&at_once(|| fs.getxattr(ROOT, "security.selinux"))));
    assert!(is_ready(&at_once(|| fs.listxattr(ROOT))));
    let ids = |name| fs.layout.model.id(name).unwrap();
    let weight = Node::TensorFile(TensorFile::F32, ids("q_proj.weight")).ino();
    assert!(is_ready(&at_once(|| fs.getxattr(weight, "user.other"))));
    let shape = || at_once(|| fs.getxattr(weight, "user.stfs.shape"));
    assert!(!is_ready(&shape()));
    assert!(!is_ready(&at_once(|| fs.listxattr(weight))));
    assert_eq!(shape().wait(fs).unwrap(), b"8,8");
    assert!(is_ready(&shape()));
    let names = at_once(|| fs.listxattr(weight)).wait(fs).unwrap();
    assert_eq!(names.iter().filter(|&&b| b == 0).count(), 4);

    let ioctl = |ino, code| at_once(|| fs.ioctl(ino, None, code, &[], 0, Box::new(|_, _| ())));
    let tensors = Node::Top(Top::Tensors).ino();
    assert!(
        !is_ready(&ioctl(tensors, ioctl::QUERY)),
        "the arena is laid out"
    );
    ioctl(tensors, ioctl::QUERY).wait(fs);
    assert!(is_ready(&ioctl(tensors, ioctl::QUERY)));
    assert!(is_ready(&ioctl(ROOT, 7)));
}

/// In debug builds a source that is touched outside of an attempt is a panic.
#[test]
fn no_request_waits_with_no_patience() {
    for known in [false, true] {
        let m = mount();
        let fs = &m.fs;
        // Found through a mount of its own, so that nothing is known in this one.
        let all = mount().all();
        if known {
            let _ = m.all();
        }
        for patience in [Patience::None, Patience::Sources] {
            with(patience, || {
                for &ino in &all {
                    let _ = fs.getattr(ino);
                    let _ = fs.readlink(ino);
                    let _ = fs.lookup(ino, "raw");
                    let _ = fs.readdir(ino, 0, true, Names::default());
                    let _ = fs.getxattr(ino, "user.stfs.shape");
                    let _ = fs.getxattr(ino, "user.stfs.status");
                    let _ = fs.listxattr(ino);
                    let _ = fs.ioctl(ino, None, ioctl::UPLOAD, &[], 0, Box::new(|_, _| ()));
                    if let Answer::Ready(Ok((fh, _))) = fs.open(ino, CALLER) {
                        let _ = fs.read(fh, 0, 100, |_| ());
                        fs.release(fh);
                    }
                }
                fs.statfs();
            });
        }
    }
}

#[test]
fn the_status_does_not_wait_for_a_source_that_hangs() {
    let m = mount();
    let fs = &m.fs;
    let status = || {
        let start = Instant::now();
        let json = fs.getxattr(ROOT, "user.stfs.status").wait(fs).unwrap();
        let json: Value = serde_json::from_slice(&json).unwrap();
        (json["source_changed"].clone(), start.elapsed())
    };
    assert_eq!(status().0, false);
    let path = fs.layout.model.catalog.files[0]
        .location()
        .path()
        .unwrap()
        .to_path_buf();
    let file = std::fs::File::options().write(true).open(path).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH)
        .unwrap();
    // As if a thread hung in its fstat.
    fs.looking[0].store(true, Ordering::Relaxed);
    assert_eq!(status().0, false, "what was last seen");
    fs.looking[0].store(false, Ordering::Relaxed);
    assert_eq!(status().0, true);
    // Threads of the pool that hang, and a source that hangs in the look itself.
    let (go, gate) = mpsc::channel::<()>();
    let hang = move || {
        let _ = gate.recv();
    };
    fs.pool.run(hang).unwrap();
    let (_, took) = status();
    assert!(took < Duration::from_millis(500), "{took:?}");
    drop(go);
}

#[test]
fn a_read_that_fails_serves_nothing() {
    let m = mount();
    let fs = &m.fs;
    let fh = m.open(&["tensors", "plain", "raw"]);
    let file = &fs.layout.model.catalog.files[0];
    let path = file.location().path().unwrap();
    let shard = std::fs::File::options().write(true).open(path).unwrap();
    shard.set_len(1).unwrap();
    fs.read(fh, 0, 4, |bytes| assert!(bytes.is_err())).wait(fs);
    assert_eq!(fs.bytes_served(), 0);
}

#[test]
fn an_inode_number_that_nothing_has_is_an_error() {
    const NONE: u32 = 9999;
    let m = mount();
    let fs = &m.fs;
    for node in [
        Node::TensorDir(NONE),
        Node::TensorFile(TensorFile::Raw, NONE),
        Node::TensorFile(TensorFile::Meta, NONE),
        Node::TreeDir(NONE),
        Node::TreeLink(NONE, 0),
        Node::TreeLink(0, NONE),
        Node::Other(NONE),
    ] {
        let ino = node.ino();
        assert!(fs.getattr(ino).wait(fs).is_err(), "{node:?}");
        assert!(fs.readlink(ino).wait(fs).is_err(), "{node:?}");
        assert!(fs.lookup(ino, "raw").wait(fs).is_err(), "{node:?}");
        assert!(fs.open(ino, CALLER).wait(fs).is_err(), "{node:?}");
        let listed = fs.readdir(ino, 0, true, Names::default()).wait(fs).1;
        assert!(listed.is_err(), "{node:?}");
        let value = fs.getxattr(ino, "user.stfs.name").wait(fs);
        assert!(value.is_err(), "{node:?}");
    }
}
