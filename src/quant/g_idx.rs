//! `g_idx`: which group each input of a layer belongs to (act-order). GPTQ and older
//! compressed-tensors store it.

use crate::dtype::Dtype;
use crate::reason::{Reason, reason};

/// The most inputs of a layer whose order is read whole. The indices then take at most 512 MiB. A
/// sparse file can claim any number at no cost, and the allocation would not fail, because the
/// kernel overcommits memory.
pub const MOST_INPUTS: u64 = 1 << 26;

/// Checks that an order of this many inputs may be read.
///
/// # Errors
/// The reason, with both numbers.
pub fn check_inputs(name: &str, inputs: u64) -> Result<(), Reason> {
    match inputs <= MOST_INPUTS {
        true => Ok(()),
        false => Err(reason!(
            "{name} is for {inputs} inputs, at most {MOST_INPUTS} are read"
        )),
    }
}

/// Whether a tensor of this dtype holds integers.
pub fn is_integer(dtype: Dtype) -> bool {
    use Dtype::{I8, I16, I32, I64, U8, U16, U32, U64};
    matches!(dtype, I8 | U8 | I16 | U16 | I32 | U32 | I64 | U64)
}

/// Decodes stored integers. A U64 beyond i64 becomes negative, which is out of range as well.
pub fn integers(dtype: Dtype, bytes: &[u8]) -> impl Iterator<Item = i64> {
    let width = dtype.bits() as usize / 8;
    let signed = matches!(dtype, Dtype::I8 | Dtype::I16 | Dtype::I32 | Dtype::I64);
    bytes.chunks_exact(width).map(move |bytes| {
        let fill = signed && bytes.last().is_some_and(|b| b & 0x80 != 0);
        let mut wide = [if fill { 0xff } else { 0 }; 8];
        wide[..width].copy_from_slice(bytes);
        i64::from_le_bytes(wide)
    })
}

/// What is wrong with the groups of all inputs, if any is not one of `groups` (at least 1).
pub fn out_of_range(indices: impl Iterator<Item = i64>, groups: u64) -> Option<Reason> {
    let (mut all, mut bad, mut first) = (0u64, 0u64, None);
    for index in indices {
        if u64::try_from(index).map_or(true, |index| index >= groups) {
            bad += 1;
            first.get_or_insert((index, all));
        }
        all += 1;
    }
    let (index, input) = first?;
    Some(reason!(
        "{bad} of {all} group indices are out of range 0 to {}, the first is {index} for input {input}",
        groups - 1
    ))
}
