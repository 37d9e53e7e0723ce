//! Nested views: every view over every other, kernels included, reads the same bytes as over plain
//! memory.

use std::sync::Arc;

use serde_json::{Value, json};

use super::testing::{Stored, TestModel, random, random_bytes, stored};
use super::{Kernel, Recognized};
use crate::catalog::{Extent, MemoryStore};
use crate::dtype::decode::decode;
use crate::dtype::{Block, Dtype, ElementType};
use crate::view::{
    Bytes, Cast, Concat, Deferred, Npy, Same, SharedView, Slice, StoredBytes, View, npy_header,
    read_all,
};

/// Outputs and inputs of every layer here.
const SHAPE: [u64; 2] = [32, 64];
const WEIGHTS: usize = 32 * 64;

/// Four values in five bytes: one byte each, after a byte that is added to them.
static BLOCK: Block = Block {
    name: "TEST",
    elements: 4,
    bytes: 5,
    exact: true,
    abi: 300,
    decode: Some(decode_blocks),
};

fn decode_blocks(bytes: &[u8], out: &mut [f32]) {
    let (blocks, _) = bytes.as_chunks::<5>();
    for ([base, codes @ ..], values) in blocks.iter().zip(out.as_chunks_mut::<4>().0) {
        *values = codes.map(|code| f32::from(*base) + f32::from(code));
    }
}

/// A layer's kernel, with parts that it can decode.
struct Sample {
    kernel: Arc<dyn Kernel>,
    parts: Vec<Vec<u8>>,
    /// From this part on, contents must be valid (a shape, an order, a state); those before may be
    /// arbitrary.
    fixed_from: usize,
    len: usize,
}

fn sample(tensors: Vec<Stored>, config: Value, fixed_from: usize) -> Sample {
    let model = TestModel::safetensors(&tensors, config);
    let found: Vec<Recognized> = super::recognize(&model.catalog);
    let layer = found[0].resolve(&model.catalog).expect("a layer");
    let parts = found[0].raw_parts(&model.catalog);
    Sample {
        kernel: layer.kernel,
        parts: parts.iter().map(|p| read_all(p).unwrap()).collect(),
        fixed_from,
        len: layer.shape.iter().product::<u64>() as usize * 4,
    }
}

/// A layer for each kernel.
fn samples() -> Vec<Sample> {
    let [n, k] = SHAPE;
    let seed = &mut 7;
    let mut t = |name: &str, dtype: Dtype, shape: &[u64]| {
        let elements: u64 = shape.iter().product();
        let bytes = random_bytes(seed, dtype.bytes(elements).unwrap() as usize);
        stored(name, dtype, shape, bytes)
    };
    use Dtype::{F8_E4M3, F16, F32, I8, I32, U8, U32};
    let order: Vec<u8> = (0..64i32).flat_map(|i| (i * 7 % 2).to_le_bytes()).collect();
    let shape: Vec<u8> = SHAPE.iter().flat_map(|d| d.to_le_bytes()).collect();
    let state = json!({"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": SHAPE,
        "nested_blocksize": 16, "nested_dtype": "float32", "nested_offset": 0.5});
    let state = state.to_string().into_bytes();
    let gptq = vec![
        t("qweight", I32, &[k / 8, n]),
        t("qzeros", I32, &[2, n / 8]),
        t("scales", F16, &[2, n]),
        stored("g_idx", I32, &[k], order.clone()),
    ];
    let awq = vec![
        t("qweight", I32, &[k, n / 8]),
        t("qzeros", I32, &[2, n / 8]),
        t("scales", F16, &[2, n]),
    ];
    let packed = vec![
        t("weight_packed", I32, &[n, k / 8]),
        t("weight_scale", F16, &[n, 2]),
        stored("weight_shape", Dtype::I64, &[2], shape),
        t("weight_zero_point", I32, &[n / 8, 2]),
        stored("weight_g_idx", I32, &[k], order),
    ];
    let nested = vec![
        t("weight", U8, &[n * k / 2, 1]),
        t("weight.absmax", U8, &[n * k / 64]),
        t("weight.quant_map", F32, &[16]),
        t("weight.nested_absmax", F32, &[n * k / 64 / 16]),
        t("weight.nested_quant_map", F32, &[256]),
        stored(
            "weight.quant_state.bitsandbytes__nf4",
            U8,
            &[state.len() as u64],
            state,
        ),
    ];
    let compressed = json!({"quantization_config": {"quant_method": "compressed-tensors"}});
    vec![
        sample(gptq, Value::Null, 3),
        sample(awq, Value::Null, 3),
        sample(packed, Value::Null, 2),
        sample(nested, Value::Null, 5),
        sample(
            vec![
                t("weight", U32, &[n, k / 8]),
                t("scales", F16, &[n, 1]),
                t("biases", F16, &[n, 1]),
            ],
            Value::Null,
            9,
        ),
        sample(
            vec![
                t("x_blocks", U8, &[1, n, k / 32, 16]),
                t("x_scales", U8, &[1, n, k / 32]),
            ],
            Value::Null,
            9,
        ),
        sample(
            vec![
                t("weight", F8_E4M3, &[n, k]),
                t("weight_scale", F32, &[n, 1]),
            ],
            Value::Null,
            9,
        ),
        sample(
            vec![
                t("weight", I8, &[n, k]),
                t("weight_scale", F16, &[n, 2]),
                t("weight_zero_point", I8, &[n, 2]),
            ],
            Value::Null,
            9,
        ),
        sample(
            vec![
                t("weight_packed", U8, &[n, k / 2]),
                t("weight_scale", F8_E4M3, &[n, k / 16]),
                t("weight_global_scale", F32, &[1]),
            ],
            compressed,
            9,
        ),
        sample(
            vec![
                t("weight", U8, &[n, k / 2]),
                t("weight_scale", F8_E4M3, &[n, k / 16]),
                t("weight_scale_2", F32, &[]),
            ],
            Value::Null,
            9,
        ),
    ]
}

