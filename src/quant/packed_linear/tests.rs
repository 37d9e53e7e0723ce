//! Layers to recognize and decode, and a model that computes every element by itself, according to
//! the formats' own documentation.

use crate::dtype::Dtype;
use crate::dtype::decode::decode;
use crate::quant::testing::{Stored, random, random_bytes, stored};

mod configs;
mod damage;
mod rules;
mod values;

/// Shape and contents of one layer.
#[derive(Debug, Clone)]
struct Sample {
    /// AWQ (4 bits), else GPTQ.
    awq: bool,
    bits: usize,
    /// The config has `gptq_v2`.
    as_is: bool,
    n: usize,
    k: usize,
    groups: usize,
    scale: Dtype,
    /// The group of each input, if it is stored.
    index: Option<Vec<usize>>,
    words: Vec<u32>,
    zeros: Vec<u32>,
    scales: Vec<u8>,
}

impl Sample {
    /// A layer of random bits, NaN and infinite scales included.
    fn random(
        kind: (bool, usize, bool),
        shape: [usize; 3],
        scale: Dtype,
        seed: &mut u64,
    ) -> Sample {
        let (awq, bits, as_is) = kind;
        let [n, k, groups] = shape;
        let mut words = |count: usize| (0..count).map(|_| random(seed) as u32).collect();
        Sample {
            awq,
            bits,
            as_is,
            n,
            k,
            groups,
            scale,
            index: None,
            words: words(n * k * bits / 32),
            zeros: words(groups * n * bits / 32),
            scales: random_bytes(seed, groups * n * scale.bits() as usize / 8),
        }
    }

    /// With act-order: any group for any input.
    fn scattered(mut self, seed: &mut u64) -> Sample {
        let group = |_| random(seed) as usize % self.groups;
        self.index = Some((0..self.k).map(group).collect());
        self
    }

    /// The tensors of layer `l`.
    fn tensors(&self) -> Vec<Stored> {
        let (n, k, groups) = (self.n as u64, self.k as u64, self.groups as u64);
        let packed = n * self.bits as u64 / 32;
        let words = match self.awq {
            true => [k, n / 8],
            false => [k * self.bits as u64 / 32, n],
        };
        let le = |words: &[u32]| {
            words
                .iter()
                .flat_map(|w| w.to_le_bytes())
                .collect::<Vec<_>>()
        };
        let mut all = vec![
            stored("l.qweight", Dtype::I32, &words, le(&self.words)),
            stored("l.qzeros", Dtype::I32, &[groups, packed], le(&self.zeros)),
            stored("l.scales", self.scale, &[groups, n], self.scales.clone()),
        ];
        if let Some(index) = &self.index {
            let index: Vec<u32> = index.iter().map(|&g| g as u32).collect();
            all.push(stored("l.g_idx", Dtype::I32, &[k], le(&index)));
        }
        all
    }

    /// Value i of every `stride`-th word from `first` on.
    fn field(&self, words: &[u32], first: usize, stride: usize, i: usize) -> u32 {
        let word = |w: usize| words[first + w * stride];
        if self.bits != 3 {
            let per = 32 / self.bits;
            return word(i / per) >> (self.bits * (i % per)) & ((1 << self.bits) - 1);
        }
        let (base, i) = (i / 32 * 3, i % 32);
        match i {
            0..=9 => word(base) >> (3 * i) & 7,
            10 => word(base) >> 30 & 3 | (word(base + 1) & 1) << 2,
            11..=20 => word(base + 1) >> (3 * (i - 11) + 1) & 7,
            21 => word(base + 1) >> 31 & 1 | (word(base + 2) & 3) << 1,
            _ => word(base + 2) >> (3 * (i - 22) + 2) & 7,
        }
    }

    /// Columns 0 to 7 of a word of AWQ are at these nibbles.
    fn nibble(word: u32, column: usize) -> u32 {
        word >> (4 * [0, 4, 1, 5, 2, 6, 3, 7][column % 8]) & 15
    }

    fn code(&self, n: usize, k: usize) -> u32 {
        match self.awq {
            true => Sample::nibble(self.words[k * self.n / 8 + n / 8], n),
            false => self.field(&self.words, n, self.n, k),
        }
    }

    fn zero(&self, group: usize, n: usize) -> u32 {
        let width = self.n * self.bits / 32;
        let first = group * width;
        if self.awq {
            return Sample::nibble(self.zeros[first + n / 8], n);
        }
        if self.as_is {
            return self.field(&self.zeros, first, 1, n);
        }
        if self.bits == 3 {
            return (self.field(&self.zeros, first, 1, n) + 1) % 8;
        }
        let ones = match self.bits {
            2 => 0x5555_5555,
            4 => 0x1111_1111,
            _ => 0x0101_0101u32,
        };
        let row: Vec<u32> = self.zeros[first..first + width]
            .iter()
            .map(|word| word.wrapping_add(ones))
            .collect();
        self.field(&row, 0, 1, n)
    }

    /// Every value, with groups of `size` unless there is a `g_idx`.
    fn values(&self, size: usize) -> Vec<f32> {
        let mut scales = vec![0f32; self.groups * self.n];
        decode(self.scale, &self.scales, 0, &mut scales);
        let at = |n: usize, k: usize| {
            let group = match &self.index {
                Some(index) => index[k],
                None => k / size,
            };
            let zero = self.zero(group, n);
            (self.code(n, k) as i32 - zero as i32) as f32 * scales[group * self.n + n]
        };
        (0..self.n)
            .flat_map(|n| (0..self.k).map(move |k| (n, k)))
            .map(|(n, k)| at(n, k))
            .collect()
    }
}
