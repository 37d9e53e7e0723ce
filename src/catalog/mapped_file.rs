//! A source file: its mapping, its descriptor, and what it looked like when it was opened. The only
//! `mmap` of the program.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memmap2::{Advice, Mmap, MmapOptions};

use super::regular_file;
use crate::error::{Error, Result};
use crate::patience;

/// What `stat` says of a file or directory: what the mount's own files inherit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Size in bytes.
    pub len: u64,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits (the low nine).
    pub mode: u32,
    /// Modification time: seconds and nanoseconds since 1970.
    pub mtime: (i64, i64),
    /// Inode number on its own file system.
    pub ino: u64,
}

impl Stat {
    /// Of an open file or a path's metadata.
    pub fn of(m: &std::fs::Metadata) -> Stat {
        Stat {
            len: m.len(),
            uid: m.uid(),
            gid: m.gid(),
            mode: m.mode() & 0o777,
            mtime: (m.mtime(), m.mtime_nsec()),
            ino: m.ino(),
        }
    }

    /// The modification time.
    pub fn mtime(&self) -> SystemTime {
        let (s, ns) = self.mtime;
        let ns = Duration::from_nanos(ns.unsigned_abs());
        if s >= 0 {
            UNIX_EPOCH + Duration::from_secs(s.unsigned_abs()) + ns
        } else {
            UNIX_EPOCH - Duration::from_secs(s.unsigned_abs()) + ns
        }
    }

    /// The strictest of several: the latest mtime, the read bits that all have. Owner and group are
    /// the first's; where they differ, only bits that hold for anyone survive.
    pub fn strictest(all: impl IntoIterator<Item = Stat>) -> Option<Stat> {
        all.into_iter().reduce(|a, b| {
            let mut mode = a.mode & b.mode;
            if a.gid != b.gid {
                mode &= !0o070 | ((mode & 0o007) << 3);
            }
            if a.uid != b.uid {
                mode &= !0o700 | ((mode & 0o007) << 6);
            }
            Stat {
                len: a.len + b.len,
                mode,
                mtime: a.mtime.max(b.mtime),
                ..a
            }
        })
    }
}

/// A read-only file whose bytes the mount serves.
pub struct SourceFile {
    /// Absolute path, as it was opened.
    pub path: PathBuf,
    /// Its name in the model directory.
    pub name: String,
    /// What it looked like when it was opened.
    pub stat: Stat,
    file: File,
    map: Option<Mmap>,
    changed: AtomicBool,
}

impl SourceFile {
    /// Opens and maps `path`, which must be a regular file (or a link to one).
    ///
    /// # Errors
    /// It cannot be opened, or is no regular file.
    pub fn open(path: &Path, name: &str) -> Result<Arc<SourceFile>> {
        let (file, meta) = regular_file::open(path)?;
        let map = if meta.len() == 0 {
            None
        } else {
            // Private, although nothing is ever written: FUSE file systems with direct I/O refuse
            // shared mappings. The bytes are handed out only as a `MappedSlice`, for system calls: a page that
            // vanishes makes the kernel's copy fail with EFAULT instead of raising SIGBUS here.
            //
            // SAFETY: the mapping is read-only and private to this struct, and no Rust code loads
            // from it, so a file that changes or shrinks meanwhile breaks no promise of `&[u8]`
            // that compiled code relies on.
            match unsafe { MmapOptions::new().map_copy_read_only(&file) } {
                Ok(map) => {
                    // Only a hint; without it large reads fault more often.
                    let _ = map.advise(Advice::HugePage);
                    Some(map)
                }
                // A file system that cannot map, or no address space left: `pread` does it all.
                Err(e) => {
                    log::info!("{}: cannot be mapped ({e}); reads copy it", path.display());
                    None
                }
            }
        };
        Ok(Arc::new(SourceFile {
            path: path.to_path_buf(),
            name: name.to_string(),
            stat: Stat::of(&meta),
            file,
            map,
            changed: AtomicBool::new(false),
        }))
    }

    /// The size when it was opened, in bytes.
    pub fn len(&self) -> u64 {
        self.stat.len
    }

    /// Whether it was empty when it was opened.
    pub fn is_empty(&self) -> bool {
        self.stat.len == 0
    }

