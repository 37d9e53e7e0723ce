//! Bytes that are served without a copy.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::local::MappedSlice;
use crate::error::{Error, Result};

/// Contiguous bytes that are available without a copy: part of a mapped file, or of shared bytes in
/// memory (a cached block, generated text).
///
/// This program must never load bytes of a mapping: the file may have been truncated since, and a
/// load from a page that has vanished raises SIGBUS, while a system call that copies from it fails
/// with EFAULT. So the bytes leave through a system call ([`Piece::write_to`]), or through an
/// `unsafe` method whose caller promises to pass them to one.
pub struct Piece<'a>(Bytes<'a>);

enum Bytes<'a> {
    Mapped(MappedSlice<'a>),
    Shared(Arc<[u8]>, Range<usize>),
}

impl<'a> Piece<'a> {
    pub(super) fn mapped(slice: MappedSlice<'a>) -> Piece<'a> {
        Piece(Bytes::Mapped(slice))
    }

    /// `range` of bytes in memory; `None` if it is out of bounds.
    pub fn shared(bytes: Arc<[u8]>, range: Range<usize>) -> Option<Piece<'a>> {
        bytes.get(range.clone())?;
        Some(Piece(Bytes::Shared(bytes, range)))
    }

    /// The number of bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Bytes::Mapped(slice) => slice.len(),
            Bytes::Shared(_, range) => range.len(),
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fetches these bytes and no others, if they are not in memory: a fault in a mapping would
    /// fetch megabytes around them.
    pub fn fetch_alone(&self) {
        if let Bytes::Mapped(slice) = &self.0 {
            slice.fetch_alone();
        }
    }

    /// Checks that the file still has the bytes. To be called before they are handed out: within the
    /// last page of a file that is now shorter the mapping would silently read zeros.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the file is now shorter.
    pub fn check(&self) -> Result<()> {
        match &self.0 {
            Bytes::Mapped(slice) => slice.check(),
            Bytes::Shared(..) => Ok(()),
        }
    }

    /// Whether the file was ever seen to change. Then its bytes should rather be copied, and looked at again
    /// after that.
    pub fn was_changed(&self) -> bool {
        match &self.0 {
            Bytes::Mapped(slice) => slice.was_changed(),
            Bytes::Shared(..) => false,
        }
    }

    /// The bytes, for a system call.
    ///
    /// # Safety
    /// The slice may only be handed to a system call that reads from it (`write`, `writev`, …). The
    /// program itself must not load from it: the file may shrink at any moment, and then a load
    /// raises SIGBUS; it may also change, which the compiler assumes a `&[u8]` never does.
    pub unsafe fn for_kernel(&self) -> &[u8] {
        match &self.0 {
            // SAFETY: this method's contract is the same, and the caller keeps it.
            Bytes::Mapped(slice) => unsafe { slice.for_kernel() },
            Bytes::Shared(bytes, range) => &bytes[range.clone()],
        }
    }

    /// Writes all bytes to a descriptor, which an error names as `what` ("standard output").
    ///
    /// # Errors
    /// [`Error::Truncated`] if the file is now shorter, or what writing failed with.
    pub fn write_to(&self, fd: impl AsFd, what: &str) -> Result<()> {
        let mut done = 0;
        while done < self.len() {
            self.check()?;
            // SAFETY: the slice goes into `write` and nowhere else.
            let bytes = unsafe { self.for_kernel() };
            match rustix::io::write(&fd, &bytes[done..]) {
                Ok(0) => return Err(Error::io(what, io::ErrorKind::WriteZero.into())),
                Ok(n) => done += n,
                Err(rustix::io::Errno::INTR) => {}
                Err(e) => {
                    // If a page vanished during the call, report the truncated file instead.
                    self.check()?;
                    return Err(Error::io(what, e.into()));
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{Read, Seek};

    use super::*;
    use crate::catalog::LocalFile;

    fn written(piece: &Piece<'_>) -> Result<Vec<u8>> {
        let mut out = tempfile::tempfile().unwrap();
        piece.write_to(&out, "the test's file")?;
        let mut got = Vec::new();
        out.rewind().unwrap();
        out.read_to_end(&mut got).unwrap();
        Ok(got)
    }

    #[test]
    fn shared_bytes_are_a_piece() {
        let bytes: Arc<[u8]> = (0..100).collect();
        let piece = Piece::shared(bytes.clone(), 10..30).unwrap();
        assert_eq!((piece.len(), piece.is_empty()), (20, false));
        piece.fetch_alone();
        assert_eq!(written(&piece).unwrap(), bytes[10..30]);
        // SAFETY: these bytes are in memory, not in a mapping.
        assert_eq!(unsafe { piece.for_kernel() }, &bytes[10..30]);
        assert!(Piece::shared(bytes.clone(), 90..101).is_none());
        assert!(Piece::shared(bytes, 100..100).unwrap().is_empty());
    }

    #[test]
    fn a_mapped_file_is_a_piece_until_it_is_cut_short() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        let content: Vec<u8> = (0..10_000).map(|i| i as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let file = LocalFile::open(&path).unwrap();
        let piece = file.piece(4000, 5000).unwrap();
        piece.fetch_alone();
        assert_eq!(written(&piece).unwrap(), content[4000..9000]);
        assert!(file.piece(9000, 1001).is_none());
        // Within the last page, which is still mapped: the missing bytes would read as zeros.
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(8999)
            .unwrap();
        let error = written(&piece).unwrap_err().to_string();
        assert!(error.contains("needs 9000 bytes, has 8999"), "{error}");
        // From now on it is copied, and looked at after the copy.
        assert!(file.piece(4000, 4999).is_none());
        let mut copy = vec![0; 4999];
        file.read_at(4000, &mut copy).unwrap();
        assert_eq!(copy, content[4000..8999]);
    }

    #[test]
    fn an_error_names_what_was_written_to() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let piece = Piece::shared(Arc::new([1, 2, 3]), 0..3).unwrap();
        let error = piece.write_to(full, "standard output").unwrap_err();
        let error = error.to_string();
        assert!(
            error.starts_with("standard output: No space left"),
            "{error}"
        );
    }
}
