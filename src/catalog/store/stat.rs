//! What `stat` reports about a file, and what distinguishes one state of it from another.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// What `stat` reports about a file or directory. The mount's own files inherit it.
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
    /// Device number of that file system.
    pub dev: u64,
}

impl Stat {
    /// From the metadata of an open file or a path.
    pub fn of(m: &Metadata) -> Stat {
        Stat {
            len: m.len(),
            uid: m.uid(),
            gid: m.gid(),
            mode: m.mode() & 0o777,
            mtime: (m.mtime(), m.mtime_nsec()),
            ino: m.ino(),
            dev: m.dev(),
        }
    }

    /// For a directory whose attributes cannot be read: owned by root, and readable by everyone.
    pub fn unknown() -> Stat {
        Stat {
            len: 0,
            uid: 0,
            gid: 0,
            mode: 0o555,
            mtime: (0, 0),
            ino: 0,
            dev: 0,
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

    /// The strictest combination of several: the latest mtime, and only the permission bits that
    /// all have. Owner and group are the first's; if they differ, their bits are reduced to those
    /// that everyone has.
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

/// What distinguishes one state of a source file from another: size, mtime, inode and device of the
/// file at its location (a file that was replaced has another inode or device; one that was removed
/// has 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileState {
    /// Size in bytes.
    pub len: u64,
    /// Modification time: seconds and nanoseconds since 1970.
    pub mtime: (i64, i64),
    /// Inode number; 0 if the file is gone.
    pub ino: u64,
    /// Device number; 0 if the file is gone.
    pub dev: u64,
    /// Another file is at the location now, while the bytes that are served are still the old
    /// file's.
    pub replaced: bool,
}

impl FileState {
    /// For a file that was opened as `was`, with `now` at its location.
    pub fn of(was: &Stat, now: &Stat) -> FileState {
        FileState {
            len: now.len,
            mtime: now.mtime,
            ino: now.ino,
            dev: now.dev,
            replaced: (was.dev, was.ino) != (now.dev, now.ino),
        }
    }

    /// For a file that was removed from its location and is still open with `len` bytes.
    pub fn gone(len: u64) -> FileState {
        FileState {
            len,
            mtime: (0, 0),
            ino: 0,
            dev: 0,
            replaced: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inode numbers repeat from one file system to the next: a file that a bind mount or another
    /// disk puts at the path may have the old file's number, size and time.
    #[test]
    fn another_device_is_another_file() {
        let was = Stat {
            len: 8,
            ino: 7,
            dev: 1,
            mtime: (5, 6),
            ..Stat::unknown()
        };
        let same = FileState::of(&was, &was);
        assert!(!same.replaced);
        let now = Stat { dev: 2, ..was };
        let other = FileState::of(&was, &now);
        assert!(other.replaced && other != same);
        assert!(FileState::of(&was, &Stat { ino: 8, ..was }).replaced);
        assert!(!FileState::of(&was, &Stat { len: 9, ..was }).replaced);
    }
}
