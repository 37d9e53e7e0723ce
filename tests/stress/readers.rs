//! Readers, in all ways that there are to read, and what they may get.

use std::fs::File as StdFile;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use memmap2::MmapOptions;

use crate::common::sys;
use crate::numbers::Numbers;

/// What may happen to a file's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Danger {
    /// Nothing that a reader could notice.
    None,
    /// It is truncated and restored: reads may fail with EIO.
    Truncated,
    /// It stalls: reads may take long.
    Stalled,
}

/// A file of a mount.
pub struct File {
    pub path: PathBuf,
    /// Its bytes.
    pub want: Arc<[u8]>,
    pub danger: Danger,
    /// Whether its bytes are the source's own. Where the source is cut while the kernel copies such bytes
    /// out of its mapping, the rest of the page is zeros: `doc/SEMANTICS.md`, "When the source changes".
    pub stored: bool,
}

/// What the readers have found.
#[derive(Default)]
pub struct Shared {
    pub stop: AtomicBool,
    pub reads: AtomicU64,
    bytes: AtomicU64,
    failed_reads: AtomicU64,
    zeros: AtomicU64,
    wrong: Mutex<Vec<String>>,
}

impl Shared {
    pub fn failed(&self) -> bool {
        !self.wrong.lock().expect("not poisoned").is_empty()
    }

    /// Remembers something that must not happen.
    pub fn fail(&self, what: String) {
        let mut wrong = self.wrong.lock().expect("not poisoned");
        if wrong.len() < 10 {
            wrong.push(what);
        }
    }

    pub fn report(&self) -> String {
        format!(
            "{} reads of {:.2} GB were right; {} failed with EIO because their source was cut, {} got zeros as it was cut",
            self.reads.load(Ordering::SeqCst),
            self.bytes.load(Ordering::SeqCst) as f64 / 1e9,
            self.failed_reads.load(Ordering::SeqCst),
            self.zeros.load(Ordering::SeqCst)
        )
    }

    #[track_caller]
    pub fn check(&self) {
        let wrong = self.wrong.lock().expect("not poisoned");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(self.reads.load(Ordering::SeqCst) > 0, "nothing was read");
    }
}

/// A way to read: gives a range's first byte and its bytes.
type Way = fn(&Path, usize, &mut Numbers) -> io::Result<(usize, Vec<u8>)>;

const WAYS: [(&str, Way); 8] = [
    ("pread", pread),
    ("O_DIRECT", direct),
    ("mmap", mapped),
    ("sendfile", sendfile),
    ("copy", copy),
    ("in order", in_order),
    ("seek and read", seek),
    ("preads of one open file", preads),
];

/// Reads files at random until it is told to stop.
pub fn run(files: &[File], shared: &Shared, mut numbers: Numbers) {
    while !shared.stop.load(Ordering::SeqCst) && !shared.failed() {
        let file = numbers.of(files);
        let (name, way) = numbers.of(&WAYS);
        let got = way(&file.path, file.want.len(), &mut numbers);
        if let Err(problem) = judge(file, got, shared) {
            shared.fail(format!("{:?} by {name}: {problem}", file.path));
        }
    }
}

fn judge(file: &File, got: io::Result<(usize, Vec<u8>)>, shared: &Shared) -> Result<(), String> {
    let count = |counter: &AtomicU64, n: usize| counter.fetch_add(n as u64, Ordering::Relaxed);
    match got {
        Ok((from, bytes)) => {
            let end = from + bytes.len();
            let want = file
                .want
                .get(from..end)
                .ok_or_else(|| format!("bytes {from} to {end} of {}", file.want.len()))?;
            if bytes == want {
                count(&shared.reads, 1);
                count(&shared.bytes, bytes.len());
                return Ok(());
            }
            let differs = |i: &usize| bytes[*i] != want[*i];
            let zeros = (0..bytes.len()).filter(differs).all(|i| bytes[i] == 0);
            if file.danger == Danger::Truncated && file.stored && zeros {
                count(&shared.zeros, 1);
                return Ok(());
            }
            let at = (0..bytes.len()).find(differs).unwrap_or(0);
            let n = (0..bytes.len()).filter(differs).count();
            let all = if zeros { ", all of them zeros" } else { "" };
            Err(format!(
                "{} bytes from {from}: {n} differ{all}, the first at {}: {:02x} instead of {:02x}",
                bytes.len(),
                from + at,
                bytes[at],
                want[at]
            ))
        }
        // A page of a mapping that cannot be had is EFAULT to a system call.
        Err(e)
            if file.danger == Danger::Truncated
                && matches!(e.raw_os_error(), Some(libc::EIO | libc::EFAULT)) =>
        {
            count(&shared.failed_reads, 1);
            Ok(())
        }
        Err(e) => Err(e.to_string()),
    }
}

/// A range: most are short, one in eight is long.
fn range(len: usize, numbers: &mut Numbers) -> (usize, usize) {
    let from = numbers.below(len + 1);
    let most = [
        200,
        5_000,
        70_000,
        70_000,
        140_000,
        140_000,
        300_000,
        2 << 20,
    ][numbers.below(8)];
    (from, numbers.below(most + 1).min(len - from))
}

