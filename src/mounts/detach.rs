//! Unmounting: what is at a path, or one particular mount wherever it is now.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::UnmountFlags;

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

/// Detaches the mount with this number, busy or not, wherever its mountpoint is by now; never another one
/// there. Nothing here waits for the process that serves it. `force` has root end its connection, too,
/// which fails all requests that wait for an answer.
///
/// # Errors
/// Unmounting failed.
pub fn detach(id: u64, force: bool) -> Result<Detached> {
    for _ in 0..ATTEMPTS {
        let table = table()?;
        let Some(mount) = table.iter().find(|e| e.id == id) else {
            return Ok(Detached::Gone);
        };
        let covers = |e: &Entry| e.parent == id && e.mountpoint == mount.mountpoint;
        if table.iter().any(covers) {
            return Ok(Detached::Covered);
        }
        detach_entry(mount, force)?;
    }
    match super::find(id)? {
        None => Ok(Detached::Gone),
        Some(mount) => Err(failed(&mount.mountpoint, Errno::AGAIN)),
    }
}

fn detach_entry(mount: &Entry, force: bool) -> Result<()> {
    let path = &mount.mountpoint;
    // Not by path alone: that could be another mount's by now. The descriptor is of this mount, and
    // opening it sends no request.
    let Some(root) = open_root(mount) else {
        return Ok(());
    };
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

/// The root directory of `mount`; `None` if its path leads elsewhere by now.
fn open_root(mount: &Entry) -> Option<OwnedFd> {
    let how = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let root = rustix::fs::open(&mount.mountpoint, how, Mode::empty()).ok()?;
    let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", root.as_raw_fd())).ok()?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    (id.trim().parse() == Ok(mount.id)).then_some(root)
}
