//! A store with some files replaced, added or hidden: what a recipe makes of the directory that its model is in.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use super::{Entry, EntryKind, FileState, Look, Object, Piece, Stat, Store};
use crate::error::{Error, Location, Result};

/// A store, with other files in front of it.
pub struct Overlay {
    /// What is behind.
    pub behind: Arc<dyn Store>,
    /// Files that are there instead of those of their names, or besides.
    pub files: BTreeMap<String, Arc<dyn Object>>,
    /// Names that are not there.
    pub hidden: BTreeSet<String>,
    /// Other stores whose bytes are served with this one's.
    pub beside: Vec<Arc<dyn Store>>,
}

impl Overlay {
    fn is_hidden(&self, name: &OsStr) -> bool {
        name.to_str().is_some_and(|name| self.hidden.contains(name))
    }

    fn in_front(&self, name: &OsStr) -> Option<&Arc<dyn Object>> {
        self.files.get(name.to_str()?)
    }

    /// The error about a file that is hidden.
    fn absent(&self, name: &OsStr) -> Error {
        let what = format!("open {}", self.location().join(name));
        Error::io(what, std::io::Error::from_raw_os_error(libc::ENOENT))
    }
}

impl Store for Overlay {
    fn location(&self) -> &Location {
        self.behind.location()
    }

    fn attributes(&self) -> Stat {
        self.behind.attributes()
    }

    fn closed_above(&self) -> Option<Location> {
        // The directory of those beside is not the mount's own, whose permissions everyone meets.
        let beside = || self.beside.iter().find_map(|s| s.closed_from("/".as_ref()));
        self.behind.closed_above().or_else(beside)
    }

    fn closed_from(&self, from: &Path) -> Option<Location> {
        let mut stores = std::iter::once(&self.behind).chain(&self.beside);
        stores.find_map(|store| store.closed_from(from))
    }

    fn list(&self) -> Result<Vec<Entry>> {
        let mut entries = self.behind.list()?;
        entries.retain(|e| !self.is_hidden(&e.name) && self.in_front(&e.name).is_none());
        entries.extend(self.files.iter().map(|(name, file)| Entry {
            name: name.into(),
            kind: EntryKind::File(file.stat().clone()),
        }));
        Ok(entries)
    }

    fn exists(&self, name: &str) -> bool {
        self.files.contains_key(name) || (!self.hidden.contains(name) && self.behind.exists(name))
    }

    fn open(&self, name: &OsStr) -> Result<Arc<dyn Object>> {
        match self.in_front(name) {
            Some(file) => Ok(file.clone()),
            None if self.is_hidden(name) => Err(self.absent(name)),
            None => self.behind.open(name),
        }
    }

    fn read_small(&self, name: &str, max: u64) -> Result<Vec<u8>> {
        match self.files.get(name) {
            Some(file) if file.len() > max => {
                let problem = format!("has {} bytes, at most {max} are read", file.len());
                Err(Error::invalid(file.location(), problem))
            }
            Some(file) => {
                let mut bytes = vec![0; file.len() as usize];
                file.read_at(0, &mut bytes)?;
                Ok(bytes)
            }
            None if self.hidden.contains(name) => Err(self.absent(OsStr::new(name))),
            None => self.behind.read_small(name, max),
        }
    }

    fn prefetch(&self, names: &[&str]) {
        self.behind.prefetch(names);
    }

    fn directory(&self, name: &str) -> Option<Arc<dyn Store>> {
        self.behind.directory(name)
    }

    fn unfinished(&self) -> Option<Location> {
        self.behind.unfinished()
    }
}

/// A file of which the bytes are in memory: what was read or made of others when the model was opened. Its
/// permissions are theirs.
pub struct MadeFile {
    name: String,
    location: Location,
    stat: Stat,
    bytes: Arc<[u8]>,
    /// The files that it was made of.
    from: Vec<Arc<dyn Object>>,
}

impl MadeFile {
    /// A file at this location, made of `from`.
    pub fn new(location: Location, bytes: Vec<u8>, from: Vec<Arc<dyn Object>>) -> MadeFile {
        let stats = from.iter().map(|file| file.stat().clone());
        let stat = Stat::strictest(stats).unwrap_or_else(Stat::unknown);
        MadeFile {
            name: location.name(),
            location,
            stat: Stat {
                len: bytes.len() as u64,
                ..stat
            },
            bytes: bytes.into(),
            from,
        }
    }
}

impl Object for MadeFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn location(&self) -> &Location {
        &self.location
    }

    fn stat(&self) -> &Stat {
        &self.stat
    }

    fn state(&self) -> FileState {
        FileState::of(&self.stat, &self.stat)
    }

    fn changed(&self) -> bool {
        false
    }

    fn was_changed(&self) -> bool {
        false
    }

    /// The bytes stay, whatever becomes of the files that they were made of; stricter permissions count.
    fn look(&self) -> Look {
        let access = self.from.iter().filter_map(|file| file.look().access);
        Look {
            version: Some(0),
            may_settle: false,
            access: Stat::strictest(access),
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let end = start.saturating_add(buf.len());
        let bytes = self.bytes.get(start..end);
        buf.copy_from_slice(bytes.ok_or_else(|| Error::Truncated {
            at: self.location.clone(),
            needs: end as u64,
            has: self.len(),
        })?);
        Ok(())
    }

    fn piece(&self, offset: u64, len: usize) -> Option<Piece<'_>> {
        let start = usize::try_from(offset).ok()?;
        let range: Range<usize> = start..start.checked_add(len)?;
        Piece::shared(self.bytes.clone(), range)
    }
}

#[cfg(test)]
mod tests {
    use super::super::MemoryStore;
    use super::*;

    #[test]
    fn files_are_replaced_added_and_hidden() {
        let behind = MemoryStore::new(&[("a", b"1"), ("b", b"2"), ("c", b"3")]);
        let file = |name: &str, bytes: &[u8]| {
            let from = vec![behind.open(OsStr::new("a")).unwrap()];
            let file = MadeFile::new(behind.location().join(name), bytes.into(), from);
            (name.to_string(), Arc::new(file) as Arc<dyn Object>)
        };
        let store = Overlay {
            files: [file("b", b"new"), file("d", b"added")].into(),
            hidden: ["c".into()].into(),
            beside: Vec::new(),
            behind: behind.clone(),
        };
        let mut names: Vec<_> = store.list().unwrap().into_iter().map(|e| e.name).collect();
        names.sort();
        assert_eq!(names, ["a", "b", "d"]);
        for (name, want) in [("a", &b"1"[..]), ("b", b"new"), ("d", b"added")] {
            assert!(store.exists(name));
            assert_eq!(store.read_small(name, 10).unwrap(), want);
            let file = store.open(OsStr::new(name)).unwrap();
            assert_eq!((file.len() as usize, file.name()), (want.len(), name));
            assert_eq!(file.stat().mode, 0o444);
            assert!(file.piece(0, want.len()).is_some());
        }
        assert!(!store.exists("c") && store.open(OsStr::new("c")).is_err());
        assert!(store.read_small("c", 10).unwrap_err().is_not_found());
        assert!(store.read_small("d", 4).is_err());
        let made = store.open(OsStr::new("d")).unwrap();
        assert!(made.read_at(3, &mut [0; 3]).is_err() && made.piece(3, 3).is_none());
    }
}
