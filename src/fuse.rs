//! Converts between the kernel's requests and [`Fs`], and replies. Only this module names the FUSE
//! crate. Writes never arrive here: the mount is read-only, and the kernel refuses them.

use std::ffi::OsStr;
use std::io;
use std::sync::{Arc, Once};

use fuser::{
    Errno, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, IoctlFlags, KernelConfig,
    LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};

use crate::fs::{Answer, Caller, Fs, ReadBytes};
use crate::ioctl;
use crate::patience::{self, Patience};

mod gate;
mod replies;
mod session;

use gate::Gate;
use replies::{Listed, TTL, errno, file_attr, logged, reply_entry, reply_xattr};
pub use session::{Connected, ServeOptions, Serving, connect};

/// Background requests (read-ahead, asynchronous direct reads) that the kernel may have in flight.
/// Reads of a stalled source count until they are answered, so the kernel's default of 12 would soon
/// stop every buffered read of the mount. An ordinary user's mount gets at most what
/// /sys/module/fuse/parameters/max_user_bgreq allows.
const MAX_BACKGROUND: u16 = 1024;

/// The kernel's side of a mount.
pub struct FuseFs {
    fs: Arc<Fs>,
    gate: Gate,
    /// Of the first request.
    begun: Once,
}

impl FuseFs {
    /// Serves `fs`. At most `reading` request threads wait for source files at a time; the session must
    /// have more than that.
    pub fn new(fs: Arc<Fs>, reading: usize) -> FuseFs {
        FuseFs {
            fs,
            gate: Gate::new(reading),
            begun: Once::new(),
        }
    }

    /// Replies with the answer of `ask`, which must not touch a source on this thread.
    fn answer<T: 'static>(
        &self,
        ask: impl FnOnce(&Fs) -> Answer<T>,
        reply: impl FnOnce(T) + Send + 'static,
    ) {
        self.answer_with(Patience::None, ask, reply);
    }

    /// The same for requests that touch source files, on this thread while the gate has room.
    fn answer_from_sources<T: 'static>(
        &self,
        ask: impl FnOnce(&Fs) -> Answer<T>,
        reply: impl FnOnce(T) + Send + 'static,
    ) {
        let pass = self.gate.enter();
        self.answer_with(gate::patience(&pass), ask, reply);
    }

    fn answer_with<T: 'static>(
        &self,
        patience: Patience,
        ask: impl FnOnce(&Fs) -> Answer<T>,
        reply: impl FnOnce(T) + Send + 'static,
    ) {
        // Not earlier: a thread that is started before the session would have more rights than this one.
        self.begun.call_once(|| self.fs.settle_sources());
        shielded(|| {
            patience::with(patience, || match ask(&self.fs) {
                Answer::Ready(value) => reply(value),
                Answer::Wait(work) => {
                    let fs = self.fs.clone();
                    if self.fs.pool.run(move || reply(work(&fs))).is_err() {
                        log::error!("too many requests wait for source files; one failed with EIO");
                    }
                }
            });
        });
    }

    /// Runs `answer` here: it never waits.
    fn answer_now(&self, answer: impl FnOnce(&Fs)) {
        shielded(|| patience::with(Patience::None, || answer(&self.fs)));
    }
}

/// A panic fails its own request only (a reply that is dropped answers EIO), not the thread, which
/// later requests need.
fn shielded(answer: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(answer)).is_err() {
        log::error!("a request failed inside stfs; please report this, with the log before it");
    }
}

/// Whether a log message is worth keeping. The FUSE crate warns of every request that it does not know,
/// and of every mount that is unmounted from outside; an error while mounting is returned anyway.
pub fn worth_logging(metadata: &log::Metadata<'_>) -> bool {
    let target = metadata.target();
    let of_mounting = target.starts_with("fuser::mnt");
    !target.starts_with("fuser") || metadata.level() <= log::Level::Error && !of_mounting
}

