//! ggml's element types, as GGUF files number them: plain dtypes, and blocks of quantized values.
//!
//! Each family of block types is a file below this one, with the functions that decode whole blocks
//! to binary32. The formulas are ggml's (`ggml-quants.c`): all operations in binary32, in the order
//! they are written, without fused multiply-add. Every block stands alone.

use super::{Block, DecodeBlocks, Dtype, ElementType};

mod blocks;
mod fp4;
mod grid;
mod k;
mod lanes;
mod legacy;
mod nonlinear;
mod ternary;
#[cfg(test)]
mod testing;

/// The GPU ABI's number of a block type is its ggml number plus this.
const ABI: u32 = 256;

/// The types that are one of safetensors' dtypes, by their numbers.
const PLAIN: [(u32, Dtype); 8] = [
    (0, Dtype::F32),
    (1, Dtype::F16),
    (24, Dtype::I8),
    (25, Dtype::I16),
    (26, Dtype::I32),
    (27, Dtype::I64),
    (28, Dtype::F64),
    (30, Dtype::BF16),
];

/// The block types: number, name, values and bytes of a block, whether no value can round, and the
/// decoder. The engine's scratch types (Q8_1, Q8_K) have none.
#[rustfmt::skip]
static BLOCKS: [Block; 27] = [
    block( 2, "Q4_0",     32,  18, true,  Some(legacy::q4_0)),
    block( 3, "Q4_1",     32,  20, false, Some(legacy::q4_1)),
    block( 6, "Q5_0",     32,  22, true,  Some(legacy::q5_0)),
    block( 7, "Q5_1",     32,  24, false, Some(legacy::q5_1)),
    block( 8, "Q8_0",     32,  34, true,  Some(legacy::q8_0)),
    block( 9, "Q8_1",     32,  36, false, None),
    block(10, "Q2_K",    256,  84, false, Some(k::q2_k)),
    block(11, "Q3_K",    256, 110, true,  Some(k::q3_k)),
    block(12, "Q4_K",    256, 144, false, Some(k::q4_k)),
    block(13, "Q5_K",    256, 176, false, Some(k::q5_k)),
    block(14, "Q6_K",    256, 210, true,  Some(k::q6_k)),
    block(15, "Q8_K",    256, 292, false, None),
    block(16, "IQ2_XXS", 256,  66, true,  Some(grid::iq2_xxs)),
    block(17, "IQ2_XS",  256,  74, true,  Some(grid::iq2_xs)),
    block(18, "IQ3_XXS", 256,  98, true,  Some(grid::iq3_xxs)),
    block(19, "IQ1_S",   256,  50, true,  Some(grid::iq1_s)),
    block(20, "IQ4_NL",   32,  18, true,  Some(nonlinear::iq4_nl)),
    block(21, "IQ3_S",   256, 110, true,  Some(grid::iq3_s)),
    block(22, "IQ2_S",   256,  82, true,  Some(grid::iq2_s)),
    block(23, "IQ4_XS",  256, 136, true,  Some(nonlinear::iq4_xs)),
    block(29, "IQ1_M",   256,  56, true,  Some(grid::iq1_m)),
    block(34, "TQ1_0",   256,  54, true,  Some(ternary::tq1_0)),
    block(35, "TQ2_0",   256,  66, true,  Some(ternary::tq2_0)),
    block(39, "MXFP4",    32,  17, true,  Some(fp4::mxfp4)),
    block(40, "NVFP4",    64,  36, true,  Some(fp4::nvfp4)),
    block(41, "Q1_0",    128,  18, true,  Some(legacy::q1_0)),
    block(42, "Q2_0",     64,  18, true,  Some(legacy::q2_0)),
];

const fn block(
    number: u32,
    name: &'static str,
    elements: u32,
    bytes: u32,
    exact: bool,
    decode: Option<DecodeBlocks>,
) -> Block {
    Block {
        name,
        elements,
        bytes,
        exact,
        abi: ABI + number,
        decode,
    }
}

