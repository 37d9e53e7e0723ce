//! Element types: the 22 dtypes of safetensors 0.8, their widths, their NumPy names, and whether
//! binary32 holds every one of their values.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

pub mod decode;
pub mod ggml;
mod opaque;

pub use opaque::Opaque;

/// A safetensors element type. The discriminants are the `dtype` numbers of the GPU ABI (1 to 22).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(non_camel_case_types, missing_docs)]
#[repr(u32)]
pub enum Dtype {
    Bool = 1,
    F4,
    F6_E2M3,
    F6_E3M2,
    U8,
    I8,
    F8_E5M2,
    F8_E4M3,
    F8_E8M0,
    F8_E4M3FNUZ,
    F8_E5M2FNUZ,
    I16,
    U16,
    F16,
    BF16,
    I32,
    U32,
    F32,
    C64,
    F64,
    I64,
    U64,
}

/// One row per dtype: the type, its safetensors name, bits per element, NumPy's `descr`
/// (little-endian) if NumPy itself has the type, and whether binary32 holds all of its values.
struct Entry(Dtype, &'static str, u32, Option<&'static str>, bool);

#[rustfmt::skip]
const TABLE: [Entry; 22] = [
    Entry(Dtype::Bool,        "BOOL",         8, Some("|b1"), true),
    Entry(Dtype::F4,          "F4",           4, None,        true),
    Entry(Dtype::F6_E2M3,     "F6_E2M3",      6, None,        true),
    Entry(Dtype::F6_E3M2,     "F6_E3M2",      6, None,        true),
    Entry(Dtype::U8,          "U8",           8, Some("|u1"), true),
    Entry(Dtype::I8,          "I8",           8, Some("|i1"), true),
    Entry(Dtype::F8_E5M2,     "F8_E5M2",      8, None,        true),
    Entry(Dtype::F8_E4M3,     "F8_E4M3",      8, None,        true),
    Entry(Dtype::F8_E8M0,     "F8_E8M0",      8, None,        true),
    Entry(Dtype::F8_E4M3FNUZ, "F8_E4M3FNUZ",  8, None,        true),
    Entry(Dtype::F8_E5M2FNUZ, "F8_E5M2FNUZ",  8, None,        true),
    Entry(Dtype::I16,         "I16",         16, Some("<i2"), true),
    Entry(Dtype::U16,         "U16",         16, Some("<u2"), true),
    Entry(Dtype::F16,         "F16",         16, Some("<f2"), true),
    Entry(Dtype::BF16,        "BF16",        16, None,        true),
    Entry(Dtype::I32,         "I32",         32, Some("<i4"), false),
    Entry(Dtype::U32,         "U32",         32, Some("<u4"), false),
    Entry(Dtype::F32,         "F32",         32, Some("<f4"), true),
    Entry(Dtype::C64,         "C64",         64, Some("<c8"), false),
    Entry(Dtype::F64,         "F64",         64, Some("<f8"), false),
    Entry(Dtype::I64,         "I64",         64, Some("<i8"), false),
    Entry(Dtype::U64,         "U64",         64, Some("<u8"), false),
];

impl Dtype {
    /// All 22, in the order of the GPU ABI's numbers.
    pub fn all() -> impl Iterator<Item = Dtype> {
        TABLE.iter().map(|f| f.0)
    }