    /// Fills `buf` from absolute `offset` with `pread`: cannot fault, whatever happened to the file.
    ///
    /// # Errors
    /// [`Error::Truncated`] where the file now ends before the range does, or an I/O error.
    pub fn read_at(&self, offset: u64, mut buf: &mut [u8]) -> Result<()> {
        patience::touch_source()?;
        let mut at = offset;
        let end = offset + buf.len() as u64;
        while !buf.is_empty() {
            match self.file.read_at(buf, at) {
                Ok(0) => return Err(self.truncated(end)),
                Ok(n) => {
                    buf = &mut buf[n..];
                    at += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    return Err(Error::io(
                        format!("read {} at {offset}", self.path.display()),
                        e,
                    ));
                }
            }
        }
        Ok(())
    }

    fn truncated(&self, needs: u64) -> Error {
        Error::Truncated {
            file: self.path.clone(),
            needs,
            has: self.file.metadata().map_or(0, |m| m.len()),
        }
    }

    /// A piece of the mapping, if the file was at least that long when it was opened.
    pub fn slice(&self, offset: u64, len: usize) -> Option<MappedSlice<'_>> {
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(len)?;
        (self.map.as_ref()?.len() >= end).then_some(MappedSlice {
            file: self,
            start,
            end,
        })
    }

    /// What the file looks like now.
    ///
    /// # Errors
    /// `fstat` failed.
    pub fn stat_now(&self) -> Result<Stat> {
        patience::touch_source()?;
        self.file
            .metadata()
            .map(|m| Stat::of(&m))
            .map_err(|e| Error::io(format!("stat {}", self.path.display()), e))
    }

    /// Compares the file with what it was when it was opened, and remembers a difference; logged
    /// once. Its bytes are served all the same.
    pub fn check_changed(&self, now: &Stat) {
        let was = &self.stat;
        if (was.len, was.mtime) != (now.len, now.mtime)
            && !self.changed.swap(true, Ordering::Relaxed)
        {
            let how = match was.len == now.len {
                true => "was written to".to_string(),
                false => format!("had {} bytes, has {}", was.len, now.len),
            };
            log::warn!(
                "{}: changed under the mount: {how}; what it holds now is served; mount again to see it whole",
                self.path.display(),
            );
        }
    }

    /// Whether the source was ever seen to differ from what was opened. Looks now, too.
    pub fn changed(&self) -> bool {
        if let Ok(now) = self.stat_now() {
            self.check_changed(&now);
        }
        self.was_changed()
    }

    /// Whether the source was ever seen to differ from what was opened. Does not look.
    pub fn was_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed)
    }
}

/// A piece of a mapped file, for the kernel alone.
///
/// The bytes are not readable as a slice until [`MappedSlice::for_kernel`] has checked the file's
/// size, and what that returns may only be passed to a system call: *loading* from a page that
/// vanished is a SIGBUS, while a system call that copies from it fails with EFAULT.
pub struct MappedSlice<'a> {
    file: &'a SourceFile,
    start: usize,
    end: usize,
}

impl<'a> MappedSlice<'a> {
    /// Has the kernel fetch these bytes and no others, if they are not in the page cache: a fault in
    /// a mapping would fetch megabytes around them.
    pub fn fetch_alone(&self) {
        use std::os::fd::AsRawFd;
        let (start, len) = (self.start as i64, (self.end - self.start) as i64);
        // Only an advice: what it does not bring, the fault does.
        //
        // SAFETY: the descriptor is the file's own, and no memory is involved.
        unsafe {
            libc::posix_fadvise(
                self.file.file.as_raw_fd(),
                start,
                len,
                libc::POSIX_FADV_WILLNEED,
            )
        };
    }

    /// The bytes, to be handed to a system call and never loaded from.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the file is now shorter, even within its last page (where the
    /// mapping would silently read zeros).
    pub fn for_kernel(self) -> Result<&'a [u8]> {
        let now = self.file.stat_now()?;
        self.file.check_changed(&now);
        if now.len < self.end as u64 {
            return Err(self.file.truncated(self.end as u64));
        }
        match &self.file.map {
            Some(map) => Ok(&map[self.start..self.end]),
            None => Ok(&[]),
        }
    }
}
