//! The entries of a manifest: each tensor's offset, size, dtype, shape and bits.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::catalog::ManifestBits;
use crate::catalog::row::{Row, RowBytes};
use crate::dtype::{Dtype, ElementType, numel};
use crate::reason::{Reason, reason};

/// The bits of U32 tensors if the manifest does not state them.
const DEFAULT_BITS: u32 = 4;

/// How a manifest's entries are read.
pub(super) struct Entries {
    /// The bits of a U32 tensor whose entry does not state its own.
    default_bits: u32,
}

impl Default for Entries {
    fn default() -> Entries {
        let default_bits = DEFAULT_BITS;
        Entries { default_bits }
    }
}

fn whole(v: &Value, what: &str) -> std::result::Result<u64, Reason> {
    v.as_u64()
        .ok_or_else(|| reason!("{what} is {v}, not a whole number from 0 up"))
}

impl Entries {
    /// Takes the defaults from a manifest's `config`, or returns what is wrong with them.
    pub fn new(config: &Map<String, Value>) -> std::result::Result<Entries, Reason> {
        let default_bits = match config.get("default_bits") {
            None | Some(Value::Null) => DEFAULT_BITS,
            Some(v) => {
                let n = whole(v, "config.default_bits")?;
                u32::try_from(n).map_err(|_| reason!("config.default_bits is {n}, too large"))?
            }
        };
        Ok(Entries { default_bits })
    }

    /// An entry as a row, or what is wrong with it.
    pub fn row(&self, name: &str, entry: &Value) -> std::result::Result<Row, Reason> {
        let field = |key: &str| match entry.get(key) {
            Some(v) => whole(v, key),
            None => Err(reason!("has no {key}")),
        };
        let (offset, size) = (field("offset")?, field("size")?);
        if offset.checked_add(size).is_none() {
            return Err(reason!("offset {offset} + size {size} overflows 64 bits"));
        }
        let dtype = dtype(entry)?;
        let given: Vec<u64> = entry
            .get("shape")
            .and_then(Value::as_array)
            .and_then(|a| a.iter().map(Value::as_u64).collect())
            .ok_or("shape is not an array of whole numbers from 0 up")?;
        let own_bits = own_bits(entry)?;
        let bits = own_bits.unwrap_or(match dtype.is(Dtype::U32) {
            true => self.default_bits,
            false => 0,
        });
        let shape = packed_shape(&dtype, given.clone(), size, bits)?;
        let explicit = own_bits.is_some() || shape != given;
        Ok(Row {
            name: Arc::from(name),
            dtype,
            shape: shape.into(),
            bytes: RowBytes::Extent { file: 0, offset },
            nbytes: size,
            bits: Some(ManifestBits { bits, explicit }),
            origin: None,
        })
    }
}

/// An unknown dtype keeps its name.
fn dtype(entry: &Value) -> std::result::Result<ElementType, Reason> {
    let name = entry.get("dtype").and_then(Value::as_str);
    let name = name.ok_or("has no dtype")?;
    Ok(match Dtype::from_name(name) {
        Some(dtype) => ElementType::Known(dtype),
        None => ElementType::Other(name.into()),
    })
}

/// The entry's own `bits`.
fn own_bits(entry: &Value) -> std::result::Result<Option<u32>, Reason> {
    match entry.get("bits") {
        None | Some(Value::Null) => Ok(None),
        Some(v) => {
            let bits = whole(v, "bits")?;
            Ok(Some(u32::try_from(bits).map_err(|_| "bits is too large")?))
        }
    }
}

/// The stored shape. For U32 a manifest may give the logical shape instead, with size = values ×
/// bits / 8; then the last dimension is converted to packed words.
fn packed_shape(
    dtype: &ElementType,
    mut shape: Vec<u64>,
    size: u64,
    bits: u32,
) -> std::result::Result<Vec<u64>, Reason> {
    let n = numel(&shape).ok_or_else(|| reason!("shape {shape:?} overflows 64 bits"))?;
    let Some(known) = dtype.known() else {
        return Ok(shape);
    };
    let needs = known.bytes(n);
    if needs == Some(size) {
        return Ok(shape);
    }
    if known == Dtype::U32
        && bits > 0
        && let Some(stream) = n.checked_mul(u64::from(bits))
        && size.checked_mul(8) == Some(stream)
        && let Some(last) = shape.last_mut()
        && (*last * u64::from(bits)) % 32 == 0
    {
        *last = *last * u64::from(bits) / 32;
        return Ok(shape);
    }
    Err(match needs {
        Some(needs) => reason!("{known} {shape:?} needs {needs} bytes, size is {size}"),
        None if n.checked_mul(u64::from(known.bits())).is_none() => {
            reason!("{known} {shape:?} overflows 64 bits, size is {size}")
        }
        None => reason!("{known} {shape:?} is not a whole number of bytes, size is {size}"),
    })
}
