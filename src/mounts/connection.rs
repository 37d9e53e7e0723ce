//! The kernel's controls of a mount's connection to the process that serves it (fusectl).

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags};

/// A mount's connection. It is held by open files: once the connection has ended they do nothing, even
/// if another one has got its number.
#[derive(Debug)]
pub struct Connection {
    /// Its directory in fusectl.
    dir: OwnedFd,
    abort: File,
}

impl Connection {
    /// The number of the connection behind a descriptor of `/dev/fuse`, which is the minor number of the
    /// mount's device. `None` on kernels that do not report it.
    pub fn number(device: BorrowedFd<'_>) -> Option<u32> {
        let path = format!("/proc/self/fdinfo/{}", device.as_raw_fd());
        let info = std::fs::read_to_string(path).ok()?;
        let number = |line: &str| line.strip_prefix("fuse_connection:")?.trim().parse().ok();
        info.lines().find_map(number)
    }

    /// The connection of the mount with this device number. `None` without the right to it: fusectl
    /// grants that to root and to the user who mounted, and only root can reach a fusectl that nobody has
    /// mounted.
    pub fn open(device: u64) -> Option<Connection> {
        let name = libc::minor(device).to_string();
        let dir = File::open(Path::new("/sys/fs/fuse/connections").join(&name));
        let dir = dir.map(OwnedFd::from).or_else(|_| {
            let all = unmounted_fusectl()?;
            rustix::fs::openat(
                &all,
                &*name,
                OFlags::DIRECTORY | OFlags::CLOEXEC,
                Mode::empty(),
            )
        });
        let dir = dir.ok()?;
        let abort = rustix::fs::openat(
            &dir,
            "abort",
            OFlags::WRONLY | OFlags::CLOEXEC,
            Mode::empty(),
        );
        let abort = File::from(abort.ok()?);
        Some(Connection { dir, abort })
    }

    /// Ends the connection: every request fails at once, also those that wait for an answer.
    pub fn abort(&self) {
        let _ = (&self.abort).write_all(b"1");
    }

    /// How many requests wait for an answer; `None` if the connection has ended.
    pub fn waiting(&self) -> Option<u64> {
        // Opened each time: it can be read only once.
        let how = OFlags::RDONLY | OFlags::CLOEXEC;
        let waiting = rustix::fs::openat(&self.dir, "waiting", how, Mode::empty()).ok()?;
        let mut text = String::new();
        File::from(waiting).read_to_string(&mut text).ok()?;
        text.trim().parse().ok()
    }
}

/// An instance of fusectl that is in nobody's tree.
fn unmounted_fusectl() -> rustix::io::Result<OwnedFd> {
    let fs = rustix::mount::fsopen("fusectl", FsOpenFlags::FSOPEN_CLOEXEC)?;
    rustix::mount::fsconfig_create(&fs)?;
    rustix::mount::fsmount(&fs, FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())
}
