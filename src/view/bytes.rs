//! The leaves: bytes of a shard, bytes in memory, and bytes that are generated when they are first
//! read.

use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::View;
use crate::catalog::{Extent, Piece, steady};
use crate::error::{Error, Result};
use crate::patience;

/// The stored bytes of a tensor: an extent of a shard.
pub struct StoredBytes(pub Extent);

impl View for StoredBytes {
    fn len(&self) -> u64 {
        self.0.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        debug_assert!(offset + buf.len() as u64 <= self.0.len);
        self.0.file.read_at(self.0.offset + offset, buf)
    }

    fn piece(&self, offset: u64, len: usize) -> Option<Piece<'_>> {
        debug_assert!(offset + len as u64 <= self.0.len);
        self.0.file.piece(self.0.offset + offset, len)
    }

    fn will_need(&self, ranges: &[Range<u64>]) {
        debug_assert!(ranges.iter().all(|r| r.end <= self.0.len));
        self.0
            .file
            .will_need(&super::shifted(ranges, self.0.offset));
    }
}

/// Bytes in memory: generated JSON, headers, pictures.
#[derive(Clone)]
pub struct Bytes(pub Arc<[u8]>);

impl View for Bytes {
    fn len(&self) -> u64 {
        self.0.len() as u64
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let start = offset as usize;
        buf.copy_from_slice(&self.0[start..start + buf.len()]);
        Ok(())
    }

    fn piece(&self, offset: u64, len: usize) -> Option<Piece<'_>> {
        let start = offset as usize;
        Piece::shared(self.0.clone(), start..start + len)
    }
}

/// Bytes of a known length that are all generated when they are first read.
pub struct Deferred {
    len: u64,
    #[allow(clippy::type_complexity)]
    make: Box<dyn Fn() -> Result<Vec<u8>> + Send + Sync>,
    made: OnceLock<Vec<u8>>,
    /// Held while the bytes are generated, so that two readers do not both do it.
    making: Mutex<()>,
}

impl Deferred {
    /// `make` must return exactly `len` bytes.
    pub fn new(len: u64, make: impl Fn() -> Result<Vec<u8>> + Send + Sync + 'static) -> Deferred {
        Deferred {
            len,
            make: Box::new(make),
            made: OnceLock::new(),
            making: Mutex::new(()),
        }
    }

    fn bytes(&self) -> Result<&[u8]> {
        if self.made.get().is_none() {
            patience::take_long()?;
            let _making = self.making.lock().unwrap_or_else(PoisonError::into_inner);
            if self.made.get().is_none() {
                let bytes = steady::kept(|| (self.make)())?;
                if bytes.len() as u64 != self.len {
                    return Err(Error::other(
                        libc::EIO,
                        format!(
                            "made {} bytes where {} were announced",
                            bytes.len(),
                            self.len
                        ),
                    ));
                }
                let _ = self.made.set(bytes);
            }
        }
        Ok(self.made.get().map_or(&[], |b| b))
    }
}

impl View for Deferred {
    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let start = offset as usize;
        buf.copy_from_slice(&self.bytes()?[start..start + buf.len()]);
        Ok(())
    }
}
