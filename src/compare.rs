//! How far apart two tensors of the same shape are, in one pass over both.
//!
//! Positions where both are NaN, or both the same infinity, are equal. Distances are over positions
//! where both are finite; other differences are only counted. Work is split and merged as in
//! [`crate::statistics`], so the result is the same on any number of threads.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::Result;
use crate::parallel;
use crate::simd::for_each_cpu;
use crate::statistics::{Spans, Value, Values};
use crate::view::View;

/// How far b is from a.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Distance {
    /// Positions where both are finite.
    pub finite: u64,
    /// Positions that differ and where at least one value is not finite.
    pub odd: u64,
    /// The greatest |a - b|.
    max_abs: f64,
    /// The greatest |a - b| / |a| where a ≠ 0.
    max_rel: f64,
    sums: Sums,
}

/// Σab, Σa², Σb², Σ(a-b)².
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Sums {
    ab: f64,
    aa: f64,
    bb: f64,
    dd: f64,
}

impl Distance {
    /// The distance of two slices of the same length.
    pub fn of<T: Value>(a: &[T], b: &[T]) -> Distance {
        let all = pairs(a, b);
        // A sum of squares of binary32 numbers is finite if, and only if, all of them are.
        if all.sums.aa.is_finite() && all.sums.bb.is_finite() && all.sums.dd.is_finite() {
            return all;
        }
        let (mut fa, mut fb, mut odd) = (Vec::new(), Vec::new(), 0);
        for (&a, &b) in a.iter().zip(b) {
            let (a, b): (f64, f64) = (a.into(), b.into());
            if a.is_finite() && b.is_finite() {
                fa.push(a);
                fb.push(b);
            } else if a != b && !(a.is_nan() && b.is_nan()) {
                odd += 1;
            }
        }
        Distance {
            odd,
            ..pairs(&fa, &fb)
        }
    }

    /// Adds the distance over further positions.
    pub fn merge(&mut self, other: &Distance) {
        self.finite += other.finite;
        self.odd += other.odd;
        self.max_abs = self.max_abs.max(other.max_abs);
        self.max_rel = self.max_rel.max(other.max_rel);
        self.sums.ab += other.sums.ab;
        self.sums.aa += other.sums.aa;
        self.sums.bb += other.sums.bb;
        self.sums.dd += other.sums.dd;
    }

    /// Whether any value differs.
    pub fn differs(&self) -> bool {
        self.odd > 0 || self.max_abs > 0.0
    }

    /// max |a - b|; `None` if there is no position where both are finite.
    pub fn max_abs(&self) -> Option<f64> {
        (self.finite > 0).then_some(self.max_abs)
    }

    /// max |a - b| / |a| where a ≠ 0; `None` if there is no such position.
    pub fn max_rel(&self) -> Option<f64> {
        (self.sums.aa > 0.0).then_some(self.max_rel)
    }

    /// The cosine of the angle between a and b as vectors; `None` if either is all zero.
    pub fn cosine(&self) -> Option<f64> {
        let Sums { ab, aa, bb, .. } = self.sums;
        // The root of the product is exact if a equals b, but the product can leave binary64's
        // range.
        let product = aa * bb;
        let norms = match product.is_normal() {
            true => product.sqrt(),
            false => aa.sqrt() * bb.sqrt(),
        };
        let cosine = ab / norms;
        cosine.is_finite().then(|| cosine.clamp(-1.0, 1.0))
    }

    /// ‖a - b‖ / ‖a‖: how much of a changed. Infinite if a is all zero, or if NaN or Inf values
    /// differ.
    pub fn relative(&self) -> f64 {
        match (self.odd, self.sums.dd > 0.0) {
            (0, false) => 0.0,
            (0, true) => (self.sums.dd / self.sums.aa).sqrt(),
            _ => f64::INFINITY,
        }
    }
}

/// As in [`crate::statistics`]: independent accumulators, for vector registers.
const LANES: usize = 8;

