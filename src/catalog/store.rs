//! Stores: where a model's files are. A [`Store`] is one directory, an [`Object`] is one file. All
//! other modules use these two and never a path: nothing else opens, maps or stats a source.

use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Location, Result};
use crate::mounts;

mod acl;
mod local;
mod overlay;
mod piece;
mod stat;
pub mod steady;
#[cfg(test)]
mod testing;

pub use acl::{ACL_XATTR, Acl};
pub use local::LocalFile;
pub use overlay::{MadeFile, Overlay};
pub use piece::Piece;
pub use stat::{FileState, Stat};
#[cfg(test)]
pub(crate) use testing::{MemoryObject, MemoryStore};

/// Largest index or manifest that is read, in bytes: ten times what a million tensors need.
pub(super) const MAX_INDEX: u64 = 1 << 30;

/// The largest file that a mount keeps in memory and that is read from it again, in bytes: a recipe.
const MAX_MADE: u64 = 1 << 20;

/// Looks for a MODEL in one kind of store; `None` if the argument does not have that store's form.
type Find = fn(&Path, Audience) -> Option<Result<Source>>;

/// The kinds of stores. The first that answers decides. The local file system must be the last,
/// because it accepts every path.
static STORES: &[Find] = &[local::find];

/// Who will see the bytes of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Audience {
    /// The user that opens it, who may read what that user may.
    #[default]
    Caller,
    /// Other users, too, through a mount. Links are followed only as far as every user could follow them.
    Everyone,
}

impl Audience {
    /// That of a mount.
    pub fn of_mount(allow_other: bool) -> Audience {
        match allow_other {
            true => Audience::Everyone,
            false => Audience::Caller,
        }
    }
}

/// A MODEL argument, resolved.
#[derive(Clone)]
pub struct Source {
    /// What was asked for, as messages and `stfs mounts` show it. A path is absolute.
    pub model: Location,
    /// The directory that contains the model's files.
    pub store: Arc<dyn Store>,
    /// The file in it that was asked for; `None` if the directory was.
    pub file: Option<String>,
    /// The part of that file that was asked for, `state_dict` of `x.ckpt#state_dict`; `None` if it was
    /// the file as such.
    pub part: Option<String>,
}

impl Source {
    /// Finds the store that has `model`. A mountpoint of stfs stands for the model that is mounted there.
    ///
    /// # Errors
    /// There is no such file or directory, or it cannot be accessed.
    pub fn find(model: &Path, audience: Audience) -> Result<Source> {
        let mounted = mounts::model_at(model);
        let model = mounted.as_deref().unwrap_or(model);
        let found = STORES.iter().find_map(|find| find(model, audience));
        found.unwrap_or_else(|| Err(Error::invalid(model, "is not in a place that stfs knows")))
    }

    /// The file `model` as a mount read it, whatever has become of it since: with the bytes and permissions of
    /// `copy`, a file in the mount.
    ///
    /// # Errors
    /// The copy cannot be read.
    pub fn as_mounted(model: &Path, copy: &Path, audience: Audience) -> Result<Source> {
        let (Some(file), Some(name)) =
            (model.file_name().and_then(OsStr::to_str), copy.file_name())
        else {
            return Err(Error::invalid(model, "has a name that is not valid UTF-8"));
        };
        let copy = local::directory_of(copy, Audience::Caller)?.open(name)?;
        if copy.len() > MAX_MADE {
            let problem = format!("has {} bytes, at most {MAX_MADE} are read", copy.len());
            return Err(Error::invalid(copy.location(), problem));
        }
        let mut bytes = vec![0; copy.len() as usize];
        copy.read_at(0, &mut bytes)?;
        let read = MadeFile::new(model.into(), bytes, vec![copy]);
        let read: Arc<dyn Object> = Arc::new(read);
        Ok(Source {
            model: model.into(),
            store: Arc::new(Overlay {
                behind: local::directory_of(model, audience)?,
                files: [(file.to_string(), read)].into(),
                hidden: Default::default(),
                beside: Vec::new(),
            }),
            file: Some(file.into()),
            part: None,
        })
    }
}

/// The kind of an entry in a store's listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EntryKind {
    /// A regular file, or a link to one.
    File(Stat),
    /// A directory, or a link to one.
    Directory,
    /// Anything else: a FIFO, a device, a dangling link.
    Other,
}

/// An entry of a store's listing.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its name.
    pub name: OsString,
    /// What it is, links followed.
    pub kind: EntryKind,
}

/// One directory of files.
pub trait Store: Send + Sync {
    /// Where it is.
    fn location(&self) -> &Location;

