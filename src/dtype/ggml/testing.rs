//! Compares decoders with formulas: what value `e` of a block is, written from the format's
//! description alone.

use super::BLOCKS;
use crate::dtype::Block;
use crate::simd::plainly;

/// F16 scales at the edges of the type: zeros, subnormals, the smallest and largest normal
/// numbers, infinities, NaN, and a few usual ones.
const EDGES: [u16; 18] = [
    0x0000, 0x8000, 0x0001, 0x8001, 0x0200, 0x03FF, 0x83FF, 0x0400, 0x8400, 0x7BFF, 0xFBFF, 0x7C00,
    0xFC00, 0x7C01, 0xFE00, 0x2A66, 0xB266, 0x1001,
];

/// Random numbers, the same in each run (xorshift).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A scale: an edge in one of two cases, any bits in the other.
    pub fn half(&mut self) -> u16 {
        match self.next() >> 33 {
            r if r & 1 == 0 => EDGES[(r >> 1) as usize % EDGES.len()],
            r => (r >> 1) as u16,
        }
    }
}

/// Writes a little-endian u16.
pub fn put(block: &mut [u8], at: usize, bits: u16) {
    block[at..at + 2].copy_from_slice(&bits.to_le_bytes());
}

/// The value of the F16 at `at`.
pub fn half(block: &[u8], at: usize) -> f32 {
    half::f16::from_bits(u16_at(block, at)).to_f32()
}

pub fn u16_at(block: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([block[at], block[at + 1]])
}

pub fn u32_at(block: &[u8], at: usize) -> u32 {
    u32::from(u16_at(block, at)) | u32::from(u16_at(block, at + 2)) << 16
}

/// The low (0) or high (1) four bits.
pub fn nib(byte: u8, which: usize) -> i32 {
    i32::from(byte >> (4 * which) & 15)
}

/// The type of that name.
pub fn block(name: &str) -> &'static Block {
    let found = BLOCKS.iter().find(|b| b.name == name);
    found.expect("a type of the table")
}

/// Checks the decoder of `name` against `value(block, e)`, with random bytes and with edges as F16
/// scales at the byte offsets `scales`.
pub fn check(name: &str, scales: &[usize], value: impl Fn(&[u8], usize) -> f32) {
    let fill = |block: &mut [u8], random: &mut Random| {
        for &at in scales {
            put(block, at, random.half());
        }
    };
    check_with(name, fill, value);
}

/// As [`check`]; `fill` changes what needs a sensible value in a block of random bytes.
pub fn check_with(
    name: &str,
    fill: impl Fn(&mut [u8], &mut Random),
    value: impl Fn(&[u8], usize) -> f32,
) {
    let block = block(name);
    let decode = block.decode.expect("a type that has values");
    let (size, values) = (block.bytes as usize, block.elements as usize);
    let mut random = Random::new(name.bytes().map(u64::from).sum());
    for round in 0..200 {
        let blocks = [0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 31][round % 11];
        // At any address, and with bytes after the last block.
        let (before, after) = (round % 5, round % 3 * size / 2);
        let mut bytes: Vec<u8> = (0..before + blocks * size + after)
            .map(|_| random.next() as u8)
            .collect();
        let whole = &mut bytes[before..][..blocks * size];
        for block in whole.chunks_mut(size) {
            fill(block, &mut random);
        }
        let want: Vec<f32> = whole
            .chunks(size)
            .flat_map(|block| (0..values).map(|e| value(block, e)).collect::<Vec<_>>())
            .collect();
        let mut got = vec![f32::NAN; before + blocks * values];
        let mut decoded = |version| {
            let got = &mut got[before..];
            got.fill(-1e-30);
            match version {
                "plain" => plainly(|| decode(&bytes[before..], got)),
                _ => decode(&bytes[before..], got),
            }
            for (i, (got, want)) in got.iter().zip(&want).enumerate() {
                let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
                let (at, e) = (i / values, i % values);
                let block = &bytes[before..][at * size..][..size];
                assert!(
                    same,
                    "{name}, {version}: value {e} of block {at} of {blocks} is {got:?}, \
                     expected {want:?}; block {block:02x?}"
                );
            }
        };
        decoded("plain");
        decoded("for this machine");
    }
}
