//! The model directory, and which links in it are followed.
//!
//! Through `--allow-other` every user reads what the daemon opens, and somebody else may own the model
//! directory. A link in it must not hand out a file that this user could not have reached. So a link counts
//! only if every directory on the way to the file that was *opened* may be searched by everyone, apart from
//! those that are on the way to the model directory, too.

use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};

use super::super::{Audience, Stat};
use super::{acl, regular_file};
use crate::error::{Error, Result};

/// A directory.
pub(super) struct Directory {
    path: PathBuf,
    /// `None` if its files are for the caller alone: then any link counts.
    shared: Option<Shared>,
}

/// A directory whose files everyone will see. It is held open, so that nobody can put another in its place.
struct Shared {
    fd: OwnedFd,
    /// As [`access`] returns it.
    access: Option<Stat>,
    /// Where it is, without links.
    home: PathBuf,
    /// The directory that a link led to last. The links of a hub cache all lead to one.
    passed: Mutex<Option<(PathBuf, OwnedFd)>>,
}

/// Permission to search for everyone but the owner, who can have it at any time.
const OTHERS_SEARCH: u32 = 0o011;
/// Permission to write for everyone but the owner. The group's bits have the most that an ACL grants.
const OTHERS_WRITE: u32 = 0o022;
/// Entries may be changed only by those whom they belong to.
const STICKY: u32 = 0o1000;

impl Directory {
    /// A directory whose files that audience will see.
    pub fn new(path: PathBuf, audience: Audience) -> Result<Directory> {
        let shared = match audience {
            Audience::Caller => None,
            Audience::Everyone => Some(Shared::open(&path)?),
        };
        Ok(Directory { path, shared })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a regular file of the directory, or what a link there leads to.
    ///
    /// # Errors
    /// It cannot be opened or is not a regular file; [`Error::Unreachable`] if it is a link that not every
    /// user could have followed.
    pub fn open(&self, name: &OsStr) -> Result<(File, Metadata)> {
        let path = self.path.join(name);
        let Some(shared) = &self.shared else {
            return regular_file::open(&path);
        };
        let (file, meta) = regular_file::open_at(&shared.fd, Path::new(name), &path)?;
        match shared.reaches(name, &file, &meta) {
            Ok(()) => Ok((file, meta)),
            Err(at) => Err(Error::Unreachable {
                at: path.into(),
                closed: at.into(),
            }),
        }
    }

    /// Checks that no link leads from a folder to elsewhere, if everyone will see its files. `folder` is a
    /// path without links.
    ///
    /// # Errors
    /// [`Error::Unreachable`] if it is elsewhere.
    pub fn is_inside(&self, folder: &Path) -> Result<()> {
        match &self.shared {
            Some(shared) if !shared.home.starts_with(folder) => Err(Error::Unreachable {
                at: self.path.as_path().into(),
                closed: shared.home.as_path().into(),
            }),
            _ => Ok(()),
        }
    }

    /// The uppermost directory on the way to it that not every user may search; `None` if its files are for
    /// the caller alone.
    pub fn closed_above(&self) -> Option<PathBuf> {
        let home = &self.shared.as_ref()?.home;
        closed(home.ancestors().skip(1))
    }

    /// The same with the directory itself, and without those that are on the way to `from`, too.
    pub fn closed_from(&self, from: &Path) -> Option<PathBuf> {
        let home = &self.shared.as_ref()?.home;
        closed(home.ancestors().filter(|dir| !from.starts_with(dir)))
    }
}

/// The last of some directories that not every user may search.
fn closed<'a>(directories: impl Iterator<Item = &'a Path>) -> Option<PathBuf> {
    let is_closed = |dir: &&Path| {
        let fd = openat(CWD, *dir, OPEN, Mode::empty());
        !fd.is_ok_and(|fd| access(&fd).is_some_and(|access| is_open(&access)))
    };
    directories.filter(is_closed).last().map(Path::to_path_buf)
}

