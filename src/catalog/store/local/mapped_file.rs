//! An open local file: its mapping, and its descriptor, which is watched. This is the only `mmap` in the
//! program.

use std::fs::{File, Metadata};
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use memmap2::{Advice, Mmap, MmapOptions};

use super::super::{FileState, Look, Object, Piece, Stat, steady};
use super::regular_file;
use super::watch::Watch;
use crate::error::{Error, Location, Result};
use crate::patience;

/// A read-only file whose bytes the mount serves.
pub struct LocalFile {
    name: String,
    watch: Arc<Watch>,
    map: Option<Mmap>,
}

impl LocalFile {
    /// Opens and maps `path`, which must be a regular file (or a link to one).
    ///
    /// # Errors
    /// It cannot be opened, or is not a regular file.
    pub fn open(path: &Path) -> Result<Arc<dyn Object>> {
        let (file, meta) = regular_file::open(path)?;
        Ok(LocalFile::of(file, &meta, path))
    }

    /// Maps a file that was opened as `path`.
    pub(super) fn of(file: File, meta: &Metadata, path: &Path) -> Arc<dyn Object> {
        let map = match meta.len() {
            0 => None,
            _ => map(&file, path),
        };
        let location = Location::from(path);
        Arc::new(LocalFile {
            name: location.name(),
            watch: Arc::new(Watch::new(file, location, Stat::of(meta))),
            map,
        })
    }

    /// A read that got `got` of `wanted` bytes: of a file that is now shorter, or of one that does not
    /// give what its size promises.
    fn ended_early(&self, offset: u64, wanted: u64, got: u64) -> Error {
        let size = self.watch.now().map_or(0, |now| now.len);
        let needs = offset.saturating_add(wanted);
        if size < needs {
            return self.watch.truncated(needs);
        }
        let short = format!(
            "gave {got} of {wanted} bytes, although its size is {size}; check the file system that it is on"
        );
        Error::io(
            format!("read {} at {offset}", self.watch.location),
            io::Error::new(io::ErrorKind::UnexpectedEof, short),
        )
    }

    /// Whether the byte at `offset` is in the page cache; `false` if the file system does not report it.
    fn is_cached(&self, offset: u64) -> bool {
        let mut byte = [0];
        let mut room = [io::IoSliceMut::new(&mut byte)];
        let flags = rustix::io::ReadWriteFlags::NOWAIT;
        rustix::io::preadv2(&self.watch.file, &mut room, offset, flags).is_ok()
    }

    /// Starts reading a range into the page cache.
    fn fetch(&self, range: &Range<u64>) {
        if let Some(len) = NonZeroU64::new(range.end.saturating_sub(range.start)) {
            // Only advice: if it fails, the read brings the bytes.
            let advice = rustix::fs::Advice::WillNeed;
            let _ = rustix::fs::fadvise(&self.watch.file, range.start, Some(len), advice);
        }
    }

    /// `pread` until `buf` is full.
    fn copy(&self, offset: u64, mut buf: &mut [u8]) -> Result<()> {
        let mut at = offset;
        let wanted = buf.len() as u64;
        while !buf.is_empty() {
            match self.watch.file.read_at(buf, at) {
                Ok(0) => return Err(self.ended_early(offset, wanted, at - offset)),
                Ok(n) => {
                    buf = &mut buf[n..];
                    at += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => {
                    let what = format!("read {} at {offset}", self.watch.location);
                    return Err(Error::io(what, e));
                }
            }
        }
        Ok(())
    }
}

/// Maps a file that is not empty; `None` if it cannot be mapped, and then `pread` serves
/// everything.
fn map(file: &File, path: &Path) -> Option<Mmap> {
    // Private, although nothing is ever written: FUSE file systems with direct I/O refuse shared
    // mappings. The bytes are handed out only as a `MappedSlice`, for system calls: a page that
    // vanishes makes the kernel's copy fail with EFAULT instead of raising SIGBUS here.
    //
    // SAFETY: the mapping is read-only and private to `LocalFile`, and no Rust code loads from it, so
    // a file that changes or shrinks meanwhile breaks no promise of `&[u8]` that compiled code relies
    // on.
    match unsafe { MmapOptions::new().map_copy_read_only(file) } {
        Ok(map) => {
            // Only a hint; without it large reads fault more often.
            let _ = map.advise(Advice::HugePage);
            Some(map)
        }
        // A file system that cannot map, or no address space left.
        Err(e) => {
            log::info!("{}: cannot be mapped ({e}); reads copy it", path.display());
            None
        }
    }
}

impl Object for LocalFile {
    fn name(&self) -> &str {
        &self.name
    }

    fn location(&self) -> &Location {
        &self.watch.location
    }

    fn stat(&self) -> &Stat {
        &self.watch.opened
    }

    fn state(&self) -> FileState {
        let opened = &self.watch.opened;
        let gone = || FileState::gone(self.watch.now().map_or(0, |now| now.len));
        match self.watch.location.path().map(std::fs::metadata) {
            Some(Ok(m)) => FileState::of(opened, &Stat::of(&m)),
            // In a directory that the daemon may not search any more.
            Some(Err(e)) if e.kind() == io::ErrorKind::PermissionDenied => match self.watch.now() {
                Ok(now) if now.nlink > 0 => FileState::of(opened, &now),
                _ => gone(),
            },
            _ => gone(),
        }
    }

    fn changed(&self) -> bool {
        let _ = self.watch.len_now();
        self.was_changed()
    }

    fn was_changed(&self) -> bool {
        self.watch.was_changed()
    }

    fn look(&self) -> Look {
        self.watch.look()
    }

