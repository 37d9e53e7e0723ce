//! A file assembled from a header and tensors, each at its offset, with zeros between them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::catalog::{self, Object};
use crate::error::{Error, Result};
use crate::model::{Model, TensorId};
use crate::view::{SharedView, View};

/// Computed views that are kept between reads. A sequential reader needs one or two. A view that is
/// dropped takes its cached tiles with it; all views share one budget for those.
const KEPT: usize = 4;

/// A tensor at its place in the file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    pub start: u64,
    pub len: u64,
    pub id: TensorId,
    pub as_values: bool,
}

/// What is where in the file. This takes megabytes for a large model, so all readers share it.
pub struct Plan {
    header: Box<[u8]>,
    /// Sorted by `start`, without empty ones.
    pieces: Vec<Piece>,
    len: u64,
}

impl Plan {
    /// `header`, then `pieces` in ascending order, not overlapping, inside `len` bytes in all.
    pub(super) fn new(header: Vec<u8>, mut pieces: Vec<Piece>, len: u64) -> Plan {
        pieces.retain(|p| p.len > 0);
        Plan {
            header: header.into(),
            pieces,
            len,
        }
    }

    /// The length of the file in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The last piece that starts at or before `offset`.
    fn piece_before(&self, offset: u64) -> Option<usize> {
        self.pieces
            .partition_point(|p| p.start <= offset)
            .checked_sub(1)
    }

    /// The file's bytes, as one reader sees them.
    pub fn view(self: Arc<Plan>, model: Arc<Model>) -> Assembly {
        Assembly {
            model,
            plan: self,
            recent: Mutex::new(VecDeque::new()),
        }
    }
}

/// The file, as one reader sees it.
pub struct Assembly {
    model: Arc<Model>,
    plan: Arc<Plan>,
    recent: Mutex<VecDeque<(usize, SharedView)>>,
}

impl Assembly {
    /// The view of a piece that is computed rather than stored.
    fn computed(&self, index: usize) -> Result<SharedView> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(i) = recent.iter().position(|(k, _)| *k == index)
            && let Some(entry) = recent.remove(i)
        {
            recent.push_front(entry.clone());
            return Ok(entry.1);
        }
        let piece = &self.plan.pieces[index];
        let view = match piece.as_values {
            true => self.model.f32(piece.id)?.ok_or_else(|| {
                Error::NotFound(format!("'{}' has no values", self.model.name(piece.id)))
            })?,
            false => self.model.raw(piece.id)?,
        };
        recent.push_front((index, view.clone()));
        recent.truncate(KEPT);
        Ok(view)
    }

    /// Where the bytes of a piece are, if they are one run of a file.
    fn stored(&self, piece: &Piece) -> Option<(&Arc<dyn Object>, u64)> {
        let stored = self.model.is_stored(piece.id) && !piece.as_values;
        stored.then(|| self.model.catalog.place(piece.id)).flatten()
    }

    fn read_piece(&self, index: usize, at: u64, buf: &mut [u8]) -> Result<()> {
        let piece = &self.plan.pieces[index];
        match self.stored(piece) {
            Some((file, offset)) => file.read_at(offset + at, buf),
            None => self.computed(index)?.read_at(at, buf),
        }
    }
}

impl View for Assembly {
    fn len(&self) -> u64 {
        self.plan.len
    }

    fn read_at(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<()> {
        let header_len = self.plan.header.len() as u64;
        while !buf.is_empty() {
            let left = buf.len() as u64;
            let index = self.plan.piece_before(offset);
            let inside =
                index.filter(|&i| offset < self.plan.pieces[i].start + self.plan.pieces[i].len);
            let n = if offset < header_len {
                let n = left.min(header_len - offset) as usize;
                buf[..n].copy_from_slice(&self.plan.header[offset as usize..][..n]);
                n
            } else if let Some(i) = inside {
                let at = offset - self.plan.pieces[i].start;
                let n = left.min(self.plan.pieces[i].len - at) as usize;
                self.read_piece(i, at, &mut buf[..n])?;
                n
            } else {
                let next = self.plan.pieces.get(index.map_or(0, |i| i + 1));
                let gap = next.map_or(left, |p| p.start - offset);
                let n = left.min(gap) as usize;
                buf[..n].fill(0);
                n
            };
            offset += n as u64;
            buf = &mut buf[n..];
        }
        Ok(())
    }

    fn piece(&self, offset: u64, len: usize) -> Option<catalog::Piece<'_>> {
        let piece = &self.plan.pieces[self.plan.piece_before(offset)?];
        let at = offset - piece.start;
        if at + len as u64 > piece.len {
            return None;
        }
        let (file, offset) = self.stored(piece)?;
        file.piece(offset + at, len)
    }
}
