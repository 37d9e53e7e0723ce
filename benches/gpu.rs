//! What an upload costs, beside its upper bound: a single pinned copy of the same size in the same run.
//! It uses the library, so no mount is needed.
//!
//! ```console
//! $ cargo bench --bench gpu -- MODEL          a model directory, read from the page cache
//! $ cargo bench --bench gpu                   4 GB of noise in a file of its own
//! $ cargo bench --bench gpu -- --bytes 1000000000 --rounds 9 --device 1
//! ```
//!
//! Also: the time from the ioctl to the first byte in a second process; and, if python3 has torch,
//! `safetensors.torch.load_file(device="cuda")`, fastsafetensors, and the handle opened by PyTorch.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use cudarc::driver::{result, sys};
use stfs::catalog::OpenOptions;
use stfs::fs::Fs;
use stfs::gpu::{Config, StagingPool};
use stfs::ioctl::{self, GpuIo, Header};
use stfs::layout::Layout;
use stfs::model::{Model, ModelOptions};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Set in the second process: it opens the handle that it reads from standard input.
const SECOND: &str = "STFS_BENCH_SECOND_PROCESS";

struct Arguments {
    model: Option<PathBuf>,
    bytes: usize,
    rounds: usize,
    device: i32,
    staging: StagingPool,
}

fn arguments() -> Outcome<Arguments> {
    let mut all = Arguments {
        model: None,
        bytes: 4_000_000_000,
        rounds: 5,
        device: 0,
        staging: StagingPool::default(),
    };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or(format!("{arg} needs a value"));
        match arg.as_str() {
            "--bench" => {} // cargo's own
            "--bytes" => all.bytes = value()?.parse()?,
            "--rounds" => all.rounds = value()?.parse()?,
            "--device" => all.device = value()?.parse()?,
            "--buffers" => all.staging.buffers = value()?.parse()?,
            "--buffer-bytes" => all.staging.bytes = value()?.parse()?,
            path if !path.starts_with('-') => all.model = Some(path.into()),
            _ => return Err(format!("unknown argument {arg}").into()),
        }
    }
    Ok(all)
}

fn main() -> Outcome<()> {
    if std::env::var_os(SECOND).is_some() {
        return second_process();
    }
    let args = arguments()?;
    // SAFETY: looks for the driver's library; see the function's own documentation.
    if !unsafe { sys::is_culib_present() } {
        println!("no CUDA driver (libcuda.so.1) on this machine: nothing to measure");
        return Ok(());
    }
    let scratch = tempfile::tempdir()?;
    let model = match &args.model {
        Some(model) => model.clone(),
        None => noise(scratch.path(), args.bytes)?,
    };
    let engine = Engine::open(&model, &args)?;
    let tensors = engine.inode(&["tensors"])?;
    whole_model(&engine, tensors, &args)?;
    sharing(&engine, tensors, &args)?;
    computed(&engine, &args)?;
    peers(&model, &engine, tensors)
}

/// The upload, beside one pinned copy.
fn whole_model(engine: &Engine, tensors: u64, args: &Arguments) -> Outcome<()> {
    let (first, io) = engine.upload(tensors)?;
    println!(
        "whole model: {} bytes in {} of device memory",
        io.nbytes, io.alloc_bytes
    );
    row(
        "first upload (driver, context and buffers included)",
        io.nbytes,
        first,
    );
    let size = usize::try_from(io.nbytes)?;
    engine.evict(tensors)?;
    let bus = median(args.rounds, || pinned_copy(size, args.device))?;
    row(
        "one pinned cuMemcpyHtoDAsync of the same size",
        io.nbytes,
        bus,
    );
    let again = median(args.rounds, || {
        let (took, _) = engine.upload(tensors)?;
        engine.evict(tensors)?;
        Ok(took)
    })?;
    row("upload, from the page cache", io.nbytes, again);
    let share = 100.0 * bus.as_secs_f64() / again.as_secs_f64();
    println!("  {share:.1} % of the pinned copy");
    Ok(())
}

