//! The model's files change while it is mounted.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use safetensors::Dtype;

use crate::common::sys::{errno, pread_all, read_direct};
use crate::common::{ModelDir, Mounted, T, naive, tensor};

const ROWS: usize = 700_001;

/// Two shards of one large tensor each, and where the first's data begins.
fn model() -> (ModelDir, [T; 2], u64) {
    let all = ["a", "b"].map(|n| tensor(n, Dtype::BF16, &[ROWS]));
    let dir = ModelDir::sharded(&[("1.safetensors", &all[..1]), ("2.safetensors", &all[1..])]);
    let len = dir.join("1.safetensors").metadata().unwrap().len();
    (dir, all, len - 2 * ROWS as u64)
}

fn writable(dir: &ModelDir, name: &str) -> File {
    File::options().write(true).open(dir.join(name)).unwrap()
}

/// Reads a range: all of it, or an error.
fn range(m: &Mounted, file: &str, from: u64, len: usize) -> io::Result<Vec<u8>> {
    pread_all(&File::open(m.join(file))?, from, len, 70_000)
}

#[test]
fn reads_past_a_truncated_end_are_eio_and_the_rest_goes_on() {
    let (dir, [a, b], start) = model();
    let m = Mounted::new(dir.path());
    // In the middle of a page of the file, and of an element.
    let left = 600_001usize;
    writable(&dir, "1.safetensors")
        .set_len(start + left as u64)
        .unwrap();
    let f32 = naive::f32_bytes(Dtype::BF16, &a.data).unwrap();
    let npy = [naive::npy_header("<f4", &[ROWS]), f32.clone()].concat();
    // How many bytes of each view are available.
    let whole = [
        ("tensors/a/raw", &a.data, left),
        ("tensors/a/f32", &f32, left / 2 * 4),
        ("npy/a.npy", &npy, 128 + left / 2 * 4),
    ];
    for (file, want, there) in whole {
        // A program that reads sequentially gets the right bytes, then EIO, and never an extra
        // zero.
        let (got, e) = read_until_error(m.join(file));
        assert_eq!(e, libc::EIO, "{file}");
        assert!(
            got.len() <= there && there - got.len() < 4096,
            "{file}: {}",
            got.len()
        );
        assert!(got == want[..got.len()], "{file}");
        // Exact to the byte, if the page cache is bypassed.
        let last = there as u64 - 100;
        assert!(
            read_direct(&m.join(file), last, 100).unwrap() == want[there - 100..there],
            "{file}"
        );
        assert_eq!(
            errno(read_direct(&m.join(file), last, 104)),
            libc::EIO,
            "{file}"
        );
        // Beyond: the last page of the shard, whole pages, the very end.
        for from in [there as u64 + 8, there as u64 + 5000, want.len() as u64 - 1] {
            assert_eq!(
                errno(range(&m, file, from, 1)),
                libc::EIO,
                "{file} at {from}"
            );
        }
        assert!(
            range(&m, file, 3, 70_000).unwrap() == want[3..70_003],
            "{file}"
        );
        assert_eq!(m.join(file).metadata().unwrap().len(), want.len() as u64);
    }
    assert!(m.read("tensors/b/raw") == b.data);
    assert!(m.json("tensors/a/meta.json")["nbytes"] == 2 * ROWS);
    assert_eq!(m.status()["source_changed"], true);
    let numbers = format!(
        "needs {} bytes, has {}",
        start + 2 * ROWS as u64,
        start + left as u64
    );
    let log = m.logged(&numbers);
    let changed = log
        .lines()
        .filter(|l| l.contains("changed under the mount"));
    assert_eq!(changed.count(), 1, "{log}");
}

fn read_until_error(path: PathBuf) -> (Vec<u8>, i32) {
    let file = File::open(path).unwrap();
    let (mut got, mut piece) = (Vec::new(), vec![0; 70_000]);
    loop {
        match file.read_at(&mut piece, got.len() as u64) {
            Ok(0) => return (got, 0),
            Ok(n) => got.extend_from_slice(&piece[..n]),
            Err(e) => return (got, e.raw_os_error().unwrap()),
        }
    }
}

#[test]
fn truncated_to_nothing_and_inside_the_header() {
    for left in [0, 5, 100] {
        let (dir, [_, b], _) = model();
        let m = Mounted::new(dir.path());
        writable(&dir, "1.safetensors").set_len(left).unwrap();
        for file in ["tensors/a/raw", "tensors/a/f32", "npy/a.npy"] {
            let from = if file.ends_with(".npy") { 128 } else { 0 };
            assert_eq!(errno(range(&m, file, from, 1)), libc::EIO, "{file}");
            assert_eq!(errno(std::fs::read(m.join(file))), libc::EIO, "{file}");
        }
        // Loads from a mapping of it raise SIGBUS, and system calls fail with EFAULT; the daemon
        // continues.
        let file = File::open(m.join("tensors/a/raw")).unwrap();
        // SAFETY: the bytes are only ever given to a system call, which reports missing pages.
        let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        let write = tempfile::tempfile().unwrap().write_at(&map[8192..16384], 0);
        assert_eq!(errno(write), libc::EFAULT);
        assert!(m.read("tensors/b/raw") == b.data);
        assert_eq!(m.list("tensors"), ["a", "b"]);
    }
}

