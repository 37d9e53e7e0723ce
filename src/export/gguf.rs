//! `model.gguf`: a GGUF model as one file. A model of one file is that file. A split set is merged: the
//! first file's keys, then all tensors, in the order of the files and of their entries.

use super::{Absent, Piece, Plan, Run};
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
    if catalog.format != gguf::NAME {
        return Err(Absent::OfOtherModels);
    }
    if catalog.shards_missing {
        return Err(reason!("splits of the model are missing").into());
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
            let headers = files.iter().map(|file| Header::read(&**file));
            merged(model, &headers.collect::<Result<Vec<_>>>()?)
        }
    }
}

fn merged(model: &Model, headers: &[Header]) -> Result<Plan> {
    let too_large = || Error::invalid(&model.catalog.model, "is too large for one file");
    let Some(first) = headers.first() else {
        return Ok(Plan::new(Vec::new(), Vec::new(), 0));
    };
    let kept = first
        .keys
        .iter()
        .filter(|key| !key.name.starts_with(OF_SPLITS));
    let keys: Vec<_> = kept.map(|key| key.span.clone()).collect();
    let tensors = headers
        .iter()
        .map(|header| header.tensors.len() as u64)
        .sum::<u64>();

    let mut fixed = gguf::MAGIC.to_vec();
    fixed.extend(VERSION.to_le_bytes());
    fixed.extend(tensors.to_le_bytes());
    fixed.extend((keys.len() as u64).to_le_bytes());
    let mut at = fixed.len() as u64;
    let mut pieces: Vec<Piece> = Vec::with_capacity(keys.len() + 1 + tensors as usize);
    // The bytes of the keys stay in the file: a vocabulary takes megabytes.
    for span in keys {
        let len = span.end - span.start;
        pieces.push(Piece {
            start: at,
            len,
            of: Run::File(0, span.start),
        });
        at += len;
    }

    let mut entries = Vec::new();
    let mut data = Vec::with_capacity(tensors as usize);
    let mut offset = 0u64;
    for entry in headers.iter().flat_map(|header| &header.tensors) {
        let id = model
            .catalog
            .find(&entry.name)
            .ok_or_else(|| changed(model, &entry.name))?;
        let tensor = model.catalog.tensors.get(id);
        if (tensor.dtype, tensor.shape) != (&entry.dtype, &*entry.shape) {
            return Err(changed(model, &entry.name));
        }
        let number = ggml::number(tensor.dtype).ok_or_else(|| changed(model, &entry.name))?;
        entries.extend((tensor.name.len() as u64).to_le_bytes());
        entries.extend(tensor.name.as_bytes());
        entries.extend((tensor.shape.len() as u32).to_le_bytes());
        entries.extend(tensor.shape.iter().rev().flat_map(|n| n.to_le_bytes()));
        entries.extend(number.to_le_bytes());
        entries.extend(offset.to_le_bytes());
        data.push((offset, tensor.nbytes, id));
        let end = offset.checked_add(tensor.nbytes);
        let padded = end.and_then(|end| end.checked_next_multiple_of(first.alignment));
        offset = padded.ok_or_else(too_large)?;
    }
    let len = entries.len() as u64;
    pieces.push(Piece {
        start: at,
        len,
        of: Run::Bytes(entries.into()),
    });
    let begin = (at + len).checked_next_multiple_of(first.alignment);
    let begin = begin.ok_or_else(too_large)?;
    let end = begin.checked_add(offset).ok_or_else(too_large)?;
    pieces.extend(data.into_iter().map(|(offset, len, id)| Piece {
        start: begin + offset,
        len,
        of: Run::Raw(id),
    }));
    Ok(Plan::new(fixed, pieces, end))
}

/// The header is not the one that the model was opened with.
fn changed(model: &Model, tensor: &str) -> Error {
    Error::invalid(
        &model.catalog.model,
        format!("'{tensor}' is not what it was when the model was opened; mount the model again"),
    )
}
