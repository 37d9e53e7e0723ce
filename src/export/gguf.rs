//! `model.gguf`: a GGUF model as one file. A model of one file is that file. A split set is merged: the
//! first file's keys, then all tensors, in the order of the files and of their entries.

use std::ops::Range;

use super::{Absent, Piece, Plan, Run, stored_ids};
use crate::catalog::gguf::{self, Header};
use crate::dtype::ggml;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::reason::reason;

/// The version that is written: as version 2, but llama.cpp may not read that one for ever.
const VERSION: u32 = 3;
/// The keys about splits begin so.
const OF_SPLITS: &str = "split.";
/// The key that makes a file part of a split set, even of one file.
const SPLIT: &str = "split.count";

/// Whether the model is a whole GGUF model.
pub(super) fn exists(model: &Model) -> std::result::Result<(), Absent> {
    let catalog = &model.catalog;
    // Keys and tensors must be those of the files.
    if catalog.format != gguf::NAME || catalog.derivation.is_some() {
        return Err(Absent::OfOtherModels);
    }
    if catalog.shards_missing {
        return Err(reason!("splits of the model are missing or damaged").into());
    }
    match catalog.absent.first() {
        Some(name) => Err(reason!("'{name}' lies in a part of the model that is missing").into()),
        None => Ok(()),
    }
}

pub(super) fn plan(model: &Model) -> Result<Plan> {
    let catalog = &model.catalog;
    let is_split = catalog.metadata.contains_key(SPLIT);
    match catalog.files.as_slice() {
        [one] if !is_split => {
            let whole = Piece {
                start: 0,
                len: one.len(),
                of: Run::File(0, 0),
            };
            Ok(Plan::new(Vec::new(), vec![whole], one.len()))
        }
        files => {
            let ends = header_ends(model);
            let headers = files.iter().zip(ends);
            let headers = headers.map(|(file, end)| Header::read(&**file, end));
            merged(model, &headers.collect::<Result<Vec<_>>>()?)
        }
    }
}

/// Where the header of each file must have ended: at its first tensor.
fn header_ends(model: &Model) -> Vec<u64> {
    let mut ends = vec![u64::MAX; model.catalog.files.len()];
    for id in stored_ids(model) {
        let place = model
            .catalog
            .place(id)
            .zip(model.catalog.files_of(id).next());
        if let Some(((_, offset), file)) = place {
            let end = &mut ends[file as usize];
            *end = offset.min(*end);
        }
    }
    ends
}

fn merged(model: &Model, headers: &[Header]) -> Result<Plan> {
    let Some(first) = headers.first() else {
        return Ok(Plan::new(Vec::new(), Vec::new(), 0));
    };
    let tensors: usize = headers.iter().map(|header| header.tensors.len()).sum();
    let (keys, key_count) = keys(first);
    let mut fixed = gguf::MAGIC.to_vec();
    fixed.extend(VERSION.to_le_bytes());
    fixed.extend((tensors as u64).to_le_bytes());
    fixed.extend(key_count.to_le_bytes());

    let mut at = fixed.len() as u64;
    let mut pieces = Vec::with_capacity(keys.len() + 1 + tensors);
    // The keys' bytes stay in the file: a vocabulary takes megabytes.
    for run in keys {
        let (start, len) = (at, run.end - run.start);
        let of = Run::File(0, run.start);
        pieces.push(Piece { start, len, of });
        at += len;
    }
    let all = headers.iter().flat_map(|header| &header.tensors);
    let (entries, data, data_len) = tensors_of(model, all, first.alignment)?;
    let (start, len) = (at, entries.len() as u64);
    let of = Run::Bytes(entries.into());
    pieces.push(Piece { start, len, of });
    at += len;
    let begin = at.checked_next_multiple_of(first.alignment);
    let len = begin.and_then(|begin| begin.checked_add(data_len));
    let (Some(begin), Some(len)) = (begin, len) else {
        return Err(too_large(model));
    };
    pieces.extend(data.into_iter().map(|piece| Piece {
        start: begin + piece.start,
        ..piece
    }));
    Ok(Plan::new(fixed, pieces, len))
}

/// The runs of the file that hold its keys, save for those about splits; and the number of these keys.
fn keys(header: &Header) -> (Vec<Range<u64>>, u64) {
    let mut runs: Vec<Range<u64>> = Vec::new();
    let mut count = 0;
    let kept = |key: &&gguf::Key| !key.name.starts_with(OF_SPLITS);
    for key in header.keys.iter().filter(kept) {
        count += 1;
        match runs.last_mut() {
            Some(last) if last.end == key.span.start => last.end = key.span.end,
            _ => runs.push(key.span.clone()),
        }
    }
    (runs, count)
}

/// The entries of all tensors; where each one's bytes are, from the start of the data; and the length of
/// the data. Every tensor begins at the padded end of the one before, as llama.cpp requires.
fn tensors_of<'h>(
    model: &Model,
    tensors: impl Iterator<Item = &'h gguf::Entry>,
    alignment: u64,
) -> Result<(Vec<u8>, Vec<Piece>, u64)> {
    let (mut entries, mut pieces, mut offset) = (Vec::new(), Vec::new(), 0u64);
    for entry in tensors {
        let changed = || changed(model, &entry.name);
        let id = model.catalog.find(&entry.name).ok_or_else(changed)?;
        let tensor = model.catalog.tensors.get(id);
        if (tensor.dtype, tensor.shape) != (&entry.dtype, &*entry.shape) {
            return Err(changed());
        }
        let number = ggml::number(tensor.dtype).ok_or_else(changed)?;
        entries.extend((tensor.name.len() as u64).to_le_bytes());
        entries.extend(tensor.name.as_bytes());
        entries.extend((tensor.shape.len() as u32).to_le_bytes());
        // The innermost dimension comes first.
        entries.extend(tensor.shape.iter().rev().flat_map(|n| n.to_le_bytes()));
        entries.extend(number.to_le_bytes());
        entries.extend(offset.to_le_bytes());
        pieces.push(Piece {
            start: offset,
            len: tensor.nbytes,
            of: Run::Raw(id),
        });
        let end = offset.checked_add(tensor.nbytes);
        let padded = end.and_then(|end| end.checked_next_multiple_of(alignment));
        offset = padded.ok_or_else(|| too_large(model))?;
    }
    Ok((entries, pieces, offset))
}

fn too_large(model: &Model) -> Error {
    Error::invalid(&model.catalog.model, "is too large for one file")
}

/// The header is not the one that the model was opened with.
fn changed(model: &Model, tensor: &str) -> Error {
    Error::invalid(
        &model.catalog.model,
        format!("'{tensor}' is not what it was when the model was opened; mount the model again"),
    )
}
