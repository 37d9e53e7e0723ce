//! This machine's stfs mounts, from the kernel's table.

use std::ffi::{CString, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::{Error, Result};

/// The file system type of our mounts.
pub const FS_TYPE: &str = "fuse.stfs";

/// A line of the kernel's table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The model's path.
    pub model: PathBuf,
    /// Whether its daemon has died, so that every access fails with ENOTCONN.
    pub stale: bool,
}

/// All stfs mounts, in the order they were made.
///
/// # Errors
/// `/proc` cannot be read.
pub fn list() -> Result<Vec<Entry>> {
    Ok(table()?.into_iter().map(Entry::new).collect())
}

/// Mountpoint and model of all stfs mounts.
fn table() -> Result<Vec<(PathBuf, PathBuf)>> {
    let path = "/proc/self/mountinfo";
    let table = std::fs::read(path).map_err(|e| Error::io(format!("read {path}"), e))?;
    Ok(table
        .split(|&b| b == b'\n')
        .filter_map(parse_line)
        .collect())
}

impl Entry {
    fn new((mountpoint, model): (PathBuf, PathBuf)) -> Entry {
        Entry {
            stale: is_stale(&mountpoint),
            mountpoint,
            model,
        }
    }
}

/// The stfs mount at `mountpoint`, the topmost if there are several.
///
/// # Errors
/// As [`list`].
pub fn find(mountpoint: &Path) -> Result<Option<Entry>> {
    let wanted = resolve(mountpoint);
    // No other mount is asked anything: its daemon might not answer.
    let found = table()?.into_iter().rev().find(|(at, _)| *at == wanted);
    Ok(found.map(Entry::new))
}

/// Whether accesses fail because the daemon behind a mount has died.
pub fn is_stale(mountpoint: &Path) -> bool {
    // Not stat: the kernel remembers attributes for longer than the daemon lives.
    // ECONNABORTED is what a request gets that was on its way when the daemon went.
    get_status(mountpoint)
        .is_err_and(|e| matches!(e.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)))
}

/// An absolute path without links, also where the last component is a stale mount, which cannot
/// be looked into.
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

/// `36 35 0:42 / /mnt/m ro,… - fuse.stfs /models/x ro,…` → mountpoint and source.
fn parse_line(line: &[u8]) -> Option<(PathBuf, PathBuf)> {
    let fields: Vec<&[u8]> = line.split(|&b| b == b' ').collect();
    let dash = fields.iter().position(|f| *f == b"-")?;
    if *fields.get(dash + 1)? != FS_TYPE.as_bytes() {
        return None;
    }
    Some((unescape(fields.get(4)?), unescape(fields.get(dash + 2)?)))
}

/// The kernel writes blanks and backslashes as `\040` and so on.
fn unescape(field: &[u8]) -> PathBuf {
    let mut out = Vec::with_capacity(field.len());
    let mut i = 0;
    while i < field.len() {
        let octal = field
            .get(i + 1..i + 4)
            .filter(|o| field[i] == b'\\' && o.iter().all(|d| (b'0'..=b'7').contains(d)));
        match octal {
            Some(o) => {
                let code = o.iter().fold(0u32, |n, d| n * 8 + u32::from(d - b'0'));
                out.push(code as u8);
                i += 4;
            }
            None => {
                out.push(field[i]);
                i += 1;
            }
        }
    }
    OsString::from_vec(out).into()
}

/// What a live mount says of itself; `None` where that is not permitted.
pub fn status(mountpoint: &Path) -> Option<Value> {
    serde_json::from_slice(&get_status(mountpoint).ok()?).ok()
}

fn get_status(mountpoint: &Path) -> std::io::Result<Vec<u8>> {
    let path = CString::new(mountpoint.as_os_str().as_bytes())?;
    let name = c"user.stfs.status";
    let mut value = vec![0u8; 64 << 10];
    // SAFETY: both strings are NUL-terminated, and `value` is as long as is said.
    let n = unsafe {
        libc::getxattr(
            path.as_ptr(),
            name.as_ptr(),
            value.as_mut_ptr().cast(),
            value.len(),
        )
    };
    let n = usize::try_from(n).map_err(|_| std::io::Error::last_os_error())?;
    value.truncate(n);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernels_table() {
        let line = b"36 35 0:42 / /mnt/a\\040b ro,nosuid shared:7 - fuse.stfs /models/x\\134y ro,user_id=0";
        assert_eq!(
            parse_line(line),
            Some(("/mnt/a b".into(), "/models/x\\y".into()))
        );
        assert_eq!(parse_line(b"36 35 0:42 / /mnt ro - ext4 /dev/sda ro"), None);
        assert_eq!(parse_line(b""), None);
    }
}
