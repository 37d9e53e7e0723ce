use proptest::prelude::*;

use super::histogram::BINS;
use super::*;
use crate::dtype::Dtype;
use crate::view::{Bytes, View};

/// The definition, in two passes over binary64.
struct Naive {
    min: f64,
    max: f64,
    mean: f64,
    std: f64,
}

fn naive(values: &[f32]) -> Option<Naive> {
    let finite: Vec<f32> = values.iter().copied().filter(|v| v.is_finite()).collect();
    let n = finite.len() as f64;
    let mean = finite.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let squares = finite.iter().map(|&v| (f64::from(v) - mean).powi(2));
    (!finite.is_empty()).then(|| Naive {
        min: finite.iter().copied().fold(f32::INFINITY, f32::min).into(),
        max: finite
            .iter()
            .copied()
            .fold(f32::NEG_INFINITY, f32::max)
            .into(),
        mean,
        std: (squares.sum::<f64>() / n).sqrt(),
    })
}

fn summary(values: &[f32]) -> Summary {
    let bytes = Bytes(bytemuck::cast_slice(values).into());
    summarize::<dyn View>(&bytes, true, &|_| {}).unwrap()
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
            let size = n.min.abs().max(n.max.abs()).max(f64::MIN_POSITIVE);
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

    /// The histogram does not depend on the order of the values.
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

/// A sum of squares would have lost every digit here.
#[test]
fn a_far_mean_costs_no_precision() {
    let values: Vec<f32> = (0..300_000)
        .map(|i| 16_000_000.0 + (i % 3) as f32)
        .collect();
    let s = summary(&values);
    assert!((s.mean().unwrap() - 16_000_001.0).abs() < 1e-6);
    assert!((s.std().unwrap() - (2.0f64 / 3.0).sqrt()).abs() < 1e-9);
    // A plain sum would have lost them here.
    let values: Vec<f64> = (0..300_000).map(|i| 1e13 + f64::from(i % 3)).collect();
    let s = wide(&values);
    assert!((s.mean().unwrap() - (1e13 + 1.0)).abs() < 0.01);
    assert!((s.std().unwrap() - (2.0f64 / 3.0).sqrt()).abs() < 1e-9);
}

#[test]
fn the_result_does_not_depend_on_the_threads() {
    let values: Vec<f32> = (0..5_000_000u64)
        .map(|i| ((i * 7919 % 10_007) as f32 - 5_000.0) * 1e-4)
        .collect();
    let bytes = Bytes(bytemuck::cast_slice(&values).into());
    let once = summarize::<dyn View>(&bytes, true, &|_| {}).unwrap();
    // What one thread does, by hand.
    let spans = Spans::of::<dyn View>(&bytes);
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

fn wide(values: &[f64]) -> Summary {
    let bytes = Bytes(bytemuck::cast_slice(values).into());
    let wide = Wide::of(std::sync::Arc::new(bytes), Dtype::F64).unwrap();
    summarize(&wide, true, &|_| {}).unwrap()
}

#[track_caller]
fn near(found: Option<f64>, wanted: f64) {
    let found = found.unwrap();
    assert!(
        // The test's sequential sum is less precise than one in lanes.
        (found - wanted).abs() <= 1e-11 * wanted.abs(),
        "{found:e}, not {wanted:e}"
    );
}

/// None of the values is in binary32's range, and none of their squares in binary64's.
#[test]
fn binary64_is_not_seen_through_binary32() {
    let s = wide(&[0.1, 0.2, 1e-50, -1e300]);
    assert_eq!((s.min(), s.max()), (Some(-1e300), Some(0.2)));
    assert_eq!((s.zeros, s.nan, s.inf), (0, 0, 0));
    near(s.mean(), -2.5e299);
    near(s.std(), 1e300 * 3f64.sqrt() / 4.0);
    // A sum that overflows, and squares that vanish.
    let s = wide(&[1.5e308, 1.7e308, f64::INFINITY, 1.6e308]);
    assert_eq!((s.max(), s.inf), (Some(1.7e308), 1));
    near(s.mean(), 1.6e308);
    near(s.std(), 1e307 * (2f64 / 3.0).sqrt());
    let s = wide(&[1e-300, 3e-300, 0.0, f64::NAN]);
    near(s.mean(), 4e-300 / 3.0);
    near(s.std(), 1e-300 * (14f64 / 9.0).sqrt());
    assert_eq!((s.zeros, s.nan), (1, 1));
    let s = wide(&[f64::MAX, f64::MIN, 5e-324]);
    assert_eq!((s.min(), s.max()), (Some(f64::MIN), Some(f64::MAX)));
    near(s.std(), f64::MAX * (2f64 / 3.0).sqrt());
}

/// Neighboring spans with values of very different magnitudes, in either order.
#[test]
fn spans_of_any_magnitude_add_up() {
    let span = SPAN as usize;
    let powers = [0.0, 1e-300, 1.0, 1e300, 1.0, 1e-300, 0.0];
    for powers in [&powers[..4], &powers[3..], &powers] {
        let values: Vec<f64> = powers
            .iter()
            .flat_map(|p| (0..span).map(move |i| p * (1 + i % 3) as f64))
            .collect();
        let s = wide(&values);
        let n = values.len() as f64;
        let unit = s.max().unwrap();
        let mean = values.iter().map(|v| v / unit).sum::<f64>() / n;
        let squares = values
            .iter()
            .map(|v| (v / unit - mean).powi(2))
            .sum::<f64>();
        near(s.mean(), mean * unit);
        near(s.std(), (squares / n).sqrt() * unit);
        let counts = s.histogram.as_ref().unwrap().resample(s.min, s.max, 16);
        assert!((counts.iter().sum::<f64>() - n).abs() < 1e-6, "{counts:?}");
    }
}

proptest! {
    #[test]
    fn any_binary64(values in prop::collection::vec(any::<f64>(), 1..200)) {
        let s = wide(&values);
        let finite = || values.iter().copied().filter(|v| v.is_finite());
        prop_assert_eq!(s.min(), finite().reduce(f64::min));
        prop_assert_eq!(s.max(), finite().reduce(f64::max));
        prop_assert_eq!(s.finite(), finite().count() as u64);
        prop_assert!(s.mean().is_none_or(|m| s.min <= m && m <= s.max));
        prop_assert!(s.std().is_none_or(|d| d.is_finite() && d >= 0.0));
        let counts = s.histogram.unwrap().resample(s.min, s.max, 16);
        prop_assert!((counts.iter().sum::<f64>() - finite().count() as f64).abs() < 1e-6);
    }
}
