//! Serving a mount that has been made: the session and its threads.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use fuser::{BackgroundSession, Config, Session, SessionACL};

use super::FuseFs;
use super::gate::SPARE;
use crate::error::{Error, Result};
use crate::fs::Fs;

/// How to serve.
#[derive(Debug, Clone)]
pub struct ServeOptions {
    /// Answer other users, too (file permissions still count).
    pub allow_other: bool,
    /// Request threads that may wait for source files. A cold page blocks its thread, so this is sized
    /// for disks, not for cores.
    pub threads: usize,
}

/// Address space of a request thread: its buffer and its stack, and a bit more.
const SPACE: usize = (16 << 20) + (2 << 20) + (64 << 10);
/// Address space for everything else that serving takes.
const SPARE_SPACE: usize = 32 << 20;
/// Threads beside the session's: for signals, the log, slow requests.
const OTHERS: usize = 8;

impl ServeOptions {
    fn request_threads(&self) -> usize {
        self.threads.max(1) + SPARE
    }

    /// Starts as many threads as serving takes, gives each what it needs, and ends them. fuser starts its
    /// threads when the mount exists already, the first of them may answer before the last one fails to
    /// start, and a buffer that cannot be allocated aborts the process.
    ///
    /// # Errors
    /// A thread cannot start, or cannot get what it needs.
    pub fn rehearse(&self) -> Result<()> {
        // Before any thread: one that cannot allocate a few bytes aborts the process.
        let space = self.request_threads() * SPACE + SPARE_SPACE;
        has_space_for(space).map_err(|e| cannot_start(&e))?;
        let may_end = Mutex::new(());
        let (sender, results) = channel();
        std::thread::scope(|scope| {
            let all_started = may_end.lock();
            let threads = (0..self.request_threads() + OTHERS).map(|_| {
                let (sender, may_end) = (sender.clone(), &may_end);
                let rehearsal = move || rehearsal(&sender, may_end);
                std::thread::Builder::new().spawn_scoped(scope, rehearsal)
            });
            let started: io::Result<Vec<_>> = threads.collect();
            // One that did not start sends nothing, and the others' results do not matter then.
            let outcome = started.and_then(|all| results.iter().take(all.len()).collect());
            drop(all_started);
            outcome
        })
        .map_err(|e| cannot_start(&e))
    }
}

/// Whether the limit of address space (`ulimit -v`) leaves this many bytes. They are reserved without being
/// counted as memory that may be used: the kernel refuses that beyond what the machine has, and only a small
/// part of it is ever used at the same time.
fn has_space_for(bytes: usize) -> io::Result<()> {
    let (prot, flags) = (
        libc::PROT_NONE,
        libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
    );
    // SAFETY: a new mapping at an address that the kernel chooses touches no other memory.
    let space = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
    if space == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the mapping was just made with this length, and nothing else has its address.
    match unsafe { libc::munmap(space, bytes) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Opens what a request thread opens, and keeps it until `may_end` can be locked.
fn rehearsal(result: &Sender<io::Result<()>>, may_end: &Mutex<()>) {
    let (got, device) = match open_device() {
        Ok(device) => (Ok(()), device),
        Err(e) => (Err(e), None),
    };
    let _ = result.send(got);
    drop(may_end.lock());
    drop(device);
}

/// `None` if no process of this user can open it: mounting reports that in detail.
fn open_device() -> io::Result<Option<File>> {
    match File::options().read(true).write(true).open("/dev/fuse") {
        Ok(device) => Ok(Some(device)),
        Err(e) if e.raw_os_error() == Some(libc::EMFILE) => Err(e),
        Err(_) => Ok(None),
    }
}

fn cannot_start(e: &io::Error) -> Error {
    Error::other(
        e.raw_os_error().unwrap_or(libc::EIO),
        format!(
            "start the request threads: {e}; raise the limit ('ulimit -n', 'ulimit -u', 'ulimit -v') or use fewer (--threads)"
        ),
    )
}

/// A mount whose kernel side has agreed to be served; nothing answers it yet.
pub struct Connected(Session<FuseFs>);

/// Agrees with the kernel on how the mount behind `device`, a descriptor of `/dev/fuse`, is served.
///
/// # Errors
/// The mount has gone, or the kernel is too old.
pub fn connect(fs: Arc<Fs>, device: OwnedFd, options: &ServeOptions) -> Result<Connected> {
    let filesystem = FuseFs::new(fs, options.threads.max(1));
    let acl = match options.allow_other {
        true => SessionACL::All,
        false => SessionACL::Owner,
    };
    let mut config = Config::default();
    config.n_threads = Some(options.request_threads());
    // Each thread gets its own queue. For that it opens /dev/fuse again.
    config.clone_fd = true;
    Session::from_fd(filesystem, device, acl, config)
        .map(Connected)
        .map_err(|e| Error::io("agree with the kernel on the mount", e))
}

impl Connected {
    /// Starts the request threads.
    ///
    /// # Errors
    /// A thread cannot start.
    pub fn serve(self) -> Result<Serving> {
        let BackgroundSession { guard, .. } = self.0.spawn().map_err(|e| cannot_start(&e))?;
        Ok(Serving(guard))
    }
}

/// A mount that is being served.
pub struct Serving(JoinHandle<io::Result<()>>);

impl Serving {
    /// Waits until the mount has been unmounted, and no file in it is open any more.
    ///
    /// # Errors
    /// The session ended otherwise.
    pub fn wait(self) -> Result<()> {
        let ended = self.0.join();
        match ended.unwrap_or_else(|_| Err(io::Error::other("its thread panicked"))) {
            Ok(()) => Ok(()),
            // The last close raced with a thread that was reading the next request: an end like any
            // other, for which that thread gets this instead of ENODEV.
            Err(e) if e.raw_os_error() == Some(libc::ECONNABORTED) => Ok(()),
            Err(e) => Err(Error::io("serve the mount", e)),
        }
    }
}