/// Whether nobody but root and this user can put files into a directory, or another one in its place: it and all
/// above belong to one of the two, and others may write to none of them, but for what is above and lets them
/// change only entries of their own (`/tmp`). `path` is without links.
pub(super) fn is_own(path: &Path) -> bool {
    let user = rustix::process::geteuid().as_raw();
    path.ancestors().enumerate().all(|(up, dir)| {
        let Ok(meta) = dir.symlink_metadata() else {
            return false;
        };
        let is_kept = meta.mode() & OTHERS_WRITE == 0 || (up > 0 && meta.mode() & STICKY != 0);
        meta.is_dir() && [user, 0].contains(&meta.uid()) && is_kept
    })
}

/// How directories are opened on the way: a link among them would be one that appeared meanwhile.
const OPEN: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

impl Shared {
    fn open(path: &Path) -> Result<Shared> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::empty())
            .map_err(|e| Error::io(format!("open model {}", path.display()), e.into()))?;
        Ok(Shared {
            home: real_path(&fd).unwrap_or_else(|| path.to_path_buf()),
            access: access(&fd),
            fd,
            passed: Mutex::default(),
        })
    }

    /// Whether everyone could have reached a file that was opened as `name`; otherwise the directory that
    /// keeps them from it.
    fn reaches(
        &self,
        name: &OsStr,
        file: &File,
        meta: &Metadata,
    ) -> std::result::Result<(), PathBuf> {
        // Usually it is no link, and there is nothing on the way.
        let plain = Path::new(name).components().count() == 1;
        if plain && is_entry(&self.fd, Path::new(name), meta) {
            return Ok(());
        }
        let real = real_path(file).ok_or_else(PathBuf::new)?;
        let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else {
            return Err(real);
        };
        if parent == self.home {
            return match is_entry(&self.fd, Path::new(name), meta) {
                true => Ok(()),
                false => Err(real),
            };
        }
        let mut passed = self.passed.lock().unwrap_or_else(PoisonError::into_inner);
        let directory = match passed.take() {
            Some((path, fd)) if path == parent => fd,
            _ => self.walk(parent)?,
        };
        let is_there = is_entry(&directory, Path::new(name), meta);
        *passed = Some((parent.to_path_buf(), directory));
        match is_there {
            true => Ok(()),
            // Moved meanwhile.
            false => Err(real),
        }
    }

    /// Opens a directory from the root on, each step from the one before, so that nothing can be put in
    /// between. Every user may take each step that does not lead to the model directory as well.
    fn walk(&self, to: &Path) -> std::result::Result<OwnedFd, PathBuf> {
        let mut at = PathBuf::from("/");
        let mut fd = openat(CWD, &at, OPEN, Mode::empty()).map_err(|_| at.clone())?;
        for step in to.components() {
            let Component::Normal(step) = step else {
                continue;
            };
            at.push(step);
            fd = openat(&fd, step, OPEN, Mode::empty()).map_err(|_| at.clone())?;
            let may_pass = self.home.starts_with(&at)
                || access(&fd).is_some_and(|a| is_open(&a) || self.is_as_open(&a));
            if !may_pass {
                return Err(at);
            }
        }
        Ok(fd)
    }

    /// Whether a directory is open to the users that the model directory is open to: the folders of a hub
    /// cache are all alike.
    fn is_as_open(&self, access: &Stat) -> bool {
        self.access
            .as_ref()
            .is_some_and(|own| own.same_access(access))
    }
}

/// Whether `name` in a directory is that file itself, and no link.
fn is_entry(directory: impl AsFd, name: &Path, file: &Metadata) -> bool {
    let found = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
    found.is_ok_and(|found| (found.st_dev, found.st_ino) == (file.dev(), file.ino()))
}

fn is_open(access: &Stat) -> bool {
    access.mode & OTHERS_SEARCH == OTHERS_SEARCH
}

/// Owner and permissions of an open directory; `None` if they do not decide alone, because it has an ACL.
fn access(directory: &OwnedFd) -> Option<Stat> {
    let stat = rustix::fs::fstat(directory).ok()?;
    (!acl::has(directory)).then(|| Stat::of_open(&stat))
}

/// Where an open file is, as the kernel knows it.
fn real_path(file: impl AsFd) -> Option<PathBuf> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    std::fs::read_link(path).ok()
}
