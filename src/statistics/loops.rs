//! The loops that see every value.

use super::Value;
use crate::simd::for_each_cpu;

/// Independent accumulators, which the compiler can keep in vector registers. Float addition is not
/// associative, so it must not introduce them itself.
const LANES: usize = 16;

/// The result of the first pass over values. If any is not finite, the sum is not finite either,
/// and the rest is meaningless.
pub(super) struct First {
    pub min: f64,
    pub max: f64,
    pub sum: f64,
    pub zeros: u64,
}

/// Four separate loops, all of which the compiler vectorizes. It does not vectorize combined loops,
/// which take two to five times as long.
pub(super) fn first<T: Value>(values: &[T]) -> First {
    First {
        // A negative zero becomes zero, so that no range begins or ends at "-0".
        min: least(values).into() + 0.0,
        max: greatest(values).into() + 0.0,
        sum: sum_from(values, 0.0),
        zeros: zeros(values),
    }
}

/// Distributes the values over the accumulators in turn.
#[inline(always)]
fn in_turn<T: Value>(values: &[T], mut take: impl FnMut(usize, T)) {
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
    fn least<T: Value>(values: &[T]) -> T {
        let mut min = [T::INFINITY; LANES];
        in_turn(values, |lane, v| min[lane] = if v < min[lane] { v } else { min[lane] });
        min.into_iter().fold(T::INFINITY, |a, b| if b < a { b } else { a })
    }
}

for_each_cpu! {
    fn greatest<T: Value>(values: &[T]) -> T {
        let mut max = [T::NEG_INFINITY; LANES];
        in_turn(values, |lane, v| max[lane] = if v > max[lane] { v } else { max[lane] });
        max.into_iter().fold(T::NEG_INFINITY, |a, b| if b > a { b } else { a })
    }
}

for_each_cpu! {
    fn zeros<T: Value>(values: &[T]) -> u64 {
        // The compiler vectorizes integer sums by itself. The count for a tile of values fits 32
        // bits.
        let zeros: u32 = values.iter().map(|&v| u32::from(v == T::default())).sum();
        zeros.into()
    }
}

for_each_cpu! {
    /// The sum of `v - from`.
    fn sum_from<T: Value>(values: &[T], from: f64) -> f64 {
        let mut sum = [0f64; LANES];
        in_turn(values, |lane, v| sum[lane] += v.into() - from);
        sum.into_iter().sum()
    }
}

for_each_cpu! {
    fn squares_from<T: Value>(values: &[T], from: f64) -> f64 {
        let mut squares = [0f64; LANES];
        in_turn(values, |lane, v| {
            let d = v.into() - from;
            squares[lane] += d * d;
        });
        squares.into_iter().sum()
    }
}

/// The mean, and the sum of squared deviations from it, from values and their sum. The sum of the
/// deviations shows the rounding error of `sum`, which is then corrected.
pub(super) fn moments<T: Value>(values: &[T], sum: f64) -> (f64, f64) {
    let n = values.len() as f64;
    let nearly = sum / n;
    let squares = squares_from(values, nearly);
    if T::SUMS_WELL {
        return (nearly, squares);
    }
    let deviations = sum_from(values, nearly);
    let off = deviations / n;
    let mean = match off.abs() > 2.0 * f64::EPSILON * nearly.abs() {
        true => nearly + off,
        // So small a correction would more often spoil the last digit than fix it.
        false => nearly,
    };
    (mean, (squares - deviations * off).max(0.0))
}

for_each_cpu! {
    /// `floor(v·scale) - first` of each value, which must lie in 0…65535.
    pub(super) fn bins<T: Value>(values: &[T], scale: f64, first: i32, out: &mut [u16]) {
        // Adding 1.5·2^52 leaves the nearest whole number in the low bits, without the checks of a
        // cast, which would keep the loop from being vectorized.
        const ROUND: f64 = 1.5 * (1u64 << 52) as f64;
        for (o, &v) in out.iter_mut().zip(values) {
            let scaled = v.into() * scale;
            let shifted = scaled + ROUND;
            let nearest = shifted.to_bits() as i32;
            let floor = nearest - i32::from(shifted - ROUND > scaled);
            *o = (floor - first) as u16;
        }
    }
}
