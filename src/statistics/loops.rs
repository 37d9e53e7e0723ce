//! The loops that see every value.

use crate::quant::simd::for_each_cpu;

/// Independent accumulators, so that the compiler may keep them in vector registers: float addition
/// is not associative, and it must not reorder ours.
const LANES: usize = 16;

/// What the first look at values yields. If any is not finite, neither is the sum, and the rest is
/// void.
pub(super) struct First {
    pub min: f32,
    pub max: f32,
    pub sum: f64,
    pub zeros: u64,
}

/// In three loops: one that does all of it needs more registers than there are, and takes twice as
/// long.
pub(super) fn first(values: &[f32]) -> First {
    let (sum, zeros) = sum_and_zeros(values);
    First {
        // A negative zero counts as zero, so that no range begins or ends at "-0".
        min: least(values) + 0.0,
        max: greatest(values) + 0.0,
        sum,
        zeros,
    }
}

/// Gives each value to the accumulator whose turn it is.
#[inline(always)]
fn in_turn(values: &[f32], mut take: impl FnMut(usize, f32)) {
    let (whole, rest) = values.as_chunks::<LANES>();
    for chunk in whole {
        for (lane, &v) in chunk.iter().enumerate() {
            take(lane, v);
        }
    }
    for (lane, &v) in rest.iter().enumerate() {
        take(lane, v);
    }
}

for_each_cpu! {
    fn least(values: &[f32]) -> f32 {
        let mut min = [f32::INFINITY; LANES];
        in_turn(values, |lane, v| min[lane] = if v < min[lane] { v } else { min[lane] });
        min.into_iter().fold(f32::INFINITY, f32::min)
    }
}

for_each_cpu! {
    fn greatest(values: &[f32]) -> f32 {
        let mut max = [f32::NEG_INFINITY; LANES];
        in_turn(values, |lane, v| max[lane] = if v > max[lane] { v } else { max[lane] });
        max.into_iter().fold(f32::NEG_INFINITY, f32::max)
    }
}

for_each_cpu! {
    fn sum_and_zeros(values: &[f32]) -> (f64, u64) {
        let (mut sum, mut zeros) = ([0f64; LANES], [0u32; LANES]);
        in_turn(values, |lane, v| {
            sum[lane] += f64::from(v);
            zeros[lane] += u32::from(v == 0.0);
        });
        (sum.into_iter().sum(), zeros.into_iter().map(u64::from).sum())
    }
}

for_each_cpu! {
    pub(super) fn squared_deviations(values: &[f32], mean: f64) -> f64 {
        let mut squares = [0f64; LANES];
        in_turn(values, |lane, v| {
            let d = f64::from(v) - mean;
            squares[lane] += d * d;
        });
        squares.into_iter().sum()
    }
}

for_each_cpu! {
    /// `floor(v·scale) - first` of each value, which must lie in 0…65535.
    pub(super) fn bins(values: &[f32], scale: f64, first: i32, out: &mut [u16]) {
        // Adding 1.5·2^52 leaves the nearest whole number in the low bits, without the checks of a
        // cast, which would keep the loop from being vectorised.
        const ROUND: f64 = 1.5 * (1u64 << 52) as f64;
        for (o, &v) in out.iter_mut().zip(values) {
            let scaled = f64::from(v) * scale;
            let shifted = scaled + ROUND;
            let nearest = shifted.to_bits() as i32;
            let floor = nearest - i32::from(shifted - ROUND > scaled);
            *o = (floor - first) as u16;
        }
    }
}
