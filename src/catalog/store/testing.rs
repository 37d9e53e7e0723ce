//! A second store, for tests alone: files in memory, served as shared bytes. It shows that nothing
//! above the store needs a path, and it records what is announced to it.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Entry, EntryKind, FileState, Look, Object, Piece, Source, Stat, Store};
use crate::error::{Error, Location, Result};

/// Files in memory.
pub(crate) struct MemoryStore {
    location: Location,
    files: BTreeMap<String, Arc<MemoryObject>>,
    /// The names that were announced, in order.
    pub prefetched: Mutex<Vec<String>>,
}

/// A file in memory.
pub(crate) struct MemoryObject {
    name: String,
    location: Location,
    stat: Stat,
    bytes: Arc<[u8]>,
    /// The ranges that were announced, in order.
    pub announced: Mutex<Vec<Range<u64>>>,
}

impl MemoryStore {
    /// A store of these files.
    pub(crate) fn new(files: &[(&str, &[u8])]) -> Arc<MemoryStore> {
        let location = Location::from(Path::new("memory"));
        let file = |(name, bytes): &(&str, &[u8])| {
            let file = MemoryObject::new(name, location.join(name), bytes);
            (name.to_string(), Arc::new(file))
        };
        Arc::new(MemoryStore {
            files: files.iter().map(file).collect(),
            location,
            prefetched: Mutex::default(),
        })
    }

    /// The whole directory, or one file of it, as a MODEL.
    pub(crate) fn source(self: &Arc<Self>, file: Option<&str>) -> Source {
        Source {
            model: file.map_or(self.location.clone(), |name| self.location.join(name)),
            store: self.clone(),
            file: file.map(str::to_string),
            part: None,
        }
    }

    /// The object of that name.
    pub(crate) fn object(&self, name: &str) -> Result<Arc<MemoryObject>> {
        let absent = || io::Error::from_raw_os_error(libc::ENOENT);
        let file = self.files.get(name).cloned();
        file.ok_or_else(|| Error::io(format!("open {}", self.location.join(name)), absent()))
    }
}

impl MemoryObject {
    fn new(name: &str, location: Location, bytes: &[u8]) -> MemoryObject {
        MemoryObject {
            name: name.into(),
            location,
            stat: Stat {
                len: bytes.len() as u64,
                mode: 0o444,
                ..Stat::unknown()
            },
            bytes: bytes.into(),
            announced: Mutex::default(),
        }
    }
}

impl Store for MemoryStore {
    fn location(&self) -> &Location {
        &self.location
    }

    fn attributes(&self) -> Stat {
        Stat::unknown()
    }

    fn list(&self) -> Result<Vec<Entry>> {
        let entry = |(name, file): (&String, &Arc<MemoryObject>)| Entry {
            name: name.into(),
            kind: EntryKind::File(file.stat.clone()),
        };
        Ok(self.files.iter().map(entry).collect())
    }

    fn exists(&self, name: &str) -> bool {
        self.files.contains_key(name)
    }

    fn open(&self, name: &OsStr) -> Result<Arc<dyn Object>> {
        Ok(self.object(&name.to_string_lossy())?)
    }

    fn read_small(&self, name: &str, _max: u64) -> Result<Vec<u8>> {
        Ok(self.object(name)?.bytes.to_vec())
    }

    fn prefetch(&self, names: &[&str]) {
        let names = names.iter().map(ToString::to_string);
        append(&self.prefetched, names);
    }
}

impl Object for MemoryObject {
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

    fn look(&self) -> Look {
        Look {
            version: Some(0),
            may_settle: false,
            access: None,
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let start = offset as usize;
        let bytes = self.bytes.get(start..start + buf.len());
        buf.copy_from_slice(bytes.ok_or_else(|| Error::Truncated {
            at: self.location.clone(),
            needs: offset + buf.len() as u64,
            has: self.len(),
        })?);
        Ok(())
    }

    fn piece(&self, offset: u64, len: usize) -> Option<Piece<'_>> {
        let start = offset as usize;
        Piece::shared(self.bytes.clone(), start..start + len)
    }

    fn will_need(&self, ranges: &[Range<u64>]) {
        append(&self.announced, ranges.iter().cloned());
    }
}

/// Appends to a record that a failed test may have poisoned.
fn append<T>(record: &Mutex<Vec<T>>, items: impl Iterator<Item = T>) {
    let mut record = record.lock().unwrap_or_else(PoisonError::into_inner);
    record.extend(items);
}
