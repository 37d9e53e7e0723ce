//! System calls that std does not offer.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("no NUL")
}

fn check(n: isize) -> io::Result<usize> {
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// The errno of a failure.
#[track_caller]
pub fn errno<T: std::fmt::Debug>(r: io::Result<T>) -> i32 {
    r.expect_err("should have failed")
        .raw_os_error()
        .expect("an errno")
}

/// Reads all of a range in pieces of `piece` bytes, with pread.
pub fn pread_all(file: &File, from: u64, len: usize, piece: usize) -> io::Result<Vec<u8>> {
    let mut out = vec![0; len];
    let mut at = 0;
    while at < len {
        let end = len.min(at + piece);
        let n = file.read_at(&mut out[at..end], from + at as u64)?;
        if n == 0 {
            break;
        }
        at += n;
    }
    out.truncate(at);
    Ok(out)
}

/// Reads `len` bytes at `offset` past the page cache.
pub fn read_direct(path: &Path, offset: u64, len: usize) -> io::Result<Vec<u8>> {
    let file = File::options()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)?;
    // An anonymous mapping begins at a page, as O_DIRECT likes its buffers.
    let mut buffer = memmap2::MmapMut::map_anon(len.max(1))?;
    let mut done = 0;
    while done < len {
        match file.read_at(&mut buffer[done..len], offset + done as u64)? {
            0 => break,
            n => done += n,
        }
    }
    Ok(buffer[..done].to_vec())
}

/// The whole of `from` into `to` by sendfile(2).
pub fn sendfile(from: &File, to: &File) -> io::Result<u64> {
    let mut sent = 0;
    loop {
        // SAFETY: both descriptors are open, and a null offset means their own positions.
        let n = check(unsafe {
            libc::sendfile(
                to.as_raw_fd(),
                from.as_raw_fd(),
                std::ptr::null_mut(),
                1 << 20,
            )
        })?;
        match n {
            0 => return Ok(sent),
            n => sent += n as u64,
        }
    }
}

/// An extended attribute's value.
pub fn getxattr(path: &Path, name: &str) -> io::Result<Vec<u8>> {
    let (path, name) = (c(path), CString::new(name).expect("no NUL"));
    let mut value = vec![0u8; 70_000];
    // SAFETY: the strings end with a NUL, and `value` is as long as is said.
    let n = check(unsafe {
        libc::getxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    })?;
    value.truncate(n);
    Ok(value)
}

/// The names of a file's extended attributes.
pub fn listxattr(path: &Path) -> io::Result<Vec<String>> {
    let path = c(path);
    let mut names = vec![0u8; 4096];
    // SAFETY: the string ends with a NUL, and `names` is as long as is said.
    let n =
        check(unsafe { libc::listxattr(path.as_ptr(), names.as_mut_ptr().cast(), names.len()) })?;
    Ok(names[..n]
        .split_inclusive(|&b| b == 0)
        .map(|n| String::from_utf8_lossy(&n[..n.len() - 1]).into_owned())
        .collect())
}

/// Sets an extended attribute.
pub fn setxattr(path: &Path, name: &str, value: &[u8]) -> io::Result<usize> {
    let (path, name) = (c(path), CString::new(name).expect("no NUL"));
    // SAFETY: the strings end with a NUL, and `value` is as long as is said.
    check(unsafe {
        libc::setxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_ptr().cast(),
            value.len(),
            0,
        ) as isize
    })
}

/// Removes an extended attribute.
pub fn removexattr(path: &Path, name: &str) -> io::Result<usize> {
    let (path, name) = (c(path), CString::new(name).expect("no NUL"));
    // SAFETY: the strings end with a NUL.
    check(unsafe { libc::removexattr(path.as_ptr(), name.as_ptr()) as isize })
}

/// Makes a node or FIFO.
pub fn mkfifo(path: &Path) -> io::Result<usize> {
    let path = c(path);
    // SAFETY: the string ends with a NUL.
    check(unsafe { libc::mkfifo(path.as_ptr(), 0o644) as isize })
}

/// What statvfs reports about the file system of `path`.
pub fn statvfs(path: &Path) -> io::Result<libc::statvfs> {
    let path = c(path);
    let mut s = std::mem::MaybeUninit::uninit();
    // SAFETY: the string ends with a NUL, and `s` has room for what is written.
    check(unsafe { libc::statvfs(path.as_ptr(), s.as_mut_ptr()) as isize })?;
    // SAFETY: the call succeeded, and so has filled it.
    Ok(unsafe { s.assume_init() })
}

/// Sends a signal.
pub fn kill(pid: i32, signal: i32) {
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "kill {pid}");
}

/// Stops a process, and waits until none of its threads runs: the signal reaches one of them, which
/// tells the others, and until then they go on answering.
pub fn stop(pid: i32) {
    kill(pid, libc::SIGSTOP);
    let runs = |task: std::fs::DirEntry| {
        // `PID (NAME) STATE …`, and the name may hold anything. A thread that has ended has no file.
        std::fs::read_to_string(task.path().join("stat"))
            .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or("").starts_with('T'))
    };
    let tasks = || std::fs::read_dir(format!("/proc/{pid}/task")).expect("the process lives");
    while tasks().any(|task| runs(task.expect("a thread"))) {
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A stopped process. It continues when the value is dropped, and after two minutes in any case, so
/// that it does not remain stopped if this process is killed.
pub struct Stopped {
    pid: i32,
    rescue: Child,
}

impl Stopped {
    pub fn new(pid: i32) -> Stopped {
        let rescue = Command::new("sh")
            .args(["-c", &format!("sleep 120; kill -CONT {pid}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("run sh");
        stop(pid);
        Stopped { pid, rescue }
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        kill(self.pid, libc::SIGCONT);
        let _ = self.rescue.kill();
        let _ = self.rescue.wait();
    }
}

/// Whether the tests run as root.
pub fn is_root() -> bool {
    // SAFETY: no preconditions, and cannot fail.
    unsafe { libc::geteuid() == 0 }
}
