//! This machine's stfs mounts, from the kernel's table.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;

mod attach;
mod connection;
mod detach;
mod fusermount;
mod status_probe;

pub use attach::Attach;
pub use connection::Connection;
pub use detach::{Detached, MountId, detach, unmount};
pub use status_probe::StatusProbe;

use crate::error::{Error, Result};

/// The file system type of our mounts.
pub const FS_TYPE: &str = "fuse.stfs";
/// How long a daemon may take to report its status.
const PATIENCE: Duration = Duration::from_secs(2);

/// A line of the kernel's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Which mount it is: no two have the same at a time, wherever they are moved.
    pub id: u64,
    /// The mount that it is mounted on.
    parent: u64,
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The model's path.
    pub model: PathBuf,
    /// Its device number, as `st_dev` has it: no two mounts have the same.
    pub device: u64,
    fs_type: OsString,
}

/// The outcome of asking a mount for its status.
#[derive(Debug, Clone, PartialEq)]
pub enum Daemon {
    /// It is alive, and this is its status (JSON).
    Answers(Value),
    /// It has died: every access fails with ENOTCONN.
    Died,
    /// There was no answer in time.
    Silent,
    /// This user is not permitted to ask.
    Private,
    /// Another mount covers this one, so it cannot be reached.
    Covered,
}

/// All mounts of whatever type, in the order they were made.
fn table() -> Result<Vec<Entry>> {
    let path = "/proc/self/mountinfo";
    let table = std::fs::read(path).map_err(|e| Error::io(format!("read {path}"), e))?;
    Ok(table
        .split(|&b| b == b'\n')
        .filter_map(parse_line)
        .collect())
}

/// All stfs mounts, in the order they were made, with their status. They are asked at the same time.
///
/// # Errors
/// `/proc` cannot be read.
pub fn list() -> Result<Vec<(Entry, Daemon)>> {
    let mut probed = Vec::new();
    let mut table = table()?.into_iter();
    while let Some(entry) = table.next() {
        let mut later = table.as_slice().iter();
        let covered = later.any(|l| l.mountpoint == entry.mountpoint);
        if entry.is_stfs() {
            let probe = (!covered).then(|| StatusProbe::send(&entry.mountpoint));
            probed.push((entry, probe));
        }
    }
    let deadline = Instant::now() + PATIENCE;
    let answer = |probe: Option<StatusProbe>| match probe {
        Some(probe) => probe.answer(deadline),
        None => Daemon::Covered,
    };
    Ok(probed.into_iter().map(|(e, p)| (e, answer(p))).collect())
}

/// The mount with this number; `None` if it has been unmounted.
///
/// # Errors
/// `/proc` cannot be read.
fn find(id: u64) -> Result<Option<Entry>> {
    Ok(table()?.into_iter().find(|e| e.id == id))
}

/// The stfs mounts of the model at `model`, a path, in the order they were made.
///
/// # Errors
/// `/proc` cannot be read.
pub fn of_model(model: &Path) -> Result<Vec<Entry>> {
    let resolved = resolve(model);
    let mut table = table()?;
    table.retain(|e| e.is_stfs() && (e.model == resolved || e.model == model));
    Ok(table)
}

/// The topmost mount at `mountpoint`, of whatever type: the one that accesses and umount(2) reach.
///
/// # Errors
/// `/proc` cannot be read.
pub fn top(mountpoint: &Path) -> Result<Option<Entry>> {
    let wanted = resolve(mountpoint);
    Ok(table()?.into_iter().rfind(|e| e.mountpoint == wanted))
}

/// The newest stfs mount at `mountpoint`; if the number of its connection is known, the one that has it.
///
/// # Errors
/// `/proc` cannot be read.
pub fn newest(mountpoint: &Path, connection: Option<u32>) -> Result<Option<Entry>> {
    let wanted = |e: &Entry| {
        let device = libc::minor(e.device);
        e.mountpoint == mountpoint && e.is_stfs() && connection.is_none_or(|c| c == device)
    };
    Ok(table()?.into_iter().rfind(wanted))
}

/// The model of the stfs mount at `path`; `None` if `path` is not a mountpoint of ours.
pub fn model_at(path: &Path) -> Option<PathBuf> {
    let entry = top(path).ok().flatten()?;
    entry.is_stfs().then_some(entry.model)
}

impl Entry {
    /// Whether it is one of ours.
    pub fn is_stfs(&self) -> bool {
        self.fs_type == FS_TYPE
    }
}

/// Asks whatever is mounted at a path for its status.
pub fn ask(mountpoint: &Path) -> Daemon {
    StatusProbe::send(mountpoint).answer(Instant::now() + PATIENCE)
}

/// An absolute path without links, even if the last component is a stale mount, which cannot be
/// looked into.
pub fn resolve(path: &Path) -> PathBuf {
    if let Ok(resolved) = std::fs::canonicalize(path) {
        return resolved;
    }
    let parent = match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    match (std::fs::canonicalize(parent), path.file_name()) {
        (Ok(parent), Some(name)) => parent.join(name),
        _ => path.to_path_buf(),
    }
}

/// `36 35 0:42 / /mnt/m ro,… - fuse.stfs /models/x ro,…` → an entry.
fn parse_line(line: &[u8]) -> Option<Entry> {
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let dash = fields.iter().position(|f| *f == b"-")?;
    let (major, minor) = std::str::from_utf8(fields.get(2)?).ok()?.split_once(':')?;
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
    Some(Entry {
        id: number(fields.first()?)?,
        parent: number(fields.get(1)?)?,
        mountpoint: unescape(fields.get(4)?),
        model: unescape(fields.get(dash + 2)?),
        device: libc::makedev(major.parse().ok()?, minor.parse().ok()?),
        fs_type: OsString::from_vec(fields.get(dash + 1)?.to_vec()),
    })
}

/// A path of the kernel's tables of mounts, where spaces and the like are written as `\040`.
pub(crate) fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        match rest {
            [
                b'\\',
                a @ b'0'..=b'7',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] => {
                let code = [a, b, c]
                    .iter()
                    .fold(0u32, |n, d| n * 8 + u32::from(**d - b'0'));
                out.push(code as u8);
                rest = after;
            }
            _ => {
                out.push(*first);
                rest = after;
            }
        }
    }
    OsString::from_vec(out).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernels_table() {
        let line = b"36 35 0:42 / /mnt/a\\040b ro,nosuid shared:7 - fuse.stfs /models/x\\134y ro,user_id=0";
        let entry = parse_line(line).unwrap();
        assert_eq!(entry.mountpoint, Path::new("/mnt/a b"));
        assert_eq!(entry.model, Path::new("/models/x\\y"));
        assert_eq!((entry.id, entry.parent), (36, 35));
        assert_eq!(entry.device, libc::makedev(0, 42));
        assert!(entry.is_stfs());
        let other = parse_line(b"36 35 8:1 / /mnt ro - ext4 /dev/sda ro").unwrap();
        assert!(!other.is_stfs());
        assert_eq!(parse_line(b""), None);
    }
}