/// A view and all its bytes.
type Both = (SharedView, Vec<u8>);

/// Makes views of a given length, nested up to a depth, and returns their bytes.
struct Maker {
    samples: Vec<Sample>,
    seed: u64,
}

impl Maker {
    fn below(&mut self, n: usize) -> usize {
        random(&mut self.seed) as usize % n
    }

    fn any(&mut self, len: usize, depth: usize) -> Both {
        if depth == 0 {
            let bytes = random_bytes(&mut self.seed, len);
            return self.of(bytes, 0);
        }
        match self.below(8) {
            0 => self.slice(len, depth),
            1 => self.concat(len, depth),
            2 => self.npy(len, depth),
            3 => self.cast(len, depth),
            4 => self.blocks(len, depth),
            5 => self.same(len, depth),
            _ => self.kernel(len, depth),
        }
    }

    /// A view of exactly these bytes.
    fn of(&mut self, bytes: Vec<u8>, depth: usize) -> Both {
        let view: SharedView = match (depth, self.below(3)) {
            (0, 0) => Arc::new(Bytes(bytes.clone().into())),
            (0, 1) => {
                let store = MemoryStore::new(&[("x", &[&[3; 5], &*bytes].concat())]);
                Arc::new(StoredBytes(Extent {
                    file: store.object("x").unwrap(),
                    offset: 5,
                    len: bytes.len() as u64,
                }))
            }
            (0, _) => {
                let made = bytes.clone();
                Arc::new(Deferred::new(bytes.len() as u64, move || Ok(made.clone())))
            }
            (_, 0) => {
                let (start, end) = (self.below(9), self.below(9));
                let whole = [&vec![1; start], &*bytes, &vec![2; end]].concat();
                let (whole, _) = self.of(whole, depth - 1);
                Arc::new(Slice::new(whole, start as u64, bytes.len() as u64))
            }
            _ => {
                let (left, right) = bytes.split_at(self.below(bytes.len() + 1));
                let parts = [left, right].map(|part| self.of(part.to_vec(), depth - 1).0);
                Arc::new(Concat::new(parts.into(), 1))
            }
        };
        (view, bytes)
    }

    fn slice(&mut self, len: usize, depth: usize) -> Both {
        let (start, end) = (self.below(300), self.below(300));
        let (view, bytes) = self.any(start + len + end, depth - 1);
        let slice = Slice::new(view, start as u64, len as u64);
        (Arc::new(slice), bytes[start..start + len].to_vec())
    }

    fn concat(&mut self, len: usize, depth: usize) -> Both {
        let outer = [1, 4, 8][self.below(3)];
        let outer = if len.is_multiple_of(outer) { outer } else { 1 };
        let row = len / outer;
        let cut = self.below(row + 1);
        let (left, left_bytes) = self.any(cut * outer, depth - 1);
        let (right, right_bytes) = self.any((row - cut) * outer, depth - 1);
        let mut bytes = Vec::new();
        for o in 0..outer {
            bytes.extend_from_slice(&left_bytes[o * cut..][..cut]);
            bytes.extend_from_slice(&right_bytes[o * (row - cut)..][..row - cut]);
        }
        (
            Arc::new(Concat::new(vec![left, right], outer as u64)),
            bytes,
        )
    }