impl Filesystem for FuseFs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for capability in [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            // Always, not only if the kernel guesses that attributes will be needed: they cost next to
            // nothing here, and save a lookup for each entry.
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_NO_OPENDIR_SUPPORT,
            InitFlags::FUSE_HAS_IOCTL_DIR,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
        ] {
            // What an older kernel lacks costs speed, not correctness.
            let _ = config.add_capabilities(capability);
        }
        // Not always: with it the kernel asks for the list of every file that another user looks up.
        if self.fs.layout.has_acls && config.add_capabilities(InitFlags::FUSE_POSIX_ACL).is_err() {
            let problem =
                "the model's files have access control lists, which this kernel cannot serve";
            return Err(io::Error::new(io::ErrorKind::Unsupported, problem));
        }
        // Sizes the requests: 256 pages, the most that fs.fuse.max_pages_limit grants by default.
        let _ = config.set_max_write(1 << 20);
        // The kernel answers with the most it allows if that is less.
        if let Err(most) = config.set_max_readahead(1 << 20) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        // Every name in a mount is UTF-8.
        let Some(name) = name.to_str() else {
            return reply.error(Errno::ENOENT);
        };
        self.answer(
            |fs| fs.lookup(parent.0, name),
            |found| reply_entry(&found, reply),
        );
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.answer(
            |fs| fs.getattr(ino.0),
            |attr| match attr {
                Ok(attr) => reply.attr(&TTL, &file_attr(&attr)),
                Err(e) => reply.error(errno(&e)),
            },
        );
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.answer(
            |fs| fs.readlink(ino.0),
            |target| match target {
                Ok(target) => reply.data(target.as_bytes()),
                Err(e) => reply.error(errno(&e)),
            },
        );
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.0 & libc::O_ACCMODE != libc::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        let caller = Caller {
            uid: req.uid(),
            gid: req.gid(),
            pid: req.pid(),
        };
        self.answer_from_sources(
            |fs| fs.open(ino.0, caller),
            |opened| match opened {
                Ok((fh, same)) => {
                    // Without KEEP_CACHE the kernel drops what it holds of the file.
                    let keep = match same {
                        true => FopenFlags::FOPEN_KEEP_CACHE,
                        false => FopenFlags::empty(),
                    };
                    reply.opened(FileHandle(fh), keep | FopenFlags::FOPEN_NOFLUSH);
                }
                Err(e) => reply.error(logged(&e)),
            },
        );
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let reply = move |bytes: Result<ReadBytes<'_>, crate::Error>| match bytes {
            // SAFETY: fuser hands the slice to `writev` on /dev/fuse, and nothing on the way reads it.
            Ok(bytes) => reply.data(unsafe { bytes.for_kernel() }),
            Err(e) => reply.error(logged(&e)),
        };
        self.answer_from_sources(|fs| fs.read(fh.0, offset, size, reply), |()| ());
    }

    fn release(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.answer_now(|fs| {
            fs.release(fh.0);
            reply.ok();
        });
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.ok();
    }

    /// ENOSYS: the kernel then needs neither opendir nor releasedir, and caches every listing.
    fn opendir(&self, _req: &Request, _ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        self.answer(
            |fs| fs.readdir(ino.0, offset, false, reply),
            |(reply, listed)| reply.ended(listed),
        );
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.answer(
            |fs| fs.readdir(ino.0, offset, true, reply),
            |(reply, listed)| reply.ended(listed),
        );
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        const UNIT: u32 = 4096;
        self.answer_now(|fs| {
            let s = fs.statfs();
            let blocks = s.bytes.div_ceil(u64::from(UNIT));
            reply.statfs(blocks, 0, 0, s.files, 0, UNIT, 255, UNIT);
        });
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.to_string_lossy();
        self.answer(
            |fs| fs.getxattr(ino.0, &name),
            move |value| reply_xattr(value, size, reply),
        );
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.answer(
            |fs| fs.listxattr(ino.0),
            move |names| reply_xattr(names, size, reply),
        );
    }

    /// ENOSYS: the kernel then answers SEEK_DATA and SEEK_HOLE itself (no holes).
    fn lseek(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: ReplyLseek,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        flags: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        _out_size: u32,
        reply: ReplyIoctl,
    ) {
        // Other programs' requests: Python's `open` sends TCGETS, `lsattr` FS_IOC_GETFLAGS.
        if !ioctl::is_ours(cmd) {
            return reply.error(Errno::ENOTTY);
        }
        let fh = (!flags.contains(IoctlFlags::FUSE_IOCTL_DIR)).then_some(fh.0);
        let reply = Box::new(move |error, output: &[u8]| match output {
            [] if error != 0 => reply.error(Errno::from_i32(error)),
            output => reply.ioctl(-error, output),
        });
        self.answer_from_sources(
            |fs| fs.ioctl(ino.0, fh, cmd, in_data, req.uid(), reply),
            |()| (),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_thread_goes_on_after_a_panic() {
        shielded(|| panic!("on purpose"));
    }
}
