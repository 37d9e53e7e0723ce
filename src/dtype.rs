//! Element types: the 22 dtypes of safetensors 0.8, their widths, their NumPy names, and whether
//! binary32 holds every one of their values.

use std::fmt;
use std::sync::Arc;

pub mod decode;

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

/// One row a dtype: the type, its safetensors name, bits per element, NumPy's `descr` (little-endian)
/// where NumPy itself has the type, and whether its values all exist in binary32.
struct Facts(Dtype, &'static str, u32, Option<&'static str>, bool);

#[rustfmt::skip]
const TABLE: [Facts; 22] = [
    Facts(Dtype::Bool,        "BOOL",         8, Some("|b1"), true),
    Facts(Dtype::F4,          "F4",           4, None,        true),
    Facts(Dtype::F6_E2M3,     "F6_E2M3",      6, None,        true),
    Facts(Dtype::F6_E3M2,     "F6_E3M2",      6, None,        true),
    Facts(Dtype::U8,          "U8",           8, Some("|u1"), true),
    Facts(Dtype::I8,          "I8",           8, Some("|i1"), true),
    Facts(Dtype::F8_E5M2,     "F8_E5M2",      8, None,        true),
    Facts(Dtype::F8_E4M3,     "F8_E4M3",      8, None,        true),
    Facts(Dtype::F8_E8M0,     "F8_E8M0",      8, None,        true),
    Facts(Dtype::F8_E4M3FNUZ, "F8_E4M3FNUZ",  8, None,        true),
    Facts(Dtype::F8_E5M2FNUZ, "F8_E5M2FNUZ",  8, None,        true),
    Facts(Dtype::I16,         "I16",         16, Some("<i2"), true),
    Facts(Dtype::U16,         "U16",         16, Some("<u2"), true),
    Facts(Dtype::F16,         "F16",         16, Some("<f2"), true),
    Facts(Dtype::BF16,        "BF16",        16, None,        true),
    Facts(Dtype::I32,         "I32",         32, Some("<i4"), false),
    Facts(Dtype::U32,         "U32",         32, Some("<u4"), false),
    Facts(Dtype::F32,         "F32",         32, Some("<f4"), true),
    Facts(Dtype::C64,         "C64",         64, Some("<c8"), false),
    Facts(Dtype::F64,         "F64",         64, Some("<f8"), false),
    Facts(Dtype::I64,         "I64",         64, Some("<i8"), false),
    Facts(Dtype::U64,         "U64",         64, Some("<u8"), false),
];

impl Dtype {
    /// All 22, in the order of the GPU ABI's numbers.
    pub fn all() -> impl Iterator<Item = Dtype> {
        TABLE.iter().map(|f| f.0)
    }

    fn facts(self) -> &'static Facts {
        &TABLE[self as usize - 1]
    }

    /// The safetensors name, such as `BF16`.
    pub fn name(self) -> &'static str {
        self.facts().1
    }

    /// The dtype of that safetensors name.
    pub fn from_name(name: &str) -> Option<Dtype> {
        TABLE.iter().find(|f| f.1 == name).map(|f| f.0)
    }

    /// Bits per element: 4 to 64.
    pub fn bits(self) -> u32 {
        self.facts().2
    }

    /// NumPy's `descr` for the stored bytes, such as `<f2`, if NumPy itself has the type.
    pub fn npy_descr(self) -> Option<&'static str> {
        self.facts().3
    }

    /// Whether every value of this type exists in binary32, so that no `f32` is ever rounded.
    pub fn exact_in_f32(self) -> bool {
        self.facts().4
    }

    /// Whether the type has real values, and so an `f32` (all but C64).
    pub fn has_f32(self) -> bool {
        self != Dtype::C64
    }

    /// F64, F32, F16 or BF16: what scales and biases of quantized layers come in.
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

    /// Bytes that `numel` elements take; `None` on overflow or when they are no whole bytes.
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

/// What a tensor's elements are: one of the 22 known types, or a manifest's own string, of which
/// stfs knows only how many bytes the tensor takes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ElementType {
    /// One of safetensors' dtypes.
    Known(Dtype),
    /// A string that stfs does not know: `raw` alone exists.
    Other(Arc<str>),
}

impl ElementType {
    /// The dtype, if it is a known one.
    pub fn known(&self) -> Option<Dtype> {
        match self {
            ElementType::Known(d) => Some(*d),
            ElementType::Other(_) => None,
        }
    }

    /// Whether it is that dtype.
    pub fn is(&self, dtype: Dtype) -> bool {
        self.known() == Some(dtype)
    }

    /// The name as the file gives it.
    pub fn name(&self) -> &str {
        match self {
            ElementType::Known(d) => d.name(),
            ElementType::Other(s) => s,
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
        for (i, facts) in TABLE.iter().enumerate() {
            assert_eq!(facts.0 as usize, i + 1);
            let theirs: safetensors::Dtype =
                serde_json::from_str(&format!("\"{}\"", facts.1)).unwrap();
            assert_eq!(theirs.bitsize() as u32, facts.2, "{}", facts.1);
            assert_eq!(Dtype::from_name(facts.1), Some(facts.0));
        }
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
