//! Values: the worked examples, and the formulas, element by element.

use proptest::prelude::*;
use serde_json::json;

use super::{config, shape};
use crate::dtype::Dtype;
use crate::dtype::decode::{F4, F6_E2M3, F8_E4M3, F8_E8M0, decode};
use crate::quant::compressed_tensors::decode::Packing;
use crate::quant::testing::{Stored, TestModel, assert_values, random, random_bytes, stored};

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|w| w.to_le_bytes()).collect()
}

fn f32s(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[test]
fn four_bits_in_a_word() {
    let model = TestModel::safetensors(
        &[
            stored(
                "a.weight_packed",
                Dtype::I32,
                &[1, 1],
                [0x98, 0xBA, 0xDC, 0xFE],
            ),
            stored("a.weight_scale", Dtype::F32, &[1], f32s(&[1.0])),
            shape(1, 8),
        ],
        json!(null),
    );
    let layer = model.layer("a.weight");
    assert_eq!((layer.bits, layer.group_size), (4, None));
    assert_eq!(model.values("a.weight"), [0., 1., 2., 3., 4., 5., 6., 7.]);
}

#[test]
fn three_bits_dense_and_padded() {
    let three = |packed: &[u32], k: usize| {
        let model = TestModel::safetensors(
            &[
                stored(
                    "a.weight_packed",
                    Dtype::I32,
                    &[1, packed.len() as u64],
                    words(packed),
                ),
                stored("a.weight_scale", Dtype::BF16, &[1, 1], [0x80, 0x3F]),
                shape(1, k as i64),
            ],
            config(
                "pack-quantized",
                json!({"num_bits": 3, "strategy": "channel"}),
            ),
        );
        model.values("a.weight")
    };
    let want: Vec<f32> = (0..32).map(|i| (i % 8) as f32 - 4.0).collect();
    // Twelve values take two words either way, so they are taken as dense.
    assert_eq!(three(&[0x88FA_C688, 0x6], 12), want[..12]);
    // At 32 values the number of words decides: three dense, four padded.
    let dense = [0x88FA_C688, 0xC688_FAC6, 0xFAC6_88FA];
    assert_eq!(three(&dense, 32), want);
    let pack = |codes: &[u32]| codes.iter().rev().fold(0, |w, c| w << 3 | c);
    let codes: Vec<u32> = (0..32).map(|i| i % 8).collect();
    let padded: Vec<u32> = codes.chunks(10).map(pack).collect();
    assert_eq!(padded[0], 0x08FA_C688);
    assert_eq!(three(&padded, 32), want);
}

#[test]
fn nvfp4_divides_by_the_global_scale() {
    let mut packed = vec![0x55; 8];
    packed[1] = 0x8F;
    let model = TestModel::safetensors(
        &[
            stored("a.weight_packed", Dtype::U8, &[1, 8], packed),
            stored("a.weight_scale", Dtype::F8_E4M3, &[1, 1], [0x22]),
            stored("a.weight_global_scale", Dtype::F32, &[1], f32s(&[10000.0])),
        ],
        json!(null),
    );
    let bits: Vec<u32> = model
        .values("a.weight")
        .iter()
        .map(|v| v.to_bits())
        .collect();
    assert_eq!(bits[0], 0x3844_9BA6);
    // The low nibble is the even column: F (-6), then 8 (-0).
    let s = 0.15625f32 / 10000.0;
    assert_eq!(bits[2..4], [(-6.0 * s).to_bits(), 0x8000_0000]);
}

#[test]
fn mx_scales_are_powers_of_two() {
    let mx = |packed: Vec<u8>, exponent: u8, dtype| {
        let model = TestModel::safetensors(
            &[
                stored(
                    "a.weight_packed",
                    Dtype::U8,
                    &[1, packed.len() as u64],
                    packed,
                ),
                stored("a.weight_scale", dtype, &[1, 1], [exponent]),
            ],
            json!(null),
        );
        assert!(model.layer("a.weight").exact);
        model.values("a.weight")
    };
    let four = mx([0x10, 0x32].repeat(8), 126, Dtype::U8);
    assert_eq!(four[..4], [0.0, 0.25, 0.5, 0.75]);
    let six = mx([0x81, 0x10, 0x7E].repeat(8), 128, Dtype::F8_E8M0);
    assert_eq!(six[..4], [0.25, 0.5, -0.25, 15.0]);
    // Exponent 0 is 2^-127, a subnormal; 255 is NaN.
    let least = mx([0x10, 0x32].repeat(8), 0, Dtype::U8);
    assert_eq!(least[1].to_bits(), 0x0020_0000);
    assert!(mx(vec![0; 16], 255, Dtype::U8)[0].is_nan());
}

/// Writes codes into words bit by bit, independently of the decoder.
fn pack(codes: &[u32], bits: u32, packing: Packing) -> Vec<u32> {
    let place = |i: usize| match packing {
        Packing::Dense => i * bits as usize,
        Packing::Padded => i / (32 / bits as usize) * 32 + i % (32 / bits as usize) * bits as usize,
    };
    let end = codes
        .len()
        .checked_sub(1)
        .map_or(0, |i| place(i) + bits as usize);
    let mut out = vec![0u32; end.div_ceil(32)];
    for (i, code) in codes.iter().enumerate() {
        for b in 0..bits as usize {
            let at = place(i) + b;
            out[at / 32] |= (code >> b & 1) << (at % 32);
        }
    }
    out
}

fn widened(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; bytes.len() * 8 / dtype.bits() as usize];
    decode(dtype, bytes, 0, &mut out);
    out
}

