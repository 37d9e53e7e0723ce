//! One safetensors file: header → tensors. The safetensors library's own `Metadata` parses and
//! validates the header. Only if it refuses is the header examined again, for a message with the
//! tensor's name and both numbers.

use std::sync::Arc;

use safetensors::tensor::Metadata;

use super::Safetensors;
use super::header::examine;
use crate::catalog::Object;
use crate::catalog::container::impostor;
use crate::catalog::container::shards::{Broken, Shard};
use crate::catalog::row::{Row, RowBytes};
use crate::dtype::{Dtype, ElementType};
use crate::error::{Error, Result};
use crate::reason::{Reason, reason};

/// The key of a header that is not a tensor.
pub const METADATA: &str = "__metadata__";
/// The length field before the header, in bytes.
pub(super) const LENGTH_FIELD: usize = 8;
/// The library's limit on headers, in bytes.
const MAX_HEADER: u64 = 100_000_000;

/// Reads one shard, which is file number `index` of the model. With `allow_cut` a file shorter than
/// its header requires is not an error; the tensors that are not completely in it are listed as
/// lost.
///
/// # Errors
/// All problems of the header, naming tensors and numbers.
pub(super) fn read(
    file: &dyn Object,
    index: u32,
    allow_cut: bool,
) -> std::result::Result<Shard, Broken> {
    let header = read_header(file).map_err(|error| better_error(file, error))?;
    let refused = match parse(file, &header, index, allow_cut) {
        Ok(shard) => return Ok(shard),
        Err(refused) => refused,
    };
    impostor::check(file, Some(&Safetensors))?;
    let (problems, names) = examine(&header, file.len());
    // The library may refuse a header for a reason that is not checked here.
    let first = problems
        .first()
        .map_or_else(|| refused.into(), ToString::to_string);
    Err(Broken {
        error: Error::invalid(file.location(), first),
        problems,
        names: names.into(),
        hostile: false,
    })
}

/// The error that the file is not a shard at all, if that is why it cannot be read; else `error`.
fn better_error(file: &dyn Object, error: Error) -> Error {
    impostor::check(file, Some(&Safetensors))
        .err()
        .unwrap_or(error)
}

/// A plausible length field and the `{` of a header: a shard, even if a damaged one. This comes
/// before any check for magic numbers, because the length's bytes may happen to equal one.
pub(super) fn begins_so(head: &[u8]) -> bool {
    head.first_chunk::<LENGTH_FIELD>()
        .is_some_and(|n| u64::from_le_bytes(*n) <= MAX_HEADER)
        && head.get(LENGTH_FIELD) == Some(&b'{')
}

/// The tensors of a header, or why the library refuses it.
fn parse(
    file: &dyn Object,
    header: &[u8],
    index: u32,
    allow_cut: bool,
) -> std::result::Result<Shard, Reason> {
    let text = std::str::from_utf8(header).map_err(|e| e.to_string())?;
    let metadata: Metadata = serde_json::from_str(text).map_err(|e| e.to_string())?;
    let data_start = (LENGTH_FIELD + header.len()) as u64;
    let data_len = metadata.data_len() as u64;
    let has = file.len() - data_start;
    if data_len > has && !allow_cut || data_len < has {
        return Err(reason!(
            "header promises {data_len} bytes of tensors, the file has {has}"
        ));
    }
    let mut shard = Shard {
        metadata: metadata.metadata().clone(),
        ..Shard::default()
    };
    // The library has them in a hash map: in file order, problems are listed alike in every run.
    let mut tensors: Vec<_> = metadata.tensors().into_iter().collect();
    tensors.sort_unstable_by(|(a, x), (b, y)| (x.data_offsets, a).cmp(&(y.data_offsets, b)));
    for (name, info) in tensors {
        let (start, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        let name: Arc<str> = name.into();
        if end > has {
            shard.lost.push(name);
            continue;
        }
        shard.tensors.push(Row {
            name,
            dtype: from_library(info.dtype)?,
            shape: info.shape.iter().map(|&d| d as u64).collect(),
            bytes: RowBytes::Extent {
                file: index,
                offset: data_start + start,
            },
            nbytes: end - start,
            bits: None,
            origin: None,
        });
    }
    Ok(shard)
}

/// Converts the library's dtype by name. A later library may have one that stfs does not know.
fn from_library(dtype: safetensors::Dtype) -> std::result::Result<ElementType, Reason> {
    Dtype::from_name(&dtype.to_string())
        .map(ElementType::Known)
        .ok_or_else(|| reason!("dtype {dtype} is not one that stfs knows"))
}

/// The header's bytes, copied by a read: a mapped header could vanish while it is parsed.
fn read_header(file: &dyn Object) -> Result<Vec<u8>> {
    let len = file.len();
    let invalid = |problem: String| Err(Error::invalid(file.location(), problem));
    if len < LENGTH_FIELD as u64 {
        return invalid(format!(
            "too short for a safetensors file: needs at least 8 bytes, has {len}"
        ));
    }
    let mut field = [0u8; LENGTH_FIELD];
    file.read_at(0, &mut field)?;
    let n = u64::from_le_bytes(field);
    if n > MAX_HEADER {
        return invalid(format!(
            "header length is {n} bytes, over the limit of {MAX_HEADER}: not a safetensors file, or damaged"
        ));
    }
    if n > len - LENGTH_FIELD as u64 {
        return invalid(format!(
            "header goes past the end: needs {} bytes, has {len}; the file is cut short, download it again",
            n + LENGTH_FIELD as u64
        ));
    }
    let mut header = vec![0; n as usize];
    file.read_at(LENGTH_FIELD as u64, &mut header)?;
    Ok(header)
}
