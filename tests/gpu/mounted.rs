//! A real mount, served by the program with the test double for a driver.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use safetensors::tensor::{Dtype, TensorView};
use stfs::ioctl::{self, GpuIo};

use crate::support::*;

/// Tensors of the model: name, dtype, shape. Two shards.
const TENSORS: &[(&str, Dtype, &[usize])] = &[
    ("model.embed_tokens.weight", Dtype::BF16, &[96, 64]),
    (
        "model.layers.0.self_attn.q_proj.weight",
        Dtype::BF16,
        &[64, 64],
    ),
    (
        "model.layers.0.self_attn.k_proj.weight",
        Dtype::BF16,
        &[32, 64],
    ),
    (
        "model.layers.0.self_attn.v_proj.weight",
        Dtype::BF16,
        &[32, 64],
    ),
    ("model.layers.0.odd", Dtype::U8, &[70_001]),
    ("model.layers.0.empty", Dtype::F32, &[0, 3]),
    ("model.layers.0.scalar", Dtype::F32, &[]),
    ("model.big", Dtype::F16, &[2, 2_000_000]),
];

/// A model directory and its mount. Dropping it unmounts and waits for the daemon's end.
pub struct Mounted {
    scratch: tempfile::TempDir,
    daemon: Child,
}

impl Mounted {
    /// Mounts a small model with these flags and with these variables for the double.
    pub fn new(flags: &[&str], environment: &[(&str, &str)]) -> Mounted {
        Mounted::with(flags, environment, |_| {})
    }

    /// The same, of a model directory to which something has been done.
    pub fn with(
        flags: &[&str],
        environment: &[(&str, &str)],
        change: impl FnOnce(&Path),
    ) -> Mounted {
        let scratch = tempfile::tempdir().unwrap();
        write_model(&scratch.path().join("model"));
        change(&scratch.path().join("model"));
        std::fs::create_dir(scratch.path().join("mnt")).unwrap();
        let mut daemon = Command::new(env!("CARGO_BIN_EXE_stfs"))
            .args(["mount", "-f"])
            .args(flags)
            .arg(scratch.path().join("model"))
            .arg(scratch.path().join("mnt"))
            .env("LD_LIBRARY_PATH", double())
            .env("STFS_CUDA_DOUBLE_LEDGER", scratch.path().join("ledger"))
            // The daemon's sandbox lets the driver write in its cache.
            .env("CUDA_CACHE_PATH", scratch.path())
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(File::create(scratch.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        // It prints one line once the mount answers.
        let mut line = String::new();
        BufReader::new(daemon.stdout.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        let mounted = Mounted { scratch, daemon };
        assert!(line.contains("tensors"), "{line}{}", mounted.log());
        mounted
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.scratch.path().join("mnt").join(below)
    }

    pub fn open(&self, below: &str) -> File {
        File::open(self.path(below)).unwrap()
    }

    pub fn ledger(&self) -> PathBuf {
        self.scratch.path().join("ledger")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.path().join("log")).unwrap()
    }

    pub fn model(&self) -> PathBuf {
        self.scratch.path().join("model")
    }

    /// Unmounts, and returns once the daemon has ended, with what the double has not got back.
    pub fn end(&mut self) -> std::collections::HashMap<String, i64> {
        let umount = Command::new(env!("CARGO_BIN_EXE_stfs"))
            .arg("umount")
            .arg(self.scratch.path().join("mnt"))
            .status()
            .unwrap();
        assert!(umount.success());
        self.ended()
    }

    /// Sends the daemon a signal; the rest as [`Mounted::end`].
    pub fn end_by(&mut self, signal: i32) -> std::collections::HashMap<String, i64> {
        // SAFETY: no memory is involved, and the child has not been waited for.
        assert_eq!(unsafe { libc::kill(self.daemon.id() as i32, signal) }, 0);
        self.ended()
    }

    fn ended(&mut self) -> std::collections::HashMap<String, i64> {
        let start = Instant::now();
        while self.daemon.try_wait().unwrap().is_none() {
            assert!(
                start.elapsed() < Duration::from_secs(30),
                "the daemon stays"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
        outstanding(&self.ledger())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if matches!(self.daemon.try_wait(), Ok(None)) {
            let _ = Command::new(env!("CARGO_BIN_EXE_stfs"))
                .args(["umount", "--lazy"])
                .arg(self.scratch.path().join("mnt"))
                .status();
            let start = Instant::now();
            while matches!(self.daemon.try_wait(), Ok(None)) {
                if start.elapsed() > Duration::from_secs(10) {
                    let _ = self.daemon.kill();
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        if std::thread::panicking() {
            eprintln!("the daemon's log:\n{}", self.log());
        }
    }
}

fn write_model(dir: &Path) {
    std::fs::create_dir(dir).unwrap();
    let bytes: Vec<Vec<u8>> = TENSORS
        .iter()
        .enumerate()
        .map(|(i, (_, dtype, shape))| {
            let n = shape.iter().product::<usize>() * dtype.bitsize() / 8;
            noise(n, i as u64 + 1)
        })
        .collect();
    let views: Vec<_> = TENSORS
        .iter()
        .zip(&bytes)
        .map(|((name, dtype, shape), bytes)| {
            let view = TensorView::new(*dtype, shape.to_vec(), bytes).unwrap();
            (name.to_string(), view)
        })
        .collect();
    let (first, second) = views.split_at(4);
    for (i, shard) in [first, second].into_iter().enumerate() {
        let path = dir.join(format!("model-0000{}-of-00002.safetensors", i + 1));
        safetensors::serialize_to_file(shard.to_vec(), None, &path).unwrap();
    }
    let weight_map: serde_json::Map<_, _> = TENSORS
        .iter()
        .enumerate()
        .map(|(i, (name, ..))| {
            let shard = if i < 4 { 1 } else { 2 };
            let file = format!("model-0000{shard}-of-00002.safetensors");
            (name.to_string(), file.into())
        })
        .collect();
    let index = serde_json::json!({"metadata": {}, "weight_map": weight_map});
    std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    let config = r#"{"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": true}"#;
    std::fs::write(dir.join("config.json"), config).unwrap();
}

/// Repeats UPLOAD until the tensor is resident.
pub fn upload(file: &File) -> std::io::Result<GpuIo> {
    loop {
        let mut io = request();
        ioctl::upload(file.as_fd(), &mut io)?;
        if io.state != ioctl::LOADING {
            return Ok(io);
        }
    }
}

/// One ioctl: the errno (0 for success) and the answer.
pub fn ask(
    ioctl: impl Fn(std::os::fd::BorrowedFd<'_>, &mut GpuIo) -> std::io::Result<()>,
    file: &File,
    mut io: GpuIo,
) -> (i32, GpuIo) {
    let errno = match ioctl(file.as_fd(), &mut io) {
        Ok(()) => 0,
        Err(e) => e.raw_os_error().unwrap(),
    };
    (errno, io)
}

pub fn query(file: &File) -> GpuIo {
    let (errno, io) = ask(ioctl::query, file, request());
    assert_eq!(errno, 0);
    io
}
