//! The local file system: a directory of files, one of them, or a hub cache's folder of a model.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{Audience, Entry, EntryKind, INCOMPLETE, Object, Source, Stat, Store, incomplete};
use crate::error::{Error, Location, PART, Result};
use directory::Directory;

mod acl;
mod directory;
mod hub;
mod mapped_file;
mod regular_file;
mod small_file;
mod watch;

pub use mapped_file::LocalFile;
pub(super) use mapped_file::MappedSlice;

/// A directory.
struct LocalStore {
    dir: Directory,
    audience: Audience,
    location: Location,
}

/// Resolves `model`, a path or `FILE#PART`, to a source.
pub(super) fn find(model: &Path, audience: Audience) -> Option<Result<Source>> {
    Some(match take_apart(model) {
        Some((file, part)) => find_part(file, part, audience),
        None => absolute(model).and_then(|model| resolve(model, audience)),
    })
}

/// Takes `FILE#PART` apart; `None` if `model` is a path as such. Both may contain further `#`: the
/// longest name that exists is the file's.
fn take_apart(model: &Path) -> Option<(&Path, &OsStr)> {
    let exists = |path: &Path| path.symlink_metadata().is_ok();
    if exists(model) {
        return None;
    }
    let bytes = model.as_os_str().as_bytes();
    let marks = (0..bytes.len()).rev().filter(|&i| bytes[i] == PART as u8);
    let mut parts = marks.map(|i| {
        let (file, part) = (&bytes[..i], &bytes[i + 1..]);
        (Path::new(OsStr::from_bytes(file)), OsStr::from_bytes(part))
    });
    parts.find(|(file, _)| exists(file))
}

fn find_part(file: &Path, part: &OsStr, audience: Audience) -> Result<Source> {
    let source = resolve(absolute(file)?, audience)?;
    if source.file.is_none() {
        let problem = "is a directory, which has no parts; give a file in it, as FILE#KEY.PATH";
        return Err(Error::invalid(source.model, problem));
    }
    let Some(part) = part.to_str() else {
        let problem = "the part after '#' is not valid UTF-8";
        return Err(Error::invalid(source.model, problem));
    };
    Ok(Source {
        model: source.model.part(part),
        part: Some(part.into()),
        ..source
    })
}

fn resolve(model: PathBuf, audience: Audience) -> Result<Source> {
    if model.is_dir() {
        let store = match hub::snapshot(&model)? {
            Some(snapshot) => LocalStore::inside(&model, snapshot, audience)?,
            None => LocalStore::shared(model.clone(), audience)?,
        };
        return Ok(Source {
            store,
            model: model.into(),
            file: None,
            part: None,
        });
    }
    let location = Location::from(&model);
    let Some(name) = model.file_name().and_then(OsStr::to_str) else {
        let problem = "has a name that is not valid UTF-8; rename it, or mount a link to it";
        return Err(Error::invalid(location, problem));
    };
    if name.ends_with(INCOMPLETE) {
        return Err(incomplete(location));
    }
    let file = Some(name.to_string());
    let dir = model.parent().unwrap_or(Path::new("/")).to_path_buf();
    Ok(Source {
        model: location,
        store: LocalStore::shared(dir, audience)?,
        file,
        part: None,
    })
}

/// Makes the path absolute without following a last symbolic link (a hub cache's shards are links
/// whose own names count).
fn absolute(model: &Path) -> Result<PathBuf> {
    let meta = std::fs::metadata(model).map_err(|e| {
        regular_file::not_opened(model, format!("open model {}", model.display()), e)
    })?;
    let io = |e| Error::io(format!("resolve {}", model.display()), e);
    if meta.is_dir() {
        return std::fs::canonicalize(model).map_err(io);
    }
    let parent = match model.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    };
    let name = model
        .file_name()
        .ok_or_else(|| Error::invalid(model, "has no file name"))?;
    Ok(std::fs::canonicalize(parent).map_err(io)?.join(name))
}

/// The directory that a file is in, or was.
pub(super) fn directory_of(file: &Path, audience: Audience) -> Result<Arc<dyn Store>> {
    LocalStore::shared(file.parent().unwrap_or(Path::new("/")).into(), audience)
}

impl LocalStore {
    fn shared(dir: PathBuf, audience: Audience) -> Result<Arc<dyn Store>> {
        Ok(LocalStore::of(Directory::new(dir, audience)?, audience))
    }

    /// The same for a directory that others choose by its name in a folder: `folder`, without links.
    fn inside(folder: &Path, dir: PathBuf, audience: Audience) -> Result<Arc<dyn Store>> {
        let dir = Directory::new(dir, audience)?;
        dir.is_inside(folder)?;
        Ok(LocalStore::of(dir, audience))
    }

