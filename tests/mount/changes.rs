//! Writes to the source that are hard to see, and truncations that race with reads.

use std::fs::File;
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use safetensors::Dtype;

use crate::common::sys::{is_root, read_direct};
use crate::common::{ModelDir, Mounted, T, naive, noise, tensor};

const SHARD: &str = "model.safetensors";

/// A model of one BF16 tensor `a`, and where its bytes begin in the file.
fn model(rows: usize) -> (ModelDir, T, u64) {
    let a = tensor("a", Dtype::BF16, &[rows]);
    let dir = ModelDir::of(std::slice::from_ref(&a));
    let len = dir.join(SHARD).metadata().unwrap().len();
    let start = len - a.data.len() as u64;
    (dir, a, start)
}

fn open_rw(path: &Path) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// `raw` and `f32`, opened again, have these bytes.
#[track_caller]
fn shows(m: &Mounted, bytes: &[u8]) {
    assert!(m.read("tensors/a/raw") == bytes, "raw");
    let f32 = naive::f32_bytes(Dtype::BF16, bytes).unwrap();
    assert!(m.read("tensors/a/f32") == f32, "f32");
}

/// As `rsync --inplace --times` does, and `touch -r` after it.
#[test]
fn a_file_rewritten_with_its_old_time_is_changed() {
    let (dir, a, start) = model(300_000);
    let m = Mounted::new(dir.path());
    let file = open_rw(&dir.join(SHARD));
    let time = file.metadata().unwrap().modified().unwrap();
    shows(&m, &a.data);
    for seed in 0..3 {
        let new = noise(seed, a.data.len());
        file.write_all_at(&new, start).unwrap();
        file.set_modified(time).unwrap();
        shows(&m, &new);
    }
    assert_eq!(m.status()["source_changed"], true);
}

#[test]
fn a_moved_file_is_served_on_and_said_to_be_perhaps_only_moved() {
    let (dir, a, start) = model(5000);
    let m = Mounted::new(dir.path());
    shows(&m, &a.data);
    std::fs::rename(dir.join(SHARD), dir.join("moved")).unwrap();
    shows(&m, &a.data);
    // A file system may leave ctime alone: then there is nothing to log.
    if m.status()["source_changed"] == true {
        let said = "was written to, renamed, or had its attributes changed";
        assert!(m.log().contains(said), "{}", m.log());
    }
    let new = noise(1, a.data.len());
    let file = open_rw(&dir.join("moved"));
    file.write_all_at(&new, start).unwrap();
    shows(&m, &new);
}

#[test]
fn other_permissions_owners_and_links_are_no_change_of_content() {
    let (dir, a, _) = model(5000);
    let m = Mounted::new(dir.path());
    let shard = dir.join(SHARD);
    shows(&m, &a.data);
    let mode = |mode| std::fs::set_permissions(&shard, PermissionsExt::from_mode(mode)).unwrap();
    mode(0o640);
    shows(&m, &a.data);
    mode(0o644);
    std::fs::hard_link(&shard, dir.join("second")).unwrap();
    shows(&m, &a.data);
    if is_root() {
        chown(&shard, Some(4001), None).unwrap();
        shows(&m, &a.data);
    }
    std::fs::remove_file(dir.join("second")).unwrap();
    shows(&m, &a.data);
    assert_eq!(m.status()["source_changed"], false, "{}", m.log());
    assert!(!m.log().contains("changed under the mount"), "{}", m.log());
}

/// Stores into a page that is dirty already change no time.
#[test]
fn writes_through_a_mapping_older_than_the_mount_are_seen() {
    let (dir, a, start) = model(300_000);
    let file = open_rw(&dir.join(SHARD));
    // SAFETY: nobody truncates the file.
    let mut map = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
    let mut want = a.data.clone();
    let mut write = |at: usize, want: &mut Vec<u8>| {
        want[at] ^= 1;
        map[start as usize + at] ^= 1;
    };
    for page in (0..want.len()).step_by(4096) {
        write(page, &mut want);
    }
    let m = Mounted::new(dir.path());
    for at in [5, 100_001, 5, 599_999] {
        shows(&m, &want);
        write(at, &mut want);
        shows(&m, &want);
    }
    // Once the dirty pages are being written back, the next store faults, and the change is seen.
    let until = Instant::now() + Duration::from_secs(60);
    while m.status()["source_changed"] == false && !on_tmpfs(dir.path()) {
        write(7, &mut want);
        assert!(Instant::now() < until, "{}", m.log());
        std::thread::sleep(Duration::from_millis(20));
    }
    shows(&m, &want);
}

