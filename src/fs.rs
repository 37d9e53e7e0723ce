//! The file system in our own types: lookup, attributes, listings, reads, extended attributes. It
//! knows nothing of FUSE; `fuse` converts and replies.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Instant, SystemTime};

use crate::error::{Error, Result};
use crate::gpu::{self, Arena, Gpu};
use crate::layout::{Kind, Layout, Node, Top};
use crate::model::TensorId;
use crate::preview;
use crate::view::{Bytes, Deferred, SharedView, StoredBytes};

mod device_memory;
mod handles;
mod xattr;

use handles::Handles;

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

/// What an open file is.
pub struct OpenFile {
    /// Which file.
    pub node: Node,
    /// Its bytes.
    pub view: SharedView,
    /// Of a preview the same bytes, to ask whether they are made yet.
    picture: Option<Arc<Deferred>>,
    /// Where the last read ended: the next of a sequential reader begins there.
    read_up_to: AtomicU64,
}

/// A mount's answers.
pub struct Fs {
    /// Which paths exist.
    pub layout: Layout,
    handles: Handles,
    gpu: Gpu,
    /// All stored tensors as one piece of device memory, laid out when it is first asked about.
    arena: OnceLock<Arc<Arena>>,
    served: AtomicU64,
    started: Instant,
}

/// The largest read that the kernel sends (fs.fuse.max_pages_limit, 256 pages).
const MAX_READ: usize = 1 << 20;
/// Reads below this many bytes that do not follow on the last are taken for random ones.
const SMALL_READ: usize = 64 << 10;

