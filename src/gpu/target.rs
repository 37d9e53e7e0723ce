//! What an ioctl is about: a file of the mount as the engine sees it, and the states of the files
//! beneath, which show whether they have changed.

use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::arena::Arena;
pub use crate::catalog::FileState;
use crate::catalog::Object;
use crate::view::SharedView;

/// Which view of an inode is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The bytes of a stored or synthetic tensor, which may lie in an arena, too.
    Raw,
    /// What any other file holds: values, an array without its header, an export.
    File,
    /// Every stored tensor's `raw`, in one arena.
    Model,
}

/// What is uploaded, whatever the device and the contents of the source at the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The inode (of the `raw` file if the ioctl came on a tensor's directory).
    pub ino: u64,
    /// The view.
    pub part: Part,
}

/// A file of the mount, as the engine sees it.
#[derive(Clone)]
pub struct Target {
    /// What it is.
    pub key: Key,
    /// Its path below the mountpoint, such as `tensors/<name>/raw`.
    pub path: Arc<str>,
    /// The bytes to upload; for a model's arena the [`Arena`] itself.
    pub view: SharedView,
    /// The ABI's dtype number: 1 to 22, from 256 on for block types, 0 for plain bytes.
    pub dtype: u32,
    /// The shape in elements of `dtype`; plain bytes have one dimension.
    pub shape: Arc<[u64]>,
    /// The files that the bytes come from.
    pub sources: Sources,
    /// The layout, if this is a whole model.
    pub arena: Option<Arc<Arena>>,
}

impl Target {
    /// All stored tensors of a model: the directory `tensors/`.
    pub fn model(ino: u64, arena: &Arc<Arena>) -> Target {
        use crate::view::View;
        Target {
            key: Key {
                ino,
                part: Part::Model,
            },
            path: "tensors".into(),
            view: arena.clone(),
            dtype: 0,
            shape: Arc::new([arena.len()]),
            sources: arena.sources().clone(),
            arena: Some(arena.clone()),
        }
    }
}

/// Source files, each once.
#[derive(Clone, Default)]
pub struct Sources(Vec<Arc<dyn Object>>);

impl Sources {
    /// Adds a file if it is not in the list yet; returns its index.
    pub fn add(&mut self, file: Arc<dyn Object>) -> u32 {
        // A model's tensors nearly always come file by file, so the last one added is the likeliest.
        let found = self.0.iter().rposition(|f| Arc::ptr_eq(f, &file));
        found.unwrap_or_else(|| {
            self.0.push(file);
            self.0.len() - 1
        }) as u32
    }

    /// The files.
    pub fn files(&self) -> &[Arc<dyn Object>] {
        &self.0
    }

    /// Whether the permissions of every file let a user read it. The user's groups are not known, so
    /// a user that does not own a file needs both its group's bit and the others'.
    pub fn readable_by(&self, uid: u32) -> bool {
        self.0.iter().all(|file| {
            let stat = file.stat();
            let needed = if stat.uid == uid { 0o400 } else { 0o044 };
            stat.mode & needed == needed && (stat.uid == uid || stat.acl.is_none())
        })
    }

    /// What each file looks like now.
    pub fn states(&self) -> Vec<FileState> {
        self.0.iter().map(|f| f.state()).collect()
    }
}

impl FromIterator<Arc<dyn Object>> for Sources {
    fn from_iter<I: IntoIterator<Item = Arc<dyn Object>>>(files: I) -> Self {
        let mut sources = Sources::default();
        for file in files {
            sources.add(file);
        }
        sources
    }
}

/// The ABI's `generation`: equal for equal states, also in another mount of the same files; never 0.
pub fn generation(states: &[FileState]) -> u64 {
    let mut hash = Sha256::new();
    for state in states {
        hash.update(state.len.to_le_bytes());
        hash.update(state.mtime.0.to_le_bytes());
        hash.update(state.mtime.1.to_le_bytes());
        hash.update(state.ino.to_le_bytes());
        hash.update(state.dev.to_le_bytes());
    }
    let digest = hash.finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::LocalFile;
    use std::fs;
    use std::time::{Duration, SystemTime};

    #[test]
    fn a_generation_changes_with_size_mtime_and_inode() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.safetensors");
        let stamp = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let write = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_modified(stamp).unwrap();
        };
        write(b"12345678");
        let sources: Sources = [LocalFile::open(&path).unwrap()].into_iter().collect();
        let now = || generation(&sources.states());
        let first = now();
        assert_eq!(first, now());
        write(b"123456789");
        let longer = now();
        write(b"12345678");
        assert_eq!(now(), first, "the same size, mtime and inode again");
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.set_modified(stamp + Duration::from_nanos(1)).unwrap();
        let touched = now();
        fs::rename(&path, dir.path().join("old")).unwrap();
        let gone = now();
        write(b"12345678");
        let replaced = now();
        let mut all = vec![first, longer, touched, gone, replaced];
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 5);
    }

    /// A file system of another device may have the same numbers for everything else.
    #[test]
    fn a_generation_changes_with_the_device() {
        let state = FileState {
            dev: 1,
            ..FileState::gone(8)
        };
        let other = FileState { dev: 2, ..state };
        assert_ne!(generation(&[state]), generation(&[other]));
    }
}
