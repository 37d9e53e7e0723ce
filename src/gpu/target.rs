//! What an ioctl is about: a file of the mount as the engine sees it, and how it knows whether the
//! files beneath have changed.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::arena::Arena;
use crate::catalog::SourceFile;
use crate::view::SharedView;

/// Which view of an inode is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// A stored or synthetic tensor's `raw`.
    Raw,
    /// Its `f32`.
    F32,
    /// A `.npy` file's array, without the header.
    Npy,
    /// A whole-model file of `export/`.
    Export,
    /// Every stored tensor's `raw`, in one arena.
    Model,
}

/// What is uploaded, whatever the device and whatever the source held at the time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The inode (of the `raw` file where the ioctl came on a tensor's directory).
    pub ino: u64,
    /// The view.
    pub part: Part,
}

/// A file of the mount, as the engine sees it.
#[derive(Clone)]
pub struct Target {
    /// What it is.
    pub key: Key,
    /// Where it stands below the mountpoint, such as `tensors/<name>/raw`.
    pub path: Arc<str>,
    /// The bytes to upload; for a model's arena the [`Arena`] itself.
    pub view: SharedView,
    /// The ABI's dtype number: 1 to 22, 0 for plain bytes.
    pub dtype: u32,
    /// The shape in elements of `dtype`; plain bytes have one dimension.
    pub shape: Arc<[u64]>,
    /// The files that the bytes come from.
    pub sources: Sources,
    /// The layout, where this is a whole model.
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
pub struct Sources(Vec<Arc<SourceFile>>);

impl Sources {
    /// Adds a file if it is not there, and says which it is.
    pub fn add(&mut self, file: Arc<SourceFile>) -> u32 {
        // A model's tensors come file by file, nearly always: the last one added is the likeliest.
        let found = self.0.iter().rposition(|f| Arc::ptr_eq(f, &file));
        found.unwrap_or_else(|| {
            self.0.push(file);
            self.0.len() - 1
        }) as u32
    }

    /// The files.
    pub fn files(&self) -> &[Arc<SourceFile>] {
        &self.0
    }

    /// Whether the permissions of every file let a user read it. Nothing is known of the user's
    /// groups: who does not own a file needs both its group's bit and the others'.
    pub fn readable_by(&self, uid: u32) -> bool {
        self.0.iter().all(|file| {
            let needed = if file.stat.uid == uid { 0o400 } else { 0o044 };
            file.stat.mode & needed == needed
        })
    }

    /// What each file looks like now.
    pub fn states(&self) -> Vec<FileState> {
        self.0.iter().map(|f| FileState::of(f)).collect()
    }
}

impl FromIterator<Arc<SourceFile>> for Sources {
    fn from_iter<I: IntoIterator<Item = Arc<SourceFile>>>(files: I) -> Self {
        let mut sources = Sources::default();
        for file in files {
            sources.add(file);
        }
        sources
    }
}

/// What tells one state of a source file from another: size, mtime and inode of what its path
/// leads to now (a file that was replaced has another inode, one that is gone has none).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileState {
    len: u64,
    mtime: (i64, i64),
    ino: u64,
    /// Another file stands under its path now, while the bytes that are served are the old one's.
    pub replaced: bool,
}

impl FileState {
    /// Of a file, now.
    pub fn of(file: &SourceFile) -> FileState {
        match std::fs::metadata(&file.path) {
            Ok(m) => FileState {
                len: m.len(),
                mtime: (m.mtime(), m.mtime_nsec()),
                ino: m.ino(),
                replaced: m.ino() != file.stat.ino,
            },
            Err(_) => FileState {
                len: file.stat_now().map_or(0, |s| s.len),
                mtime: (0, 0),
                ino: 0,
                replaced: false,
            },
        }
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
    }
    let digest = hash.finalize();
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
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
        let sources: Sources = [SourceFile::open(&path, "m.safetensors").unwrap()]
            .into_iter()
            .collect();
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
}