thread_local! {
    /// Where reads are assembled that are not one piece of a mapping.
    static BUFFER: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

impl Fs {
    /// Answers for a layout.
    pub fn new(layout: Layout) -> Fs {
        Fs::with_gpu(layout, gpu::Config::default())
    }

    /// The same, with other settings for the GPU than [`gpu::Config::default`].
    pub fn with_gpu(layout: Layout, gpu: gpu::Config) -> Fs {
        Fs {
            layout,
            handles: Handles::default(),
            gpu: Gpu::new(gpu),
            arena: OnceLock::new(),
            served: AtomicU64::new(0),
            started: Instant::now(),
        }
    }

    fn node(&self, ino: u64) -> Result<Node> {
        Node::from_ino(ino).ok_or_else(|| no_such(ino))
    }

    /// The entry `name` of directory `parent`.
    ///
    /// # Errors
    /// There is none ([`Error::NotFound`]), or whether there is cannot be told for now (EIO): that
    /// must not be remembered.
    pub fn lookup(&self, parent: u64, name: &str) -> Result<Attr> {
        let dir = self.node(parent)?;
        match self.layout.child(dir, name) {
            Some(node) if self.layout.try_exists(node)? => Ok(self.attr(node)),
            _ => Err(Error::NotFound(format!("no '{name}' here"))),
        }
    }

    /// Whether [`Fs::lookup`] may have to wait for the disk.
    pub fn lookup_may_wait(&self, parent: u64, name: &str) -> bool {
        Node::from_ino(parent).is_some_and(|dir| self.layout.lookup_may_wait(dir, name))
    }

    /// The attributes of an inode.
    ///
    /// # Errors
    /// There is no such inode.
    pub fn getattr(&self, ino: u64) -> Result<Attr> {
        let node = self.node(ino)?;
        match self.layout.try_exists(node)? {
            true => Ok(self.attr(node)),
            false => Err(no_such(ino)),
        }
    }

    /// Whether [`Fs::open`] may have to wait for the disk, or compute for long.
    pub fn open_may_wait(&self, ino: u64) -> bool {
        let generated = matches!(
            Node::from_ino(ino),
            Some(Node::Top(Top::IndexJson | Top::ModelJson) | Node::Export(_))
        );
        generated || self.getattr_may_wait(ino)
    }

    /// Whether [`Fs::getattr`] may have to wait for the disk, or compute for long.
    pub fn getattr_may_wait(&self, ino: u64) -> bool {
        Node::from_ino(ino).is_some_and(|n| self.layout.attr_may_wait(n))
    }

    fn attr(&self, node: Node) -> Attr {
        let stat = self.layout.stat(node);
        let kind = self.layout.kind(node);
        // Who may read a directory may search it: nothing here is to be executed.
        let perm = match kind {
            Kind::Dir => (stat.mode & 0o555) | ((stat.mode & 0o444) >> 2),
            Kind::File => stat.mode & 0o444,
            Kind::Link => 0o777,
        };
        Attr {
            ino: node.ino(),
            kind,
            size: self.layout.size(node),
            perm: perm as u16,
            nlink: 1,
            uid: stat.uid,
            gid: stat.gid,
            mtime: stat.mtime(),
        }
    }

    /// The target of a link.
    ///
    /// # Errors
    /// It is no link.
    pub fn readlink(&self, ino: u64) -> Result<String> {
        match self.node(ino)? {
            Node::TreeLink(dir, id) if id < self.layout.model.id_count() => {
                Ok(self.layout.tree().link_target(&self.layout.model, dir, id))
            }
            _ => Err(Error::other(libc::EINVAL, "not a symbolic link")),
        }
    }

    /// Opens a file: its handle, which is to be given to [`Fs::release`] once, and whether what
    /// the kernel may still hold of its bytes is what they are now.
    ///
    /// # Errors
    /// It is a directory, there is none, its source may not be read, or a view cannot be made.
    pub fn open(&self, ino: u64) -> Result<(u64, bool)> {
        let node = self.node(ino)?;
        if self.layout.kind(node) != Kind::File {
            return Err(Error::other(libc::EISDIR, "is a directory"));
        }
        if !self.layout.try_exists(node)? {
            return Err(no_such(ino));
        }
        let same = !self.layout.source_changed(node);
        let (view, picture) = match node {
            Node::Preview(id) => {
                let picture = Arc::new(self.picture(id));
                (picture.clone() as SharedView, Some(picture))
            }
            _ => (self.view(node)?, None),
        };
        let file = OpenFile {
            node,
            view,
            picture,
            read_up_to: AtomicU64::new(0),
        };
        Ok((self.handles.insert(file), same))
    }

    /// The bytes that a file shows.
    ///
    /// # Errors
    /// As [`Fs::open`].
    pub fn view(&self, node: Node) -> Result<SharedView> {
        let model = &self.layout.model;
        let missing = || Error::NotFound("no such file".into());
        match node {
            Node::Raw(id) => model.raw(id),
            Node::F32(id) => model.f32(id)?.ok_or_else(missing),
            Node::Npy(id) => model.npy(id)?.ok_or_else(missing),
            Node::Meta(id) => Ok(Arc::new(Bytes(crate::meta::meta_json(model, id).into()))),
            Node::Preview(id) => Ok(Arc::new(self.picture(id))),
            Node::File(i) => {
                let file = self
                    .layout
                    .other_file(i)
                    .ok_or_else(|| Error::other(libc::EACCES, "the source file may not be read"))?;
                Ok(Arc::new(StoredBytes(crate::catalog::Extent {
                    file: file.clone(),
                    offset: 0,
                    len: file.len(),
                })))
            }
            _ => self.layout.generated_view(node).ok_or_else(missing),
        }
    }

    /// A preview, made when it is first read.
    fn picture(&self, id: TensorId) -> Deferred {
        let model = self.layout.model.clone();
        Deferred::new(self.layout.size(Node::Preview(id)), move || {
            let subject = preview::Subject::of(&model, id)?
                .ok_or_else(|| Error::NotFound(format!("'{}' has no values", model.name(id))))?;
            preview::render(&subject)
        })
    }

    /// Whether [`Fs::read`] of an open file has to compute for long.
    pub fn read_may_wait(&self, fh: u64) -> bool {
        self.handles
            .get(fh)
            .and_then(|f| f.picture.as_ref().map(|p| !p.is_made()))
            .unwrap_or(false)
    }

    /// An open file.
    pub fn handle(&self, fh: u64) -> Option<Arc<OpenFile>> {
        self.handles.get(fh)
    }

    /// Reads up to `size` bytes at `offset` of an open file, and hands them to `reply`: a piece of
    /// the mapping where the bytes lie in one (to be given to the kernel, never loaded from), else
    /// a buffer. At the end of the file there are fewer, past it none.
    pub fn read<R>(
        &self,
        fh: u64,
        offset: u64,
        size: u32,
        reply: impl FnOnce(Result<&[u8]>) -> R,
    ) -> R {
        let Some(file) = self.handles.get(fh) else {
            return reply(Err(Error::other(libc::EBADF, "no such open file")));
        };
        let left = file.view.len().saturating_sub(offset);
        let n = left.min(u64::from(size)).min(MAX_READ as u64) as usize;
        if n == 0 {
            return reply(Ok(&[]));
        }
        let reply = |bytes: Result<&[u8]>| {
            if bytes.is_ok() {
                self.served.fetch_add(n as u64, Ordering::Relaxed);
            }
            reply(bytes)
        };
        let follows = file.read_up_to.swap(offset + n as u64, Ordering::Relaxed) == offset;
        if let Some(piece) = file.view.piece(offset, n) {
            if !follows && n < SMALL_READ {
                piece.fetch_alone();
            }
            // SAFETY: `reply` hands the bytes to the kernel (fuser gives them to `writev`), and
            // nothing on the way looks into them.
            return reply(unsafe { piece.for_kernel() });
        }
        BUFFER.with_borrow_mut(|buffer| {
            buffer.resize(MAX_READ / 8, 0);
            let bytes: &mut [u8] = &mut bytemuck::cast_slice_mut(buffer)[..n];
            match file.view.read_at(offset, bytes) {
                Ok(()) => reply(Ok(bytes)),
                Err(e) => reply(Err(e)),
            }
        })
    }

    /// Closes an open file.
    pub fn release(&self, fh: u64) {
        // First: the handle is free for another file after the second.
        self.gpu.released(fh);
        self.handles.remove(fh);
    }

    /// Lists a directory from a position on: `add(next position, name, attributes)`, until it
    /// answers `false`. With `with_attrs` false only inode number and kind of the attributes count.
    ///
    /// # Errors
    /// It is no directory.
    pub fn readdir(
        &self,
        ino: u64,
        from: u64,
        with_attrs: bool,
        mut add: impl FnMut(u64, &str, Attr) -> bool,
    ) -> Result<()> {
        let dir = self.node(ino)?;
        if self.layout.kind(dir) != Kind::Dir {
            return Err(Error::other(libc::ENOTDIR, "is not a directory"));
        }
        self.layout.list(dir, from, |position, name, node| {
            let attr = match with_attrs {
                true => self.attr(node),
                false => self.bare_attr(node),
            };
            add(position + 1, name, attr)
        });
        Ok(())
    }

    fn bare_attr(&self, node: Node) -> Attr {
        Attr {
            ino: node.ino(),
            kind: self.layout.kind(node),
            size: 0,
            perm: 0,
            nlink: 1,
            uid: 0,
            gid: 0,
            mtime: SystemTime::UNIX_EPOCH,
        }
    }

    /// The inode of a directory's parent.
    pub fn parent(&self, ino: u64) -> u64 {
        let parent = match Node::from_ino(ino) {
            Some(Node::TensorDir(_)) => Node::Top(Top::Tensors),
            Some(Node::TreeDir(i)) => match self.layout.tree().dir(i).map_or(0, |d| d.parent) {
                0 => Node::Top(Top::Tree),
                p => Node::TreeDir(p),
            },
            _ => Node::Top(Top::Root),
        };
        parent.ino()
    }

    /// Whether listing a directory may have to wait for the disk, or compute for long.
    pub fn readdir_may_wait(&self, ino: u64) -> bool {
        Node::from_ino(ino).is_some_and(|n| self.layout.list_may_wait(n))
    }

    /// The model's size.
    pub fn statfs(&self) -> StatFs {
        let catalog = &self.layout.model.catalog;
        StatFs {
            bytes: catalog.files.iter().map(|f| f.len()).sum(),
            files: 4 * u64::from(self.layout.model.id_count()) + 8,
        }
    }

    /// Bytes that readers were given so far.
    pub fn bytes_served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// What the root's `user.stfs.status` says: for `stfs mounts`.
    pub fn status_json(&self) -> Vec<u8> {
        let catalog = &self.layout.model.catalog;
        serde_json::json!({
            "model": catalog.model.to_string(),
            "pid": std::process::id(),
            "uptime_s": self.started.elapsed().as_secs(),
            "bytes_served": self.bytes_served(),
            "source_changed": catalog.files.iter().any(|f| f.changed()),
        })
        .to_string()
        .into_bytes()
    }
}

fn no_such(ino: u64) -> Error {
    Error::NotFound(format!("no inode {ino}"))
}
