use proptest::prelude::*;

use super::histogram::BINS;
use super::*;
use crate::view::Bytes;

/// The definition, in two passes over binary64.
struct Naive {
    min: f32,
    max: f32,
    mean: f64,
    std: f64,
}

fn naive(values: &[f32]) -> Option<Naive> {
    let finite: Vec<f32> = values.iter().copied().filter(|v| v.is_finite()).collect();
    let n = finite.len() as f64;
    let mean = finite.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let squares = finite.iter().map(|&v| (f64::from(v) - mean).powi(2));
    (!finite.is_empty()).then(|| Naive {
        min: finite.iter().copied().fold(f32::INFINITY, f32::min),
        max: finite.iter().copied().fold(f32::NEG_INFINITY, f32::max),
        mean,
        std: (squares.sum::<f64>() / n).sqrt(),
    })
}

fn summary(values: &[f32]) -> Summary {
    let bytes = Bytes(bytemuck::cast_slice(values).into());
    summarize(&bytes, true, &|_| {}).unwrap()
}

fn agree(values: &[f32], s: &Summary) {
    assert_eq!(s.count, values.len() as u64);
    assert_eq!(s.zeros, values.iter().filter(|v| **v == 0.0).count() as u64);
    assert_eq!(s.nan, values.iter().filter(|v| v.is_nan()).count() as u64);
    assert_eq!(
        s.inf,
        values.iter().filter(|v| v.is_infinite()).count() as u64
    );
    match naive(values) {
        None => assert!(
            s.min().is_none() && s.max().is_none() && s.mean().is_none() && s.std().is_none()
        ),
        Some(n) => {
            assert_eq!((s.min(), s.max()), (Some(n.min), Some(n.max)));
            let size = f64::from(n.min.abs().max(n.max.abs())).max(f64::MIN_POSITIVE);
            assert!((s.mean().unwrap() - n.mean).abs() <= 1e-13 * size);
            assert!((s.std().unwrap() - n.std).abs() <= 1e-12 * n.std.max(1e-6 * size));
        }
    }
}

fn any_float() -> impl Strategy<Value = f32> {
    prop_oneof![
        8 => -1.0f32..1.0,
        1 => any::<u32>().prop_map(f32::from_bits),
        1 => prop::sample::select(vec![0.0, -0.0, f32::MAX, f32::MIN_POSITIVE, 1e-45]),
    ]
}

proptest! {
    #[test]
    fn as_the_definition_says(values in prop::collection::vec(any_float(), 0..3000)) {
        agree(&values, &summary(&values));
    }

    /// Whatever order things come in, the histogram is the one that the final bins give.
    #[test]
    fn histograms_are_exact(parts in prop::collection::vec(
        (prop::collection::vec(-1.0f32..1.0, 1..40), -20i32..20), 1..8
    )) {
        let mut all = Vec::new();
        let mut merged = Summary::new(true);
        for (values, e) in parts {
            let values: Vec<f32> = values.iter().map(|v| v * 2f32.powi(e)).collect();
            merged.merge(&Summary::of(&values, true));
            all.extend(values);
        }
        let whole = Summary::of(&all, true);
        prop_assert_eq!(&merged.histogram, &whole.histogram);
        // And against bins counted one by one.
        let counts = whole.histogram.as_ref().unwrap().resample(
            whole.min().unwrap(), whole.max().unwrap(), 1
        );
        prop_assert_eq!(counts[0], all.len() as f64);
    }

    #[test]
    fn resampling_keeps_every_value(
        values in prop::collection::vec(any_float().prop_filter("", |v| v.is_finite()), 1..500),
        n in 1usize..600,
    ) {
        let s = Summary::of(&values, true);
        let counts = s.histogram.unwrap().resample(s.min.min(s.max), s.max, n);
        let sum: f64 = counts.iter().sum();
        prop_assert!((sum - values.len() as f64).abs() < 1e-6, "{sum}");
    }
}

/// Sizes around the borders of lanes, spans and chunks.
#[test]
fn any_length() {
    for n in [0, 1, 7, 15, 16, 17, 65_535, 65_537, 70_000, (1 << 20) + 3] {
        let values: Vec<f32> = (0..n).map(|i| (i as f32 * 0.37).sin() + 5.0).collect();
        agree(&values, &summary(&values));
    }
}

/// Where a sum of squares would have lost every digit.
#[test]
fn a_far_mean_costs_no_precision() {
    let values: Vec<f32> = (0..300_000)
        .map(|i| 16_000_000.0 + (i % 3) as f32)
        .collect();
    let s = summary(&values);
    assert!((s.mean().unwrap() - 16_000_001.0).abs() < 1e-6);
    assert!((s.std().unwrap() - (2.0f64 / 3.0).sqrt()).abs() < 1e-9);
}

#[test]
fn the_result_does_not_depend_on_the_threads() {
    let values: Vec<f32> = (0..5_000_000u64)
        .map(|i| ((i * 7919 % 10_007) as f32 - 5_000.0) * 1e-4)
        .collect();
    let bytes = Bytes(bytemuck::cast_slice(&values).into());
    let once = summarize(&bytes, true, &|_| {}).unwrap();
    // What one thread does, by hand.
    let spans = Spans::of(&bytes);
    let mut all = Summary::new(true);
    for chunk in 0..spans.chunks() {
        let mut sum = Summary::new(true);
        for (first, len) in spans.of_chunk(chunk) {
            let span = &values[first as usize..(first + len) as usize];
            sum.merge(&Summary::of(span, true));
        }
        all.merge(&sum);
    }
    assert_eq!(once, all);
}

#[test]
fn bins_hold_what_they_say() {
    let values = [-1.0f32, -0.5, -1e-30, 0.0, 1e-30, 0.25, 0.999, 1.0];
    let s = Summary::of(&values, true);
    let halves = s.histogram.unwrap().resample(-1.0, 1.0, 2);
    // The top value's own bin begins at 1 and is cut off there; all below zero lie left of it.
    assert_eq!(halves, [3.0, 5.0]);
    assert_eq!(BINS % 512, 0);
}

#[test]
fn spans_follow_tiles() {
    let spans = Spans::new(10_000_000, 3_000);
    for chunk in 0..spans.chunks() {
        for (first, len) in spans.of_chunk(chunk) {
            assert_eq!(first % 3_000, 0);
            assert!(len % 3_000 == 0 || first + len == 10_000_000);
        }
    }
    assert_eq!(Spans::new(0, 1).chunks(), 0);
}