    fn entry(self) -> &'static Entry {
        &TABLE[self as usize - 1]
    }

    /// The safetensors name, such as `BF16`.
    pub fn name(self) -> &'static str {
        self.entry().1
    }

    /// The dtype with that safetensors name.
    pub fn from_name(name: &str) -> Option<Dtype> {
        TABLE.iter().find(|f| f.1 == name).map(|f| f.0)
    }

    /// Bits per element: 4 to 64.
    pub fn bits(self) -> u32 {
        self.entry().2
    }

    /// NumPy's `descr` for the stored bytes, such as `<f2`, if NumPy itself has the type.
    pub fn npy_descr(self) -> Option<&'static str> {
        self.entry().3
    }

    /// Whether binary32 holds every value of this type, so that no `f32` is ever rounded.
    pub fn exact_in_f32(self) -> bool {
        self.entry().4
    }

    /// Whether it holds every value of another type, so that a cast rounds none. This is known of F32, F16, BF16,
    /// F8_E4M3 and F8_E5M2, and of every type itself; otherwise it is false.
    pub fn holds(self, other: Dtype) -> bool {
        use Dtype::{Bool, F4, F6_E2M3, F6_E3M2};
        match self {
            _ if self == other => true,
            Dtype::F32 => other.exact_in_f32(),
            Dtype::BF16 => other.bits() <= 8,
            Dtype::F16 => other.bits() <= 8 && other != Dtype::F8_E8M0,
            Dtype::F8_E4M3 => matches!(other, Bool | F4 | F6_E2M3 | F6_E3M2),
            Dtype::F8_E5M2 => matches!(other, Bool | F4 | F6_E3M2),
            _ => false,
        }
    }

    /// Whether the type has real values, and therefore an `f32` (all but C64).
    pub fn has_f32(self) -> bool {
        self != Dtype::C64
    }

    /// F64, F32, F16 or BF16: the types of scales and biases of quantized layers.
    pub fn is_plain_float(self) -> bool {
        matches!(self, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64)
    }

    /// Any of the five one-byte floats.
    pub fn is_f8(self) -> bool {
        matches!(
            self,
            Dtype::F8_E5M2
                | Dtype::F8_E4M3
                | Dtype::F8_E8M0
                | Dtype::F8_E4M3FNUZ
                | Dtype::F8_E5M2FNUZ
        )
    }

    /// The bytes that `numel` elements take; `None` on overflow, or if they are not whole bytes.
    pub fn bytes(self, numel: u64) -> Option<u64> {
        let bits = numel.checked_mul(u64::from(self.bits()))?;
        (bits % 8 == 0).then_some(bits / 8)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A block type: `elements` values that are stored together in `bytes` bytes, like GGUF's K-quants.
/// A row (the last dimension of a shape) is a whole number of blocks.
#[derive(Debug)]
pub struct Block {
    /// The name in `meta.json`.
    pub name: &'static str,
    /// Values in a block.
    pub elements: u32,
    /// Bytes of a block.
    pub bytes: u32,
    /// Whether decoding to binary32 never rounds a value.
    pub exact: bool,
    /// The GPU ABI's number.
    pub abi: u32,
    /// Decodes whole blocks, as many as fit the output. `None` if stfs cannot decode the type.
    pub decode: Option<DecodeBlocks>,
}

/// Decodes whole blocks into the values that they hold.
pub type DecodeBlocks = fn(&[u8], &mut [f32]);

impl PartialEq for Block {
    fn eq(&self, other: &Block) -> bool {
        self.name == other.name
    }
}

impl Eq for Block {}

impl Hash for Block {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name.hash(state);
    }
}

/// What a tensor's elements are. All code that depends on it asks here, so that a new kind is known
/// everywhere.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// One of safetensors' dtypes.
    Known(Dtype),
    /// Values in blocks. Shapes count values.
    Block(&'static Block),
    /// Elements of a known size that stfs does not interpret: such a tensor has `raw`, and perhaps a
    /// `.npy`. Exports in the safetensors format leave it out.
    Opaque(&'static Opaque),
    /// A name that stfs does not know, from a manifest: such a tensor has only `raw`.
    Other(Arc<str>),
}

impl ElementType {
    /// The dtype, if it is one of safetensors'.
    pub fn known(&self) -> Option<Dtype> {
        match self {
            ElementType::Known(d) => Some(*d),
            ElementType::Block(_) | ElementType::Opaque(_) | ElementType::Other(_) => None,
        }
    }

    /// Whether it is this dtype.
    pub fn is(&self, dtype: Dtype) -> bool {
        self.known() == Some(dtype)
    }

    /// Whether only its name is known.
    pub fn is_unknown(&self) -> bool {
        matches!(self, ElementType::Other(_))
    }

    /// The name as the file has it.
    pub fn name(&self) -> &str {
        match self {
            ElementType::Known(d) => d.name(),
            ElementType::Block(b) => b.name,
            ElementType::Opaque(o) => o.name,
            ElementType::Other(s) => s,
        }
    }

    /// Bytes of a tensor of that shape; `None` if they are not whole bytes or blocks, if the number
    /// overflows 64 bits, or if the type is not known.
    pub fn nbytes(&self, shape: &[u64]) -> Option<u64> {
        match self {
            ElementType::Known(d) => d.bytes(numel(shape)?),
            ElementType::Block(b) => {
                let row = shape.last()?;
                if !row.is_multiple_of(b.elements.into()) {
                    return None;
                }
                (numel(shape)? / u64::from(b.elements)).checked_mul(b.bytes.into())
            }
            ElementType::Opaque(o) => o.bytes(numel(shape)?),
            ElementType::Other(_) => None,
        }
    }

    /// Whether the elements at each index of the axes before `axis` fill whole bytes or blocks, so
    /// that tensors of such a shape can be joined along `axis`.
    pub fn has_whole_rows(&self, shape: &[u64], axis: usize) -> bool {
        let row = shape.get(axis..).unwrap_or_default();
        match self {
            // Most dtypes have whole bytes, whatever the shape.
            ElementType::Known(d) => {
                d.bits() % 8 == 0 || numel(row).and_then(|n| d.bytes(n)).is_some()
            }
            ElementType::Block(_) => self.nbytes(row).is_some(),
            ElementType::Opaque(_) | ElementType::Other(_) => true,
        }
    }

    /// What a row must be a whole number of.
    pub fn unit_name(&self) -> &'static str {
        match self {
            ElementType::Block(_) => "blocks",
            ElementType::Known(_) | ElementType::Opaque(_) | ElementType::Other(_) => "bytes",
        }
    }

    /// Whether it has real values that stfs can decode, and therefore an `f32`.
    pub fn has_f32(&self) -> bool {
        match self {
            ElementType::Known(d) => d.has_f32(),
            ElementType::Block(b) => b.decode.is_some(),
            ElementType::Opaque(_) | ElementType::Other(_) => false,
        }
    }

    /// Whether its values are floats, not integers (which may be indexes).
    pub fn is_float(&self) -> bool {
        match self {
            ElementType::Known(d) => {
                let small = [Dtype::F4, Dtype::F6_E2M3, Dtype::F6_E3M2];
                d.is_plain_float() || d.is_f8() || small.contains(d)
            }
            ElementType::Block(_) => self.has_f32(),
            ElementType::Opaque(_) | ElementType::Other(_) => false,
        }
    }

    /// Whether every value exists in binary32, so that no `f32` is ever rounded.
    pub fn exact_in_f32(&self) -> bool {
        match self {
            ElementType::Known(d) => d.exact_in_f32(),
            ElementType::Block(b) => b.exact,
            ElementType::Opaque(_) | ElementType::Other(_) => false,
        }
    }

    /// NumPy's `descr` for the stored bytes, if NumPy itself has the type.
    pub fn npy_descr(&self) -> Option<&'static str> {
        match self {
            ElementType::Known(d) => d.npy_descr(),
            ElementType::Opaque(o) => o.npy_descr,
            ElementType::Block(_) | ElementType::Other(_) => None,
        }
    }

    /// The GPU ABI's number: 1 to 22 for safetensors' dtypes, from 256 on for block types, 0 for plain
    /// bytes.
    pub fn abi(&self) -> u32 {
        match self {
            ElementType::Known(d) => *d as u32,
            ElementType::Block(b) => b.abi,
            ElementType::Opaque(_) | ElementType::Other(_) => 0,
        }
    }
}

