//! A whole model in one piece of device memory: every stored tensor's bytes, one after the other,
//! each at a multiple of 256.

use std::sync::Arc;

use super::target::Sources;
use crate::catalog::Object;
use crate::error::Result;
use crate::view::{SharedView, View};

/// Where tensors begin: what `cudaMalloc` promises of its own pointers, so that every kernel that
/// takes a pointer from it takes one from an arena.
pub const ALIGNMENT: u64 = 256;

/// A tensor of an arena.
pub struct Member {
    /// The inode of its `raw` file.
    pub ino: u64,
    /// Its bytes.
    pub view: SharedView,
    /// The files they come from, each once, in the order of the tensor's own
    /// [`Target::sources`](super::Target::sources).
    pub files: Vec<Arc<dyn Object>>,
}

/// The stored tensors of a model, as one view: their bytes in the order given, and zeros between.
pub struct Arena {
    views: Vec<SharedView>,
    /// Where each view begins, in ascending order; where it ends follows from its length.
    starts: Vec<u64>,
    len: u64,
    /// Where each inode's bytes begin, by ascending inode.
    places: Vec<Span>,
    /// The files of each place, one after another, as indexes into `sources`.
    files: Vec<u32>,
    sources: Sources,
}

/// Where an arena has the bytes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    ino: u64,
    /// The first byte, a multiple of [`ALIGNMENT`].
    pub offset: u64,
    /// Where its files begin in the arena's list, and how many there are.
    files: (u32, u32),
}

impl Arena {
    /// Lays out the members in the order given.
    pub fn new(members: impl IntoIterator<Item = Member>) -> Arena {
        let mut arena = Arena {
            views: Vec::new(),
            starts: Vec::new(),
            len: 0,
            places: Vec::new(),
            files: Vec::new(),
            sources: Sources::default(),
        };
        for member in members {
            let offset = arena.len.next_multiple_of(ALIGNMENT);
            let files = (arena.files.len() as u32, member.files.len() as u32);
            for file in member.files {
                arena.files.push(arena.sources.add(file));
            }
            arena.places.push(Span {
                ino: member.ino,
                offset,
                files,
            });
            arena.starts.push(offset);
            arena.len = offset + member.view.len();
            arena.views.push(member.view);
        }
        arena.places.sort_unstable_by_key(|p| p.ino);
        arena
    }

    /// Where the bytes of that `raw` file are.
    pub fn place(&self, ino: u64) -> Option<Span> {
        let i = self.places.binary_search_by_key(&ino, |p| p.ino).ok()?;
        Some(self.places[i])
    }

    /// The files that all of it comes from.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// The files that the bytes at a place come from, as indexes into [`Arena::sources`].
    pub fn files_at(&self, place: Span) -> &[u32] {
        let (first, count) = place.files;
        let (first, count) = (first as usize, count as usize);
        self.files.get(first..first + count).unwrap_or_default()
    }
}

impl View for Arena {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<()> {
        // The last view that begins at or before `offset`; the first begins at 0.
        let mut i = self.starts.partition_point(|&s| s <= offset).max(1) - 1;
        while !buf.is_empty() {
            let (start, end) = (self.starts[i], self.starts[i] + self.views[i].len());
            let next = self.starts.get(i + 1).copied().unwrap_or(self.len);
            let n = end.saturating_sub(offset).min(buf.len() as u64) as usize;
            let (bytes, rest) = buf.split_at_mut(n);
            if n > 0 {
                self.views[i].read_at(offset - start, bytes)?;
            }
            let gap = next.saturating_sub(offset.max(end)).min(rest.len() as u64) as usize;
            let (gap, rest) = rest.split_at_mut(gap);
            gap.fill(0);
            offset += (n + gap.len()) as u64;
            buf = rest;
            i += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{Bytes, read_all};

    fn member(ino: u64, bytes: Vec<u8>, file: &Arc<dyn Object>) -> Member {
        Member {
            ino,
            view: Arc::new(Bytes(bytes.into())),
            files: vec![file.clone()],
        }
    }

    #[test]
    fn every_range_reads_as_the_whole_does() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.safetensors");
        std::fs::write(&path, b"x").unwrap();
        let file = crate::catalog::LocalFile::open(&path).unwrap();
        let sizes = [1usize, 0, 256, 7, 0, 700, 300];
        let arena = Arena::new(sizes.iter().enumerate().map(|(i, &n)| {
            let ino = 100 - i as u64;
            member(ino, vec![i as u8 + 1; n], &file)
        }));
        let mut expected = Vec::new();
        for (i, &n) in sizes.iter().enumerate() {
            expected.resize(expected.len().next_multiple_of(256), 0);
            let place = arena.place(100 - i as u64).unwrap();
            assert_eq!(place.offset, expected.len() as u64);
            assert_eq!(arena.files_at(place), [0]);
            expected.extend(std::iter::repeat_n(i as u8 + 1, n));
        }
        assert_eq!(read_all(&arena).unwrap(), expected);
        for start in (0..expected.len()).step_by(13) {
            for len in [1, 7, 255, 256, 257, 900] {
                let len = len.min(expected.len() - start);
                let mut got = vec![9; len];
                arena.read_at(start as u64, &mut got).unwrap();
                assert_eq!(got, expected[start..start + len], "{start}+{len}");
            }
        }
        assert_eq!(arena.place(5), None);
        assert_eq!(arena.sources().files().len(), 1);
    }
}