/// The element type of a ggml type number; `None` for numbers that ggml removed or never had.
pub fn from_number(number: u32) -> Option<ElementType> {
    let plain = PLAIN.iter().find(|(n, _)| *n == number);
    let block = || {
        BLOCKS
            .iter()
            .find(|b| b.abi.checked_sub(ABI) == Some(number))
    };
    plain
        .map(|(_, dtype)| ElementType::Known(*dtype))
        .or_else(|| block().map(ElementType::Block))
}

/// The ggml number of an element type, if ggml has the type.
pub fn number(dtype: &ElementType) -> Option<u32> {
    match dtype {
        ElementType::Known(dtype) => PLAIN.iter().find(|(_, d)| d == dtype).map(|(n, _)| *n),
        ElementType::Block(block) => block.abi.checked_sub(ABI),
        ElementType::Opaque(_) | ElementType::Other(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers, names, and values and bytes of a block: `GGML_QUANT_SIZES` of the Python package
    /// `gguf` 0.19.0, except that Q8_1 has ggml's 36 bytes (the package says 40) and that Q2_0,
    /// which the package does not have, is ggml's.
    #[rustfmt::skip]
    const TYPES: [(u32, &str, u32, u32); 35] = [
        (0, "F32", 1, 4), (1, "F16", 1, 2), (2, "Q4_0", 32, 18), (3, "Q4_1", 32, 20),
        (6, "Q5_0", 32, 22), (7, "Q5_1", 32, 24), (8, "Q8_0", 32, 34), (9, "Q8_1", 32, 36),
        (10, "Q2_K", 256, 84), (11, "Q3_K", 256, 110), (12, "Q4_K", 256, 144),
        (13, "Q5_K", 256, 176), (14, "Q6_K", 256, 210), (15, "Q8_K", 256, 292),
        (16, "IQ2_XXS", 256, 66), (17, "IQ2_XS", 256, 74), (18, "IQ3_XXS", 256, 98),
        (19, "IQ1_S", 256, 50), (20, "IQ4_NL", 32, 18), (21, "IQ3_S", 256, 110),
        (22, "IQ2_S", 256, 82), (23, "IQ4_XS", 256, 136), (24, "I8", 1, 1), (25, "I16", 1, 2),
        (26, "I32", 1, 4), (27, "I64", 1, 8), (28, "F64", 1, 8), (29, "IQ1_M", 256, 56),
        (30, "BF16", 1, 2), (34, "TQ1_0", 256, 54), (35, "TQ2_0", 256, 66), (39, "MXFP4", 32, 17),
        (40, "NVFP4", 64, 36), (41, "Q1_0", 128, 18), (42, "Q2_0", 64, 18),
    ];

    #[test]
    fn types_are_those_of_ggml() {
        for (n, name, values, bytes) in TYPES {
            let dtype = from_number(n).expect(name);
            assert_eq!(number(&dtype), Some(n), "{name}");
            let (found, size) = match &dtype {
                ElementType::Known(d) => (d.name(), (1, d.bits() / 8)),
                ElementType::Block(b) => (b.name, (b.elements, b.bytes)),
                other => panic!("{other} for {name}"),
            };
            assert_eq!((found, size), (name, (values, bytes)));
        }
        assert_eq!(TYPES.len(), PLAIN.len() + BLOCKS.len());
    }

    /// Removed types, and numbers that no type ever had.
    #[test]
    fn other_numbers_are_no_type() {
        let known = |n| TYPES.iter().any(|t| t.0 == n);
        let unknown: Vec<u32> = (0..64).filter(|&n| !known(n)).collect();
        assert_eq!(unknown[..8], [4, 5, 31, 32, 33, 36, 37, 38]);
        assert_eq!(unknown[8], 43);
        for n in unknown
            .into_iter()
            .chain([255, 256, 258, u32::MAX - 255, u32::MAX])
        {
            assert!(from_number(n).is_none(), "{n}");
        }
    }

    /// Types that are not ggml's have no number.
    #[test]
    fn other_dtypes_have_no_number() {
        let plain = |d: &Dtype| PLAIN.iter().any(|(_, p)| p == d);
        for dtype in Dtype::all().filter(|d| !plain(d)) {
            assert_eq!(number(&ElementType::Known(dtype)), None, "{dtype}");
        }
    }
}
