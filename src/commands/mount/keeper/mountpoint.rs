//! The directory to mount on.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use crate::mounts::{self, Daemon, Entry, MountId};

/// A directory that is ready to be mounted on.
pub(super) struct Mountpoint {
    /// Absolute and without links.
    pub(super) path: PathBuf,
    /// It was created for this mount.
    pub(super) created: bool,
    /// A mount whose daemon had died was detached from it.
    pub(super) detached_stale: bool,
}

/// What is at a path that is to be mounted on, if it can be.
enum Place {
    Empty,
    Absent,
    /// A mount whose daemon has died.
    Stale(MountId),
}

/// Whether `path` can be mounted on. Changes nothing.
///
/// # Errors
/// It cannot, and why.
pub(in super::super) fn check(path: &Path) -> Result<()> {
    look(path).map(|_| ())
}

impl Mountpoint {
    /// Detaches a stale mount at `path`, or creates the directory.
    pub(super) fn prepare(path: &Path) -> Result<Mountpoint> {
        let mut place = look(path)?;
        let mut detached_stale = false;
        if let Place::Stale(id) = place {
            mounts::detach(id, false)?;
            detached_stale = true;
            place = look(path)?;
        }
        let created = matches!(place, Place::Absent);
        if created {
            std::fs::create_dir_all(path)
                .with_context(|| format!("create mountpoint {}", path.display()))?;
        }
        let shown = path.display();
        Ok(Mountpoint {
            path: std::fs::canonicalize(path).with_context(|| format!("mountpoint {shown}"))?,
            created,
            detached_stale,
        })
    }

    /// Removes the directory if it was created for a mount that was not made.
    pub(super) fn undo(&self) {
        if self.created {
            // Only an empty directory, and only the last component.
            let _ = std::fs::remove_dir(&self.path);
        }
    }
}

fn look(path: &Path) -> Result<Place> {
    let shown = path.display();
    let top = mounts::top(path)?;
    if let Some(top) = &top {
        match mounts::ask(path) {
            Daemon::Died if top.is_stfs() => return Ok(Place::Stale(MountId::of(top))),
            Daemon::Died => bail!(
                "mountpoint {shown}: is a mount of another program whose daemon has died; 'fusermount3 -u {shown}' detaches it"
            ),
            Daemon::Silent => bail!(
                "mountpoint {shown}: is a mount that does not answer; 'umount -l {shown}' detaches it"
            ),
            _ => {}
        }
    }
    let meta = match std::fs::metadata(path) {
        // A link to nothing is there, and no directory can be created in its place.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound && !path.is_symlink() => {
            return Ok(Place::Absent);
        }
        meta => meta.with_context(|| format!("mountpoint {shown}"))?,
    };
    if !meta.is_dir() {
        bail!("mountpoint {shown}: is not a directory; give an empty directory")
    }
    if let Some(e) = top.filter(Entry::is_stfs) {
        bail!(
            "mountpoint {shown}: {} is mounted there already; 'stfs umount {shown}' first",
            e.model.display()
        );
    }
    let mut entries = std::fs::read_dir(path).with_context(|| format!("mountpoint {shown}"))?;
    if let Some(Ok(entry)) = entries.next() {
        bail!(
            "mountpoint {shown}: is not empty (it holds {:?}); give an empty directory",
            entry.file_name()
        );
    }
    Ok(Place::Empty)
}