    fn npy(&mut self, len: usize, depth: usize) -> Both {
        let header = npy_header("|u1", &[len as u64]);
        let Some(body) = len.checked_sub(header.len()) else {
            return self.any(len, depth - 1);
        };
        // The header has the same length for every shape.
        let (view, bytes) = self.any(body, depth - 1);
        let npy = Npy::new("|u1", &[len as u64], view);
        (Arc::new(npy), [header, bytes].concat())
    }

    fn cast(&mut self, len: usize, depth: usize) -> Both {
        if !len.is_multiple_of(16) {
            return self.any(len, depth - 1);
        }
        let dtypes = [
            Dtype::BF16,
            Dtype::F16,
            Dtype::I8,
            Dtype::F8_E5M2,
            Dtype::F4,
            Dtype::F6_E2M3,
        ];
        let dtype = dtypes[self.below(dtypes.len())];
        let n = len / 4;
        let (view, bytes) = self.any(n * dtype.bits() as usize / 8, depth - 1);
        let mut values = vec![0f32; n];
        decode(dtype, &bytes, 0, &mut values);
        let view = Cast::view(view, dtype).expect("a cast");
        (view, bytemuck::cast_slice(&values).to_vec())
    }

    fn blocks(&mut self, len: usize, depth: usize) -> Both {
        if !len.is_multiple_of(4 * 4) {
            return self.any(len, depth - 1);
        }
        let (view, bytes) = self.any(len / 16 * 5, depth - 1);
        let mut values = vec![0f32; len / 4];
        decode_blocks(&bytes, &mut values);
        let view = Cast::view(view, ElementType::Block(&BLOCK)).expect("values");
        (view, bytemuck::cast_slice(&values).to_vec())
    }

    /// Two equal views; the second is plain.
    fn same(&mut self, len: usize, depth: usize) -> Both {
        let (view, bytes) = self.any(len, depth - 1);
        let other = Arc::new(Bytes(bytes.clone().into()));
        (Arc::new(Same::new("x".into(), vec![view, other])), bytes)
    }

    /// A layer's values, followed by other bytes up to the length.
    fn kernel(&mut self, len: usize, depth: usize) -> Both {
        let which = self.below(self.samples.len());
        let sample = &self.samples[which];
        let Some(rest) = len.checked_sub(sample.len) else {
            return self.cast(len, depth);
        };
        let (kernel, parts) = (sample.kernel.clone(), sample.parts.clone());
        let fixed_from = sample.fixed_from;
        let both = parts
            .into_iter()
            .enumerate()
            .map(|(i, part)| match i < fixed_from {
                true => self.any(part.len(), depth - 1),
                false => self.of(part, depth - 1),
            });
        let (views, plain): (Vec<_>, Vec<_>) = both.collect();
        let plain: Vec<SharedView> = plain
            .into_iter()
            .map(|bytes| Arc::new(Bytes(bytes.into())) as SharedView)
            .collect();
        let mut bytes = read_all(&*kernel.view(&plain).unwrap()).unwrap();
        let values = kernel.view(&views).unwrap();
        let (behind, more) = self.any(rest, depth - 1);
        bytes.extend_from_slice(&more);
        (Arc::new(Concat::new(vec![values, behind], 1)), bytes)
    }
}

#[test]
fn any_view_over_any_other_reads_as_it_does_over_memory() {
    let mut maker = Maker {
        samples: samples(),
        seed: 0,
    };
    for round in 0..400 {
        maker.seed = round;
        let len = [1000, WEIGHTS * 4, WEIGHTS * 4 + 777, 40_000][maker.below(4)];
        let depth = 1 + maker.below(5);
        let (view, want) = maker.any(len, depth);
        assert_eq!(view.len(), want.len() as u64, "round {round}");
        assert!(read_all(&*view).unwrap() == want, "round {round}, whole");
        for _ in 0..8 {
            let from = maker.below(len);
            let n = [1, 7, maker.below(300), len][maker.below(4)].min(len - from);
            let skew = maker.below(4);
            let mut buffer = vec![0xAA; n + skew];
            view.read_at(from as u64, &mut buffer[skew..]).unwrap();
            assert!(
                buffer[skew..] == want[from..][..n],
                "round {round}, {n} bytes from {from}"
            );
        }
    }
}
