//! Making a mount: by mount(2) where that is permitted, else through fusermount3. Nothing here waits for
//! the process that will serve the mount.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::MountFlags;

use super::{FS_TYPE, fusermount};
use crate::error::{Error, Result};

/// What to mount, and where: always ro, nosuid, nodev, noexec, default_permissions.
#[derive(Debug)]
pub struct Attach<'a> {
    /// The mount's source in the kernel's table: the model's path.
    pub source: &'a str,
    /// An existing directory, absolute and without links.
    pub mountpoint: &'a Path,
    /// Let other users see the mount (file permissions still count).
    pub allow_other: bool,
}

impl Attach<'_> {
    /// Mounts, and returns the descriptor of `/dev/fuse` on which the mount is to be served. Gives up
    /// when `abandoned` becomes readable; the mount may have been made then.
    ///
    /// # Errors
    /// The error of the kernel or of fusermount3, with advice.
    pub fn mount(&self, abandoned: Option<BorrowedFd<'_>>) -> Result<OwnedFd> {
        let device = open_device()?;
        match self.by_the_kernel(&device) {
            Ok(()) => return Ok(device.into()),
            Err(Errno::PERM) if fusermount::program().is_some() => drop(device),
            Err(e) => return Err(self.explain(&e.into())),
        }
        fusermount::mount(&self.options_of_fusermount(), self.mountpoint, abandoned)
            .map_err(|e| self.explain(&e))
    }

    fn by_the_kernel(&self, device: &File) -> rustix::io::Result<()> {
        let directory = std::fs::metadata(self.mountpoint)
            .map_err(|e| Errno::from_io_error(&e).unwrap_or(Errno::IO))?;
        let options = format!(
            "fd={},rootmode={:o},user_id={},group_id={},default_permissions{}",
            device.as_raw_fd(),
            directory.mode(),
            rustix::process::getuid().as_raw(),
            rustix::process::getgid().as_raw(),
            self.others(),
        );
        let flags =
            MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        let options = CString::new(options).map_err(|_| Errno::INVAL)?;
        rustix::mount::mount(self.source, self.mountpoint, FS_TYPE, flags, &*options)
    }

    fn options_of_fusermount(&self) -> String {
        // It splits options at commas.
        let source = self.source.replace('\\', "\\\\").replace(',', "\\,");
        format!(
            "ro,nosuid,nodev,noexec,default_permissions,fsname={source},subtype=stfs{}",
            self.others()
        )
    }

    fn others(&self) -> &'static str {
        match self.allow_other {
            true => ",allow_other",
            false => "",
        }
    }

    fn explain(&self, e: &io::Error) -> Error {
        let text = e.to_string();
        let advice = if text.contains("user_allow_other") && self.allow_other {
            "; --allow-other needs the line 'user_allow_other' in /etc/fuse.conf"
        } else if matches!(e.raw_os_error(), Some(libc::EPERM | libc::EACCES))
            || text.contains("ermission")
            || text.contains("not permitted")
            || text.contains("EPERM")
        {
            "; in a container, mounting needs '--device /dev/fuse --cap-add SYS_ADMIN' (and, under AppArmor, '--security-opt apparmor:unconfined')"
        } else {
            ""
        };
        let at = self.mountpoint.display();
        Error::other(
            e.raw_os_error().unwrap_or(libc::EIO),
            format!("mount at {at}: {}{advice}", text.trim()),
        )
    }
}

/// Opens /dev/fuse, and reports in detail what is wrong with it.
fn open_device() -> Result<File> {
    let root = rustix::process::geteuid().is_root();
    let device = File::options().read(true).write(true).open("/dev/fuse");
    let device = device.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => Error::other(
            libc::ENODEV,
            "/dev/fuse is missing: load the kernel module ('modprobe fuse'); in a container, run it with '--device /dev/fuse --cap-add SYS_ADMIN'",
        ),
        _ if root => Error::io(
            "/dev/fuse cannot be opened, even by root: in a container, run it with '--device /dev/fuse --cap-add SYS_ADMIN'",
            e,
        ),
        // fusermount3 opens it with the caller's own rights, too.
        _ => Error::io(
            "/dev/fuse may not be opened by this user: have root run 'chmod 666 /dev/fuse' (what udev does by default), or mount as root",
            e,
        ),
    })?;
    if !root && fusermount::program().is_none() {
        return Err(Error::other(
            libc::ENOENT,
            "fusermount3 is missing, and only root can mount without it: install it ('apt install fuse3', 'dnf install fuse3')",
        ));
    }
    Ok(device)
}
