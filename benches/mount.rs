//! How fast a real mount is: each way of reading against a native read of the same shard in the
//! same round, from the page cache and from the disk; and a model of 93,696 tensors: time to mount,
//! to list.
//!
//! `cargo bench --bench mount`; medians of [`ROUNDS`] rounds, with the ratio to the native read.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

const ROUNDS: usize = 7;
/// Rows and columns of the one large BF16 tensor: 1 GiB.
const SHAPE: [usize; 2] = [16_384, 32_768];
const MIB: usize = 1 << 20;

fn stfs(args: &[&str]) {
    let done = Command::new(env!("CARGO_BIN_EXE_stfs")).args(args).status();
    assert!(done.expect("stfs runs").success(), "stfs {args:?}");
}

/// A mount that is unmounted when it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(model: &Path, mountpoint: PathBuf) -> (Mounted, f64) {
        let start = Instant::now();
        stfs(&["mount", path(model), path(&mountpoint)]);
        (Mounted(mountpoint), start.elapsed().as_secs_f64())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        stfs(&["umount", "--lazy", path(&self.0)]);
    }
}

fn path(p: &Path) -> &str {
    p.to_str().expect("a UTF-8 path")
}

/// A safetensors file of tensors without a pattern in one large run of noise.
fn write_model(file: &Path, tensors: &[(String, &str, Vec<usize>, usize)]) {
    let (mut at, mut entries) = (0, Vec::new());
    for (name, dtype, shape, len) in tensors {
        let end = at + len;
        entries.push(format!(
            r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{at},{end}]}}"#
        ));
        at = end;
    }
    let header = format!("{{{}}}", entries.join(","));
    let mut out = File::create(file).expect("a file");
    let length = (header.len() as u64).to_le_bytes();
    out.write_all(&length)
        .and_then(|()| out.write_all(header.as_bytes()))
        .expect("room");
    let mut state = 1u64;
    let noise: Vec<u8> = std::iter::repeat_with(|| {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        state.to_be_bytes()
    })
    .take(MIB / 8)
    .flatten()
    .collect();
    while at > 0 {
        let n = at.min(MIB);
        out.write_all(&noise[..n]).expect("room");
        at -= n;
    }
}

/// GB/s of reading a file from end to end, 1 MiB at a time.
fn sequential(file: &Path, flags: i32, forget: bool) -> f64 {
    let mut file = File::options()
        .read(true)
        .custom_flags(flags)
        .open(file)
        .expect("opens");
    if forget {
        // SAFETY: an advice on a descriptor; no memory is involved.
        unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }
    // Aligned to a page, as O_DIRECT requires.
    let mut memory = vec![0u8; MIB + 4096];
    let skip = memory.as_ptr().align_offset(4096);
    let buf = &mut memory[skip..skip + MIB];
    let (start, mut total) = (Instant::now(), 0);
    loop {
        match file.read(buf).expect("reads") {
            0 => break,
            n => total += n,
        }
    }
    total as f64 / start.elapsed().as_secs_f64() / 1e9
}

/// Microseconds of a 4 KiB read at a random place that no cache of the mount holds.
fn random(file: &Path, forget: bool) -> f64 {
    const READS: u64 = 2000;
    let file = File::open(file).expect("opens");
    let pages = file.metadata().expect("a size").len() / 4096;
    // SAFETY: an advice on a descriptor; no memory is involved. Without RANDOM each read would
    // fetch a whole window of read-ahead.
    unsafe {
        libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_RANDOM);
        if forget {
            libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED);
        }
    }
    let (start, mut buf) = (Instant::now(), [0; 4096]);
    for i in 0..READS {
        let page = i * 7_368_787 % pages;
        file.read_exact_at(&mut buf, page * 4096).expect("reads");
    }
    start.elapsed().as_secs_f64() * 1e6 / READS as f64
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Measures `this` and the native read in turn; prints medians and the median of the ratios.
fn compare(what: &str, unit: &str, native: impl Fn() -> f64, this: impl Fn() -> f64) {
    let pairs: Vec<(f64, f64)> = (0..ROUNDS).map(|_| (native(), this())).collect();
    println!(
        "{what:<34}{:>9.2} {unit:<5}{:>9.2} {unit:<5}{:>7.2}",
        median(pairs.iter().map(|p| p.1).collect()),
        median(pairs.iter().map(|p| p.0).collect()),
        median(pairs.iter().map(|p| p.1 / p.0).collect()),
    );
}

fn reading(dir: &Path) {
    let shard = dir.join("model.safetensors");
    let len = SHAPE[0] * SHAPE[1] * 2;
    write_model(&shard, &[("w".into(), "BF16", SHAPE.to_vec(), len)]);
    let (mount, _) = Mounted::new(dir, dir.join("mnt"));
    let raw = mount.0.join("tensors/w/raw");
    let f32 = mount.0.join("tensors/w/f32");
    let native = || sequential(&shard, 0, false);
    println!("{:<34}{:>15}{:>15}{:>7}", "", "stfs", "native", "ratio");
    compare("raw, first buffered read", "GB/s", native, || {
        sequential(&raw, 0, true)
    });
    compare("raw, read again", "GB/s", native, || {
        sequential(&raw, 0, false)
    });
    compare("raw, O_DIRECT 1 MiB", "GB/s", native, || {
        sequential(&raw, libc::O_DIRECT, false)
    });
    compare("f32 of BF16, first buffered read", "GB/s", native, || {
        sequential(&f32, 0, true)
    });
    compare("f32 of BF16, O_DIRECT 1 MiB", "GB/s", native, || {
        sequential(&f32, libc::O_DIRECT, false)
    });
    let native = || random(&shard, false);
    compare("raw, random 4 KiB", "us", native, || random(&raw, true));
    compare("f32 of BF16, random 4 KiB", "us", native, || {
        random(&f32, true)
    });
}

