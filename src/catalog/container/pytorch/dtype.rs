//! PyTorch's dtypes and storage classes, as a table.
//!
//! Source: `c10/core/ScalarType.h` and `torch/storage.py` of PyTorch 2.

use crate::dtype::Dtype;

/// A dtype of PyTorch.
#[derive(Debug)]
pub(super) struct TorchDtype {
    /// Its name after `torch.`.
    pub name: &'static str,
    /// The storage class of this dtype, if there is one: `Float` of `torch.FloatStorage`.
    pub storage: Option<&'static str>,
    /// Bytes of an element in a storage.
    pub bytes: u32,
    /// What its elements are.
    pub elements: Elements,
}

/// What the elements of a dtype are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Elements {
    /// One of safetensors' dtypes.
    Plain(Dtype),
    /// Two values in a byte, the low one first: the last dimension counts bytes.
    Pairs(Dtype),
    /// Bytes that nothing here interprets, under this name.
    Opaque(&'static str),
    /// Integers that mean nothing without a quantizer.
    Quantized,
}

use Elements::{Opaque, Pairs, Plain, Quantized};

#[rustfmt::skip]
static TABLE: &[TorchDtype] = &[
    row("float64",          Some("Double"),        8, Plain(Dtype::F64)),
    row("float32",          Some("Float"),         4, Plain(Dtype::F32)),
    row("float16",          Some("Half"),          2, Plain(Dtype::F16)),
    row("bfloat16",         Some("BFloat16"),      2, Plain(Dtype::BF16)),
    row("int64",            Some("Long"),          8, Plain(Dtype::I64)),
    row("int32",            Some("Int"),           4, Plain(Dtype::I32)),
    row("int16",            Some("Short"),         2, Plain(Dtype::I16)),
    row("int8",             Some("Char"),          1, Plain(Dtype::I8)),
    row("uint64",           None,                  8, Plain(Dtype::U64)),
    row("uint32",           None,                  4, Plain(Dtype::U32)),
    row("uint16",           None,                  2, Plain(Dtype::U16)),
    row("uint8",            Some("Byte"),          1, Plain(Dtype::U8)),
    row("bool",             Some("Bool"),          1, Plain(Dtype::Bool)),
    row("complex64",        Some("ComplexFloat"),  8, Plain(Dtype::C64)),
    row("complex128",       Some("ComplexDouble"), 16, Opaque("C128")),
    row("complex32",        None,                  4, Opaque("C32")),
    row("bcomplex32",       None,                  4, Opaque("BC32")),
    row("float8_e4m3fn",    None,                  1, Plain(Dtype::F8_E4M3)),
    row("float8_e5m2",      None,                  1, Plain(Dtype::F8_E5M2)),
    row("float8_e4m3fnuz",  None,                  1, Plain(Dtype::F8_E4M3FNUZ)),
    row("float8_e5m2fnuz",  None,                  1, Plain(Dtype::F8_E5M2FNUZ)),
    row("float8_e8m0fnu",   None,                  1, Plain(Dtype::F8_E8M0)),
    row("float4_e2m1fn_x2", None,                  1, Pairs(Dtype::F4)),
    row("bits8",            None,                  1, Opaque("BITS8")),
    row("bits16",           None,                  2, Opaque("BITS16")),
    row("bits1x8",          None,                  1, Opaque("BITS1X8")),
    row("bits2x4",          None,                  1, Opaque("BITS2X4")),
    row("bits4x2",          None,                  1, Opaque("BITS4X2")),
    row("qint8",            Some("QInt8"),         1, Quantized),
    row("quint8",           Some("QUInt8"),        1, Quantized),
    row("qint32",           Some("QInt32"),        4, Quantized),
    row("quint4x2",         Some("QUInt4x2"),      1, Quantized),
    row("quint2x4",         Some("QUInt2x4"),      1, Quantized),
];

const fn row(
    name: &'static str,
    storage: Option<&'static str>,
    bytes: u32,
    elements: Elements,
) -> TorchDtype {
    TorchDtype {
        name,
        storage,
        bytes,
        elements,
    }
}

impl TorchDtype {
    /// All dtypes.
    pub fn all() -> impl Iterator<Item = &'static TorchDtype> {
        TABLE.iter()
    }

    /// The place of this dtype among all.
    pub fn place(&'static self) -> usize {
        let place = TABLE.iter().position(|dtype| std::ptr::eq(dtype, self));
        place.unwrap_or(TABLE.len())
    }

    /// The dtype at a place; `None` behind the last.
    pub fn at(place: usize) -> Option<&'static TorchDtype> {
        TABLE.get(place)
    }
}
