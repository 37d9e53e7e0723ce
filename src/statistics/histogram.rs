//! An exact histogram whose range is not known in advance.
//!
//! A bin is `[i·2^e, (i+1)·2^e)` for whole `i`, and [`BINS`] consecutive ones are kept, with the
//! smallest `e` whose bins cover every value seen. When the range grows, pairs of bins are merged:
//! `floor(floor(x/w)/2) = floor(x/2w)`, so the counts are those of the final `e`, whatever the
//! order of the values.

use super::{Value, loops};

/// How many bins there are: four times what any picture shows.
pub const BINS: usize = 1024;

/// Copies that are incremented in turn, so that equal neighbors do not wait for each other.
const COPIES: usize = 4;

/// Counts of finite values by equal steps of their range.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// A bin is 2^exponent wide.
    exponent: i32,
    /// The first bin is `[first·2^exponent, …)`.
    first: i64,
    /// Empty, or [`BINS`] counts.
    counts: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Histogram {
            // Finer than any float needs, so that the first values added determine it.
            exponent: i32::MIN,
            first: 0,
            counts: Vec::new(),
        }
    }
}

/// 2^e for -1022 ≤ e ≤ 1023.
fn exp2(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

/// Limits on the bins' width: 2^-exponent must be a finite number, too.
const FINEST: i32 = -1000;
const WIDEST: i32 = 1020;

/// `floor(v / 2^exponent)`; the division is exact.
fn bin(v: f64, exponent: i32) -> i64 {
    (v * exp2(-exponent)).floor() as i64
}

/// The smallest exponent whose bins cover `min..=max` and are no finer than the spacing of binary32
/// at the larger end, so that bin numbers stay below 2^24.
fn exponent_for(min: f64, max: f64) -> i32 {
    let largest = min.abs().max(max.abs());
    let ulp = (largest.to_bits() >> 52) as i32 - 1023 - 23;
    (ulp.max(FINEST)..WIDEST)
        .find(|&e| bin(max, e) - bin(min, e) < BINS as i64)
        .unwrap_or(WIDEST)
}

impl Histogram {
    /// Adds finite values, whose least and greatest are `min` and `max`.
    pub(super) fn add<T: Value>(&mut self, values: &[T], min: f64, max: f64) {
        self.fit(min, max);
        let scale = exp2(-self.exponent);
        let first = self.first as i32;
        // Counts fit u32: one call adds at most a tile of values.
        let mut copies = vec![[0u32; BINS]; COPIES];
        let [a, b, c, d] = copies.as_mut_slice() else {
            return;
        };
        let mut places = [0u16; 512];
        for values in values.chunks(places.len()) {
            let places = &mut places[..values.len()];
            loops::bins(values, scale, first, places);
            let (whole, rest) = places.as_chunks::<COPIES>();
            for &[p, q, r, s] in whole {
                // They are in range; the remainder avoids the bounds check.
                a[usize::from(p) % BINS] += 1;
                b[usize::from(q) % BINS] += 1;
                c[usize::from(r) % BINS] += 1;
                d[usize::from(s) % BINS] += 1;
            }
            for &p in rest {
                a[usize::from(p) % BINS] += 1;
            }
        }
        for copy in &copies {
            for (count, &n) in self.counts.iter_mut().zip(copy) {
                *count += u64::from(n);
            }
        }
    }

    /// Adds the counts of another histogram; `min` and `max` are those of both together.
    pub(super) fn merge(&mut self, other: &Histogram, min: f64, max: f64) {
        self.fit(min, max);
        let shift = (self.exponent - other.exponent).clamp(0, 63);
        for (i, &n) in other.counts.iter().enumerate() {
            if n > 0 {
                let to = ((other.first + i as i64) >> shift) - self.first;
                self.counts[to as usize] += n;
            }
        }
    }

    /// Makes the bins cover `min..=max`.
    fn fit(&mut self, min: f64, max: f64) {
        let exponent = exponent_for(min, max).max(self.exponent);
        let first = bin(min, exponent);
        if (exponent, first) == (self.exponent, self.first) && !self.counts.is_empty() {
            return;
        }
        let mut counts = vec![0; BINS];
        let shift = i64::from(exponent).saturating_sub(i64::from(self.exponent));
        for (i, &n) in self.counts.iter().enumerate() {
            if n > 0 {
                let to = ((self.first + i as i64) >> shift.min(63)) - first;
                counts[to as usize] += n;
            }
        }
        *self = Histogram {
            exponent,
            first,
            counts,
        };
    }

    /// The counts in `n` equal steps from `min` to `max`, the range of the added values. A bin that
    /// straddles a border is divided by width, to avoid a comb pattern in the picture.
    pub fn resample(&self, min: f64, max: f64, n: usize) -> Vec<f64> {
        let mut out = vec![0.0; n];
        if n == 0 || max <= min {
            let total: u64 = self.counts.iter().sum();
            if let Some(middle) = out.get_mut(n / 2) {
                *middle = total as f64;
            }
            return out;
        }
        // Computed in halves, because the width of binary64's whole range overflows.
        let width = exp2(self.exponent.clamp(FINEST, WIDEST) - 1);
        let (lo, hi) = (min / 2.0, max / 2.0);
        let steps = |v: f64| ((v.clamp(lo, hi) - lo) / (hi - lo) * n as f64).clamp(0.0, n as f64);
        for (i, &count) in self.counts.iter().enumerate() {
            if count == 0 {
                continue;
            }
            let left = (self.first + i as i64) as f64 * width;
            let (a, b) = (steps(left), steps(left + width));
            spread(&mut out, a, b, count as f64);
        }
        out
    }
}

/// Distributes `count` over the steps `a..b`, which may begin and end within a step.
fn spread(out: &mut [f64], a: f64, b: f64, count: f64) {
    let last = out.len() - 1;
    let (i, j) = ((a as usize).min(last), (b as usize).min(last));
    if i == j || b <= a {
        out[i] += count;
        return;
    }
    for (k, step) in out.iter_mut().enumerate().take(j + 1).skip(i) {
        let overlap = (b.min((k + 1) as f64) - a.max(k as f64)).max(0.0);
        *step += count * overlap / (b - a);
    }
}
