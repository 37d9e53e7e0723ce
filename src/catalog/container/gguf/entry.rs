//! The entry of a tensor: name, dimensions, type and offset.

use std::sync::Arc;

use super::header::Problems;
use super::strings::string;
use crate::catalog::container::cursor::{Cursor, Reading, Stop};
use crate::dtype::{ElementType, ggml};

/// The least that an entry takes, in bytes: the length of the name, the number of dimensions, the
/// type, the offset.
pub(super) const MIN: u64 = 8 + 4 + 4 + 8;
/// The most dimensions of a tensor.
const MAX_DIMENSIONS: u32 = 4;
/// The most elements of a tensor, and the largest of its dimensions.
const MAX_ELEMENTS: u64 = i64::MAX as u64;

/// A tensor's entry. Where it lies in the file is not known yet.
pub(super) struct Unplaced {
    pub name: Arc<str>,
    pub dtype: ElementType,
    /// Shape, in C order: the reverse of the file's dimensions.
    pub shape: Box<[u64]>,
    /// First byte, counted from the start of the data.
    pub offset: u64,
    /// Length in bytes. It may be more than 64 bits can count.
    pub nbytes: u128,
}

/// Reads entry `number` of `count`: the name, if it is text, and the tensor. `None` if that is wrong, and
/// the next one can still be read.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    problems: &mut Problems,
    number: u64,
    count: u64,
) -> Reading<(Option<Arc<str>>, Option<Unplaced>)> {
    let name = string(cursor, &|| {
        format!("the name of tensor {number} of {count}")
    })?;
    let is_text = std::str::from_utf8(name).is_ok();
    let name: Arc<str> = String::from_utf8_lossy(name).into();
    let what = |part: &str| format!("{part} of tensor '{name}'");
    let n = cursor.u32(&|| what("the number of dimensions"))?;
    if n > MAX_DIMENSIONS {
        problems.tensor(
            &name,
            format!("has {n} dimensions, at most {MAX_DIMENSIONS}"),
        )?;
        skip(cursor, n, &what)?;
        return Ok((is_text.then(|| name.clone()), None));
    }
    let mut dimensions = Vec::new();
    for _ in 0..n {
        dimensions.push(cursor.u64(&|| what("a dimension"))?);
    }
    let kind = cursor.u32(&|| what("the type"))?;
    let offset = cursor.u64(&|| what("the offset"))?;
    let checked = match is_text {
        true => check(&dimensions, kind),
        false => Err("its name is not valid UTF-8".into()),
    };
    let (dtype, nbytes) = match checked {
        Ok(checked) => checked,
        Err(problem) => {
            problems.tensor(&name, problem)?;
            return Ok((is_text.then_some(name), None));
        }
    };
    dimensions.reverse();
    let tensor = Unplaced {
        name: name.clone(),
        dtype,
        shape: dimensions.into(),
        offset,
        nbytes,
    };
    Ok((Some(name), Some(tensor)))
}

/// Passes over the rest of an entry that has too many dimensions; where that is not plausible, nothing
/// behind it can be found.
fn skip(cursor: &mut Cursor<'_>, dimensions: u32, what: &dyn Fn(&str) -> String) -> Reading<()> {
    let rest = u64::from(dimensions) * 8 + 4 + 8;
    match rest <= cursor.left() {
        true => cursor.skip(rest, &|| what("a dimension")),
        false => Err(Stop::Enough),
    }
}

/// The element type and the size in bytes of a tensor of these dimensions, of which the first is the
/// innermost.
fn check(dimensions: &[u64], kind: u32) -> Result<(ElementType, u128), String> {
    if let Some(large) = dimensions.iter().find(|d| **d > MAX_ELEMENTS) {
        return Err(format!(
            "dimensions {dimensions:?}: {large} is over {MAX_ELEMENTS}"
        ));
    }
    // Also where a dimension is 0: NumPy refuses such shapes.
    let product = dimensions.iter().try_fold(1u64, |n, &d| {
        n.checked_mul(d.max(1)).filter(|n| *n <= MAX_ELEMENTS)
    });
    let Some(product) = product else {
        return Err(format!(
            "dimensions {dimensions:?}: their product is over {MAX_ELEMENTS}"
        ));
    };
    let elements = match dimensions.contains(&0) {
        true => 0,
        false => product,
    };
    let Some(dtype) = ggml::from_number(kind) else {
        return Err(format!(
            "its ggml type {kind} is unknown or was removed from ggml"
        ));
    };
    let (values, bytes) = match &dtype {
        ElementType::Block(block) => (u64::from(block.elements), block.bytes),
        ElementType::Known(dtype) => (1, dtype.bits() / 8),
        ElementType::Opaque(_) | ElementType::Other(_) => {
            return Err(format!("its ggml type {kind} has no size"));
        }
    };
    let row = dimensions.first().copied().unwrap_or(1);
    if !row.is_multiple_of(values) {
        return Err(format!(
            "dimensions {dimensions:?}: a row has {row} values, not a multiple of {values}, which a block of {dtype} holds"
        ));
    }
    Ok((dtype, u128::from(elements / values) * u128::from(bytes)))
}
