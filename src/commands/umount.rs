//! `stfs umount`.

use std::process::ExitCode;

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
    match fuse::unmount(&entry.mountpoint, lazy) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(Error::Io { source, .. }) if source.raw_os_error() == Some(libc::EBUSY) => bail!(
            "{shown}: is in use; 'fuser -vm {shown}' lists the processes, 'stfs umount --lazy {shown}' detaches it now"
        ),
        Err(e) => Err(e.into()),
    }
}
