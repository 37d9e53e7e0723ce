//! Statistics of a tensor's values: range, mean, deviation, zeros, NaN, Inf and a histogram, in one
//! pass over a values view (little-endian binary32), or over stored elements that binary32 cannot
//! hold.
//!
//! The values are divided into spans by position alone. A span is summarized while it is in the
//! cache, and summaries are merged in order, so the result is the same to the last bit with any
//! number of threads.

use crate::error::Result;
use crate::parallel;

mod histogram;
mod loops;
mod values;

pub use histogram::Histogram;
use loops::First;
pub use values::{Value, Values, Wide};

/// Values that are read and summarized at a time: 256 KiB of binary32, which stay in the L2 cache
/// between the loop that finds their range and mean and the loop that uses both.
const SPAN: u64 = 64 * 1024;

/// The largest tile that is read whole instead of in spans, in values (16 MiB of binary32).
const MAX_TILE: u64 = 4 << 20;

/// Statistics of a set of values. Range, mean and deviation cover only the finite ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// All values, finite or not.
    pub count: u64,
    /// Values equal to zero, of either sign.
    pub zeros: u64,
    /// NaN values.
    pub nan: u64,
    /// Infinite values, of either sign.
    pub inf: u64,
    /// The distribution of the finite values, if requested.
    pub histogram: Option<Histogram>,
    min: f64,
    max: f64,
    /// The mean, divided by 2^unit.
    mean: f64,
    /// Sum of squared deviations from the mean, divided by 2^2·unit.
    squares: f64,
    /// Not 0 only if squares of binary64 could overflow or vanish.
    unit: i32,
}

/// The exponent of the power of two by which sums over values in `min..=max` are divided.
fn unit(min: f64, max: f64) -> i32 {
    let largest = min.abs().max(max.abs());
    let exponent = (largest.to_bits() >> 52) as i32 - 1023;
    match exponent {
        _ if largest == 0.0 => 0,
        // Squares of such values, and sums of 2^64 of them, stay well within binary64's range.
        -400..=400 => 0,
        // 2^-unit must be a normal number.
        e => e.clamp(-1000, 1000),
    }
}

impl Default for Summary {
    fn default() -> Self {
        Summary {
            count: 0,
            zeros: 0,
            nan: 0,
            inf: 0,
            histogram: None,
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            mean: 0.0,
            squares: 0.0,
            unit: 0,
        }
    }
}

impl Summary {
    /// The summary of no values, to merge others into. With `histogram`, their histograms are
    /// merged, too.
    pub fn new(histogram: bool) -> Summary {
        Summary {
            histogram: histogram.then(Histogram::default),
            ..Summary::default()
        }
    }

    /// Summarizes values in memory. Without a histogram this is twice as fast.
    pub fn of<T: Value>(values: &[T], histogram: bool) -> Summary {
        // If any value is not finite, the sum is not finite either. A sum of finite binary64 values
        // can also overflow, which the loop below handles.
        let first = loops::first(values);
        if first.sum.is_finite() {
            return Summary::of_finite(values, &first, histogram);
        }
        let wide = |v: &T| -> f64 { (*v).into() };
        // Without a branch, which noise would cause to be mispredicted at every other value.
        let (mut finite, mut n) = (values.to_vec(), 0);
        for v in values {
            finite[n] = *v;
            n += usize::from(wide(v).is_finite());
        }
        finite.truncate(n);
        let nan = values.iter().filter(|v| wide(v).is_nan()).count() as u64;
        let mut summary = Summary::of_finite(&finite, &loops::first(&finite), histogram);
        summary.count = values.len() as u64;
        summary.nan = nan;
        summary.inf = (values.len() - finite.len()) as u64 - nan;
        summary
    }

    fn of_finite<T: Value>(values: &[T], first: &First, histogram: bool) -> Summary {
        let mut summary = Summary::new(histogram);
        if values.is_empty() {
            return summary;
        }
        if let Some(histogram) = &mut summary.histogram {
            histogram.add(values, first.min, first.max);
        }
        let unit = unit(first.min, first.max);
        let (mean, squares) = match unit {
            0 => loops::moments(values, first.sum),
            _ => {
                let scale = 2f64.powi(-unit);
                let scaled: Vec<f64> = values.iter().map(|&v| v.into() * scale).collect();
                loops::moments(&scaled, loops::first(&scaled).sum)
            }
        };
        Summary {
            count: values.len() as u64,
            zeros: first.zeros,
            min: first.min,
            max: first.max,
            mean,
            squares,
            unit,
            ..summary
        }
    }

    /// Mean and squares in units of another power of two, which is larger unless both are 0.
    fn moments_in(&self, unit: i32) -> (f64, f64) {
        let scale = 2f64.powi(self.unit - unit);
        (self.mean * scale, self.squares * scale * scale)
    }