    fn settle(&self) -> bool {
        self.watch.settle()
    }

    /// Uses `pread`, which cannot fault.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        patience::touch_source()?;
        let end = offset + buf.len() as u64;
        steady::read_from(&self.watch, end, || self.copy(offset, buf))
    }

    /// Part of the mapping, if the file was at least that long when it was opened. Once it was seen to
    /// change, none: what is handed out without a copy cannot be looked at again before it is.
    fn piece(&self, offset: u64, len: usize) -> Option<Piece<'_>> {
        if self.was_changed() {
            return None;
        }
        let start = usize::try_from(offset).ok()?;
        let end = start.checked_add(len)?;
        let bytes = self.map.as_ref()?.get(start..end)?;
        Some(Piece::mapped(MappedSlice {
            file: self,
            bytes,
            end: end as u64,
        }))
    }

    /// The kernel starts to read all ranges at the same time. An announcement costs about as much as
    /// reading a cached range, so it is skipped if the first and the last range are in the page cache.
    fn will_need(&self, ranges: &[Range<u64>]) {
        // Even the advice can wait if the disk's queue is long.
        if patience::touch_source().is_err() {
            return;
        }
        let mut ends = [ranges.first(), ranges.last()].into_iter().flatten();
        if !ends.all(|range| self.is_cached(range.start)) {
            ranges.iter().for_each(|range| self.fetch(range));
        }
    }
}

/// Part of a mapped file, for the kernel alone: nothing loads from `bytes`.
pub(in super::super) struct MappedSlice<'a> {
    file: &'a LocalFile,
    bytes: &'a [u8],
    /// How long the file must still be, in bytes.
    end: u64,
}

impl MappedSlice<'_> {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Fetches these bytes and no others into the page cache.
    pub fn fetch_alone(&self) {
        self.file
            .fetch(&(self.end - self.bytes.len() as u64..self.end));
    }

    /// That the file still has the bytes.
    pub fn check(&self) -> Result<()> {
        match self.file.watch.len_now()? < self.end {
            true => Err(self.file.watch.truncated(self.end)),
            false => Ok(()),
        }
    }

    /// Whether the file was ever seen to change.
    pub fn was_changed(&self) -> bool {
        self.file.was_changed()
    }

    /// The bytes.
    ///
    /// # Safety
    /// The slice may only be handed to a system call that reads from it; see [`Piece::for_kernel`].
    pub unsafe fn for_kernel(&self) -> &[u8] {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A hint can be wrong: ranges past the end and empty ranges are ignored.
    #[test]
    fn any_range_may_be_announced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, [7; 5000]).unwrap();
        let file = LocalFile::open(&path).unwrap();
        file.will_need(&[
            0..10,
            4096..5000,
            5..5,
            4000..1 << 40,
            1 << 50..(1 << 50) + 1,
        ]);
        file.will_need(&[]);
        let mut got = [0; 5000];
        file.read_at(0, &mut got).unwrap();
        assert_eq!(got, [7; 5000]);
        assert_eq!((file.name(), file.len()), ("x", 5000));
        assert!(!file.changed() && !file.state().replaced);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(file.state(), FileState::gone(5000));
    }

    /// Whether the page at `offset` is in the page cache. Unlike a read, this fetches nothing.
    fn is_in_memory(map: &Mmap, offset: usize) -> bool {
        let mut page = 0u8;
        let at = map[offset..].as_ptr().cast_mut().cast();
        // SAFETY: the mapping has a page there, at whose start the pointer is, and `page` has room for
        // what is said about one page.
        assert_eq!(unsafe { libc::mincore(at, 1, &mut page) }, 0);
        page & 1 == 1
    }

    /// Files in sysfs have the size of a page and hold a line.
    #[test]
    fn a_source_that_answers_short_is_not_called_truncated() {
        let all = [
            "/sys/kernel/fscaps",
            "/sys/kernel/profiling",
            "/sys/kernel/uevent_seqnum",
        ];
        let found = all.iter().map(Path::new).find(|path| path.exists());
        let Some(path) = found else { return };
        let line = std::fs::read(path).unwrap().len();
        let file = LocalFile::open(path).unwrap();
        let error = file.read_at(0, &mut [0; 100]).unwrap_err();
        assert_eq!(error.errno(), libc::EIO);
        let (name, size) = (path.display(), file.len());
        let want =
            format!("read {name} at 0: gave {line} of 100 bytes, although its size is {size}");
        assert!(error.to_string().starts_with(&want), "{error}");
        // Beyond the size it is truncated, whatever it holds.
        let error = file.read_at(size, &mut [0; 1]).unwrap_err().to_string();
        assert!(
            error.contains(&format!("needs {} bytes, has {size}", size + 1)),
            "{error}"
        );
    }

    #[test]
    fn what_is_announced_is_fetched() {
        // Farther apart than any read-ahead.
        const APART: usize = 8 << 20;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, vec![7; 3 * APART]).unwrap();
        let written = File::open(&path).unwrap();
        written.sync_all().unwrap();
        rustix::fs::fadvise(&written, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        // SAFETY: nothing loads from the mapping.
        let map = unsafe { Mmap::map(&written) }.unwrap();
        if is_in_memory(&map, APART) {
            return; // a file system in memory, or one that does not take the advice
        }
        let range = |i: usize| (i * APART) as u64..(i * APART) as u64 + 10;
        let file = LocalFile::open(&path).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while !is_in_memory(&map, APART) {
            // Again and again: a system that is short of memory ignores announcements.
            file.will_need(&[range(0), range(1), range(2)]);
            assert!(std::time::Instant::now() < until, "it is not fetched");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}
