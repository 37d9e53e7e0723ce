//! Open files: their bytes, and reads.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::{Answer, Caller, Fs, kept, no_such};
use crate::catalog::{Extent, Piece, Stat, steady};
use crate::error::{Error, Result};
use crate::layout::{Kind, Node};
use crate::patience;
use crate::view::{SharedView, StoredBytes};

/// What an open file is.
pub struct OpenFile {
    /// Which file.
    pub node: Node,
    /// Its bytes.
    pub view: SharedView,
    /// Where the last read ended: the next of a sequential reader begins there.
    read_up_to: AtomicU64,
    /// The version of its sources when it was opened, if that is certain.
    version: Option<u64>,
}

/// Reads below this many bytes that do not follow on the last are taken for random ones.
const SMALL_READ: usize = 64 << 10;

impl Fs {
    /// Opens a file for a caller, whom the attributes that it had at mount let read it. Returns its handle,
    /// which must be passed to [`Fs::release`] once, and whether the pages of the file that the kernel may
    /// have cached are still right.
    ///
    /// # Errors
    /// It is a directory or does not exist, its source may not be read (by the mount, or any more by the
    /// caller), or its view cannot be made.
    pub fn open(&self, ino: u64, caller: Caller) -> Answer<Result<(u64, bool)>> {
        // A refused attempt must not take a handle.
        match Answer::of(self, move |fs| fs.opened_file(ino, caller)) {
            Answer::Ready(file) => Answer::Ready(self.with_handle(file)),
            Answer::Wait(work) => Answer::Wait(Box::new(move |fs| fs.with_handle(work(fs)))),
        }
    }

    fn with_handle(&self, file: Result<(OpenFile, bool)>) -> Result<(u64, bool)> {
        file.map(|(file, same)| (self.handles.insert(file), same))
    }

    fn opened_file(&self, ino: u64, caller: Caller) -> Result<(OpenFile, bool)> {
        let node = self.node(ino)?;
        if node.kind() != Kind::File {
            return Err(Error::other(libc::EISDIR, "is a directory"));
        }
        if !self.layout.try_exists(node)? {
            return Err(no_such(ino));
        }
        let looks = self.layout.look(node);
        let lets_read = |now: &Stat| now.lets_read(caller.uid, |group| caller.is_in(group));
        if !looks.iter().flat_map(|look| &look.access).all(lets_read) {
            let path = self.layout.path(node);
            let problem = "its source's permissions have changed, and do not let this user read it";
            return Err(Error::other(
                libc::EACCES,
                format!("{path}: user {}: {problem}", caller.uid),
            ));
        }
        let version = kept::version(&looks);
        if looks.iter().any(|look| look.may_settle) {
            self.settle_sources();
        }
        let file = OpenFile {
            node,
            view: self.view(node)?,
            read_up_to: AtomicU64::new(0),
            version,
        };
        Ok((file, self.kept.is_current(ino, version)))
    }

    /// The bytes that a file shows.
    ///
    /// # Errors
    /// As [`Fs::open`].
    pub fn view(&self, node: Node) -> Result<SharedView> {
        let view = match node {
            Node::TensorFile(file, id) => self.layout.tensor_view(file, id)?,
            Node::Other(i) => {
                let file = self
                    .layout
                    .other_file(i)
                    .ok_or_else(|| Error::other(libc::EACCES, "the source file may not be read"))?;
                Some(Arc::new(StoredBytes(Extent {
                    file: file.clone(),
                    offset: 0,
                    len: file.len(),
                })) as SharedView)
            }
            _ => self.layout.generated_view(node)?,
        };
        view.ok_or_else(|| Error::NotFound("no such file".into()))
    }

