//! Safetensors shards: header → tensors. The header is parsed and validated by the safetensors
//! library's own `Metadata`; only when it refuses does [`check_header`] look again, to say what is
//! wrong in words, with the tensor's name and both numbers.

use std::collections::HashMap;
use std::sync::Arc;

use safetensors::tensor::Metadata;

use super::{SourceFile, StoredTensor, impostor};
use crate::dtype::{Dtype, ElementType};
use crate::error::{Error, Result};

mod header;

use header::examine;
pub use header::{HeaderProblem, check_header};

/// The key of a header that is no tensor.
pub(crate) const METADATA: &str = "__metadata__";
/// The length field before the header.
pub(super) const LENGTH_FIELD: usize = 8;
/// The library's limit on headers, in bytes.
pub(super) const MAX_HEADER: u64 = 100_000_000;

/// A shard's tensors and metadata. `file` indexes are set to `file_index`.
pub(super) struct Shard {
    pub tensors: Vec<StoredTensor>,
    pub metadata: Option<HashMap<String, String>>,
    /// Tensors that the header names but the file, cut short, does not hold whole.
    pub cut: Vec<Arc<str>>,
}

/// Reads one shard. With `allow_cut` a file shorter than its header promises is no error; the
/// tensors that do not lie wholly within it are set aside.
///
/// # Errors
/// The first problem of the header, naming file, tensor and numbers.
pub(super) fn read(file: &Arc<SourceFile>, file_index: u32, allow_cut: bool) -> Result<Shard> {
    read_header(file)
        .and_then(|header| parse(file, &header, file_index, allow_cut))
        .map_err(|e| better_error(file, e))
}

/// That the file is no shard at all, where that is why it cannot be read.
fn better_error(file: &SourceFile, error: Error) -> Error {
    impostor::check(file).err().unwrap_or(error)
}

/// What is wrong with a shard, and the names of the tensors in its header as far as it can be read.
///
/// # Errors
/// Nothing can be said but that it cannot be read.
pub(super) fn check(file: &Arc<SourceFile>) -> Result<(Vec<HeaderProblem>, Vec<Arc<str>>)> {
    let header = read_header(file).map_err(|e| better_error(file, e))?;
    let error = match parse(file, &header, 0, false) {
        Ok(shard) => {
            let names = shard.tensors.into_iter().map(|t| t.name).collect();
            return Ok((Vec::new(), names));
        }
        Err(error) => error,
    };
    impostor::check(file)?;
    match examine(&header, file.len()) {
        // What the library refuses and nothing here knows of.
        (problems, _) if problems.is_empty() => Err(error),
        found => Ok(found),
    }
}

fn parse(file: &Arc<SourceFile>, header: &[u8], file_index: u32, allow_cut: bool) -> Result<Shard> {
    let data_start = (LENGTH_FIELD + header.len()) as u64;
    let explain = |fallback: String| {
        let problem = check_header(header, file.len())
            .into_iter()
            .next()
            .map_or(fallback, |p| p.to_string());
        Error::invalid(&file.path, problem)
    };
    let text = std::str::from_utf8(header).map_err(|e| explain(e.to_string()))?;
    let metadata: Metadata = serde_json::from_str(text).map_err(|e| explain(e.to_string()))?;
    let data_len = metadata.data_len() as u64;
    let has = file.len() - data_start;
    if data_len > has && !allow_cut || data_len < has {
        return Err(explain(format!(
            "header promises {data_len} bytes of tensors, the file has {has}"
        )));
    }
    let mut shard = Shard {
        tensors: Vec::new(),
        metadata: metadata.metadata().clone(),
        cut: Vec::new(),
    };
    for (name, info) in metadata.tensors() {
        let (start, end) = (info.data_offsets.0 as u64, info.data_offsets.1 as u64);
        let name: Arc<str> = name.into();
        if end > has {
            shard.cut.push(name);
            continue;
        }
        shard.tensors.push(StoredTensor {
            name,
            dtype: from_library(info.dtype, file)?,
            shape: info.shape.iter().map(|&d| d as u64).collect(),
            file: file_index,
            offset: data_start + start,
            nbytes: end - start,
            bits: None,
        });
    }
    Ok(shard)
}

/// The library's dtype as ours, by name. A dtype that a later library knows and we do not is said.
fn from_library(dtype: safetensors::Dtype, file: &SourceFile) -> Result<ElementType> {
    Dtype::from_name(&dtype.to_string())
        .map(ElementType::Known)
        .ok_or_else(|| {
            Error::invalid(
                &file.path,
                format!("dtype {dtype} is not one that stfs knows"),
            )
        })
}

/// The header's bytes, by `pread`: a header in a mapping could vanish while it is parsed.
fn read_header(file: &SourceFile) -> Result<Vec<u8>> {
    let len = file.len();
    if len < LENGTH_FIELD as u64 {
        return Err(Error::invalid(
            &file.path,
            format!("too short for a safetensors file: needs at least 8 bytes, has {len}"),
        ));
    }
    let mut field = [0u8; LENGTH_FIELD];
    file.read_at(0, &mut field)?;
    let n = u64::from_le_bytes(field);
    if n > MAX_HEADER {
        return Err(Error::invalid(
            &file.path,
            format!(
                "header length is {n} bytes, over the limit of {MAX_HEADER}: not a safetensors file, or damaged"
            ),
        ));
    }
    if n > len - LENGTH_FIELD as u64 {
        return Err(Error::invalid(
            &file.path,
            format!(
                "header goes past the end: needs {} bytes, has {len}; the file is cut short, download it again",
                n + LENGTH_FIELD as u64
            ),
        ));
    }
    let mut header = vec![0; n as usize];
    file.read_at(LENGTH_FIELD as u64, &mut header)?;
    Ok(header)
}
