//! Streams of narrow integers: value `i` of width `b` is bits `b·i … b·i + b − 1` of a
//! little-endian stream, counted from the lowest bit of byte 0; values may straddle bytes and
//! words. MLX, GPTQ and compressed-tensors all pack this way, and differ only in the direction of
//! the stream.

/// The eight values of `B` bits (1 to 8) that `B` bytes hold.
///
/// Shifts by constants alone, so that a loop over it vectorizes; a `B` above 8 does not compile.
#[inline(always)]
pub fn eight<const B: usize>(bytes: &[u8; B]) -> [u32; 8] {
    const { assert!(B >= 1 && B <= 8) };
    let mask = (1u32 << B) - 1;
    if B <= 4 {
        let mut word = [0; 4];
        word[..B].copy_from_slice(bytes);
        let word = u32::from_le_bytes(word);
        std::array::from_fn(|i| word >> (i * B) & mask)
    } else {
        // Four values on each side: 20 to 32 bits, so that every shift is in 32-bit lanes.
        let mut word = [0; 8];
        word[..B].copy_from_slice(bytes);
        let word = u64::from_le_bytes(word);
        let halves = [word as u32, (word >> (4 * B)) as u32];
        std::array::from_fn(|i| halves[i / 4] >> (i % 4 * B) & mask)
    }
}

/// Unpacks the first values of a stream of `B`-bit values (1 to 8 bits each), one byte each.
///
/// A loop that computes with bytes vectorizes better than one that takes [`eight`] apart on the way,
/// and a few hundred of them stay in the L1 cache.
///
/// # Panics
/// If the stream ends before the values do.
#[inline(always)]
pub fn unpack<const B: usize>(stream: &[u8], out: &mut [u8]) {
    let stream = &stream[..(out.len() * B).div_ceil(8)];
    match B {
        8 => return out.copy_from_slice(stream),
        4 => {
            for (pair, byte) in out.as_chunks_mut().0.iter_mut().zip(stream) {
                *pair = [byte & 15, byte >> 4];
            }
        }
        2 => {
            for (four, byte) in out.as_chunks_mut().0.iter_mut().zip(stream) {
                *four = [byte & 3, byte >> 2 & 3, byte >> 4 & 3, byte >> 6];
            }
        }
        _ => {
            let (units, _) = stream.as_chunks::<B>();
            for (eight, bytes) in out.as_chunks_mut().0.iter_mut().zip(units) {
                *eight = spread(bytes);
            }
        }
    }
    let whole = out.len() / 8 * 8;
    for (i, out) in out.iter_mut().enumerate().skip(whole) {
        *out = value(stream, B as u32, i) as u8;
    }
}

/// Like [`eight`], with each value in a byte: halves the stream three times, in one register.
#[inline(always)]
fn spread<const B: usize>(bytes: &[u8; B]) -> [u8; 8] {
    const { assert!(B >= 1 && B <= 8) };
    let mut word = [0; 8];
    word[..B].copy_from_slice(bytes);
    let low = |bits: usize| u64::MAX >> (64 - bits);
    let word = u64::from_le_bytes(word);
    let (fours, twos) = (low(4 * B), low(2 * B) * 0x1_0000_0001);
    let ones = low(B) * 0x1_0001_0001_0001;
    let word = word & fours | (word >> (4 * B) & fours) << 32;
    let word = word & twos | (word >> (2 * B) & twos) << 16;
    (word & ones | (word >> B & ones) << 8).to_le_bytes()
}

/// Value `index` of a stream of `bits`-bit values (1 to 16 bits each).
///
/// # Panics
/// If the stream ends before the value does.
pub fn value(stream: &[u8], bits: u32, index: usize) -> u32 {
    let first = index * bits as usize;
    let last = first + bits as usize - 1;
    let window = stream[first / 8..=last / 8]
        .iter()
        .rev()
        .fold(0u32, |w, &byte| w << 8 | u32::from(byte));
    window >> (first % 8) & ((1 << bits) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        text.split(' ')
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
            .collect()
    }

    fn all<const B: usize>(stream: &[u8]) -> Vec<u32> {
        stream.as_chunks::<B>().0.iter().flat_map(eight).collect()
    }

    /// Streams of known codes, written by MLX.
    #[test]
    fn streams_of_other_libraries_unpack() {
        let upto = |n: u32, count: u32| (0..count).map(|i| i % n).collect::<Vec<_>>();
        assert_eq!(all::<3>(&hex("88 c6 fa 88 c6 fa")), upto(8, 16));
        assert_eq!(all::<4>(&hex("10 32 54 76 98 ba dc fe")), upto(16, 16));
        let five = "20 88 41 8a 39 28 a9 c5 9a 7b 30 ca 49 ab bd 38 eb cd bb ff";
        assert_eq!(all::<5>(&hex(five)), upto(32, 32));
        let six = "40 20 0c 44 61 1c 48 a2 2c 4c e3 3c 50 24 4d 54 65 5d 58 a6 6d 5c e7 7d";
        assert_eq!(all::<6>(&hex(six)), upto(64, 32));
    }

    #[test]
    fn many_at_a_time_are_one_at_a_time() {
        fn same<const B: usize>() {
            let stream: Vec<u8> = (0..B as u32 * 9).map(|i| (i * i * 37 + 11) as u8).collect();
            for (i, &v) in all::<B>(&stream).iter().enumerate() {
                assert_eq!(v, value(&stream, B as u32, i), "{B} bits, value {i}");
            }
            for count in [0, 1, 7, 8, 9, 70, 72] {
                let mut bytes = vec![0xee; count];
                unpack::<B>(&stream, &mut bytes);
                let each = (0..count).map(|i| value(&stream, B as u32, i) as u8);
                assert!(bytes.into_iter().eq(each), "{B} bits, {count} values");
            }
        }
        same::<1>();
        same::<2>();
        same::<3>();
        same::<4>();
        same::<5>();
        same::<6>();
        same::<7>();
        same::<8>();
    }
}