for_each_cpu! {
    fn pairs<T: Value>(a: &[T], b: &[T]) -> Distance {
        let mut sums = [Sums::default(); LANES];
        let (mut max_abs, mut max_rel) = ([0f64; LANES], [0f64; LANES]);
        let mut take = |lane: usize, a: T, b: T| {
            let (a, b): (f64, f64) = (a.into(), b.into());
            let d = (a - b).abs();
            let rel = if a == 0.0 { 0.0 } else { d / a.abs() };
            let s = &mut sums[lane];
            s.ab += a * b;
            s.aa += a * a;
            s.bb += b * b;
            s.dd += d * d;
            max_abs[lane] = if d > max_abs[lane] { d } else { max_abs[lane] };
            max_rel[lane] = if rel > max_rel[lane] {
                rel
            } else {
                max_rel[lane]
            };
        };
        let ((whole_a, rest_a), (whole_b, rest_b)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        for (a, b) in whole_a.iter().zip(whole_b) {
            for lane in 0..LANES {
                take(lane, a[lane], b[lane]);
            }
        }
        for (lane, (&a, &b)) in rest_a.iter().zip(rest_b).enumerate() {
            take(lane, a, b);
        }
        let mut all = Distance {
            finite: a.len() as u64,
            ..Distance::default()
        };
        for lane in 0..LANES {
            all.merge(&Distance {
                max_abs: max_abs[lane],
                max_rel: max_rel[lane],
                sums: sums[lane],
                ..Distance::default()
            });
        }
        all
    }
}

/// Compares two sets of the same number of values. `progress` receives the number of values done
/// since the last call.
///
/// # Errors
/// As [`Values::read`].
pub fn values<V: Values + ?Sized>(
    a: &V,
    b: &V,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Distance> {
    let spans = Spans::new(a.numel(), a.grain().max(b.grain()));
    let parts = parallel::ordered(spans.chunks(), |chunk| {
        let mut sum = Distance::default();
        let (mut va, mut vb) = (Vec::new(), Vec::new());
        for (first, len) in spans.of_chunk(chunk) {
            a.read(first, len, &mut va)?;
            b.read(first, len, &mut vb)?;
            sum.merge(&Distance::of(&va, &vb));
            progress(len);
        }
        Ok(sum)
    })?;
    let mut all = Distance::default();
    for part in &parts {
        all.merge(part);
    }
    Ok(all)
}

/// Whether two views of equal length hold the same bytes. Stops at the first difference. `progress`
/// receives the number of bytes done since the last call.
///
/// # Errors
/// As [`View::read_at`].
pub fn same_bytes(a: &dyn View, b: &dyn View, progress: &(dyn Fn(u64) + Sync)) -> Result<bool> {
    const PIECE: u64 = 1 << 20;
    let spans = Spans::new(a.len(), PIECE);
    let differ = AtomicBool::new(false);
    parallel::ordered(spans.chunks(), |chunk| {
        let (mut va, mut vb) = (Vec::new(), Vec::new());
        for (first, len) in spans.of_chunk(chunk) {
            if differ.load(Ordering::Relaxed) {
                break;
            }
            va.resize(len as usize, 0);
            vb.resize(len as usize, 0);
            a.read_at(first, &mut va)?;
            b.read_at(first, &mut vb)?;
            if va != vb {
                differ.store(true, Ordering::Relaxed);
            }
            progress(len);
        }
        Ok(())
    })?;
    Ok(!differ.into_inner())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    use proptest::prelude::*;

    use super::*;
    use crate::dtype::Dtype;
    use crate::statistics::Wide;
    use crate::view::{Bytes, SharedView};

    fn view(values: &[f32]) -> SharedView {
        Arc::new(Bytes(bytemuck::cast_slice(values).into()))
    }

    fn any_float() -> impl Strategy<Value = f32> {
        prop_oneof![
            8 => -1.0f32..1.0,
            1 => Just(0.0),
            1 => prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX]),
        ]
    }

    proptest! {
        /// Compares with the definitions, one position at a time.
        #[test]
        fn as_the_definitions_say(ab in prop::collection::vec((any_float(), any_float()), 0..600)) {
            let (a, b): (Vec<f32>, Vec<f32>) = ab.iter().copied().unzip();
            let got = values(&*view(&a), &*view(&b), &|_| {}).unwrap();
            let finite: Vec<(f64, f64)> = ab
                .iter()
                .filter(|(a, b)| a.is_finite() && b.is_finite())
                .map(|&(a, b)| (a.into(), b.into()))
                .collect();
            let odd = ab
                .iter()
                .filter(|(a, b)| !a.is_finite() || !b.is_finite())
                .filter(|(a, b)| a != b && !(a.is_nan() && b.is_nan()))
                .count();
            prop_assert_eq!((got.finite, got.odd), (finite.len() as u64, odd as u64));
            let max = |f: &dyn Fn(&(f64, f64)) -> Option<f64>| {
                finite.iter().filter_map(f).reduce(f64::max)
            };
            prop_assert_eq!(got.max_abs(), max(&|(a, b)| Some((a - b).abs())));
            prop_assert_eq!(
                got.max_rel(),
                max(&|(a, b)| (*a != 0.0).then(|| (a - b).abs() / a.abs()))
            );
            let sum = |f: &dyn Fn(&(f64, f64)) -> f64| finite.iter().map(f).sum::<f64>();
            let norms = sum(&|(a, _)| a * a).sqrt() * sum(&|(_, b)| b * b).sqrt();
            match got.cosine() {
                Some(c) => prop_assert!((c - sum(&|(a, b)| a * b) / norms).abs() < 1e-12),
                None => prop_assert_eq!(norms, 0.0),
            }
        }
    }

    #[test]
    fn equal_is_equal_whatever_it_is() {
        let a = [1.0, f32::NAN, f32::INFINITY, 0.0, -2.0];
        let b = [1.0, -f32::NAN, f32::INFINITY, -0.0, -2.0];
        let d = Distance::of(&a, &b);
        assert!(!d.differs());
        assert_eq!((d.relative(), d.cosine()), (0.0, Some(1.0)));
        assert!(Distance::of(&[f32::NAN], &[1.0]).differs());
        assert!(Distance::of(&[f32::INFINITY], &[f32::NEG_INFINITY]).differs());
        assert_eq!(Distance::of(&[f32::NAN], &[1.0f32]).max_abs(), None);
        assert_eq!(Distance::of(&[0.0f32], &[1.0]).max_rel(), None);
    }

    #[test]
    fn bytes_are_compared_to_the_last() {
        let n = 5_000_003;
        let a = Bytes(vec![7u8; n].into());
        for at in [0, 1 << 20, n - 1] {
            let mut other = vec![7u8; n];
            other[at] = 8;
            assert!(!same_bytes(&a, &Bytes(other.into()), &|_| {}).unwrap());
        }
        let (done, most) = (AtomicU64::new(0), AtomicU64::new(0));
        let step = |n| {
            done.fetch_add(n, Ordering::Relaxed);
            most.fetch_max(n, Ordering::Relaxed);
        };
        assert!(same_bytes(&a, &a.clone(), &step).unwrap());
        // Progress covered all of it, in more than one step.
        assert_eq!(done.into_inner(), n as u64);
        assert!(most.into_inner() < n as u64 / 2);
    }

    #[test]
    fn binary64_keeps_what_binary32_would_lose() {
        let wide = |v: f64| {
            let bytes = Bytes(v.to_le_bytes().as_slice().into());
            Wide::of(Arc::new(bytes), Dtype::F64).unwrap()
        };
        let d = values(&wide(1.0), &wide(1.0 + 1e-12), &|_| {}).unwrap();
        assert!(d.differs() && d.max_abs().unwrap() < 2e-12);
    }
}