    /// Adds the summary of further values by Chan, Golub and LeVeque's pairwise update, which does
    /// not suffer from cancellation, however far from zero the mean is.
    pub fn merge(&mut self, other: &Summary) {
        let (n, m) = (self.finite() as f64, other.finite() as f64);
        if m > 0.0 {
            self.min = self.min.min(other.min);
            self.max = self.max.max(other.max);
            let unit = unit(self.min, self.max);
            if self.unit != unit {
                (self.mean, self.squares) = self.moments_in(unit);
                self.unit = unit;
            }
            let (mean, squares) = match other.unit == unit {
                true => (other.mean, other.squares),
                false => other.moments_in(unit),
            };
            let delta = mean - self.mean;
            self.squares += squares + delta * delta * (n * m / (n + m));
            self.mean = if n > 0.0 {
                self.mean + delta * (m / (n + m))
            } else {
                mean
            };
            if let (Some(mine), Some(theirs)) = (&mut self.histogram, &other.histogram) {
                mine.merge(theirs, self.min, self.max);
            }
        }
        self.count += other.count;
        self.zeros += other.zeros;
        self.nan += other.nan;
        self.inf += other.inf;
    }

    /// The number of finite values.
    pub fn finite(&self) -> u64 {
        self.count - self.nan - self.inf
    }

    fn if_any<T>(&self, value: T) -> Option<T> {
        (self.finite() > 0).then_some(value)
    }

    /// The least finite value; `None` if no value is finite.
    pub fn min(&self) -> Option<f64> {
        self.if_any(self.min)
    }

    /// The greatest finite value.
    pub fn max(&self) -> Option<f64> {
        self.if_any(self.max)
    }

    /// The mean of the finite values.
    pub fn mean(&self) -> Option<f64> {
        self.if_any(self.mean * 2f64.powi(self.unit))
    }

    /// The standard deviation of the finite values as a population (divided by n, not n - 1).
    pub fn std(&self) -> Option<f64> {
        self.if_any((self.squares / self.finite() as f64).sqrt() * 2f64.powi(self.unit))
    }
}

/// Summarizes all values, with or without a histogram, on as many threads as there are processors.
/// `progress` receives the number of values done since the last call, from any thread.
///
/// # Errors
/// As [`Values::read`]: the first span that cannot be read.
pub fn summarize<V: Values + ?Sized>(
    values: &V,
    histogram: bool,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Summary> {
    let spans = Spans::of(values);
    let parts = parallel::ordered(spans.chunks(), |chunk| {
        let mut sum = Summary::new(histogram);
        let mut buf = Vec::new();
        for (first, len) in spans.of_chunk(chunk) {
            values.read(first, len, &mut buf)?;
            sum.merge(&Summary::of(&buf, histogram));
            progress(len);
        }
        Ok(sum)
    })?;
    let mut all = Summary::new(histogram);
    for part in &parts {
        all.merge(part);
    }
    Ok(all)
}

/// How values are divided for reading: into spans that stay in the cache, and chunks of spans that
/// threads take. Depends only on their number and grain.
#[derive(Debug, Clone, Copy)]
pub struct Spans {
    numel: u64,
    span: u64,
    per_chunk: u64,
}

impl Spans {
    /// For these values. Tiles of up to 4 Mi values are read whole.
    pub fn of<V: Values + ?Sized>(values: &V) -> Spans {
        Spans::new(values.numel(), values.grain())
    }

    /// For `numel` values that are cheapest to read `grain` at a time.
    pub fn new(numel: u64, grain: u64) -> Spans {
        let grain = grain.max(1);
        let span = match grain {
            0..=SPAN => SPAN / grain * grain,
            g if g <= MAX_TILE => g,
            _ => SPAN,
        };
        // Enough chunks for any number of threads, but few enough that their summaries take little
        // memory.
        let per_chunk = (numel / span / 256).max((1 << 20) / span).max(1);
        Spans {
            numel,
            span,
            per_chunk,
        }
    }

    /// How many chunks there are.
    pub fn chunks(&self) -> usize {
        self.numel.div_ceil(self.span * self.per_chunk) as usize
    }

    /// The spans of a chunk: first value and number of values.
    pub fn of_chunk(&self, chunk: usize) -> impl Iterator<Item = (u64, u64)> + use<> {
        let Spans {
            numel,
            span,
            per_chunk,
        } = *self;
        let start = chunk as u64 * per_chunk * span;
        let end = (start + per_chunk * span).min(numel);
        (start..end)
            .step_by(span as usize)
            .map(move |first| (first, span.min(end - first)))
    }
}

#[cfg(test)]
mod tests;
