//! Processes with the test double, an engine with files to upload, and a second process that opens
//! what the first one shares.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use stfs::catalog::{Extent, LocalFile, Object};
use stfs::gpu::{Caller, Config, Gpu, Key, Part, StagingPool, Target};
use stfs::ioctl::{self, GpuIo, Header};
use stfs::view::{SharedView, StoredBytes, View};
use stfs::workers::Workers;

pub use crate::consumer::seen_by_another_process;

/// Set in a process that was started to run one test: the test's name.
pub const CHILD: &str = "STFS_GPU_TEST_CHILD";

/// No test may hang.
const LIMIT: Duration = Duration::from_secs(120);

/// The directory in which the double is called libcuda.so. Built on first use.
pub fn double() -> &'static Path {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    DIR.get_or_init(|| {
        let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let target = tmp.parent().expect("the target directory");
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--package", "stfs-cuda-double"])
            .arg("--target-dir")
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            // Variables of the cargo that runs the tests, which would make this one rebuild everything.
            .env_remove("RUSTFLAGS")
            .env_remove("CARGO_ENCODED_RUSTFLAGS")
            .status()
            .expect("run cargo");
        assert!(built.success(), "the test double does not build");
        let dir = tmp.join("cuda-double");
        std::fs::create_dir_all(&dir).unwrap();
        let made = dir.join(format!("libcuda.so.{}", std::process::id()));
        let _ = std::fs::remove_file(&made);
        std::os::unix::fs::symlink(target.join("debug/libstfs_cuda_double.so"), &made).unwrap();
        // Atomically, because other test processes do the same.
        std::fs::rename(&made, dir.join("libcuda.so")).unwrap();
        dir
    })
}

/// Runs the body of the calling test in a process of its own, with the double for a driver and with
/// these environment variables; fails if that process does.
macro_rules! with_double {
    ([$($name:expr => $value:expr),* $(,)?], $body:block) => {{
        fn here() {}
        let name = std::any::type_name_of_val(&here);
        let name = name.trim_end_matches("::here").split_once("::").unwrap().1;
        if $crate::support::is_child_for(name) {
            $body
        } else {
            let environment: Vec<(String, String)> = vec![$(($name.to_string(), $value.to_string())),*];
            $crate::support::run_child(name, &environment, Some($crate::support::double()));
        }
    }};
}
pub(crate) use with_double;

pub fn is_child_for(name: &str) -> bool {
    std::env::var(CHILD).is_ok_and(|n| n == name)
}

/// Runs one test of this program in a process of its own, which finds its CUDA driver in `driver`.
pub fn run_child(name: &str, environment: &[(String, String)], driver: Option<&Path>) {
    let scratch = tempfile::tempdir().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args([name, "--exact", "--nocapture", "--test-threads=1"])
        .env(CHILD, name)
        .env("STFS_CUDA_DOUBLE_LEDGER", scratch.path().join("ledger"))
        .env("LD_LIBRARY_PATH", driver.unwrap_or(scratch.path()))
        .envs(environment.iter().map(|(k, v)| (k, v)));
    let (ok, output) = finish(command);
    assert!(ok, "{name} {environment:?}:\n{output}");
    assert!(output.contains("1 passed"), "{name} did not run:\n{output}");
}

