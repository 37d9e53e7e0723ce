//! Unmounting: what is at a path, or one particular mount wherever it is now.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;
use serde::{Deserialize, Serialize};

use super::{Entry, fusermount, table};
use crate::error::{Error, Result};

/// Unmounts whatever is mounted at `mountpoint`: by umount(2) where permitted, else through
/// fusermount3. `lazy` detaches a busy mount at once.
///
/// # Errors
/// It is busy, not mounted, or not ours to unmount.
pub fn unmount(mountpoint: &Path, lazy: bool) -> Result<()> {
    let flags = match lazy {
        true => UnmountFlags::DETACH,
        false => UnmountFlags::empty(),
    };
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => fusermount::unmount(mountpoint, lazy),
        Err(e) => Err(failed(mountpoint, e)),
    }
}

fn failed(mountpoint: &Path, e: Errno) -> Error {
    Error::io(format!("unmount {}", mountpoint.display()), e.into())
}

/// Which mount it is, wherever it is moved, and whatever is mounted in its place later.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct MountId {
    /// Its number in the kernel's table, which the next mount may get when it has gone.
    number: u64,
    /// One that no other mount ever gets (since Linux 6.8).
    unique: Option<u64>,
}

impl MountId {
    /// Of a mount in the table.
    pub fn of(mount: &Entry) -> MountId {
        let root = open_root(mount);
        MountId {
            number: mount.id,
            unique: root.as_ref().and_then(unique_id),
        }
    }

    /// Whether it is mounted still, and that is certain: before Linux 6.8 it never is.
    pub fn is_surely_mounted(self) -> bool {
        self.unique.is_some() && self.is_mounted()
    }

    /// Whether it is mounted still, as far as that can be found out.
    pub fn is_mounted(self) -> bool {
        match super::find(self.number) {
            Ok(None) => false,
            // The number may be another mount's by now.
            Ok(Some(mount)) => open_root(&mount)
                .is_none_or(|root| self.unique.is_none() || self.unique == unique_id(&root)),
            Err(_) => true,
        }
    }
}

/// What has become of a mount that was to be detached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Detached {
    /// It is not mounted any more.
    Gone,
    /// Another mount is on top of it, and would go with it, so it stays.
    Covered,
}

/// How often the table is read again. It may change between a look and the unmounting.
const ATTEMPTS: usize = 5;

/// Detaches this mount, busy or not, wherever its mountpoint is by now; never another one there. Nothing
/// here waits for the process that serves it. `force` has root end its connection, too, which fails all
/// requests that wait for an answer.
///
/// # Errors
/// Unmounting failed.
pub fn detach(id: MountId, force: bool) -> Result<Detached> {
    for _ in 0..ATTEMPTS {
        let table = table()?;
        let Some(mount) = table.iter().find(|e| e.id == id.number) else {
            return Ok(Detached::Gone);
        };
        let covers = |e: &Entry| e.parent == mount.id && e.mountpoint == mount.mountpoint;
        if table.iter().any(covers) {
            return Ok(Detached::Covered);
        }
        // Not by path alone: that could be another mount's by now. The descriptor is of this mount, and
        // as long as it is open, no other mount gets the number.
        let Some(root) = open_root(mount) else {
            continue;
        };
        if id.unique.is_some() && id.unique != unique_id(&root) {
            return Ok(Detached::Gone);
        }
        detach_root(root, &mount.mountpoint, force)?;
    }
    match super::find(id.number)? {
        None => Ok(Detached::Gone),
        Some(mount) => Err(failed(&mount.mountpoint, Errno::AGAIN)),
    }
}

fn detach_root(root: OwnedFd, path: &Path, force: bool) -> Result<()> {
    let forced = match force {
        true => UnmountFlags::FORCE,
        false => UnmountFlags::empty(),
    };
    let by_descriptor = format!("/proc/self/fd/{}", root.as_raw_fd());
    match rustix::mount::unmount(by_descriptor, UnmountFlags::DETACH | forced) {
        Ok(()) => Ok(()),
        Err(Errno::PERM) => {
            drop(root);
            fusermount::unmount(path, true)
        }
        Err(e) => Err(failed(path, e)),
    }
}

/// The root directory of `mount`; `None` if its path leads elsewhere by now. Opening it sends no request.
fn open_root(mount: &Entry) -> Option<OwnedFd> {
    let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(&mount.mountpoint, how, Mode::empty()).ok()?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", root.as_raw_fd())).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    (id.trim().parse() == Ok(mount.id)).then_some(root)
}

/// `STATX_MNT_ID_UNIQUE`.
const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);

/// The number that no other mount ever gets, without a request to the mount.
fn unique_id(root: &OwnedFd) -> Option<u64> {
    let how = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(root, "", how, UNIQUE).ok()?;
    (stat.stx_mask & UNIQUE.bits() != 0).then_some(stat.stx_mnt_id)
}
