//! `stfs umount`.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail};

use crate::cli::UmountArgs;
use crate::error::Error;
use crate::mounts::{self, Daemon, Entry};

pub(super) fn run(args: &UmountArgs) -> Result<ExitCode> {
    let entry = find(&args.mountpoint)?;
    let shown = entry.mountpoint.display();
    let lazy = args.lazy || mounts::ask(&entry.mountpoint) == Daemon::Died;
    match when_idle(|| mounts::unmount(&entry.mountpoint, lazy)) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(e) if is_busy(&e) => bail!(
            "{shown}: is in use; 'fuser -vm {shown}' lists the processes, 'stfs umount --lazy {shown}' detaches it now"
        ),
        Err(e) => Err(e.into()),
    }
}

/// The mount at `path`; or the only one of the model at `path`, as umount(8) has it.
fn find(path: &Path) -> Result<Entry> {
    let shown = path.display();
    let top = mounts::top(path)?;
    if let Some(entry) = top.clone().filter(Entry::is_stfs) {
        return Ok(entry);
    }
    match &mounts::of_model(path)?[..] {
        [] => {}
        [only] if mounts::top(&only.mountpoint)?.as_ref() == Some(only) => return Ok(only.clone()),
        [only] => return Err(covered(&only.mountpoint)),
        several => {
            let at: Vec<_> = several
                .iter()
                .map(|e| e.mountpoint.display().to_string())
                .collect();
            bail!(
                "{shown}: is mounted {} times, at {}; give the mountpoint to unmount",
                at.len(),
                at.join(", ")
            )
        }
    }
    match top {
        Some(_) => Err(covered(path)),
        None => bail!("{shown}: is not an stfs mount; 'stfs mounts' lists them"),
    }
}

fn covered(mountpoint: &Path) -> anyhow::Error {
    let shown = mountpoint.display();
    anyhow::anyhow!(
        "{shown}: the topmost mount there is not an stfs mount; if one lies below, unmount what covers it first ('findmnt {shown}' shows all)"
    )
}

/// Waits before each further attempt. `stfs mounts`, and programs that watch file systems, use a mount
/// for a moment, and umount should not fail because of that.
const RETRIES: [Duration; 3] = [
    Duration::from_millis(20),
    Duration::from_millis(60),
    Duration::from_millis(120),
];

fn when_idle(unmount: impl Fn() -> crate::Result<()>) -> crate::Result<()> {
    for wait in RETRIES {
        match unmount() {
            Err(e) if is_busy(&e) => std::thread::sleep(wait),
            done => return done,
        }
    }
    unmount()
}

fn is_busy(e: &Error) -> bool {
    matches!(e, Error::Io { source, .. } if source.raw_os_error() == Some(libc::EBUSY))
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// How many attempts are made, and the result, if the first `failures` fail with that errno.
    fn attempts(errno: i32, failures: usize) -> (usize, crate::Result<()>) {
        let made = Cell::new(0);
        let result = when_idle(|| {
            made.set(made.get() + 1);
            match made.get() > failures {
                true => Ok(()),
                false => Err(Error::io(
                    "unmount",
                    std::io::Error::from_raw_os_error(errno),
                )),
            }
        });
        (made.get(), result)
    }

    #[test]
    fn a_mount_that_is_in_use_for_a_moment_is_tried_again() {
        for failures in 0..=RETRIES.len() {
            let (made, result) = attempts(libc::EBUSY, failures);
            assert!(result.is_ok() && made == failures + 1, "{failures}: {made}");
        }
        let (made, result) = attempts(libc::EBUSY, 100);
        assert!(made == RETRIES.len() + 1 && is_busy(&result.unwrap_err()));
        let (made, result) = attempts(libc::EPERM, 100);
        assert!(made == 1 && result.is_err());
    }
}