/// A layer of integers, drawn from a seed.
struct Case {
    n: usize,
    k: usize,
    bits: u32,
    packing: Packing,
    /// Scales of a row; 0 for a single scale.
    groups: usize,
    dtype: Dtype,
    zeros: u64,
    order: u64,
}

impl Case {
    fn draw(seed: &mut u64) -> Case {
        let mut below = |n: u64| random(seed) % n;
        let bits = below(8) as u32 + 1;
        let groups = [0, 1, 1 + below(9)][below(3) as usize] as usize;
        let packing = match below(3) {
            0 => Packing::Padded,
            _ => Packing::Dense,
        };
        let group = [1 + below(40), 16, 32, 128][below(4) as usize] as usize;
        Case {
            n: 1 + below(70) as usize,
            k: group * groups.max(1),
            bits,
            packing,
            groups,
            dtype: [Dtype::BF16, Dtype::F16, Dtype::F32][below(3) as usize],
            zeros: below(3),
            order: below(4),
        }
    }

    /// The tensors, and every value by the formula.
    fn write(&self, seed: &mut u64) -> (Vec<Stored>, Vec<f32>) {
        let (n, k, groups) = (self.n, self.k, self.groups.max(1));
        let offset = 1i32 << (self.bits - 1);
        let mut codes = |count: usize| -> Vec<u32> {
            (0..count)
                .map(|_| random(seed) as u32 & ((1 << self.bits) - 1))
                .collect()
        };
        let q = codes(n * k);
        let packed: Vec<u32> = q
            .chunks(k)
            .flat_map(|row| pack(row, self.bits, self.packing))
            .collect();
        let scale_count = if self.groups == 0 { 1 } else { n * groups };
        let z = codes(scale_count);
        let scale_shape: &[u64] = match self.groups {
            0 => &[1],
            _ => &[n as u64, groups as u64],
        };
        let scales = random_bytes(seed, scale_count * self.dtype.bits() as usize / 8);
        let width = (packed.len() / n) as u64;
        let mut tensors = vec![
            stored(
                "a.weight_packed",
                Dtype::I32,
                &[n as u64, width],
                words(&packed),
            ),
            stored("a.weight_scale", self.dtype, scale_shape, scales.clone()),
            shape(n as i64, k as i64),
        ];
        let as_bytes = self.zeros == 2 || self.groups == 0;
        if self.zeros > 0 && as_bytes {
            let bytes: Vec<u8> = z.iter().map(|&z| (z as i32 - offset) as u8).collect();
            tensors.push(stored("a.weight_zero_point", Dtype::I8, scale_shape, bytes));
        } else if self.zeros > 0 {
            let column = |g: usize| -> Vec<u32> { (0..n).map(|r| z[r * groups + g]).collect() };
            let columns: Vec<Vec<u32>> = (0..groups)
                .map(|g| pack(&column(g), self.bits, self.packing))
                .collect();
            let rows = columns[0].len();
            let by_row: Vec<u32> = (0..rows)
                .flat_map(|r| columns.iter().map(move |c| c[r]))
                .collect();
            let shape = [rows as u64, groups as u64];
            tensors.push(stored(
                "a.weight_zero_point",
                Dtype::I32,
                &shape,
                words(&by_row),
            ));
        }
        let mut order: Vec<i32> = (0..k)
            .map(|_| (random(seed) % groups as u64) as i32)
            .collect();
        if self.order == 1 {
            let at = random(seed) as usize % k;
            order[at] = -1;
        }
        if self.order < 2 {
            let bytes: Vec<u8> = order.iter().flat_map(|g| g.to_le_bytes()).collect();
            tensors.push(stored("a.weight_g_idx", Dtype::I32, &[k as u64], bytes));
        }
        let scales = widened(self.dtype, &scales);
        let value = |i: usize| {
            let (row, column) = (i / k, i % k);
            let group = match self.order {
                0 => order[column] as usize,
                _ => column / (k / groups),
            };
            let at = if self.groups == 0 {
                0
            } else {
                row * groups + group
            };
            let zero = if self.zeros > 0 { z[at] as i32 } else { offset };
            (q[i] as i32 - zero) as f32 * scales[at]
        };
        (tensors, (0..n * k).map(value).collect())
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn integers_are_the_formula_at_every_offset(mut seed: u64) {
        let case = Case::draw(&mut seed);
        let (tensors, want) = case.write(&mut seed);
        let weights = json!({"num_bits": case.bits, "symmetric": case.zeros == 0,
            "group_size": if case.groups > 1 { json!(case.k / case.groups) } else { json!(null) }});
        let model = TestModel::safetensors(&tensors, config("pack-quantized", weights));
        // If both packings have the same number of words, it is dense.
        let layer = model.layer("a.weight");
        prop_assert_eq!(&*layer.shape, &[case.n as u64, case.k as u64][..]);
        if case.packing == Packing::Padded && !layer.compatible.contains("padded") {
            return Ok(());
        }
        assert_values(&*model.view("a.weight"), &want, seed);
    }

    #[test]
    fn small_floats_are_the_formula_at_every_offset(mut seed: u64) {
        let kind = random(&mut seed) % 3;
        let (bits, group) = [(4, 16), (4, 32), (6, 32)][kind as usize];
        let n = 1 + random(&mut seed) as usize % 40;
        let groups = 1 + random(&mut seed) as usize % 12;
        let k = groups * group;
        let packed = random_bytes(&mut seed, n * k * bits / 8);
        let scales = random_bytes(&mut seed, n * groups);
        let global = f32::from_bits(random(&mut seed) as u32);
        let nvfp4 = kind == 0;
        let mut tensors = vec![
            stored("a.weight_packed", Dtype::U8, &[n as u64, (k * bits / 8) as u64], packed.clone()),
            stored(
                "a.weight_scale",
                if nvfp4 { Dtype::F8_E4M3 } else { Dtype::U8 },
                &[n as u64, groups as u64],
                scales.clone(),
            ),
        ];
        if nvfp4 {
            tensors.push(stored("a.weight_global_scale", Dtype::F32, &[1], f32s(&[global])));
        }
        let code = |i: usize| {
            let bit = |b: usize| usize::from(packed[(i * bits + b) / 8] >> ((i * bits + b) % 8) & 1);
            (0..bits).map(|b| bit(b) << b).sum::<usize>()
        };
        let want: Vec<f32> = (0..n * k)
            .map(|i| {
                let scale = usize::from(scales[i / group]);
                let value = if bits == 4 { F4[code(i)] } else { F6_E2M3[code(i)] };
                value * if nvfp4 { F8_E4M3[scale] / global } else { F8_E8M0[scale] }
            })
            .collect();
        let model = TestModel::safetensors(&tensors, json!(null));
        prop_assert_eq!(model.layer("a.weight").bits as usize, bits);
        assert_values(&*model.view("a.weight"), &want, seed);
    }
}

#[test]
fn rows_longer_than_a_block_and_many_short_ones() {
    let mut seed = 7;
    for (n, k, groups) in [(2, 200_000, 100), (9000, 24, 3), (3, 65_536, 512)] {
        for (zeros, order) in [(0, 9), (1, 9), (1, 0)] {
            let case = Case {
                n,
                k,
                bits: 4,
                packing: Packing::Dense,
                groups,
                dtype: Dtype::BF16,
                zeros,
                order,
            };
            let (tensors, want) = case.write(&mut seed);
            let model = TestModel::safetensors(&tensors, json!(null));
            assert_values(&*model.view("a.weight"), &want, seed);
        }
    }
}
