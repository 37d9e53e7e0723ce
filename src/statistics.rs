//! Statistics of a tensor's values: range, mean, deviation, zeros, NaN, Inf and a histogram, in one
//! pass over a values view (little-endian binary32).
//!
//! The values are cut into spans by their positions alone; a span is summarised while it lies in
//! the cache, and summaries are merged in order. So the result is the same, to the last bit,
//! however many threads took part.

use crate::error::Result;
use crate::parallel;
use crate::view::View;

mod histogram;
mod loops;

pub use histogram::Histogram;
use loops::First;

/// Values that are read and summarised at a time: 256 KiB of binary32, which stay in the L2 cache
/// between the loop that finds their range and mean and the loop that uses both.
const SPAN: u64 = 64 * 1024;

/// The largest tile that is read whole instead of in spans, in values (16 MiB).
const MAX_TILE: u64 = 4 << 20;

/// What is known of a set of values. Range, mean and deviation are over the finite ones alone.
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
    /// Where the finite values lie, if that was asked for.
    pub histogram: Option<Histogram>,
    min: f32,
    max: f32,
    mean: f64,
    /// Sum of squared deviations from the mean.
    squares: f64,
}

impl Default for Summary {
    fn default() -> Self {
        Summary {
            count: 0,
            zeros: 0,
            nan: 0,
            inf: 0,
            histogram: None,
            min: f32::INFINITY,
            max: f32::NEG_INFINITY,
            mean: 0.0,
            squares: 0.0,
        }
    }
}

impl Summary {
    /// Of no values yet, to merge others into: with a histogram, if theirs are to be kept.
    pub fn new(histogram: bool) -> Summary {
        Summary {
            histogram: histogram.then(Histogram::default),
            ..Summary::default()
        }
    }

    /// Of values that lie in memory, with a histogram or without, which is twice as fast.
    pub fn of(values: &[f32], histogram: bool) -> Summary {
        // A sum of finite binary32 numbers is finite in binary64; with anything else in it, it is not.
        let first = loops::first(values);
        if first.sum.is_finite() {
            return Summary::of_finite(values, first, histogram);
        }
        let finite: Vec<f32> = values.iter().copied().filter(|v| v.is_finite()).collect();
        let nan = values.iter().filter(|v| v.is_nan()).count() as u64;
        let mut summary = Summary::of_finite(&finite, loops::first(&finite), histogram);
        summary.count = values.len() as u64;
        summary.nan = nan;
        summary.inf = (values.len() - finite.len()) as u64 - nan;
        summary
    }

    fn of_finite(values: &[f32], first: First, histogram: bool) -> Summary {
        let mut summary = Summary::new(histogram);
        if values.is_empty() {
            return summary;
        }
        let mean = first.sum / values.len() as f64;
        if let Some(histogram) = &mut summary.histogram {
            histogram.add(values, first.min, first.max);
        }
        Summary {
            count: values.len() as u64,
            zeros: first.zeros,
            min: first.min,
            max: first.max,
            mean,
            squares: loops::squared_deviations(values, mean),
            ..summary
        }
    }

    /// Takes in what is known of further values: Chan, Golub and LeVeque's pairwise update, which
    /// loses nothing to cancellation however far the mean lies from zero.
    pub fn merge(&mut self, other: &Summary) {
        let (n, m) = (self.finite() as f64, other.finite() as f64);
        if m > 0.0 {
            let delta = other.mean - self.mean;
            self.squares += other.squares + delta * delta * (n * m / (n + m));
            self.mean = if n > 0.0 {
                self.mean + delta * (m / (n + m))
            } else {
                other.mean
            };
            self.min = self.min.min(other.min);
            self.max = self.max.max(other.max);
            if let (Some(mine), Some(theirs)) = (&mut self.histogram, &other.histogram) {
                mine.merge(theirs, self.min, self.max);
            }
        }
        self.count += other.count;
        self.zeros += other.zeros;
        self.nan += other.nan;
        self.inf += other.inf;
    }

    /// Finite values.
    pub fn finite(&self) -> u64 {
        self.count - self.nan - self.inf
    }

    fn if_any<T>(&self, value: T) -> Option<T> {
        (self.finite() > 0).then_some(value)
    }

    /// The least finite value; `None` where no value is finite.
    pub fn min(&self) -> Option<f32> {
        self.if_any(self.min)
    }

    /// The greatest finite value.
    pub fn max(&self) -> Option<f32> {
        self.if_any(self.max)
    }

    /// The mean of the finite values.
    pub fn mean(&self) -> Option<f64> {
        self.if_any(self.mean)
    }

    /// The standard deviation of the finite values as a population (divided by n, not n - 1).
    pub fn std(&self) -> Option<f64> {
        self.if_any((self.squares / self.finite() as f64).sqrt())
    }
}

/// Summarises a whole values view, with a histogram or without, on as many threads as there are
/// processors. `progress` is told how many values were done since it was last told, from any thread.
///
/// # Errors
/// As [`View::read_at`]: the first span that cannot be read.
pub fn summarize(
    view: &dyn View,
    histogram: bool,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Summary> {
    let spans = Spans::of(view);
    let parts = parallel::ordered(spans.chunks(), |chunk| {
        let mut sum = Summary::new(histogram);
        let mut buf = Vec::new();
        for (first, len) in spans.of_chunk(chunk) {
            read_values(view, first, len, &mut buf)?;
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

/// Reads `len` values from value `first` on into `buf`, which becomes exactly as long.
///
/// # Errors
/// As [`View::read_at`].
pub fn read_values(view: &dyn View, first: u64, len: u64, buf: &mut Vec<f32>) -> Result<()> {
    buf.resize(len as usize, 0.0);
    view.read_at(first * 4, bytemuck::cast_slice_mut(buf))
}

/// How a values view is cut up for reading: spans that stay in the cache, in chunks that threads
/// take. Depends on the view's length and grain alone.
#[derive(Debug, Clone, Copy)]
pub struct Spans {
    numel: u64,
    span: u64,
    per_chunk: u64,
}

impl Spans {
    /// For a values view. Whole tiles are read where a tile is no larger than 16 MiB.
    pub fn of(view: &dyn View) -> Spans {
        Spans::new(view.len() / 4, view.grain() / 4)
    }

    /// For `numel` values that are cheapest to read `grain` at a time.
    pub fn new(numel: u64, grain: u64) -> Spans {
        let grain = grain.max(1);
        let span = match grain {
            0..=SPAN => SPAN / grain * grain,
            g if g <= MAX_TILE => g,
            _ => SPAN,
        };
        // Enough chunks for any number of threads, few enough that their summaries weigh nothing.
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
