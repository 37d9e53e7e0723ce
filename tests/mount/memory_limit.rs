//! A daemon in a cgroup with little memory serves everything, to many readers at a time, and is not killed.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::Dtype;
use serde_json::json;
use sha2::{Digest, Sha256};

use crate::common::mount::BIN;
use crate::common::pytorch::{Py, Strided, dict, zip_file};
use crate::common::{ModelDir, Mounted, T, noise, sys, tensor};

const LIMIT: u64 = 64 << 20;
/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;

/// A cgroup of this test, removed with the value.
struct Group {
    path: PathBuf,
    /// In version 1: without a file that counts what was killed, there is `memory.oom_control`.
    version: u8,
}

impl Group {
    /// One with [`LIMIT`], of whichever version has the memory controller; or why there is none.
    fn new(name: &str) -> Result<Group, String> {
        if !sys::is_root() {
            return Err("only root may make a cgroup".into());
        }
        let mounts = std::fs::read_to_string("/proc/self/mountinfo").map_err(|e| e.to_string())?;
        let name = format!("stfs-test-{}-{name}", std::process::id());
        for line in mounts.lines() {
            let Some((before, after)) = line.split_once(" - ") else {
                continue;
            };
            let place = Path::new(before.split(' ').nth(4).unwrap_or_default());
            let version = match after.split(' ').next() {
                Some("cgroup") if after.split([' ', ',']).any(|o| o == "memory") => 1,
                Some("cgroup2") => {
                    let _ = std::fs::write(place.join("cgroup.subtree_control"), "+memory");
                    2
                }
                _ => continue,
            };
            let group = Group {
                path: place.join(&name),
                version,
            };
            if std::fs::create_dir(&group.path).is_ok() {
                let limit = group
                    .path
                    .join(["memory.limit_in_bytes", "memory.max"][version as usize - 1]);
                if limit.exists() && std::fs::write(limit, LIMIT.to_string()).is_ok() {
                    return Ok(group);
                }
            }
        }
        Err("no cgroup with the memory controller can be made here".into())
    }

    /// Processes that the kernel has killed here.
    fn killed(&self) -> String {
        let file = ["memory.oom_control", "memory.events"][self.version as usize - 1];
        let text = std::fs::read_to_string(self.path.join(file)).expect("counts");
        let line = text.lines().find_map(|l| l.strip_prefix("oom_kill "));
        line.expect("a count").to_string()
    }

    /// The program, as a process of the group from its start.
    fn program(&self) -> Command {
        let mut command = Command::new("sh");
        let enter = r#"echo $$ > "$0" && exec "$@""#;
        let procs = self.path.join("cgroup.procs");
        command.args(["-c", enter]).args([&procs, Path::new(BIN)]);
        command
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..500 {
            match std::fs::remove_dir(&self.path) {
                Err(e) if e.kind() == std::io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
                _ => return,
            }
        }
    }
}

/// A quantized model with plain tensors: all files together are larger than the memory that there is.
fn safetensors() -> ModelDir {
    let dir = ModelDir::new();
    let plain = tensor("plain.weight", Dtype::BF16, &[1024, 8192]);
    let layer = |part: &str, dtype, shape: &[usize]| tensor(&format!("q.{part}"), dtype, shape);
    let one = |dtype, shape: &[usize], name: &str| {
        let len = shape.iter().product::<usize>() * 2;
        T {
            name: name.into(),
            dtype,
            shape: shape.into(),
            data: [0, 0x3c].repeat(len / 2),
        }
    };
    dir.shard(
        "model.safetensors",
        &[
            plain,
            layer("qweight", Dtype::I32, &[128, 8192]),
            layer("qzeros", Dtype::I32, &[8, 1024]),
            one(Dtype::F16, &[8, 8192], "q.scales"),
        ],
    );
    let quantization =
        json!({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": false});
    dir.json("config.json", &json!({"quantization_config": quantization}));
    dir
}

/// A transposed matrix in a PyTorch checkpoint.
fn checkpoint() -> ModelDir {
    let dir = ModelDir::new();
    let transposed = Py::Tensor(Strided {
        key: "0".into(),
        data: noise(1, 4 * 4096 * 2500),
        class: "FloatStorage",
        element: 4,
        offset: 0,
        shape: vec![4096, 2500],
        strides: vec![1, 4096],
    });
    dir.file("pytorch_model.bin", zip_file(&dict([("w", transposed)])));
    dir
}

/// The digest of a file, `direct` past the kernel's cache.
fn digest(path: &Path, direct: bool) -> Vec<u8> {
    let flags = if direct { libc::O_DIRECT } else { 0 };
    let file = File::options().read(true).custom_flags(flags).open(path);
    let file = file.expect("opens");
    // An anonymous mapping begins at a page, as O_DIRECT likes its buffers.
    let mut buffer = memmap2::MmapMut::map_anon(PIECE).expect("a buffer");
    let (mut digest, mut at) = (Sha256::new(), 0u64);
    loop {
        let read = file.read_at(&mut buffer, at);
        match read.unwrap_or_else(|e| panic!("{} at {at}: {e}", path.display())) {
            0 => return digest.finalize().to_vec(),
            n => {
                digest.update(&buffer[..n]);
                at += n as u64;
            }
        }
    }
}

/// Digests of what `readers` threads read of each file, all at the same time, in pieces. Every other thread
/// reads past the kernel's cache, so that the daemon serves it, too.
fn digests(mount: &Mounted, files: &[&str], readers: usize) -> Vec<Vec<u8>> {
    let paths: Vec<PathBuf> = files.iter().map(|f| mount.join(f)).collect();
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..readers)
            .map(|i| {
                let path = &paths[i % paths.len()];
                let direct = i / paths.len() % 2 == 1;
                scope.spawn(move || digest(path, direct))
            })
            .collect();
        all.into_iter().map(|t| t.join().expect("reads")).collect()
    })
}

/// Every reader gets from a mount in the group what a mount with enough memory shows.
fn streams(name: &str, dir: &ModelDir, files: &[&str], readers: usize) {
    let group = match Group::new(name) {
        Ok(group) => group,
        Err(why) => return eprintln!("not tested: {why}"),
    };
    let want = digests(&Mounted::new(dir.path()), files, files.len());
    let mount = Mounted::by(group.program(), dir.path(), &[]);
    for readers in [files.len(), readers] {
        let got = digests(&mount, files, readers);
        for (i, got) in got.iter().enumerate() {
            assert!(*got == want[i % files.len()], "{}", files[i % files.len()]);
        }
    }
    assert_eq!(group.killed(), "0", "{}", mount.log());
    drop(mount);
}

#[test]
fn stored_and_computed_bytes_in_64_mib() {
    let files = [
        "tensors/plain.weight/raw",
        "tensors/plain.weight/f32",
        "tensors/q.weight/f32",
        "export/model-f32.safetensors",
        "npy/plain.weight.npy",
        "preview/plain.weight.png",
        "preview/q.weight.png",
    ];
    streams("plain", &safetensors(), &files, 64);
}

#[test]
fn strided_tensors_in_64_mib() {
    let files = ["tensors/w/raw", "export/model.safetensors", "preview/w.png"];
    streams("strided", &checkpoint(), &files, 24);
}
