//! The file system in our own types: lookup, attributes, listings, reads, extended attributes. It
//! does not depend on FUSE; `fuse` converts and replies.
//!
//! Every request that may have to wait returns an [`Answer`].

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use crate::error::{Error, Result};
use crate::gpu::{self, Arena, Gpu};
use crate::layout::{Kind, Layout, Node, Top};
use crate::memory;
use crate::patience::{self, Patience};
use crate::sandbox;
use crate::workers::{MOUNT_LIMIT, Workers};

mod answer;
mod buffers;
mod caller;
mod device_memory;
mod handles;
mod kept;
mod open;
mod settle;
mod status;
mod xattr;

pub use answer::{Answer, Work};
use buffers::Buffers;
pub use caller::Caller;
use handles::Handles;
use kept::Kept;
pub use open::{OpenFile, ReadBytes};
use status::Looking;

/// What `stat` shows.
#[derive(Debug, Clone, Copy)]
pub struct Attr {
    /// Inode number.
    pub ino: u64,
    /// Directory, file or link.
    pub kind: Kind,
    /// Size in bytes.
    pub size: u64,
    /// Permission bits: read (and for directories, search) only.
    pub perm: u16,
    /// Hard links. 1 for directories: their entries are not counted, as on btrfs.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time, that of the source file.
    pub mtime: SystemTime,
}

/// What `statfs` shows: the model, full.
#[derive(Debug, Clone, Copy)]
pub struct StatFs {
    /// Bytes of the model's files.
    pub bytes: u64,
    /// Files and directories.
    pub files: u64,
}

/// Collects the entries of a listing.
pub trait Entries: Send + 'static {
    /// Adds an entry; `next` is the position after it. If the attributes are not `known`, only inode
    /// number and kind count. Returns `false` if there is no room for it.
    fn add(&mut self, next: u64, name: &str, attr: &Attr, known: bool) -> bool;
}

/// A mount's answers.
pub struct Fs {
    /// Which paths exist.
    pub layout: Layout,
    /// Runs the work that a request thread must not wait for.
    pub pool: Workers,
    handles: Handles,
    buffers: Buffers,
    kept: Kept,
    /// The jobs that make sure that no write to a source goes unseen.
    settling: Arc<settle::Settling>,
    gpu: Gpu,
    /// All stored tensors as one piece of device memory, laid out when it is first asked about.
    arena: OnceLock<Arc<Arena>>,
    looking: Looking,
    served: AtomicU64,
    started: Instant,
    /// What the process has given up, once it has.
    sandbox: OnceLock<sandbox::Report>,
}

impl Fs {
    /// Answers for a layout.
    pub fn new(layout: Layout) -> Fs {
        Fs::with_gpu(layout, gpu::Config::default())
    }

    /// The same, with other settings for the GPU than [`gpu::Config::default`].
    pub fn with_gpu(layout: Layout, gpu: gpu::Config) -> Fs {
        let sources = layout.model.catalog.files.iter();
        let pool = Workers::new(MOUNT_LIMIT);
        Fs {
            looking: sources.map(|_| false.into()).collect(),
            layout,
            handles: Handles::default(),
            buffers: Buffers::of(memory::budget()),
            kept: Kept::default(),
            settling: Arc::default(),
            gpu: Gpu::new(gpu, pool.clone()),
            pool,
            arena: OnceLock::new(),
            served: AtomicU64::new(0),
            started: Instant::now(),
            sandbox: OnceLock::new(),
        }
    }

    /// Has the status report what the process has given up.
    pub fn sandboxed(&self, report: sandbox::Report) {
        let _ = self.sandbox.set(report);
    }

    fn node(&self, ino: u64) -> Result<Node> {
        Node::from_ino(ino).ok_or_else(|| no_such(ino))
    }

    /// The entry `name` of directory `parent`.
    ///
    /// # Errors
    /// It does not exist ([`Error::NotFound`]), or whether it exists could not be determined (EIO), which
    /// must not be cached.
    pub fn lookup(&self, parent: u64, name: &str) -> Answer<Result<Attr>> {
        let name = name.to_string();
        Answer::of(self, move |fs| {
            let dir = fs.node(parent)?;
            match fs.layout.child(dir, &name)? {
                Some(node) if fs.layout.try_exists(node)? => fs.attr(node),
                _ => Err(Error::NotFound(format!("no '{name}' here"))),
            }
        })
    }

    /// The attributes of an inode.
    ///
    /// # Errors
    /// There is no such inode.
    pub fn getattr(&self, ino: u64) -> Answer<Result<Attr>> {
        Answer::of(self, move |fs| fs.attr_of(ino))
    }

    fn attr_of(&self, ino: u64) -> Result<Attr> {
        let node = self.node(ino)?;
        match self.layout.try_exists(node)? {
            true => self.attr(node),
            false => Err(no_such(ino)),
        }
    }

