//! The leaves: bytes of a shard, bytes in memory, and bytes that are generated when they are first
//! read.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

use super::{TileCache, View};
use crate::catalog::{Extent, Piece};
use crate::error::{Error, Result};
use crate::memory::{self, Room};
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

/// What [`Deferred`] bytes are in, by their number.
static GENERATED: LazyLock<TileCache<Vec<u8>>> =
    LazyLock::new(|| TileCache::of_at_most(memory::budget().pictures));
static NUMBERS: AtomicU64 = AtomicU64::new(0);
/// Bytes that are being generated at the same time.
static GENERATING: LazyLock<Room> = LazyLock::new(|| Room::new(memory::budget().renders));

/// Bytes of a known length that are all generated when they are first read, and kept in a bounded cache that
/// all of them share: if they were evicted, they are generated again.
pub struct Deferred {
    len: u64,
    #[allow(clippy::type_complexity)]
    make: Box<dyn Fn() -> Result<Vec<u8>> + Send + Sync>,
    number: u64,
}

impl Deferred {
    /// `make` must return exactly `len` bytes.
    pub fn new(len: u64, make: impl Fn() -> Result<Vec<u8>> + Send + Sync + 'static) -> Deferred {
        Deferred {
            len,
            make: Box::new(make),
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
        }
    }

    fn bytes(&self) -> Result<Arc<Vec<u8>>> {
        if let Some(made) = GENERATED.find(self.number) {
            return Ok(made);
        }
        patience::take_long()?;
        GENERATED.get(self.number, self.len as usize, || {
            let _place = GENERATING.enter()?;
            let bytes = (self.make)()?;
            match bytes.len() as u64 == self.len {
                true => Ok(bytes),
                false => Err(Error::other(
                    libc::EIO,
                    format!(
                        "made {} bytes where {} were announced",
                        bytes.len(),
                        self.len
                    ),
                )),
            }
        })
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

impl Drop for Deferred {
    fn drop(&mut self) {
        GENERATED.remove(self.number);
    }
}
