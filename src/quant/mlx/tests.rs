//! Small layers to recognize. The tests are in the modules below.

use crate::dtype::Dtype;
use crate::quant::testing::{Stored, stored};

mod manifest;
mod rules;
mod values;

fn zeros(name: &str, dtype: Dtype, shape: &[u64]) -> Stored {
    let len = dtype.bytes(shape.iter().product()).unwrap();
    stored(name, dtype, shape, vec![0; len as usize])
}

type Kind<'a> = (Dtype, &'a [u64]);

/// `a.weight` with its scales and biases.
fn layer(weight: &[u64], scales: Option<Kind>, biases: Option<Kind>) -> Vec<Stored> {
    let mut all = vec![zeros("a.weight", Dtype::U32, weight)];
    all.extend(scales.map(|(dtype, shape)| zeros("a.scales", dtype, shape)));
    all.extend(biases.map(|(dtype, shape)| zeros("a.biases", dtype, shape)));
    all
}

/// An affine layer of two rows, each of `words` words in `groups` groups.
fn affine(words: u64, groups: u64) -> Vec<Stored> {
    let scales: Kind = (Dtype::BF16, &[2, groups]);
    layer(&[2, words], Some(scales), Some(scales))
}

/// A layer like that with U8 scales and no biases.
fn without_biases(words: u64, groups: u64) -> Vec<Stored> {
    layer(&[2, words], Some((Dtype::U8, &[2, groups])), None)
}