/// Runs one test of this program as root, which must not stop to ask for a password.
pub fn run_as_root(name: &str) {
    let mut command = Command::new("sudo");
    let path = std::env::var("PATH").unwrap_or_default();
    command
        .args(["-n", "env", &format!("PATH={path}")])
        .arg(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture", "--test-threads=1"]);
    let (ok, output) = finish(command);
    assert!(
        ok && output.contains("1 passed"),
        "{name} needs root, or sudo that asks for no password:\n{output}"
    );
}

/// Runs a command to its end, or kills it at the limit. Returns whether it succeeded, and its output.
pub fn finish(mut command: Command) -> (bool, String) {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let drain = |mut from: Box<dyn Read + Send>| {
        std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = from.read_to_end(&mut text);
            String::from_utf8_lossy(&text).into_owned()
        })
    };
    let stdout = drain(Box::new(child.stdout.take().unwrap()));
    let stderr = drain(Box::new(child.stderr.take().unwrap()));
    let start = Instant::now();
    let status = loop {
        match child.try_wait().unwrap() {
            Some(status) => break Some(status),
            None if start.elapsed() > LIMIT => {
                child.kill().unwrap();
                child.wait().unwrap();
                break None;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let output = format!("{}{}", stdout.join().unwrap(), stderr.join().unwrap());
    match status {
        Some(status) => (status.success(), output),
        None => (false, format!("{output}\nkilled: it hung")),
    }
}

/// What the double has handed out and not yet got back, by kind.
pub fn outstanding(ledger: &Path) -> HashMap<String, i64> {
    let mut counts = HashMap::new();
    for line in std::fs::read_to_string(ledger).unwrap_or_default().lines() {
        let (sign, kind) = line.split_at(1);
        *counts.entry(kind.to_string()).or_default() += if sign == "+" { 1 } else { -1 };
    }
    counts.retain(|_, n| *n != 0);
    counts
}

/// Waits until so many allocations of device memory are left: what is ABSENT goes back to the driver a
/// moment later.
pub fn wait_for_device_memory(ledger: &Path, count: i64) {
    let start = Instant::now();
    let left = || outstanding(ledger).get("device").copied().unwrap_or(0);
    while left() != count {
        assert!(
            start.elapsed() < Duration::from_secs(60),
            "{} are left",
            left()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The ledger of this process.
pub fn ledger() -> PathBuf {
    std::env::var_os("STFS_CUDA_DOUBLE_LEDGER").unwrap().into()
}

/// Asserts that the double has got everything back.
pub fn assert_all_returned() {
    assert_eq!(outstanding(&ledger()), HashMap::new());
}

/// How many of a kind the double has handed out so far.
pub fn handed_out(kind: &str) -> usize {
    let text = std::fs::read_to_string(ledger()).unwrap_or_default();
    text.lines().filter(|l| *l == format!("+{kind}")).count()
}

/// Bytes that look random, and are the same every time.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend_from_slice(&state.to_le_bytes());
    }
    out.truncate(len);
    out
}

/// A view that counts the bytes read from it.
pub struct Counting {
    pub inner: SharedView,
    pub read: AtomicU64,
}

impl View for Counting {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> stfs::Result<()> {
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.inner.read_at(offset, buf)
    }
    fn grain(&self) -> u64 {
        self.inner.grain()
    }
}

/// Files to upload from, and an engine.
pub struct Fixture {
    pub dir: tempfile::TempDir,
    pub gpu: Gpu,
}

/// Small buffers, so that small files go round many times.
pub fn small_staging() -> StagingPool {
    StagingPool {
        buffers: 3,
        bytes: 192 * 1024,
    }
}

impl Fixture {
    pub fn new(config: Config) -> Fixture {
        Fixture {
            dir: tempfile::tempdir().unwrap(),
            gpu: Gpu::new(config, Workers::new(4)),
        }
    }

    /// An engine as it is by default, with small buffers.
    pub fn small() -> Fixture {
        Fixture::new(Config {
            staging: small_staging(),
            ..Config::default()
        })
    }

    /// A file of that many bytes of noise.
    pub fn file(&self, name: &str, len: usize, seed: u64) -> Arc<dyn Object> {
        let path = self.dir.path().join(name);
        std::fs::write(&path, noise(len, seed)).unwrap();
        LocalFile::open(&path).unwrap()
    }

    /// A target of a whole file of noise, as bytes of one dimension.
    pub fn target(&self, ino: u64, len: usize) -> Target {
        let file = self.file(&format!("m{ino}.safetensors"), len, ino);
        target(ino, whole(&file), &[file])
    }

    /// One ioctl, waited for. The ABI allows it a second, and a busy machine some more.
    pub fn call(&self, code: u32, io: GpuIo, target: &Target, caller: Caller) -> (i32, GpuIo) {
        let start = Instant::now();
        let answer = self.ask(code, io, target, caller).recv_timeout(LIMIT);
        let took = start.elapsed();
        assert!(took < Duration::from_secs(5), "took {took:?}");
        answer.expect("an answer")
    }

    /// One ioctl, not waited for.
    pub fn ask(
        &self,
        code: u32,
        io: GpuIo,
        target: &Target,
        caller: Caller,
    ) -> Receiver<(i32, GpuIo)> {
        let (tx, rx) = channel();
        let reply = Box::new(move |errno, bytes: &[u8]| {
            let _ = tx.send((errno, GpuIo::decode(bytes).expect("a whole struct")));
        });
        let input = bytemuck::bytes_of(&io);
        self.gpu
            .ioctl(code, input, Ok(Some(target.clone())), caller, reply);
        rx
    }

    pub fn upload(&self, target: &Target, fh: u64) -> (i32, GpuIo) {
        self.upload_with(request(), target, fh)
    }

    /// Repeats UPLOAD until the tensor is no longer loading.
    pub fn upload_with(&self, io: GpuIo, target: &Target, fh: u64) -> (i32, GpuIo) {
        loop {
            let (errno, out) = self.call(ioctl::UPLOAD, io, target, file(fh));
            if errno != 0 || out.state != ioctl::LOADING {
                return (errno, out);
            }
        }
    }

    pub fn query(&self, target: &Target, fh: u64) -> (i32, GpuIo) {
        self.call(ioctl::QUERY, request(), target, file(fh))
    }

    pub fn release(&self, target: &Target, fh: u64, flags: u32) -> (i32, GpuIo) {
        let io = GpuIo {
            op_flags: flags,
            ..request()
        };
        self.call(ioctl::RELEASE, io, target, file(fh))
    }

    /// What LIST shows: paths.
    pub fn listed(&self) -> Vec<String> {
        let mut paths = Vec::new();
        for index in 0.. {
            let entry = ioctl::GpuEntry {
                index,
                ..ioctl::GpuEntry::request()
            };
            let (errno, bytes) = self.raw(ioctl::LIST, bytemuck::bytes_of(&entry), file(1));
            if errno == libc::ENXIO {
                break;
            }
            assert_eq!(errno, 0);
            paths.push(ioctl::GpuEntry::decode(&bytes).unwrap().path());
        }
        paths
    }

    /// An ioctl of any kind, without a target.
    pub fn raw(&self, code: u32, input: &[u8], caller: Caller) -> (i32, Vec<u8>) {
        let (tx, rx) = channel();
        let reply = Box::new(move |errno, bytes: &[u8]| {
            let _ = tx.send((errno, bytes.to_vec()));
        });
        self.gpu.ioctl(code, input, Ok(None), caller, reply);
        rx.recv_timeout(LIMIT).expect("an answer")
    }
}

/// A request that waits as long as the ABI allows.
pub fn request() -> GpuIo {
    GpuIo {
        device: -1,
        timeout_ms: 1000,
        ..GpuIo::request()
    }
}

/// Root, with an open file.
pub fn file(fh: u64) -> Caller {
    Caller {
        uid: 0,
        fh: Some(fh),
    }
}

/// Root, on a directory.
pub fn directory() -> Caller {
    Caller { uid: 0, fh: None }
}

/// All bytes of a file.
pub fn whole(file: &Arc<dyn Object>) -> SharedView {
    Arc::new(StoredBytes(Extent {
        file: file.clone(),
        offset: 0,
        len: file.len(),
    }))
}

/// A target of plain bytes.
pub fn target(ino: u64, view: SharedView, files: &[Arc<dyn Object>]) -> Target {
    Target {
        key: Key {
            ino,
            part: Part::Raw,
        },
        path: format!("tensors/t{ino}/raw").into(),
        dtype: 0,
        shape: [view.len()].into(),
        view,
        sources: files.iter().cloned().collect(),
        arena: None,
    }
}