    /// Reads up to `size` bytes at `offset` of an open file, and passes them to `reply`: fewer at the end
    /// of the file, none past it.
    pub fn read<R>(&self, fh: u64, offset: u64, size: u32, reply: R) -> Answer<()>
    where
        R: FnOnce(Result<ReadBytes<'_>>) + Send + 'static,
    {
        // A refused attempt does not call it, and leaves it for the work that may wait.
        let mut reply = Some(reply);
        patience::attempt(|| self.read_now(fh, offset, size, &mut reply));
        match reply {
            None => Answer::Ready(()),
            Some(reply) => Answer::Wait(Box::new(move |fs| {
                fs.read_now(fh, offset, size, &mut Some(reply));
            })),
        }
    }

    fn read_now<R>(&self, fh: u64, offset: u64, size: u32, reply: &mut Option<R>)
    where
        R: FnOnce(Result<ReadBytes<'_>>),
    {
        let mut give = |bytes: Result<ReadBytes<'_>>| {
            if patience::is_refused() {
                return;
            }
            let n = bytes.as_ref().map_or(0, |b| b.len());
            self.served.fetch_add(n as u64, Ordering::Relaxed);
            if let Some(reply) = reply.take() {
                reply(bytes);
            }
        };
        let Some(file) = self.handles.get(fh) else {
            return give(Err(Error::other(libc::EBADF, "no such open file")));
        };
        // In 64 bits: a file may be longer than memory, a read is not.
        let n = file.view.len().saturating_sub(offset).min(size.into()) as usize;
        if n == 0 {
            return give(Ok(ReadBytes::Memory(&[])));
        }
        // Before the view is asked: it may hold a lock while it reads, and this thread must not wait for
        // that either.
        if file.reads_sources()
            && let Err(refused) = patience::touch_source()
        {
            return give(Err(refused));
        }
        let follows = file.read_up_to.swap(offset + n as u64, Ordering::Relaxed) == offset;
        if let Some(piece) = file.view.piece(offset, n) {
            if !follows && n < SMALL_READ {
                piece.fetch_alone();
            }
            match piece.check() {
                // Copied below, and then looked at again.
                Ok(()) if piece.was_changed() => {}
                Ok(()) => return give(Ok(ReadBytes::Piece(piece))),
                Err(e) => return give(Err(e)),
            }
        }
        let read = self.buffers.with(n, |bytes| {
            let read = steady::read(|| file.view.read_at(offset, bytes));
            give(read.map(|()| ReadBytes::Memory(bytes)));
        });
        if let Err(no_memory) = read {
            give(Err(no_memory));
        }
    }

    /// Closes an open file.
    pub fn release(&self, fh: u64) {
        // Before the handle is removed: then another file may get the same number.
        self.gpu.released(fh);
        if let Some(file) = self.handles.remove(fh) {
            self.kept.dropped(file.node.ino(), file.version);
        }
    }

    /// Bytes that readers were given so far.
    pub fn bytes_served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }
}

/// The result of a read.
pub enum ReadBytes<'a> {
    /// Bytes of a source, not copied.
    Piece(Piece<'a>),
    /// Bytes that were assembled in memory.
    Memory(&'a [u8]),
}

impl ReadBytes<'_> {
    /// How many bytes.
    pub fn len(&self) -> usize {
        match self {
            ReadBytes::Piece(piece) => piece.len(),
            ReadBytes::Memory(bytes) => bytes.len(),
        }
    }

    /// Whether there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, for a system call.
    ///
    /// # Safety
    /// As [`Piece::for_kernel`]: only a system call may read from the slice.
    pub unsafe fn for_kernel(&self) -> &[u8] {
        match self {
            // SAFETY: the caller makes the same promise.
            ReadBytes::Piece(piece) => unsafe { piece.for_kernel() },
            ReadBytes::Memory(bytes) => bytes,
        }
    }

    /// A copy of the bytes of a file that nothing changes, for tests.
    #[cfg(test)]
    pub fn to_vec(&self) -> Vec<u8> {
        // SAFETY: the files of these tests are neither written nor truncated while they are read.
        unsafe { self.for_kernel() }.to_vec()
    }
}

impl OpenFile {
    /// Whether its bytes are not all in memory.
    fn reads_sources(&self) -> bool {
        match self.node {
            Node::Top(_) => false,
            Node::TensorFile(file, _) => file.row().reads_sources,
            _ => true,
        }
    }
}
