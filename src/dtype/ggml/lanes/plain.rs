//! The steps in plain Rust.

use super::Lanes;

/// For every machine: eight codes in a word. No step lets one reach into the next.
#[derive(Clone, Copy)]
pub(in super::super) struct Plain;

/// A byte in each of the eight.
#[inline(always)]
const fn eight(byte: u8) -> u64 {
    u64::from_le_bytes([byte; 8])
}

/// Each byte of a word times `n`, modulo 256.
#[inline(always)]
pub(in super::super) fn times(word: u64, n: u8) -> u64 {
    let (even, odd) = products(word, n);
    even & EVEN | (odd & EVEN) << 8
}

/// The lower byte of each two.
const EVEN: u64 = 0x00FF_00FF_00FF_00FF;

/// `n` times the even bytes of a word, and times the odd ones: 16 bits each.
#[inline(always)]
fn products(word: u64, n: u8) -> (u64, u64) {
    let n = u64::from(n);
    ((word & EVEN) * n, (word >> 8 & EVEN) * n)
}

impl Plain {
    #[inline(always)]
    fn each(words: [u64; 4], out: &mut [f32; 32], value: impl Fn(usize, f32) -> f32) {
        // From memory, so that the loop is vectorized. Otherwise the compiler shifts the bytes out
        // of the words one by one, at half the speed.
        let bytes = std::hint::black_box(words.map(u64::to_le_bytes));
        let codes: [[u8; 16]; 2] = bytemuck::cast(bytes);
        for (i, (out, codes)) in out
            .as_chunks_mut::<16>()
            .0
            .iter_mut()
            .zip(codes)
            .enumerate()
        {
            for (out, code) in out.iter_mut().zip(codes) {
                *out = value(i, f32::from(code as i8));
            }
        }
    }
}

impl Lanes for Plain {
    type Codes = [u64; 4];

    #[inline(always)]
    fn half(self, block: &[u8], at: usize) -> f32 {
        super::super::blocks::half(block, at)
    }

    #[inline(always)]
    fn load(self, block: &[u8], at: usize) -> [u64; 4] {
        let bytes: [[u8; 8]; 4] = bytemuck::pod_read_unaligned(&block[at..at + 32]);
        bytes.map(u64::from_le_bytes)
    }

    #[inline(always)]
    fn nibbles(self, block: &[u8], at: usize) -> [u64; 4] {
        let bytes: [[u8; 8]; 2] = bytemuck::pod_read_unaligned(&block[at..at + 16]);
        let [a, b] = bytes.map(u64::from_le_bytes);
        [a, b, a >> 4, b >> 4].map(|word| word & eight(15))
    }

    #[inline(always)]
    fn nibbles_by_eights(self, block: &[u8], at: usize) -> [u64; 4] {
        let [a, b, c, d] = self.nibbles(block, at);
        [a, c, b, d]
    }

    #[inline(always)]
    fn words(self, words: [u64; 4]) -> [u64; 4] {
        words
    }

    #[inline(always)]
    fn bits(self, block: &[u8], at: usize, code: u8) -> [u64; 4] {
        std::array::from_fn(|i| {
            // Byte k keeps bit k. Adding 127 to each moves it, wherever it stands, to bit 7.
            let bits = eight(block[at + i]) & 0x8040_2010_0804_0201;
            ((bits + eight(127)) >> 7 & eight(1)) * u64::from(code)
        })
    }

    #[inline(always)]
    fn field(self, codes: [u64; 4], shift: usize, bits: usize) -> [u64; 4] {
        codes.map(|word| word >> shift & eight((1 << bits) - 1))
    }

    #[inline(always)]
    fn above(
        self,
        low: [u64; 4],
        codes: [u64; 4],
        shift: usize,
        bits: usize,
        to: usize,
    ) -> [u64; 4] {
        let high = self.field(codes, shift, bits);
        std::array::from_fn(|i| low[i] | high[i] << to)
    }

    #[inline(always)]
    fn minus(self, codes: [u64; 4], n: u8) -> [u64; 4] {
        // Bit 7 of each byte is zero before, so that with it no byte borrows from the next.
        codes.map(|word| ((word | eight(128)) - eight(n)) ^ eight(128))
    }

    #[inline(always)]
    fn lookup(self, table: &[i8; 16], codes: [u64; 4]) -> [u64; 4] {
        let mut bytes = codes.map(u64::to_le_bytes);
        for code in bytes.as_flattened_mut() {
            *code = table[usize::from(*code & 15)] as u8;
        }
        bytes.map(u64::from_le_bytes)
    }

    #[inline(always)]
    fn negate(self, codes: [u64; 4], mask: [u64; 4]) -> [u64; 4] {
        // The complement of a code that is not 0 is not 255, so that adding 1 carries nothing.
        std::array::from_fn(|i| (codes[i] ^ mask[i]) + (mask[i] & eight(1)))
    }

    #[inline(always)]
    fn thrice(self, codes: [u64; 4]) -> [u64; 4] {
        codes.map(|word| times(word, 3))
    }

    #[inline(always)]
    fn thrice_over(self, codes: [u64; 4]) -> [u64; 4] {
        codes.map(|word| {
            let (even, odd) = products(word, 3);
            even >> 8 & EVEN | odd & !EVEN
        })
    }

    #[inline(always)]
    fn products(self, scales: [f32; 2], codes: [u64; 4], out: &mut [f32; 32]) {
        Plain::each(codes, out, |i, code| scales[i] * code);
    }

    #[inline(always)]
    fn sums(self, scales: [f32; 2], codes: [u64; 4], add: [f32; 2], out: &mut [f32; 32]) {
        Plain::each(codes, out, |i, code| scales[i] * code + add[i]);
    }
}