/// The cost for the second process.
fn sharing(engine: &Engine, tensors: u64, args: &Arguments) -> Outcome<()> {
    engine.upload(tensors)?;
    let resident = median(args.rounds.max(20), || Ok(engine.upload(tensors)?.0))?;
    println!("UPLOAD of what is resident: {resident:?}");
    let io = engine.upload(tensors)?.1;
    let used = median(args.rounds, || first_use(&io))?;
    println!("from the handle to the first byte in a second process, its CUDA up: {used:?}");
    engine.evict(tensors)
}

/// A computed view.
fn computed(engine: &Engine, args: &Arguments) -> Outcome<()> {
    let Some((name, ino)) = engine.largest_f32()? else {
        return Ok(());
    };
    let mut nbytes = 0;
    let time = median(args.rounds, || {
        let (took, io) = engine.upload(ino)?;
        nbytes = io.nbytes;
        engine.evict(ino)?;
        Ok(took)
    })?;
    row(&format!("f32 of {name}, computed"), nbytes, time);
    Ok(())
}

fn row(what: &str, bytes: u64, time: Duration) {
    let rate = bytes as f64 / time.as_secs_f64() / 1e9;
    println!("{what}: {time:.3?}, {rate:.2} GB/s");
}

/// The median of several rounds.
fn median(rounds: usize, mut round: impl FnMut() -> Outcome<Duration>) -> Outcome<Duration> {
    let mut times = (0..rounds.max(1))
        .map(|_| round())
        .collect::<Outcome<Vec<_>>>()?;
    times.sort_unstable();
    Ok(times[times.len() / 2])
}

/// A model of one tensor that nothing can compress or guess.
fn noise(dir: &Path, bytes: usize) -> Outcome<PathBuf> {
    let bytes = bytes / 2 * 2;
    let header = format!(
        "{{\"noise\":{{\"dtype\":\"BF16\",\"shape\":[{}],\"data_offsets\":[0,{bytes}]}}}}",
        bytes / 2
    );
    let mut file = std::io::BufWriter::with_capacity(
        1 << 20,
        std::fs::File::create(dir.join("model.safetensors"))?,
    );
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(header.as_bytes())?;
    let mut state = 0x9E37_79B9_7F4A_7C15u64;
    let mut left = bytes;
    while left > 0 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let n = left.min(8);
        file.write_all(&state.to_le_bytes()[..n])?;
        left -= n;
    }
    file.flush()?;
    Ok(dir.to_path_buf())
}

/// The mount's own answers, without a mount.
struct Engine {
    fs: Fs,
    device: i32,
}

impl Engine {
    fn open(model: &Path, args: &Arguments) -> Outcome<Engine> {
        let model = Model::open(model, OpenOptions::default(), ModelOptions::default())?;
        let config = Config {
            staging: args.staging,
            ..Config::default()
        };
        Ok(Engine {
            fs: Fs::with_gpu(Layout::new(model.into()), config),
            device: args.device,
        })
    }

    fn inode(&self, path: &[&str]) -> Outcome<u64> {
        let mut ino = 1;
        for name in path {
            ino = self.fs.lookup(ino, name).wait(&self.fs)?.ino;
        }
        Ok(ino)
    }

    fn ioctl(&self, ino: u64, code: u32, op_flags: u32) -> Outcome<GpuIo> {
        let io = GpuIo {
            device: self.device,
            timeout_ms: 1000,
            op_flags,
            ..GpuIo::request()
        };
        let (tx, rx) = channel();
        let reply = Box::new(move |errno, bytes: &[u8]| {
            let _ = tx.send((errno, GpuIo::decode(bytes)));
        });
        self.fs
            .ioctl(ino, None, code, bytemuck::bytes_of(&io), 0, reply)
            .wait(&self.fs);
        match rx.recv()? {
            (0, Some(io)) => Ok(io),
            (errno, io) => {
                let cuda = io.map_or(0, |io| io.cu_error);
                let e = std::io::Error::from_raw_os_error(errno);
                Err(format!("{e} (CUDA error {cuda})").into())
            }
        }
    }

    fn upload(&self, ino: u64) -> Outcome<(Duration, GpuIo)> {
        let start = Instant::now();
        loop {
            let io = self.ioctl(ino, ioctl::UPLOAD, 0)?;
            if io.state == ioctl::RESIDENT {
                return Ok((start.elapsed(), io));
            }
        }
    }

    fn evict(&self, ino: u64) -> Outcome<()> {
        self.ioctl(ino, ioctl::RELEASE, ioctl::EVICT).map(|_| ())
    }

