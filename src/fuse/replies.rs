//! Replies in the kernel's terms: attributes, entries, listings, errors.

use std::time::{Duration, SystemTime};

use fuser::{
    Errno, FileAttr, FileType, Generation, INodeNo, ReplyDirectory, ReplyDirectoryPlus, ReplyEntry,
    ReplyXattr,
};

use crate::error::Error;
use crate::fs::{Attr, Entries};
use crate::layout::Kind;

/// The tree never changes, so the kernel may remember all of it.
pub(super) const TTL: Duration = Duration::from_secs(365 * 24 * 3600);
/// `st_blksize` of files: what `cp` and friends read at a time.
const BLOCK_SIZE: u32 = 1 << 20;
/// `st_blksize` of directories. The C library takes it for the size of its buffer for listings, and
/// the kernel allocates as many pages for every request: 1 MiB would make `find` twice as slow.
const DIR_BLOCK_SIZE: u32 = 4096;

pub(super) fn errno(e: &Error) -> Errno {
    Errno::from_i32(e.errno())
}

/// Logs an error, of which the reader sees only the number, and returns that number.
pub(super) fn logged(e: &Error) -> Errno {
    log::warn!("{e}");
    errno(e)
}

pub(super) fn file_type(kind: Kind) -> FileType {
    match kind {
        Kind::Dir => FileType::Directory,
        Kind::File => FileType::RegularFile,
        Kind::Link => FileType::Symlink,
    }
}

pub(super) fn file_attr(a: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(a.ino),
        size: a.size,
        // 0 would make cp and tar take the files for holes.
        blocks: a.size.div_ceil(512),
        atime: a.mtime,
        mtime: a.mtime,
        ctime: a.mtime,
        crtime: SystemTime::UNIX_EPOCH,
        kind: file_type(a.kind),
        perm: a.perm,
        nlink: a.nlink,
        uid: a.uid,
        gid: a.gid,
        rdev: 0,
        blksize: match a.kind {
            Kind::Dir => DIR_BLOCK_SIZE,
            Kind::File | Kind::Link => BLOCK_SIZE,
        },
        flags: 0,
    }
}

/// "There is no such entry", for the kernel to remember: an inode number of 0.
fn absent() -> FileAttr {
    FileAttr {
        ino: INodeNo(0),
        ..file_attr(&Attr {
            ino: 0,
            kind: Kind::File,
            size: 0,
            perm: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            mtime: SystemTime::UNIX_EPOCH,
        })
    }
}

pub(super) fn reply_entry(found: &Result<Attr, Error>, reply: ReplyEntry) {
    match found {
        Ok(attr) => reply.entry(&TTL, &file_attr(attr), Generation(0)),
        Err(Error::NotFound(_)) => reply.entry(&TTL, &absent(), Generation(0)),
        Err(e) => reply.error(logged(e)),
    }
}

pub(super) fn reply_xattr(value: Result<Vec<u8>, Error>, size: u32, reply: ReplyXattr) {
    match value {
        Err(e) => reply.error(errno(&e)),
        Ok(v) if size == 0 => reply.size(v.len() as u32),
        Ok(v) if v.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(v) => reply.data(&v),
    }
}

/// A reply to a listing, which takes entries while there is room.
pub(super) trait Listed: Entries {
    /// Sends the reply, or the error that ended the listing.
    fn ended(self, listed: Result<(), Error>);
}

impl Entries for ReplyDirectory {
    fn add(&mut self, next: u64, name: &str, attr: &Attr, _: bool) -> bool {
        !ReplyDirectory::add(self, INodeNo(attr.ino), next, file_type(attr.kind), name)
    }
}

impl Listed for ReplyDirectory {
    fn ended(self, listed: Result<(), Error>) {
        match listed {
            Ok(()) => self.ok(),
            Err(e) => self.error(errno(&e)),
        }
    }
}

impl Entries for ReplyDirectoryPlus {
    fn add(&mut self, next: u64, name: &str, attr: &Attr, known: bool) -> bool {
        let node = file_attr(attr);
        // The kernel asks again for what expires at once, as soon as it is needed.
        let ttl = if known { TTL } else { Duration::ZERO };
        !ReplyDirectoryPlus::add(self, node.ino, next, name, &ttl, &node, Generation(0))
    }
}

impl Listed for ReplyDirectoryPlus {
    fn ended(self, listed: Result<(), Error>) {
        match listed {
            Ok(()) => self.ok(),
            Err(e) => self.error(errno(&e)),
        }
    }
}
