//! Worked examples, every kind of damage, and values compared with a model that computes each one
//! by itself.

use std::sync::Arc;

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::catalog::{Catalog, OpenOptions};
use crate::dtype::Dtype;
use crate::layout::{Layout, Node, TensorFile, Top};
use crate::model::{Model, ModelOptions};
use crate::quant::testing::{Stored, TestModel, assert_values, random, random_bytes, same, stored};
use crate::reason::Missing;
use crate::view::read_all;

mod damage;

/// NF4's values, as bitsandbytes writes them.
const NF4: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

fn floats(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

fn f32s(end: &str, values: &[f32]) -> Stored {
    let name = format!("m.weight.{end}");
    stored(&name, Dtype::F32, &[values.len() as u64], floats(values))
}

fn bytes(end: &str, values: &[u8]) -> Stored {
    let name = format!("m.weight.{end}");
    stored(&name, Dtype::U8, &[values.len() as u64], values)
}

fn state(kind: &str, json: Value) -> Stored {
    let end = format!("quant_state.bitsandbytes__{kind}");
    bytes(&end, json.to_string().as_bytes())
}

/// A 4-bit layer: its statistics and tensors.
struct FourBit {
    codes: Vec<u8>,
    shape: Vec<u64>,
    block: u64,
    map: [f32; 16],
    absmax: Vec<f32>,
    nested: Option<Nested>,
}

/// Statistics that are themselves quantized.
struct Nested {
    codes: Vec<u8>,
    map: Vec<f32>,
    absmax: Vec<f32>,
    block: u64,
    offset: f64,
}

impl FourBit {
    fn tensors(&self) -> Vec<Stored> {
        let mut json = json!({"quant_type": "nf4", "blocksize": self.block, "dtype": "bfloat16",
            "shape": self.shape});
        let mut tensors = vec![
            stored(
                "m.weight",
                Dtype::U8,
                &[self.codes.len() as u64, 1],
                &*self.codes,
            ),
            f32s("quant_map", &self.map),
        ];
        match &self.nested {
            None => tensors.push(f32s("absmax", &self.absmax)),
            Some(nested) => {
                tensors.push(bytes("absmax", &nested.codes));
                tensors.push(f32s("nested_quant_map", &nested.map));
                tensors.push(f32s("nested_absmax", &nested.absmax));
                json["nested_blocksize"] = json!(nested.block);
                json["nested_dtype"] = json!("float32");
                json["nested_offset"] = json!(nested.offset);
            }
        }
        tensors.push(state("nf4", json));
        tensors
    }

    fn want(&self) -> Vec<f32> {
        let value = |e: u64| {
            let byte = self.codes[e as usize / 2];
            let nibble = if e.is_multiple_of(2) {
                byte >> 4
            } else {
                byte & 15
            };
            let b = e / self.block;
            let a = match &self.nested {
                None => self.absmax[b as usize],
                Some(n) => {
                    let code = usize::from(n.codes[b as usize]);
                    n.map[code] * n.absmax[(b / n.block) as usize] + n.offset as f32
                }
            };
            self.map[usize::from(nibble)] * a
        };
        (0..self.shape.iter().product()).map(value).collect()
    }
}

#[test]
fn the_worked_examples_come_out() {
    let four = FourBit {
        codes: vec![0x1F],
        shape: vec![1, 2],
        block: 64,
        map: NF4,
        absmax: vec![0.3],
        nested: None,
    };
    let model = TestModel::safetensors(&four.tensors(), Value::Null);
    let values = model.values("m.weight");
    assert_eq!(values[0].to_bits(), 0xBE55_DED5);
    assert_eq!(values[1], 0.3);
    // The statistic itself: map[1.0] times it.
    let mut map = vec![0.0; 256];
    map[9] = 0.5;
    let nested = FourBit {
        codes: vec![0xFF],
        nested: Some(Nested {
            codes: vec![9],
            map,
            absmax: vec![0.02],
            block: 256,
            offset: 0.05,
        }),
        ..four
    };
    let model = TestModel::safetensors(&nested.tensors(), Value::Null);
    assert_eq!(model.values("m.weight")[0].to_bits(), 0x3D75_C290);

    let model = TestModel::safetensors(
        &[
            stored("m.weight", Dtype::I8, &[1, 1], [3]),
            stored("m.SCB", Dtype::F32, &[1], 1.5f32.to_le_bytes()),
        ],
        Value::Null,
    );
    assert_eq!(model.values("m.weight")[0].to_bits(), 0x3D11_2244);
}

/// A layer of that shape with random contents.
fn drawn(shape: Vec<u64>, block: u64, nested: Option<u64>, seed: &mut u64) -> FourBit {
    let numel = shape.iter().product::<u64>();
    let blocks = numel.div_ceil(block);
    let mut reals = |n: u64| -> Vec<f32> {
        (0..n)
            .map(|_| random(seed) as u32 as f32 / 2e9 - 1.0)
            .collect()
    };
    let nested = nested.map(|block| Nested {
        codes: (0..blocks).map(|i| (i * 37 + 11) as u8).collect(),
        map: reals(256),
        absmax: reals(blocks.div_ceil(block)),
        block,
        offset: 0.033_333_333_333,
    });
    FourBit {
        map: reals(16).try_into().unwrap(),
        absmax: reals(blocks),
        nested,
        codes: random_bytes(seed, numel.div_ceil(2) as usize),
        shape,
        block,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn four_bit_values_are_the_formula(
        mut shape in prop::collection::vec(0u64..40, 0..4),
        block in prop::sample::select(vec![1u64, 3, 16, 32, 64, 128, 4096]),
        nested in prop::option::of(prop::sample::select(vec![1u64, 5, 256])),
        large in any::<bool>(),
        mut seed in any::<u64>(),
    ) {
        if large {
            // Several pieces, and several nested blocks.
            shape = vec![70_001, 3];
        }
        let four = drawn(shape, block, nested, &mut seed);
        let model = TestModel::safetensors(&four.tensors(), Value::Null);
        let layer = model.layer("m.weight");
        prop_assert_eq!(&*layer.shape, &*four.shape);
        let want = four.want();
        if want.is_empty() {
            prop_assert_eq!(model.view("m.weight").len(), 0);
        } else {
            assert_values(&*model.view("m.weight"), &want, seed);
        }
    }

    #[test]
    fn eight_bit_values_are_the_formula(n in 1u64..50, k in 1u64..300, mut seed in any::<u64>()) {
        let codes = random_bytes(&mut seed, (n * k) as usize);
        let scb: Vec<f32> = (0..n).map(|_| random(&mut seed) as u32 as f32 / 1e8).collect();
        let model = TestModel::safetensors(
            &[
                stored("m.weight", Dtype::I8, &[n, k], codes.clone()),
                stored("m.SCB", Dtype::F32, &[n], floats(&scb)),
                stored("m.weight_format", Dtype::U8, &[], [0]),
            ],
            Value::Null,
        );
        let value = |(e, &q): (usize, &u8)| {
            let scaled = f32::from(q as i8) * scb[e / k as usize];
            scaled * f32::from_bits(0x3C01_0204)
        };
        let want: Vec<f32> = codes.iter().enumerate().map(value).collect();
        assert_values(&*model.view("m.weight"), &want, seed);
    }
}

#[test]
fn the_container_may_have_any_dtype() {
    let four = FourBit {
        codes: (0..=255).collect(),
        shape: vec![16, 32],
        block: 64,
        map: NF4,
        absmax: vec![0.5; 8],
        nested: None,
    };
    for (dtype, rows) in [
        (Dtype::BF16, 128),
        (Dtype::F16, 128),
        (Dtype::F32, 64),
        (Dtype::U8, 256),
    ] {
        let mut tensors = four.tensors();
        tensors[0] = stored("m.weight", dtype, &[rows, 1], &*four.codes);
        let model = TestModel::safetensors(&tensors, Value::Null);
        let recognized = model.recognized("m.weight").unwrap();
        assert_eq!(
            (recognized.method, recognized.parameters),
            ("bitsandbytes", Some(512))
        );
        assert_values(&*model.view("m.weight"), &four.want(), 1);
        let model = Model::new(model.catalog, ModelOptions::default());
        let (_, tensor) = model.find("m.weight").unwrap();
        assert_eq!(*tensor.shape, [rows, 1]);
        assert_eq!(*tensor.values.as_ref().unwrap().shape, [16, 32]);
    }
}

/// The stored map determines the values, with fp4's state as well as nf4's.
#[test]
fn fp4_has_its_own_map() {
    let map: [f32; 16] = std::array::from_fn(|i| i as f32);
    let four = FourBit {
        codes: vec![0x80, 0x1F],
        shape: vec![3],
        block: 2,
        map,
        absmax: vec![1.0, 2.0],
        nested: None,
    };
    let mut tensors = four.tensors();
    tensors.pop();
    tensors.push(state(
        "fp4",
        json!({"quant_type": "fp4", "blocksize": 2, "shape": [3]}),
    ));
    let model = TestModel::safetensors(&tensors, Value::Null);
    assert_eq!(model.values("m.weight"), [8.0, 0.0, 2.0]);
}

#[test]
fn fusions_are_of_values() {
    let mut tensors = Vec::new();
    for (part, n) in [("q", 4), ("k", 2), ("v", 3)] {
        let four = FourBit {
            codes: vec![0x7F; n * 5],
            shape: vec![n as u64, 10],
            block: 64,
            map: NF4,
            absmax: vec![2.0],
            nested: None,
        };
        for mut t in four.tensors() {
            t.name = t.name.replacen('m', &format!("l.{part}_proj"), 1);
            tensors.push(t);
        }
        for name in ["gate", "up"] {
            let name = format!("e.{name}_proj");
            tensors.retain(|t| !t.name.starts_with(&name));
            tensors.push(stored(
                &format!("{name}.weight"),
                Dtype::I8,
                &[2, 3],
                [1; 6],
            ));
            tensors.push(stored(
                &format!("{name}.SCB"),
                Dtype::F32,
                &[2],
                floats(&[1.0; 2]),
            ));
        }
    }
    let model = TestModel::safetensors(&tensors, Value::Null);
    let model = Model::new(model.catalog, ModelOptions::default());
    let (id, fused) = model.find("l.qkv_proj.weight").unwrap();
    assert_eq!((fused.dtype.name(), fused.shape), ("F32", &[9, 10][..]));
    let bytes = read_all(&*model.f32(id).unwrap().unwrap()).unwrap();
    let first = f32::from_le_bytes(bytes[..4].try_into().unwrap());
    assert!(same(first, NF4[7] * 2.0));
    assert!(model.find("l.qkv_proj.weight.absmax").is_err());
    let (_, fused) = model.find("e.gate_up_proj.weight").unwrap();
    assert_eq!((fused.dtype.name(), fused.shape), ("F32", &[4, 3][..]));
    assert!(model.find("e.gate_up_proj.SCB").is_err());
}