/// Drops a file's pages from the page cache; those that are mapped would stay.
fn forget(file: &Path) {
    let file = File::open(file).expect("opens");
    file.sync_all().expect("syncs");
    // SAFETY: an advice on a descriptor; no memory is involved.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// Reads from the disk, through a new mount in each round, because pages that a mount has served
/// stay mapped.
fn from_disk(dir: &Path) {
    let shard = dir.join("model.safetensors");
    let compare = |what: &str, unit: &str, read: fn(&Path) -> f64| {
        let native = || {
            forget(&shard);
            read(&shard)
        };
        compare(what, unit, native, || {
            forget(&shard);
            let (mount, _) = Mounted::new(dir, dir.join("cold"));
            read(&mount.0.join("tensors/w/raw"))
        });
    };
    compare("raw from the disk, in order", "GB/s", |file| {
        sequential(file, 0, false)
    });
    compare("raw from the disk, random 4 KiB", "us", |file| {
        random(file, false)
    });
}

/// What the daemon of a mount keeps in memory that is not a file's, in MiB.
fn memory(mountpoint: &Path) -> f64 {
    let out = Command::new(env!("CARGO_BIN_EXE_stfs"))
        .args(["mounts", "--json"])
        .output()
        .expect("stfs runs");
    let mounts: serde_json::Value = serde_json::from_slice(&out.stdout).expect("JSON");
    let mut mounts = mounts.as_array().expect("an array").iter();
    let mount = mounts.find(|m| m["mountpoint"] == path(mountpoint));
    let pid = &mount.expect("the mount")["pid"];
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = status.lines().find_map(|l| l.strip_prefix("RssAnon:"));
    let kib = line
        .and_then(|l| l.trim().strip_suffix(" kB"))
        .expect("RssAnon");
    kib.trim().parse::<f64>().expect("a number") / 1024.0
}

/// A mixture-of-experts model in FP8, with the names of one and hardly any data.
fn many(dir: &Path) {
    let mut tensors = Vec::new();
    for layer in 0..61 {
        for expert in 0..256 {
            for part in ["gate_proj", "up_proj", "down_proj"] {
                let name = format!("model.layers.{layer}.mlp.experts.{expert}.{part}.weight");
                tensors.push((format!("{name}_scale_inv"), "F32", vec![1, 1], 4));
                tensors.push((name, "F8_E4M3", vec![16, 16], 256));
            }
        }
    }
    write_model(&dir.join("model.safetensors"), &tensors);
    let count = |root: &Path| {
        let start = Instant::now();
        let out = Command::new("find").arg(root).output().expect("find runs");
        let lines = out.stdout.iter().filter(|&&b| b == b'\n').count();
        (lines, start.elapsed().as_secs_f64())
    };
    let (mut mounting, mut first, mut again, mut found) = (vec![], vec![], vec![], 0);
    let mut anonymous = vec![];
    for round in 0..3 {
        let (mount, seconds) = Mounted::new(dir, dir.join(format!("mnt{round}")));
        mounting.push(seconds);
        let root = mount.0.join("tensors");
        first.push(count(&root).1);
        let (lines, seconds) = count(&root);
        again.push(seconds);
        anonymous.push(memory(&mount.0));
        found = lines;
    }
    println!(
        "{} stored tensors: mounted in {:.2} s",
        tensors.len(),
        median(mounting)
    );
    println!(
        "find over its {found} paths: first {:.1} s, again {:.1} s",
        median(first),
        median(again)
    );
    println!(
        "the daemon then has {:.0} MiB of its own",
        median(anonymous)
    );
    check_recipe(dir, tensors.len());
}

/// A recipe that renames all tensors and casts those of F32, checked from beginning to end, beside the model alone.
fn check_recipe(dir: &Path, tensors: usize) {
    let recipe = dir.join("recipe.toml");
    let rules = r#"
        { on = "model.layers.{n}.{rest..}", to = "blocks.{n}.{rest}" },
        { on = "*", where = "dtype == 'F32'", is = "bf16(it)" },"#;
    let text = format!("model = '.'\nrules = [{rules}\n]\n");
    std::fs::write(&recipe, text).expect("room");
    let seconds = |args: &[&str]| {
        let rounds = (0..ROUNDS).map(|_| {
            let start = Instant::now();
            let mut command = Command::new(env!("CARGO_BIN_EXE_stfs"));
            let done = command.args(args).output().expect("stfs runs");
            assert!(done.status.success(), "stfs {args:?}");
            start.elapsed().as_secs_f64()
        });
        median(rounds.collect())
    };
    let checked = seconds(&["ls", "--rules", path(&recipe)]);
    let alone = seconds(&["info", path(dir)]);
    println!(
        "a recipe of two rules over its {tensors} tensors: checked in {checked:.2} s; 'stfs info' of the model takes {alone:.2} s"
    );
}

fn main() {
    let dir = tempfile::tempdir().expect("a directory");
    reading(dir.path());
    from_disk(dir.path());
    let dir = tempfile::tempdir().expect("a directory");
    many(dir.path());
}