    fn of(dir: Directory, audience: Audience) -> Arc<dyn Store> {
        Arc::new(LocalStore {
            location: Location::from(dir.path()),
            dir,
            audience,
        })
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Store for LocalStore {
    fn location(&self) -> &Location {
        &self.location
    }

    fn attributes(&self) -> Stat {
        let read = |dir: File| Some((Stat::of(&dir.metadata().ok()?), acl::of(&dir)));
        match File::open(self.path()).ok().and_then(read) {
            Some((stat, acl)) => stat.with_acl(acl),
            // A directory that may only be searched.
            None => std::fs::metadata(self.path()).map_or(Stat::unknown(), |m| Stat::of(&m)),
        }
    }

    fn closed_above(&self) -> Option<Location> {
        self.dir.closed_above().map(Location::from)
    }

    fn closed_from(&self, from: &Path) -> Option<Location> {
        self.dir.closed_from(from).map(Location::from)
    }

    fn is_own(&self) -> bool {
        directory::is_own(self.path())
    }

    fn list(&self) -> Result<Vec<Entry>> {
        let io = |e| Error::io(format!("read directory {}", self.path().display()), e);
        let mut entries = Vec::new();
        for entry in std::fs::read_dir(self.path()).map_err(io)? {
            let entry = entry.map_err(io)?;
            let kind = match std::fs::metadata(entry.path()) {
                Ok(m) if m.is_file() => EntryKind::File(Stat::of(&m)),
                Ok(m) if m.is_dir() => EntryKind::Directory,
                _ => EntryKind::Other,
            };
            let name = entry.file_name();
            entries.push(Entry { name, kind });
        }
        Ok(entries)
    }

    fn exists(&self, name: &str) -> bool {
        self.path().join(name).exists()
    }

    fn open(&self, name: &OsStr) -> Result<Arc<dyn Object>> {
        let (file, meta) = self.dir.open(name)?;
        Ok(LocalFile::of(file, &meta, &self.path().join(name)))
    }

    fn read_small(&self, name: &str, max: u64) -> Result<Vec<u8>> {
        let (file, meta) = self.dir.open(OsStr::new(name))?;
        small_file::read_open(file, &meta, &self.path().join(name), max)
    }

    fn directory(&self, name: &str) -> Option<Arc<dyn Store>> {
        let dir = self.path().join(name);
        let dir = dir.is_dir().then_some(dir)?;
        LocalStore::shared(dir, self.audience).ok()
    }

    fn unfinished(&self) -> Option<Location> {
        hub::unfinished(self.path()).map(Location::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names in a store are text. With the bytes replaced, the name would be that of another file.
    #[test]
    fn a_file_whose_name_is_not_text_is_refused_by_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(OsStr::from_bytes(b"\xff.safetensors"));
        std::fs::write(&path, b"").unwrap();
        let error = find(&path, Audience::Caller)
            .unwrap()
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("is not valid UTF-8; rename it"), "{error}");
        let link = dir.path().join("x.safetensors");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        let source = find(&link, Audience::Caller).unwrap().unwrap();
        assert_eq!(source.file.as_deref(), Some("x.safetensors"));
    }

    #[test]
    fn the_longest_name_that_exists_is_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        for name in ["a.pt", "a.pt#b", "x#y.pt"] {
            std::fs::write(path(name), b"").unwrap();
        }
        let long = format!("a.pt#{}", "k.".repeat(3000));
        for (model, file, part) in [
            ("a.pt", "a.pt", None),
            ("a.pt#b", "a.pt#b", None),
            ("a.pt#", "a.pt", Some("")),
            ("a.pt#c", "a.pt", Some("c")),
            ("a.pt#b#c", "a.pt#b", Some("c")),
            ("a.pt#b/c", "a.pt", Some("b/c")),
            ("x#y.pt", "x#y.pt", None),
            ("x#y.pt#model/0.a:b", "x#y.pt", Some("model/0.a:b")),
            (&long, "a.pt", Some(&long[5..])),
        ] {
            let source = find(&path(model), Audience::Caller).unwrap().unwrap();
            assert_eq!(source.file.as_deref(), Some(file), "{model}");
            assert_eq!(source.part.as_deref(), part, "{model}");
            let end = source.model.to_string();
            assert!(end.ends_with(&format!("/{model}")), "{end}");
        }
        let error = |model| {
            find(&path(model), Audience::Caller)
                .unwrap()
                .err()
                .unwrap()
                .to_string()
        };
        assert!(error("b.pt#c").contains("b.pt#c: No such file"));
        assert!(error("#c").contains("is a directory, which has no parts"));
    }
}
