//! A file assembled from a header and tensors, each at its offset, with zeros between them.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::catalog::{self, Object};
use crate::dtype::Dtype;
use crate::error::{Error, Result};
use crate::model::{Model, TensorId};
use crate::view::{Bytes, SharedView, View};

/// Computed views that are kept between reads. A sequential reader needs one or two. A view that is
/// dropped takes its cached tiles with it; all views share one budget for those.
const KEPT: usize = 4;

/// A run of bytes at its place in the file.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub start: u64,
    pub len: u64,
    pub of: Run,
}

/// What the bytes of a piece are.
#[derive(Debug, Clone)]
pub(super) enum Run {
    /// A tensor's own bytes.
    Raw(TensorId),
    /// A tensor's values, as that type.
    Values(TensorId, Dtype),
    /// A run of one of the model's files, by the file's index, from that offset on.
    File(u32, u64),
    /// A header, or a part of one.
    Bytes(Arc<[u8]>),
}

/// What is where in the file. This takes megabytes for a large model, so all readers share it.
pub struct Plan {
    /// Sorted by `start`, without empty ones.
    pieces: Vec<Piece>,
    len: u64,
}

impl Plan {
    /// `header`, then `pieces` in ascending order, not overlapping, inside `len` bytes in all.
    pub(super) fn new(header: Vec<u8>, mut pieces: Vec<Piece>, len: u64) -> Plan {
        let header = Piece {
            start: 0,
            len: header.len() as u64,
            of: Run::Bytes(header.into()),
        };
        pieces.insert(0, header);
        pieces.retain(|p| p.len > 0);
        Plan { pieces, len }
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
    /// The view of the piece of that index, which is computed rather than stored.
    fn kept(&self, index: usize, make: impl FnOnce() -> Result<SharedView>) -> Result<SharedView> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(i) = recent.iter().position(|(k, _)| *k == index)
            && let Some(entry) = recent.remove(i)
        {
            recent.push_front(entry.clone());
            return Ok(entry.1);
        }
        let view = make()?;
        recent.push_front((index, view.clone()));
        recent.truncate(KEPT);
        Ok(view)
    }

    /// Where the bytes of a piece are, if they are one run of a file.
    fn stored(&self, piece: &Piece) -> Option<(&Arc<dyn Object>, u64)> {
        let catalog = &self.model.catalog;
        match piece.of {
            Run::Raw(id) if self.model.is_stored(id) => catalog.place(id),
            Run::File(file, offset) => Some((catalog.files.get(file as usize)?, offset)),
            Run::Raw(_) | Run::Values(..) | Run::Bytes(_) => None,
        }
    }

    fn read_piece(&self, index: usize, at: u64, buf: &mut [u8]) -> Result<()> {
        let piece = &self.plan.pieces[index];
        if let Some((file, offset)) = self.stored(piece) {
            return file.read_at(offset + at, buf);
        }
        let model = &self.model;
        let view = match &piece.of {
            Run::Bytes(bytes) => return Bytes(bytes.clone()).read_at(at, buf),
            Run::Raw(id) => self.kept(index, || model.raw(*id)),
            Run::Values(id, dtype) => self.kept(index, || {
                let no_values = || format!("'{}' has no values", model.name(*id));
                let values = model.cast(*id, *dtype)?;
                values.ok_or_else(|| Error::NotFound(no_values()))
            }),
            Run::File(..) => Err(Error::NotFound("the model has no such file".into())),
        };
        view?.read_at(at, buf)
    }
}

impl View for Assembly {
    fn len(&self) -> u64 {
        self.plan.len
    }

    fn read_at(&self, mut offset: u64, mut buf: &mut [u8]) -> Result<()> {
        while !buf.is_empty() {
            let left = buf.len() as u64;
            let index = self.plan.piece_before(offset);
            let inside =
                index.filter(|&i| offset < self.plan.pieces[i].start + self.plan.pieces[i].len);
            let n = if let Some(i) = inside {
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
        if let Run::Bytes(bytes) = &piece.of {
            let start = at as usize;
            return catalog::Piece::shared(bytes.clone(), start..start + len);
        }
        let (file, offset) = self.stored(piece)?;
        file.piece(offset + at, len)
    }
}
