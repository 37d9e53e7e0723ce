//! Compares the kernel with a model that computes every element by itself, from the formula.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::dtype::Dtype;
use crate::dtype::decode::{F4, decode};
use crate::quant::testing::{Stored, TestModel, assert_values, random, random_bytes, stored};

/// The element at `index` of a tensor's bytes. Elements are whole bytes.
fn element(dtype: Dtype, bytes: &[u8], index: u64) -> f32 {
    let size = dtype.bits() as usize / 8;
    let mut out = [0.0];
    decode(dtype, &bytes[index as usize * size..][..size], 0, &mut out);
    out[0]
}

/// A random matrix or stack, and the layout of its scales.
#[derive(Debug, Clone)]
struct Case {
    experts: Option<u64>,
    n: u64,
    k: u64,
    block: [u64; 2],
    form: Form,
    code: Dtype,
    scale: Dtype,
    zeros: bool,
    seed: u64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    Scalar,
    Rows,
    Column,
    Declared,
    Usual,
    Spaced,
}

impl Case {
    fn block(&self) -> [u64; 2] {
        match self.form {
            Form::Scalar => [u64::MAX, self.k],
            Form::Rows | Form::Column => [1, self.k],
            Form::Declared => self.block,
            Form::Usual | Form::Spaced => [128, 128],
        }
    }

    /// Scales of one matrix: rows and columns.
    fn grid(&self) -> [u64; 2] {
        let [bm, bn] = self.block();
        [self.n.div_ceil(bm).max(1), self.k.div_ceil(bn)]
    }

    fn scale_shape(&self) -> Vec<u64> {
        let [r, c] = self.grid();
        let one = match self.form {
            Form::Scalar => return vec![],
            Form::Rows if self.experts.is_none() => vec![r],
            Form::Spaced if self.experts.is_none() => vec![r, 1, c, 1],
            _ => vec![r, c],
        };
        self.experts.into_iter().chain(one).collect()
    }

    fn matrices(&self) -> u64 {
        self.experts.unwrap_or(1)
    }

    fn scale_index(&self, e: u64, i: u64, j: u64) -> u64 {
        if self.form == Form::Scalar {
            return 0;
        }
        let ([bm, bn], [r, c]) = (self.block(), self.grid());
        e * r * c + i / bm * c + j / bn
    }

    fn tensors(&self) -> Vec<Stored> {
        let mut seed = self.seed;
        let weight = [self.n, self.k];
        let weight: Vec<u64> = self.experts.into_iter().chain(weight).collect();
        let scale = self.scale_shape();
        let codes = random_bytes(&mut seed, weight.iter().product::<u64>() as usize);
        let count = scale.iter().product::<u64>() as usize;
        let scales = random_bytes(&mut seed, count * self.scale.bits() as usize / 8);
        let zeros = random_bytes(&mut seed, count);
        let mut tensors = vec![
            stored("x.weight", self.code, &weight, codes),
            stored("x.weight_scale", self.scale, &scale, scales),
        ];
        if self.zeros {
            tensors.push(stored("x.weight_zero_point", Dtype::I8, &scale, zeros));
        }
        tensors
    }

    fn config(&self) -> Value {
        let block = (self.form == Form::Declared).then_some(self.block);
        json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": block}})
    }

    fn want(&self, tensors: &[Stored]) -> Vec<f32> {
        let scale = match self.scale {
            Dtype::U8 => Dtype::F8_E8M0,
            other => other,
        };
        let mut want = Vec::new();
        for e in 0..self.matrices() {
            for i in 0..self.n {
                for j in 0..self.k {
                    let at = (e * self.n + i) * self.k + j;
                    let s = self.scale_index(e, i, j);
                    let mut value = element(self.code, &tensors[0].bytes, at);
                    if self.zeros {
                        value -= element(Dtype::I8, &tensors[2].bytes, s);
                    }
                    want.push(value * element(scale, &tensors[1].bytes, s));
                }
            }
        }
        want
    }
}

