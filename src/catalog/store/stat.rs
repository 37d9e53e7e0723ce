//! What `stat` reports about a file, and what distinguishes one state of it from another.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::Acl;

/// What `stat` reports about a file or directory. The mount's own files inherit it.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// Change time. A program can set back the modification time, but not this.
    pub ctime: (i64, i64),
    /// Hard links.
    pub nlink: u64,
    /// Inode number on its own file system.
    pub ino: u64,
    /// Device number of that file system.
    pub dev: u64,
    /// The access control list, if it has one beyond its permission bits. It is not part of the metadata, and is
    /// read only where it is needed.
    pub acl: Option<Arc<Acl>>,
}

impl Stat {
    /// From the metadata of an open file or a path, without the ACL.
    pub fn of(m: &Metadata) -> Stat {
        Stat {
            len: m.len(),
            uid: m.uid(),
            gid: m.gid(),
            mode: m.mode() & 0o777,
            mtime: (m.mtime(), m.mtime_nsec()),
            ctime: (m.ctime(), m.ctime_nsec()),
            nlink: m.nlink(),
            ino: m.ino(),
            dev: m.dev(),
            acl: None,
        }
    }

    /// From what `fstat` returns, without the ACL.
    // The fields' types differ between architectures.
    #[allow(clippy::unnecessary_cast)]
    pub(super) fn of_open(s: &rustix::fs::Stat) -> Stat {
        Stat {
            len: u64::try_from(s.st_size).unwrap_or(0),
            uid: s.st_uid,
            gid: s.st_gid,
            mode: s.st_mode & 0o777,
            mtime: (s.st_mtime as i64, s.st_mtime_nsec as i64),
            ctime: (s.st_ctime as i64, s.st_ctime_nsec as i64),
            nlink: s.st_nlink as u64,
            ino: s.st_ino,
            dev: s.st_dev,
            acl: None,
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
            ctime: (0, 0),
            nlink: 1,
            ino: 0,
            dev: 0,
            acl: None,
        }
    }

    /// The same with an access control list. If there is one that stfs cannot evaluate, only the owner's
    /// bits remain.
    #[must_use]
    pub fn with_acl(self, acl: Result<Option<Acl>, Opaque>) -> Stat {
        match acl {
            Ok(acl) => Stat {
                acl: acl.map(Arc::new),
                ..self
            },
            Err(Opaque) => self.owner_only(),
        }
    }

    /// The same without the permissions of anybody but the owner.
    fn owner_only(self) -> Stat {
        Stat {
            mode: self.mode & 0o700,
            acl: None,
            ..self
        }
    }

    /// Whether both let the same users do the same things.
    pub fn same_access(&self, other: &Stat) -> bool {
        (self.uid, self.gid, self.mode) == (other.uid, other.gid, other.mode)
            && self.acl == other.acl
    }

    /// Whether the file lets a user read it. `is_in` answers whether the user is in a group; `None` if that
    /// is not known, and then the answer is the stricter one.
    pub fn lets_read(&self, uid: u32, is_in: impl Fn(u32) -> Option<bool>) -> bool {
        if uid == 0 {
            return true;
        }
        let bits = |shift: u32| (self.mode >> shift) & 0o4 != 0;
        if uid == self.uid {
            return bits(6);
        }
        match &self.acl {
            // Without any bit in the mask the kernel ignores the list, too.
            Some(acl) if self.mode & 0o070 != 0 => acl.lets_read(uid, self.gid, is_in),
            _ => match is_in(self.gid) {
                Some(true) => bits(3),
                Some(false) => bits(0),
                None => bits(3) && bits(0),
            },
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
    /// that everyone has. An access control list remains if all have the same; otherwise only the owner's
    /// bits do.
    pub fn strictest(all: impl IntoIterator<Item = Stat>) -> Option<Stat> {
        all.into_iter().reduce(|a, b| {
            let lists = a.acl.is_some() || b.acl.is_some();
            let (a, b) = match lists && !a.same_access(&b) {
                true => (a.owner_only(), b.owner_only()),
                false => (a, b),
            };
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

/// An access control list that stfs cannot evaluate: of another kind than POSIX's, or unreadable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opaque;

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
        let was = || was.clone();
        let same = FileState::of(&was(), &was());
        assert!(!same.replaced);
        let now = Stat { dev: 2, ..was() };
        let other = FileState::of(&was(), &now);
        assert!(other.replaced && other != same);
        assert!(FileState::of(&was(), &Stat { ino: 8, ..was() }).replaced);
        assert!(!FileState::of(&was(), &Stat { len: 9, ..was() }).replaced);
    }

    fn with(mode: u32, acl: Option<Acl>) -> Stat {
        Stat {
            uid: 1,
            gid: 2,
            mode,
            ..Stat::unknown()
        }
        .with_acl(Ok(acl))
    }

    #[test]
    fn groups_that_are_not_known_count_as_the_worst() {
        let not = |_| Some(false);
        let unknown = |_| None;
        for (mode, member, other, who_knows) in [
            (0o640, true, false, false),
            (0o604, false, true, false),
            (0o644, true, true, true),
            (0o600, false, false, false),
        ] {
            let stat = with(mode, None);
            assert_eq!(stat.lets_read(9, |g| Some(g == 2)), member, "{mode:o}");
            assert_eq!(stat.lets_read(9, not), other, "{mode:o}");
            assert_eq!(stat.lets_read(9, unknown), who_knows, "{mode:o}");
            assert!(stat.lets_read(1, unknown) && stat.lets_read(0, unknown));
        }
        assert!(!with(0o044, None).lets_read(1, unknown));
    }

    #[test]
    fn a_list_that_not_all_have_leaves_the_owner() {
        let acl = || Acl::parse(&Acl::example()).unwrap();
        let all = |stats: [Stat; 2]| Stat::strictest(stats).unwrap();
        let same = all([with(0o640, acl()), with(0o640, acl())]);
        assert!(same.acl.is_some() && same.mode == 0o640);
        for other in [with(0o644, acl()), with(0o640, None)] {
            let mixed = all([with(0o640, acl()), other]);
            assert_eq!((mixed.acl, mixed.mode), (None, 0o600));
        }
        let unreadable = with(0o644, None).with_acl(Err(Opaque));
        assert_eq!((unreadable.mode, unreadable.acl), (0o600, None));
    }
}