    /// The tensor whose `f32` is largest and computed.
    fn largest_f32(&self) -> Outcome<Option<(String, u64)>> {
        let model = &self.fs.layout.model;
        let computed = model.listing().iter().filter_map(|&id| {
            let tensor = model.tensor(id).ok()?;
            let len = tensor.f32_len().filter(|&n| n != tensor.nbytes)?;
            Some((len, id))
        });
        let Some((_, id)) = computed.max() else {
            return Ok(None);
        };
        let name = model.name(id).to_string();
        let dir = stfs::names::file_name(&name).into_owned();
        Ok(Some((name, self.inode(&["tensors", &dir, "f32"])?)))
    }
}

/// One copy of that many bytes from pinned memory.
fn pinned_copy(bytes: usize, device: i32) -> Outcome<Duration> {
    result::init()?;
    let device = result::device::get(device)?;
    // SAFETY: everything made here is given back here, after the copy has been waited for.
    unsafe {
        result::ctx::set_current(result::primary_ctx::retain(device)?)?;
        let from = result::malloc_host(bytes, 0)?;
        from.cast::<u8>().write_bytes(1, bytes);
        let to = result::malloc_sync(bytes)?;
        let stream = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        let source = std::slice::from_raw_parts(from.cast::<u8>(), bytes);
        let start = Instant::now();
        result::memcpy_htod_async(to, source, stream)?;
        result::stream::synchronize(stream)?;
        let took = start.elapsed();
        result::stream::destroy(stream)?;
        result::free_sync(to)?;
        result::free_host(from)?;
        result::primary_ctx::release(device)?;
        Ok(took)
    }
}

/// How long a second process, in which CUDA has started, takes from receiving the handle to having
/// read the tensor's first byte.
fn first_use(io: &GpuIo) -> Outcome<Duration> {
    let mut child = Command::new(std::env::current_exe()?)
        .env(SECOND, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut lines = BufReader::new(child.stdout.take().ok_or("no stdout")?).lines();
    let mut to = child.stdin.take().ok_or("no stdin")?;
    writeln!(to, "{}", io.device_ordinal)?;
    lines.next().ok_or("the second process did not start")??;
    let hex: String = io.handle.iter().map(|b| format!("{b:02x}")).collect();
    let start = Instant::now();
    writeln!(to, "{hex} {}", io.base_offset)?;
    lines
        .next()
        .ok_or("the second process could not open the handle")??;
    let took = start.elapsed();
    child.wait()?;
    Ok(took)
}

fn second_process() -> Outcome<()> {
    let mut lines = std::io::stdin().lock().lines();
    let device: i32 = lines.next().ok_or("no device")??.parse()?;
    result::init()?;
    // SAFETY: the context stays retained until the process ends.
    unsafe {
        result::ctx::set_current(result::primary_ctx::retain(result::device::get(device)?)?)?
    };
    println!("up");
    let line = lines.next().ok_or("no handle")??;
    let (hex, offset) = line.split_once(' ').ok_or("no offset")?;
    let mut handle = sys::CUipcMemHandle { reserved: [0; 64] };
    for (i, byte) in handle.reserved.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&hex[2 * i..2 * i + 2], 16)? as std::ffi::c_char;
    }
    let mut base = 0;
    let mut first = [0u8; 1];
    // SAFETY: the handle is the parent's, and its mapping holds the byte at that offset.
    unsafe {
        sys::cuIpcOpenMemHandle_v2(&mut base, handle, 1).result()?;
        result::memcpy_dtoh_sync(&mut first, base + offset.parse::<u64>()?)?;
    }
    println!("{}", first[0]);
    Ok(())
}

/// How long other loaders take, if they are installed, and PyTorch on the handle.
fn peers(model: &Path, engine: &Engine, tensors: u64) -> Outcome<()> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/gpu_peers.py");
    let io = engine.upload(tensors)?.1;
    let hex: String = bytemuck::bytes_of(&io)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    let ran = Command::new("python3")
        .arg(script)
        .arg(model)
        .arg(hex)
        .status();
    match ran {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{script}: {status}").into()),
        Err(e) => {
            println!("python3: {e}; other loaders not measured");
            Ok(())
        }
    }
}