fn case() -> impl Strategy<Value = Case> {
    let form = prop::sample::select(vec![
        Form::Scalar,
        Form::Rows,
        Form::Column,
        Form::Declared,
        Form::Usual,
        Form::Spaced,
    ]);
    let size = 2u64..300;
    let shape = (prop::option::of(1u64..4), size.clone(), size);
    let block = [2u64..200, 1u64..200];
    (shape, block, form, 0usize..30, any::<u64>()).prop_map(
        |((experts, n, k), block, form, dtypes, seed)| {
            let codes = [
                Dtype::F8_E4M3,
                Dtype::F8_E5M2,
                Dtype::F8_E4M3FNUZ,
                Dtype::F8_E5M2FNUZ,
                Dtype::I8,
            ];
            let code = codes[dtypes % 5];
            let floats = [Dtype::F32, Dtype::BF16, Dtype::F16, Dtype::F32];
            let fp8 = [Dtype::U8, Dtype::F8_E8M0, Dtype::BF16, Dtype::F32];
            let int8 = code == Dtype::I8;
            let scale = if int8 { floats } else { fp8 }[dtypes % 4];
            let zeros = int8 && dtypes % 2 == 0;
            Case {
                experts,
                n,
                k,
                block,
                form,
                code,
                scale,
                zeros,
                seed,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_granularity_is_the_formula(case in case()) {
        let tensors = case.tensors();
        let model = TestModel::safetensors(&tensors, case.config());
        // A stack whose experts have one block each is read as one scale an expert: the same.
        assert_values(&*model.view("x.weight"), &case.want(&tensors), case.seed);
    }

    #[test]
    fn pairs_with_group_scales_are_the_formula(
        experts in prop::option::of(1u64..4),
        n in 1u64..40,
        groups in 1u64..12,
        nvfp4 in any::<bool>(),
        mut seed in any::<u64>(),
    ) {
        let start = seed;
        let group = if nvfp4 { 16 } else { 32 };
        let k = groups * group;
        let lead: Vec<u64> = experts.into_iter().chain([n]).collect();
        let rows = lead.iter().product::<u64>();
        let shape = |cols: u64| [&lead[..], &[cols]].concat();
        let codes = random_bytes(&mut seed, (rows * k / 2) as usize);
        let scales = random_bytes(&mut seed, (rows * groups) as usize);
        let second = f32::from_bits(random(&mut seed) as u32 % 0x7F80_0000);
        let scale = if nvfp4 { Dtype::F8_E4M3 } else { Dtype::U8 };
        let mut tensors = vec![
            stored("x.weight", Dtype::U8, &shape(k / 2), codes.clone()),
            stored("x.weight_scale", scale, &shape(groups), scales.clone()),
        ];
        if nvfp4 {
            let bytes = second.to_le_bytes();
            tensors.push(stored("x.weight_scale_2", Dtype::F32, &[], bytes));
        }
        let mut want = Vec::new();
        for at in 0..rows * k {
            let code = codes[at as usize / 2] >> (4 * (at % 2)) & 15;
            let scale = match nvfp4 {
                true => element(Dtype::F8_E4M3, &scales, at / group) * second,
                false => element(Dtype::F8_E8M0, &scales, at / group),
            };
            want.push(F4[usize::from(code)] * scale);
        }
        let model = TestModel::safetensors(&tensors, Value::Null);
        assert_values(&*model.view("x.weight"), &want, start);
    }
}

/// Rows longer than what is read at a time, so that pieces end within a row and within a block.
#[test]
fn long_rows_are_read_in_pieces() {
    for (n, k, form) in [
        (2, 200_003, Form::Declared),
        (3, 70_000, Form::Rows),
        (70_000, 3, Form::Usual),
        (3, 100_000, Form::Scalar),
    ] {
        let case = Case {
            experts: None,
            n,
            k,
            block: [1, 7],
            form,
            code: Dtype::F8_E4M3,
            scale: Dtype::BF16,
            zeros: false,
            seed: n,
        };
        let tensors = case.tensors();
        let model = TestModel::safetensors(&tensors, case.config());
        assert_values(&*model.view("x.weight"), &case.want(&tensors), 5);
    }
}
