//! Numbers that are stored with their most significant byte first.

use crate::simd::for_each_cpu;

/// Reverses each group of `width` bytes. `bytes` has whole groups.
pub(super) fn swap(bytes: &mut [u8], width: usize) {
    match width {
        2 => swap2(bytes),
        4 => swap4(bytes),
        8 => swap8(bytes),
        0 | 1 => {}
        _ => bytes.chunks_exact_mut(width).for_each(<[u8]>::reverse),
    }
}

for_each_cpu! {
    fn swap2(bytes: &mut [u8]) {
        for group in bytes.as_chunks_mut::<2>().0 {
            *group = u16::from_ne_bytes(*group).swap_bytes().to_ne_bytes();
        }
    }
}

for_each_cpu! {
    fn swap4(bytes: &mut [u8]) {
        for group in bytes.as_chunks_mut::<4>().0 {
            *group = u32::from_ne_bytes(*group).swap_bytes().to_ne_bytes();
        }
    }
}

for_each_cpu! {
    fn swap8(bytes: &mut [u8]) {
        for group in bytes.as_chunks_mut::<8>().0 {
            *group = u64::from_ne_bytes(*group).swap_bytes().to_ne_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::plainly;

    #[test]
    fn groups_are_reversed_one_by_one() {
        for width in [0, 1, 2, 4, 8, 16] {
            let stored: Vec<u8> = (0..16 * 11).map(|i| i as u8).collect();
            let mut want = stored.clone();
            want.chunks_mut(width.max(1)).for_each(<[u8]>::reverse);
            let mut got = stored.clone();
            swap(&mut got, width);
            assert_eq!(got, want);
            plainly(|| swap(&mut got, width));
            assert_eq!(got, stored);
        }
    }
}