#[test]
fn what_was_read_before_is_not_given_out_once_it_is_gone() {
    let (dir, [a, _], start) = model();
    let m = Mounted::new(dir.path());
    for file in ["tensors/a/raw", "tensors/a/f32", "npy/a.npy"] {
        m.read(file);
    }
    writable(&dir, "1.safetensors")
        .set_len(start + 8192)
        .unwrap();
    for file in ["tensors/a/raw", "tensors/a/f32", "npy/a.npy"] {
        assert_eq!(errno(std::fs::read(m.join(file))), libc::EIO, "{file}");
        assert_eq!(errno(range(&m, file, 1_000_000, 1)), libc::EIO, "{file}");
    }
    assert!(range(&m, "tensors/a/raw", 0, 4096).unwrap() == a.data[..4096]);
}

#[test]
fn new_contents_are_served_and_said_to_be_new() {
    let (dir, [a, b], start) = model();
    let m = Mounted::new(dir.path());
    assert_eq!(m.status()["source_changed"], false);
    assert!(m.read("tensors/a/raw") == a.data);
    assert!(m.read("tensors/b/raw") == b.data);
    // In place, the same size.
    writable(&dir, "1.safetensors")
        .write_all_at(&[1, 2, 3], start + 5)
        .unwrap();
    let mut want = a.data.clone();
    want[5..8].copy_from_slice(&[1, 2, 3]);
    assert!(m.read("tensors/a/raw") == want);
    let f32 = naive::f32_bytes(Dtype::BF16, &want).unwrap();
    assert!(m.read("tensors/a/f32") == f32);
    assert_eq!(m.status()["source_changed"], true);
}

#[test]
fn grown_or_touched_is_changed() {
    let (dir, [a, _], _) = model();
    let m = Mounted::new(dir.path());
    let file = writable(&dir, "1.safetensors");
    let len = file.metadata().unwrap().len();
    file.write_all_at(b"more", len).unwrap();
    assert!(m.read("tensors/a/raw") == a.data);
    assert!(m.read("npy/a.npy").len() == 128 + 4 * ROWS);
    assert_eq!(m.status()["source_changed"], true);
    m.logged("1.safetensors");
    drop(m);
    let (dir, [a, _], _) = model();
    let m = Mounted::new(dir.path());
    let later = SystemTime::now() + Duration::from_secs(5);
    writable(&dir, "2.safetensors").set_modified(later).unwrap();
    assert!(m.read("tensors/a/raw") == a.data);
    assert_eq!(m.status()["source_changed"], true);
    // The mount continues to show the old state.
    assert_ne!(
        m.join("tensors/b/raw")
            .metadata()
            .unwrap()
            .modified()
            .unwrap(),
        later
    );
}

#[test]
fn replaced_and_deleted_files_are_served_on() {
    let (dir, [a, b], _) = model();
    let m = Mounted::new(dir.path());
    dir.shard("new", &[tensor("other", Dtype::U8, &[3])]);
    std::fs::rename(dir.join("new"), dir.join("1.safetensors")).unwrap();
    std::fs::remove_file(dir.join("2.safetensors")).unwrap();
    assert!(m.read("tensors/a/raw") == a.data);
    assert!(m.read("tensors/b/f32") == naive::f32_bytes(Dtype::BF16, &b.data).unwrap());
}

#[test]
fn fused_tensors_lose_only_what_is_lost() {
    let parts =
        ["q", "k", "v"].map(|p| tensor(&format!("l.{p}_proj.weight"), Dtype::F16, &[50_000, 2]));
    let dir = ModelDir::sharded(&[
        ("1.safetensors", &parts[..1]),
        ("2.safetensors", &parts[1..2]),
        ("3.safetensors", &parts[2..]),
    ]);
    let m = Mounted::new(dir.path());
    writable(&dir, "2.safetensors").set_len(100).unwrap();
    let one = parts[0].data.len() as u64;
    let raw = "tensors/l.qkv_proj.weight/raw";
    assert!(range(&m, raw, 0, 100_000).unwrap() == parts[0].data[..100_000]);
    assert_eq!(errno(range(&m, raw, one + 5, 1)), libc::EIO);
    // Except for the page that begins in the lost part.
    assert!(range(&m, raw, 2 * one + 4096, one as usize - 4096).unwrap() == parts[2].data[4096..]);
    // Only a read that straddles good and lost parts fails.
    assert_eq!(errno(read_direct(&m.join(raw), one - 10, 20)), libc::EIO);
    assert!(read_direct(&m.join(raw), one - 10, 10).unwrap() == parts[0].data[one as usize - 10..]);
}