/// The bytes of a range, all of which must come.
fn all(bytes: Vec<u8>, from: usize, len: usize) -> io::Result<(usize, Vec<u8>)> {
    match bytes.len() == len {
        true => Ok((from, bytes)),
        false => Err(io::Error::other(format!(
            "{} of {len} bytes from {from}",
            bytes.len()
        ))),
    }
}

fn pread(path: &Path, len: usize, numbers: &mut Numbers) -> io::Result<(usize, Vec<u8>)> {
    let (from, n) = range(len, numbers);
    all(
        sys::pread_all(&StdFile::open(path)?, from as u64, n, n.max(1))?,
        from,
        n,
    )
}

fn preads(path: &Path, len: usize, numbers: &mut Numbers) -> io::Result<(usize, Vec<u8>)> {
    let file = StdFile::open(path)?;
    let (from, n) = range(len, numbers);
    // Backwards, in odd pieces.
    let mut bytes = vec![0; n];
    let piece = 1 + numbers.below(40_000);
    let mut end = n;
    while end > 0 {
        let start = end.saturating_sub(piece);
        file.read_exact_at(&mut bytes[start..end], (from + start) as u64)?;
        end = start;
    }
    Ok((from, bytes))
}

fn direct(path: &Path, len: usize, numbers: &mut Numbers) -> io::Result<(usize, Vec<u8>)> {
    let (from, n) = range(len, numbers);
    all(sys::read_direct(path, from as u64, n)?, from, n)
}

/// Copies out of a mapping by a system call: a page that cannot be had is an error then, and no signal.
fn mapped(path: &Path, len: usize, numbers: &mut Numbers) -> io::Result<(usize, Vec<u8>)> {
    let (from, n) = range(len, numbers);
    if n == 0 {
        return Ok((from, Vec::new()));
    }
    let file = StdFile::open(path)?;
    // SAFETY: no reference into the mapping is made. Only the kernel reads it, below.
    let map = unsafe { MmapOptions::new().map_raw_read_only(&file) }?;
    let mut bytes = vec![0; n];
    let local = libc::iovec {
        iov_base: bytes.as_mut_ptr().cast(),
        iov_len: n,
    };
    let remote = libc::iovec {
        iov_base: map.as_ptr().wrapping_add(from).cast_mut().cast(),
        iov_len: n,
    };
    // SAFETY: `local` is `bytes`; what cannot be read of `remote` is EFAULT, or a short count.
    let got = unsafe { libc::process_vm_readv(libc::getpid(), &local, 1, &remote, 1, 0) };
    match usize::try_from(got) {
        Err(_) => Err(io::Error::last_os_error()),
        Ok(got) if got < n => Err(io::Error::from_raw_os_error(libc::EFAULT)),
        Ok(_) => Ok((from, bytes)),
    }
}

/// A file in memory.
fn memory() -> io::Result<StdFile> {
    // SAFETY: the name ends with a NUL.
    let fd = unsafe { libc::memfd_create(c"stress".as_ptr(), libc::MFD_CLOEXEC) };
    match fd {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: it was just made, and nobody else has it.
        _ => Ok(unsafe { StdFile::from_raw_fd(fd) }),
    }
}

fn content(mut file: StdFile) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn sendfile(path: &Path, len: usize, _: &mut Numbers) -> io::Result<(usize, Vec<u8>)> {
    let to = memory()?;
    sys::sendfile(&StdFile::open(path)?, &to)?;
    all(content(to)?, 0, len)
}

fn copy(path: &Path, len: usize, _: &mut Numbers) -> io::Result<(usize, Vec<u8>)> {
    let mut to = memory()?;
    io::copy(&mut StdFile::open(path)?, &mut to)?;
    all(content(to)?, 0, len)
}

fn in_order(path: &Path, len: usize, numbers: &mut Numbers) -> io::Result<(usize, Vec<u8>)> {
    let mut file = StdFile::options()
        .read(true)
        .custom_flags(libc::O_NOATIME)
        .open(path)?;
    let mut bytes = Vec::with_capacity(len);
    let mut piece = vec![0; 1 + numbers.below(300_000)];
    loop {
        match file.read(&mut piece)? {
            0 => return all(bytes, 0, len),
            n => bytes.extend_from_slice(&piece[..n]),
        }
    }
}

fn seek(path: &Path, len: usize, numbers: &mut Numbers) -> io::Result<(usize, Vec<u8>)> {
    let mut file = StdFile::open(path)?;
    let size = file.metadata()?.len();
    if size != len as u64 {
        return Err(io::Error::other(format!(
            "stat has {size} bytes, not {len}"
        )));
    }
    // Where tools look for holes, there are none.
    // SAFETY: the descriptor is open.
    let hole = unsafe { libc::lseek(file.as_raw_fd(), 0, libc::SEEK_HOLE) };
    if len > 0 && hole != len as i64 {
        return Err(io::Error::other(format!("a hole at {hole} of {len}")));
    }
    let (from, n) = range(len, numbers);
    file.seek(SeekFrom::Start(from as u64))?;
    let mut bytes = vec![0; n];
    file.read_exact(&mut bytes)?;
    Ok((from, bytes))
}
