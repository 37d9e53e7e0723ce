//! What open files cost the daemon, and what stays after they are closed: read from the kernel, which
//! counts what the allocator keeps, too. The bounds have room for a buffer of each request thread (20 MiB);
//! without sharing, each test needs many times as much.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use safetensors::Dtype;

use crate::common::{ModelDir, Mounted, T, noise, tensor};

const MIB: u64 = 1 << 20;

/// A mount's daemon.
struct Daemon(u64);

impl Daemon {
    fn of(mount: &Mounted) -> Daemon {
        Daemon(mount.status()["pid"].as_u64().expect("a process id"))
    }

    /// Bytes of memory that are not a file's.
    fn memory(&self) -> u64 {
        let path = format!("/proc/{}/smaps_rollup", self.0);
        let text = std::fs::read_to_string(path).expect("smaps_rollup");
        let line = text.lines().find_map(|l| l.strip_prefix("Anonymous:"));
        let kib = line.and_then(|l| l.trim().strip_suffix("kB"));
        kib.expect("a size").trim().parse::<u64>().expect("KiB") * 1024
    }

    /// Waits until the daemon has at most `most` bytes: the kernel reports closed files a little later.
    #[track_caller]
    fn shrinks_to(&self, most: u64) {
        let until = Instant::now() + Duration::from_secs(20);
        while self.memory() > most && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(20));
        }
        let now = self.memory();
        assert!(now <= most, "{} KiB, at most {}", now >> 10, most >> 10);
    }
}

/// Opens a file, and reads some of it from the daemon rather than from the kernel's cache.
fn open(path: &Path) -> File {
    let file = File::open(path).expect("opens");
    // SAFETY: an advice on a descriptor; no memory is involved.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    file.read_at(&mut [0; 64], 0).expect("reads");
    file
}

/// Opens each path that many times. The daemon may then have `while_open` MiB more than before, and
/// `afterwards` MiB more after all are closed.
#[track_caller]
fn costs(mount: &Mounted, paths: &[PathBuf], times: usize, while_open: u64, afterwards: u64) {
    let daemon = Daemon::of(mount);
    // What is made once for the whole mount does not count.
    drop(open(&paths[0]));
    let before = daemon.memory();
    let all = (0..times).flat_map(|_| paths.iter().map(|path| open(path)));
    let files: Vec<File> = all.collect();
    let more = daemon.memory().saturating_sub(before);
    assert!(
        more <= while_open * MIB,
        "{} KiB for {} files",
        more >> 10,
        files.len()
    );
    drop(files);
    daemon.shrinks_to(before + afterwards * MIB);
}

/// A square tensor, whose picture takes half a megabyte.
fn square(name: &str) -> T {
    tensor(name, Dtype::U8, &[512, 512])
}

#[test]
fn a_picture_is_kept_once_however_often_it_is_open() {
    let dir = ModelDir::of(&[square("a")]);
    let mount = Mounted::new(dir.path());
    let path = mount.join("preview/a.png");
    assert!(std::fs::metadata(&path).unwrap().len() > MIB / 4);
    costs(&mount, &[path], 200, 48, 40);
}

#[test]
fn pictures_of_many_open_files_have_a_bound() {
    let tensors: Vec<T> = (0..240).map(|i| square(&format!("{i}"))).collect();
    let dir = ModelDir::of(&tensors);
    let mount = Mounted::new(dir.path());
    let path = |t: &T| mount.join(&format!("preview/{}.png", t.name));
    let paths: Vec<PathBuf> = tensors.iter().map(path).collect();
    let first = std::fs::read(&paths[0]).unwrap();
    costs(&mount, &paths, 1, 80, 48);
    assert!(std::fs::read(&paths[0]).unwrap() == first);
}

/// A model of many experts, each with two small matrices, in the order of a file that a program sorted by
/// their names.
fn experts(count: usize) -> (ModelDir, Vec<u8>) {
    let name = |e: usize, part: &str| format!("model.layers.0.mlp.experts.{e}.{part}.weight");
    let mut tensors = Vec::new();
    let mut stacked = Vec::new();
    for e in 0..count {
        let data = noise(e as u64, 16);
        stacked.extend_from_slice(&data);
        tensors.push(T {
            name: name(e, "down_proj"),
            dtype: Dtype::BF16,
            shape: vec![2, 4],
            data,
        });
    }
    (ModelDir::of(&tensors), stacked)
}

#[test]
fn the_parts_of_a_join_are_kept_once_however_often_it_is_open() {
    let (dir, stacked) = experts(20_000);
    let mount = Mounted::new(dir.path());
    let of = "model.layers.0.mlp.experts.down_proj";
    let raw = mount.join(&format!("tensors/{of}/raw"));
    assert!(std::fs::read(&raw).unwrap() == stacked);
    for path in [
        raw,
        mount.join(&format!("tensors/{of}/f32")),
        mount.join(&format!("npy/{of}.npy")),
        mount.join(&format!("tensors/{of}/meta.json")),
        mount.join("index.json"),
        mount.join("export/model-fused.safetensors"),
    ] {
        costs(&mount, &[path], 100, 48, 40);
    }
}

#[test]
fn a_thousand_open_files_of_any_kind_cost_little() {
    let dir = ModelDir::of(&["q", "k", "v"].map(|p| T {
        name: format!("model.layers.0.self_attn.{p}_proj.weight"),
        ..square(p)
    }));
    dir.file("config.json", "{}");
    let mount = Mounted::new(dir.path());
    for path in super::files(mount.root()) {
        costs(&mount, &[path], 1000, 48, 40);
    }
}
