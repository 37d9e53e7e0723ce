//! Reads the access control lists of files and directories.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::{fgetxattr, flistxattr, getxattr};
use rustix::io::Errno;

use super::super::acl::{ACL_XATTR, Acl};
use super::super::stat::Opaque;
use crate::error::Location;

/// Attributes that hold a list of another kind.
const OTHER_KINDS: [&str; 3] = ["system.richacl", "system.nfs4_acl", "system.nfs4_acl_xdr"];

/// Room for a value or a list of names, in bytes: what nearly always suffices, and Linux's limit.
const ROOM: [usize; 2] = [512, 64 << 10];

/// The list of an open file. Uses the descriptor alone. One that cannot be read leaves the file to its
/// owner.
pub(super) fn of(file: &File) -> Result<Option<Acl>, Opaque> {
    read(file).unwrap_or(Err(Opaque))
}

/// The same, and logs why it cannot be read. For use once per file.
pub(super) fn of_new(file: &File, location: &Location) -> Result<Option<Acl>, Opaque> {
    read(file).unwrap_or_else(|e| {
        let problem = "its access control list cannot be read";
        log::warn!("{location}: {problem} ({e}); what is made of it is for its owner alone");
        Err(Opaque)
    })
}

fn read(file: &File) -> Result<Result<Option<Acl>, Opaque>, Errno> {
    if let Some(value) = found(|value| fgetxattr(file, ACL_XATTR, value))? {
        return Ok(Acl::parse(&value));
    }
    let names = found(|names| flistxattr(file, names))?.unwrap_or_default();
    let mut names = names.split(|&b| b == 0);
    let is_other = |name: &[u8]| OTHER_KINDS.iter().any(|kind| kind.as_bytes() == name);
    match names.find(|name| is_other(name)) {
        None => Ok(Ok(None)),
        Some(name) => Ok(match found(|value| fgetxattr(file, name, value))? {
            Some(value) if !says_what_the_mode_says(&value) => Err(Opaque),
            _ => Ok(None),
        }),
    }
}

/// Whether a directory, of which `O_PATH` suffices, has any list.
pub(super) fn has(directory: impl AsFd) -> bool {
    let path = format!("/proc/self/fd/{}", directory.as_fd().as_raw_fd());
    let names = [ACL_XATTR].into_iter().chain(OTHER_KINDS);
    let mut values = names.map(|name| found(|value| getxattr(&*path, name, value)));
    values.any(|value| match value {
        Ok(Some(value)) => Acl::parse(&value) != Ok(None) && !says_what_the_mode_says(&value),
        Ok(None) => false,
        Err(_) => true,
    })
}

/// An attribute's value, if there is one.
fn found(get: impl Fn(&mut [u8]) -> rustix::io::Result<usize>) -> Result<Option<Vec<u8>>, Errno> {
    for room in ROOM {
        let mut value = vec![0; room];
        match get(&mut value) {
            Ok(n) => {
                value.truncate(n);
                return Ok(Some(value));
            }
            Err(Errno::NODATA | Errno::OPNOTSUPP | Errno::NOSYS) => return Ok(None),
            Err(Errno::RANGE) => {}
            Err(e) => return Err(e),
        }
    }
    Err(Errno::RANGE)
}

/// Whether a list of NFSv4 names only `OWNER@`, `GROUP@` and `EVERYONE@`. A server has one for every file,
/// and then reports the same as permission bits.
fn says_what_the_mode_says(value: &[u8]) -> bool {
    fn number(value: &mut &[u8]) -> Option<usize> {
        let (number, rest) = value.split_first_chunk()?;
        *value = rest;
        usize::try_from(u32::from_be_bytes(*number)).ok()
    }
    fn entry(value: &mut &[u8]) -> Option<bool> {
        for _type_flags_and_mask in 0..3 {
            number(value)?;
        }
        let len = number(value)?;
        let (who, rest) = value.split_at_checked(len.checked_next_multiple_of(4)?)?;
        *value = rest;
        let who = who.get(..len)?;
        Some([&b"OWNER@"[..], b"GROUP@", b"EVERYONE@"].contains(&who))
    }
    let mut rest = value;
    let Some(count) = number(&mut rest) else {
        return false;
    };
    (0..count).all(|_| entry(&mut rest) == Some(true)) && rest.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A list as an NFSv4 client shows it.
    fn nfs4(who: &[&str]) -> Vec<u8> {
        let mut value = (who.len() as u32).to_be_bytes().to_vec();
        for who in who {
            value.extend([0; 12]);
            value.extend((who.len() as u32).to_be_bytes());
            value.extend(who.as_bytes());
            value.resize(value.len().next_multiple_of(4), 0);
        }
        value
    }

    #[test]
    fn a_list_of_nfs_that_names_nobody_is_the_mode() {
        assert!(says_what_the_mode_says(&nfs4(&[
            "OWNER@",
            "GROUP@",
            "EVERYONE@"
        ])));
        assert!(!says_what_the_mode_says(&nfs4(&[
            "OWNER@",
            "eve@example.org"
        ])));
        let list = nfs4(&["OWNER@"]);
        for cut in 0..list.len() {
            assert!(!says_what_the_mode_says(&list[..cut]), "{cut}");
        }
        assert!(!says_what_the_mode_says(&[0xff; 40]));
    }
}