    /// The owner, permissions and times of the directory itself, now.
    fn attributes(&self) -> Stat;

    /// A directory above it that not every user may search, though everyone is to see the store.
    fn closed_above(&self) -> Option<Location> {
        None
    }

    /// The uppermost directory on the way to its files, the last one included, that not every user may search,
    /// though everyone is to see them. One on the way to `from`, too, does not count.
    fn closed_from(&self, from: &Path) -> Option<Location> {
        let _ = from;
        None
    }

    /// Whether nobody but root and the user that runs the program can put files into it, or another directory in
    /// its place.
    fn is_own(&self) -> bool {
        false
    }

    /// All entries, in any order.
    ///
    /// # Errors
    /// It cannot be listed.
    fn list(&self) -> Result<Vec<Entry>>;

    /// Whether a file of that name exists; a dangling link does not count.
    fn exists(&self, name: &str) -> bool;

    /// Opens a regular file.
    ///
    /// # Errors
    /// It cannot be opened, or is not a regular file.
    fn open(&self, name: &OsStr) -> Result<Arc<dyn Object>>;

    /// The whole of a small file, at most `max` bytes.
    ///
    /// # Errors
    /// It cannot be read, is not a regular file, or is larger. If it does not exist,
    /// [`Error::is_not_found`] is true of the error.
    fn read_small(&self, name: &str, max: u64) -> Result<Vec<u8>>;

    /// Announces files that are about to be opened and have their beginnings read, one after
    /// another. A store that waits for each request can fetch them all at once.
    fn prefetch(&self, names: &[&str]) {
        let _ = names;
    }

    /// The subdirectory of that name.
    fn directory(&self, name: &str) -> Option<Arc<dyn Store>> {
        let _ = name;
        None
    }

    /// A file that shows that the download into this directory has not finished.
    fn unfinished(&self) -> Option<Location> {
        None
    }
}

/// What an object looks like now, compared with when it was opened.
#[derive(Debug, Default)]
pub struct Look {
    /// Which of its versions this is: equal numbers mean equal bytes. `None` if that is not certain.
    pub version: Option<u64>,
    /// It is not certain yet, and [`Object::settle`] can change that.
    pub may_settle: bool,
    /// Its owner, permissions and ACL, if they are no longer those with which it was opened.
    pub access: Option<Stat>,
}

/// One file: bytes of a known length, fixed when it is opened.
pub trait Object: Send + Sync {
    /// Its name in the store, for display: bytes that are not valid UTF-8 are replaced.
    fn name(&self) -> &str;

    /// Where it is.
    fn location(&self) -> &Location;

    /// Its attributes when it was opened.
    fn stat(&self) -> &Stat;

    /// The length when it was opened, in bytes.
    fn len(&self) -> u64 {
        self.stat().len
    }

    /// Whether it was empty when it was opened.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The state of the file that is at its location now.
    fn state(&self) -> FileState;

    /// Whether it was ever seen to differ from what was opened. Checks again now.
    fn changed(&self) -> bool;

    /// Whether it was ever seen to differ from what was opened. Does not check again.
    fn was_changed(&self) -> bool;

    /// Looks at it now.
    fn look(&self) -> Look;

    /// Brings the object into a state from which no change of its bytes goes unseen by [`Object::look`].
    /// May take long. `false` if that state is not reached yet: to be called again, after a pause.
    fn settle(&self) -> bool {
        true
    }

    /// Fills `buf` with the bytes from `offset` on. Never raises a signal, whatever happened to the
    /// file. Inside a scope of [`steady`], the caller must not use the bytes before that has ended.
    ///
    /// # Errors
    /// [`Error::Truncated`] if it now ends before the range does, or the store's own error.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// `len` bytes from `offset` on without a copy, if they are available in one piece. `None`
    /// means "use [`Object::read_at`]".
    fn piece(&self, offset: u64, len: usize) -> Option<Piece<'_>> {
        let _ = (offset, len);
        None
    }

    /// Announces byte ranges that are about to be read, in any order and any number of reads. Only a
    /// hint: it must not fail, and must not wait for the bytes.
    fn will_need(&self, ranges: &[Range<u64>]) {
        let _ = ranges;
    }
}

/// The error about a file whose name shows that it is an incomplete download.
pub(super) fn incomplete(at: impl Into<Location>) -> Error {
    Error::invalid(
        at,
        "is an incomplete download; let it finish ('hf download' resumes it), then mount again",
    )
}

/// The ending of such files' names.
pub(super) const INCOMPLETE: &str = ".incomplete";