    fn attr(&self, node: Node) -> Result<Attr> {
        let stat = self.layout.stat(node);
        let kind = node.kind();
        // A user that may read a directory may search it; nothing here is executable.
        let mut perm = match kind {
            Kind::Dir => (stat.mode & 0o555) | ((stat.mode & 0o444) >> 2),
            Kind::File => stat.mode & 0o444,
            Kind::Link => 0o777,
        };
        // The kernel takes an empty mask for "no list", and would go by the other bits.
        if stat.acl.is_some() && kind != Kind::Link && perm & 0o070 == 0 && stat.mode & 0o070 != 0 {
            perm &= 0o700;
        }
        Ok(Attr {
            ino: node.ino(),
            kind,
            size: self.layout.size(node)?,
            perm: perm as u16,
            nlink: 1,
            uid: stat.uid,
            gid: stat.gid,
            mtime: stat.mtime(),
        })
    }

    /// The target of a link.
    ///
    /// # Errors
    /// It is not a link, or does not exist.
    pub fn readlink(&self, ino: u64) -> Answer<Result<String>> {
        Answer::of(self, move |fs| match fs.node(ino)? {
            link @ Node::TreeLink(dir, id) if fs.layout.try_exists(link)? => {
                Ok(fs.layout.tree()?.link_target(&fs.layout.model, dir, id))
            }
            _ => Err(Error::other(libc::EINVAL, "not a symbolic link")),
        })
    }

    /// Lists a directory into `entries`, from a position on (0 is the first, `.`), and returns them. An
    /// entry is listed without attributes if they cannot be determined at once.
    ///
    /// # Errors
    /// It is not a directory.
    pub fn readdir<E: Entries>(
        &self,
        ino: u64,
        from: u64,
        with_attrs: bool,
        mut entries: E,
    ) -> Answer<(E, Result<()>)> {
        let mut added = 0u32;
        let (result, void) = patience::attempt(|| {
            self.list(ino, from, with_attrs, &mut |next, name, attr, known| {
                let taken = entries.add(next, name, attr, known);
                added += u32::from(taken);
                taken
            })
        });
        match (void, added) {
            (false, _) => Answer::Ready((entries, result)),
            // The entries before the slow one are complete: the kernel asks for the rest.
            (true, 1..) => Answer::Ready((entries, Ok(()))),
            (true, 0) => Answer::Wait(Box::new(move |fs| {
                let add: Add<'_> =
                    &mut |next, name, attr, known| entries.add(next, name, attr, known);
                let result = fs.list(ino, from, with_attrs, add);
                (entries, result)
            })),
        }
    }

    fn list(&self, ino: u64, from: u64, with_attrs: bool, add: Add<'_>) -> Result<()> {
        let dir = self.node(ino)?;
        if dir.kind() != Kind::Dir {
            return Err(Error::other(libc::ENOTDIR, "is not a directory"));
        }
        for (position, name) in [(0, "."), (1, "..")] {
            if from <= position {
                let which = match position {
                    0 => ino,
                    _ => self.parent(dir)?.ino(),
                };
                if !add(position + 1, name, &self.attr_of(which)?, true) {
                    return Ok(());
                }
            }
        }
        let mut add_node = |position, name: &str, node: Node| {
            // If anything was refused on the way, the rest of the listing may be wrong.
            if patience::is_refused() {
                return false;
            }
            let position = position + DOTS + 1;
            // A file that must be generated to be measured, perhaps from a source that stalls, does not
            // hold up the others. A request for its attributes waits, or gets the error.
            let measure = || patience::attempt(|| self.attr(node));
            match with_attrs.then(|| patience::with(Patience::None, measure)) {
                Some((Ok(attr), false)) => add(position, name, &attr, true),
                Some(_) | None => add(position, name, &bare_attr(node), false),
            }
        };
        self.layout
            .list(dir, from.saturating_sub(DOTS), &mut add_node)
    }

    /// A directory's parent.
    fn parent(&self, dir: Node) -> Result<Node> {
        Ok(match dir {
            Node::TensorDir(_) => Node::Top(Top::Tensors),
            Node::TreeDir(i) => match self.layout.tree()?.dir(i).map_or(0, |d| d.parent) {
                0 => Node::Top(Top::Tree),
                p => Node::TreeDir(p),
            },
            _ => Node::Top(Top::Root),
        })
    }

    /// The model's size.
    pub fn statfs(&self) -> StatFs {
        let catalog = &self.layout.model.catalog;
        StatFs {
            bytes: catalog.shards().map(|f| f.len()).sum(),
            files: 4 * u64::from(self.layout.model.id_count()) + 8,
        }
    }
}

/// As [`Entries::add`].
type Add<'a> = &'a mut dyn FnMut(u64, &str, &Attr, bool) -> bool;

/// `.` and `..` come first in every listing; the positions of the rest follow.
const DOTS: u64 = 2;

fn bare_attr(node: Node) -> Attr {
    Attr {
        ino: node.ino(),
        kind: node.kind(),
        size: 0,
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        mtime: SystemTime::UNIX_EPOCH,
    }
}

fn no_such(ino: u64) -> Error {
    Error::NotFound(format!("no inode {ino}"))
}

#[cfg(test)]
mod tests;
