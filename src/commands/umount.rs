//! `stfs umount`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::cli::UmountArgs;
use crate::error::Error;
use crate::{fuse, mounts};

pub(super) fn run(args: &UmountArgs) -> Result<ExitCode> {
    let shown = args.mountpoint.display();
    let Some(entry) = mounts::top(&args.mountpoint)? else {
        bail!("{shown}: is not an stfs mount; 'stfs mounts' lists them");
    };
    if !entry.is_stfs() {
        bail!(
            "{shown}: the topmost mount there is not an stfs mount; if one lies below, unmount what covers it first ('findmnt {shown}' shows all)"
        );
    }
    let lazy = args.lazy || mounts::is_stale(&entry.mountpoint);
    match unmount_when_idle(&entry.mountpoint, lazy) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(e) if is_busy(&e) => bail!(
            "{shown}: is in use; 'fuser -vm {shown}' lists the processes, 'stfs umount --lazy {shown}' detaches it now"
        ),
        Err(e) => Err(e.into()),
    }
}

/// Waits before each further attempt. `stfs mounts`, and programs that watch file systems, use a mount
/// for a moment, and umount should not fail because of that.
const RETRIES: [Duration; 3] = [
    Duration::from_millis(20),
    Duration::from_millis(60),
    Duration::from_millis(120),
];

fn unmount_when_idle(mountpoint: &Path, lazy: bool) -> crate::Result<()> {
    for wait in RETRIES {
        match fuse::unmount(mountpoint, lazy) {
            Err(e) if is_busy(&e) => std::thread::sleep(wait),
            done => return done,
        }
    }
    fuse::unmount(mountpoint, lazy)
}

fn is_busy(e: &Error) -> bool {
    matches!(e, Error::Io { source, .. } if source.raw_os_error() == Some(libc::EBUSY))
}