fn on_tmpfs(path: &Path) -> bool {
    const TMPFS_MAGIC: i64 = 0x0102_1994;
    rustix::fs::statfs(path).unwrap().f_type == TMPFS_MAGIC
}

/// On tmpfs no time changes at all.
#[test]
fn a_mapping_on_tmpfs_is_never_stale() {
    let shm = Path::new("/dev/shm");
    if !shm.is_dir() || !on_tmpfs(shm) {
        return eprintln!("NO TMPFS at /dev/shm");
    }
    let (made, a, start) = model(300_000);
    let dir = tempfile::TempDir::with_prefix_in("stfs-model-", shm).unwrap();
    std::fs::copy(made.join(SHARD), dir.path().join(SHARD)).unwrap();
    let file = open_rw(&dir.path().join(SHARD));
    // SAFETY: nobody truncates the file.
    let mut map = unsafe { memmap2::MmapMut::map_mut(&file) }.unwrap();
    let mut want = a.data.clone();
    let m = Mounted::new(dir.path());
    for at in [5, 100_001, 5, 599_999] {
        want[at] ^= 1;
        map[start as usize + at] ^= 1;
        shows(&m, &want);
    }
}

/// A program truncates the file in the middle and writes the same again, over and over. Readers get what
/// the file held, or EIO, and never zeros.
#[test]
fn truncations_beside_readers_give_errors_and_no_zeros() {
    let (dir, a, start) = model(1 << 20);
    let f32 = naive::f32_bytes(Dtype::BF16, &a.data).unwrap();
    let m = Mounted::new(dir.path());
    let (done, reads, failed) = (
        AtomicBool::new(false),
        AtomicUsize::new(0),
        AtomicUsize::new(0),
    );
    let shard = open_rw(&dir.join(SHARD));
    // Inside of a page.
    let cut = a.data.len() / 2 + 1234;
    let truncate = || shard.set_len(start + cut as u64).unwrap();
    let restore = || {
        shard
            .write_all_at(&a.data[cut..], start + cut as u64)
            .unwrap()
    };
    // The very first one may win against a reply that is not copied.
    truncate();
    assert!(read_direct(&m.join("tensors/a/raw"), 0, 4096).is_ok());
    let read = |file: &'static str, want: &[u8], scale: usize| {
        let (path, mut wrong) = (m.join(file), 0);
        let from = ((cut * scale) & !4095) - (64 << 10);
        while !done.load(Ordering::Relaxed) {
            let len = 128 << 10;
            match read_direct(&path, from as u64, len) {
                Ok(got) if got != want[from..from + len] => wrong += 1,
                Ok(_) => {}
                Err(_) => drop(failed.fetch_add(1, Ordering::Relaxed)),
            }
            reads.fetch_add(1, Ordering::Relaxed);
        }
        wrong
    };
    let wrong = std::thread::scope(|scope| {
        let read = &read;
        let (a, f32) = (&a.data, &f32);
        let readers = [
            scope.spawn(move || read("tensors/a/raw", a, 1)),
            scope.spawn(move || read("tensors/a/f32", f32, 2)),
        ];
        let until = Instant::now() + Duration::from_secs(3);
        while Instant::now() < until {
            restore();
            std::thread::yield_now();
            truncate();
        }
        restore();
        done.store(true, Ordering::Relaxed);
        readers.map(|r| r.join().unwrap())
    });
    let counts = (reads.into_inner(), failed.into_inner());
    eprintln!("{counts:?} reads and errors, wrong of raw and f32: {wrong:?}");
    assert_eq!(wrong, [0, 0], "{counts:?} reads and errors");
    shows(&m, &a.data);
}
