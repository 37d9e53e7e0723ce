//! Converts between the kernel's requests and [`Fs`], and replies. Nothing else, and nothing else
//! names the FUSE crate. Writes never come here: the mount is read-only, and the kernel refuses them.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use fuser::{
    Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags,
    KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus,
    ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
};

use crate::fs::Fs;
use crate::ioctl;
use crate::workers::Workers;

mod mount;
mod replies;

pub use mount::{MountOptions, Mounted, Place, mount, unmount};
use replies::{TTL, errno, file_attr, file_type, list, logged, reply_entry, reply_xattr};

/// The kernel's side of a mount.
pub struct FuseFs {
    fs: Arc<Fs>,
    /// For requests that may wait for the disk or compute for long: request threads must not.
    slow: Workers,
}

impl FuseFs {
    /// Serves `fs`; slow requests run on `slow`.
    pub fn new(fs: Arc<Fs>, slow: Workers) -> FuseFs {
        FuseFs { fs, slow }
    }

    /// Runs `answer` here, or elsewhere if it may wait.
    fn answer(
        &self,
        may_wait: impl FnOnce(&Fs) -> bool,
        answer: impl FnOnce(&Fs) + Send + 'static,
    ) {
        shielded(|| {
            if may_wait(&self.fs) {
                let fs = self.fs.clone();
                self.slow.run(move || answer(&fs));
            } else {
                answer(&self.fs);
            }
        });
    }

    /// Runs `answer` here: it never waits.
    fn answer_now(&self, answer: impl FnOnce(&Fs)) {
        shielded(|| answer(&self.fs));
    }
}

/// A bug that panics fails its request (a reply that is dropped answers EIO), and not the thread
/// that all further requests need.
fn shielded(answer: impl FnOnce()) {
    if std::panic::catch_unwind(std::panic::AssertUnwindSafe(answer)).is_err() {
        log::error!("a request failed inside stfs; please report this, with the log before it");
    }
}

/// Whether a log message says what nothing else does. The FUSE crate warns of every request that it
/// does not know, and of every mount that was unmounted from outside; what fails in its mounting
/// comes back as an error.
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
            // Always, not only where the kernel guesses that attributes will be asked for: they cost
            // next to nothing here, and each entry told saves a lookup of its own.
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_NO_OPENDIR_SUPPORT,
            InitFlags::FUSE_HAS_IOCTL_DIR,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
        ] {
            // What an older kernel lacks costs speed, not correctness.
            let _ = config.add_capabilities(capability);
        }
        // Sizes the requests: 256 pages, the most that fs.fuse.max_pages_limit grants by default.
        let _ = config.set_max_write(1 << 20);
        // The kernel answers with the most it allows if that is less.
        if let Err(most) = config.set_max_readahead(1 << 20) {
            let _ = config.set_max_readahead(most);
        }
        let _ = config.set_max_background(64);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        // Every name here is UTF-8.
        let Some(name) = name.to_str() else {
            return reply.error(Errno::ENOENT);
        };
        let (parent, name) = (parent.0, name.to_string());
        let asked = name.clone();
        self.answer(
            move |fs| fs.lookup_may_wait(parent, &asked),
            move |fs| reply_entry(fs, parent, &name, reply),
        );
    }

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        self.answer(
            |fs| fs.getattr_may_wait(ino.0),
            move |fs| match fs.getattr(ino.0) {
                Ok(attr) => reply.attr(&TTL, &file_attr(&attr)),
                Err(e) => reply.error(errno(&e)),
            },
        );
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        self.answer_now(|fs| match fs.readlink(ino.0) {
            Ok(target) => reply.data(target.as_bytes()),
            Err(e) => reply.error(errno(&e)),
        });
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        if flags.0 & libc::O_ACCMODE != libc::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        // Generated files are made on open: tens of megabytes for index.json.
        self.answer(
            |fs| fs.open_may_wait(ino.0),
            move |fs| {
                match fs.open(ino.0) {
                    Ok((fh, same)) => {
                        // Without KEEP_CACHE the kernel drops what it holds of the file.
                        let keep = match same {
                            true => FopenFlags::FOPEN_KEEP_CACHE,
                            false => FopenFlags::empty(),
                        };
                        reply.opened(FileHandle(fh), keep | FopenFlags::FOPEN_NOFLUSH);
                    }
                    Err(e) => reply.error(logged(&e)),
                }
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
        self.answer(
            |fs| fs.read_may_wait(fh.0),
            move |fs| {
                fs.read(fh.0, offset, size, |bytes| match bytes {
                    Ok(bytes) => reply.data(bytes),
                    Err(e) => reply.error(logged(&e)),
                });
            },
        );
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
        mut reply: ReplyDirectory,
    ) {
        self.answer(
            |fs| fs.readdir_may_wait(ino.0),
            move |fs| {
                let listed = list(fs, ino.0, offset, false, |next, name, attr| {
                    !reply.add(INodeNo(attr.ino), next, file_type(attr.kind), name)
                });
                match listed {
                    Ok(()) => reply.ok(),
                    Err(e) => reply.error(errno(&e)),
                }
            },
        );
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.answer(
            |fs| fs.readdir_may_wait(ino.0),
            move |fs| {
                let listed = list(fs, ino.0, offset, true, |next, name, attr| {
                    let node = file_attr(&attr);
                    !reply.add(INodeNo(attr.ino), next, name, &TTL, &node, Generation(0))
                });
                match listed {
                    Ok(()) => reply.ok(),
                    Err(e) => reply.error(errno(&e)),
                }
            },
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
        let name = name.to_string_lossy().into_owned();
        self.answer(
            |fs| fs.getattr_may_wait(ino.0),
            move |fs| {
                reply_xattr(fs.getxattr(ino.0, &name), size, reply);
            },
        );
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.answer(
            |fs| fs.getattr_may_wait(ino.0),
            move |fs| {
                reply_xattr(Ok(fs.listxattr(ino.0)), size, reply);
            },
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
        // Python's `open` sends TCGETS, `lsattr` FS_IOC_GETFLAGS: nothing of that is known here.
        if !ioctl::is_ours(cmd) {
            return reply.error(Errno::ENOTTY);
        }
        let (uid, input) = (req.uid(), in_data.to_vec());
        let fh = (!flags.contains(IoctlFlags::FUSE_IOCTL_DIR)).then_some(fh.0);
        self.answer(
            |fs| fs.ioctl_may_wait(ino.0),
            move |fs| {
                let reply = Box::new(move |error, output: &[u8]| match output {
                    [] if error != 0 => reply.error(Errno::from_i32(error)),
                    output => reply.ioctl(-error, output),
                });
                fs.ioctl(ino.0, fh, cmd, &input, uid, reply);
            },
        );
    }
}