impl From<Dtype> for ElementType {
    fn from(d: Dtype) -> Self {
        ElementType::Known(d)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The number of elements of a shape (1 for a scalar's `[]`); `None` on overflow.
pub fn numel(shape: &[u64]) -> Option<u64> {
    // A zero anywhere makes the product zero however large the other dimensions are, but
    // safetensors multiplies from the left and refuses an overflow on the way; so do we.
    shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_is_in_abi_order_and_agrees_with_safetensors() {
        for (i, entry) in TABLE.iter().enumerate() {
            assert_eq!(entry.0 as usize, i + 1);
            let theirs: safetensors::Dtype =
                serde_json::from_str(&format!("\"{}\"", entry.1)).unwrap();
            assert_eq!(theirs.bitsize() as u32, entry.2, "{}", entry.1);
            assert_eq!(Dtype::from_name(entry.1), Some(entry.0));
        }
    }

    #[test]
    fn blocks_count_values_and_rows_are_whole_blocks() {
        static BLOCK: Block = Block {
            name: "Q8_TEST",
            elements: 32,
            bytes: 34,
            exact: true,
            abi: 264,
            decode: None,
        };
        let block = ElementType::Block(&BLOCK);
        assert_eq!(block.nbytes(&[3, 64]), Some(3 * 68));
        assert_eq!(block.nbytes(&[64, 3]), None);
        assert_eq!(block.nbytes(&[]), None);
        assert_eq!(block.nbytes(&[0, 32]), Some(0));
        assert_eq!(block.nbytes(&[u64::MAX, 32]), None);
        assert!(block.has_whole_rows(&[5, 64], 0) && block.has_whole_rows(&[5, 64], 1));
        assert!(!block.has_whole_rows(&[64, 5], 0) && !block.has_whole_rows(&[5, 64], 2));
        assert!(!block.has_f32() && block.npy_descr().is_none() && block.known().is_none());
        let f4 = ElementType::Known(Dtype::F4);
        assert!(f4.has_whole_rows(&[3, 4], 1) && !f4.has_whole_rows(&[4, 3], 1));
        assert_eq!((block.abi(), f4.abi()), (264, 2));
    }

    #[test]
    fn bytes_are_whole_or_nothing() {
        assert_eq!(Dtype::F4.bytes(3), None);
        assert_eq!(Dtype::F4.bytes(4), Some(2));
        assert_eq!(Dtype::F6_E2M3.bytes(4), Some(3));
        assert_eq!(Dtype::F64.bytes(u64::MAX / 8), None);
        assert_eq!(numel(&[]), Some(1));
        assert_eq!(numel(&[u64::MAX, 2]), None);
    }
}
