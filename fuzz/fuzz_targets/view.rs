//! Reads: whatever a small model holds, in any container, any range of any file of any tensor is that range
//! of the whole. The bytes of stored tensors, their values, and rows joined to one tensor are compared with
//! what a naive computation has.
//!
//! The input is eaten from its front: a container, then tensors (name, dtype, dimensions, layout), then
//! reads (tensor, view, offset, length).
#![no_main]

use std::path::PathBuf;
use std::sync::Arc;

use libfuzzer_sys::fuzz_target;
use safetensors::Dtype;
use safetensors::tensor::{TensorView, serialize};
use stfs::catalog::OpenOptions;
use stfs::layout::TensorFile;
use stfs::model::{Model, ModelOptions};
use stfs::view::{SharedView, read_all};

mod served;

// The tests' own writers of containers, and their naive values. Neither shares code with stfs.
#[allow(dead_code)]
#[path = "../../tests/common/gguf.rs"]
mod gguf;
#[allow(dead_code)]
#[path = "../../tests/common/naive.rs"]
mod naive;
#[allow(dead_code)]
#[path = "../../tests/common/pytorch.rs"]
mod pytorch;

use gguf::Gguf;
use naive::{f32_bytes, same_f32};
use pytorch::{Py, Strided, legacy_file, text, zip_file};

/// A tensor, with its bytes.
#[derive(Clone, Debug)]
pub struct T {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    data: Vec<u8>,
}
/// Names that are fused, stacked, tied, or nothing of that.
const NAMES: [&str; 16] = [
    "l.0.q_proj.weight",
    "l.0.k_proj.weight",
    "l.0.v_proj.weight",
    "l.0.gate_proj.weight",
    "l.0.up_proj.weight",
    "l.0.q_proj.bias",
    "l.0.k_proj.bias",
    "l.0.v_proj.bias",
    "l.1.experts.0.w1.weight",
    "l.1.experts.0.w3.weight",
    "l.1.experts.1.w1.weight",
    "l.1.experts.1.w3.weight",
    "l.1.experts.0.w2.weight",
    "l.1.experts.1.w2.weight",
    "model.embed_tokens.weight",
    "other",
];
const DTYPES: [Dtype; 12] = [
    Dtype::BF16,
    Dtype::F16,
    Dtype::F32,
    Dtype::F64,
    Dtype::U8,
    Dtype::I8,
    Dtype::I16,
    Dtype::I32,
    Dtype::I64,
    Dtype::BOOL,
    Dtype::F8_E4M3,
    Dtype::F4,
];
/// Blocks that GGUF files hold: ggml's number, values and bytes of a block.
const BLOCKS: [(u32, usize, usize); 6] = [
    (0, 1, 4),
    (1, 1, 2),
    (2, 32, 18),
    (8, 32, 34),
    (12, 256, 144),
    (30, 1, 2),
];

/// What is left of the input. After its end come zeros.
struct Input<'a>(&'a [u8]);

impl Input<'_> {
    fn byte(&mut self) -> usize {
        match self.0.split_first() {
            Some((&byte, rest)) => {
                self.0 = rest;
                byte.into()
            }
            None => 0,
        }
    }

    fn word(&mut self) -> usize {
        self.byte() | self.byte() << 8
    }
}

fn noise(seed: usize, len: usize) -> Vec<u8> {
    let mut x = (seed as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

/// Tensors of different names, and for each how it lies in its storage.
fn tensors(input: &mut Input<'_>) -> Vec<(T, usize)> {
    let mut all: Vec<(T, usize)> = Vec::new();
    for _ in 0..=input.byte() % 6 {
        let (name, dtype) = (NAMES[input.byte() % 16], DTYPES[input.byte() % 12]);
        let rank = input.byte() % 4;
        // Most are small. One in eight has an axis of more than a tile.
        let mut shape: Vec<usize> = (0..rank).map(|_| input.byte() % 10).collect();
        // Two values of F4 are a byte.
        if let (Dtype::F4, Some(last)) = (dtype, shape.last_mut()) {
            *last *= 2;
        }
        let layout = input.byte();
        if let (0, Some(first)) = (layout % 8, shape.first_mut()) {
            *first *= 37;
        }
        if all.iter().any(|(t, _)| t.name == name) || (dtype == Dtype::F4 && rank == 0) {
            continue;
        }
        let len = shape.iter().product::<usize>() * dtype.bitsize() / 8;
        let data = noise(all.len() + layout, len);
        all.push((
            T {
                name: name.into(),
                dtype,
                shape,
                data,
            },
            layout,
        ));
    }
    all
}

/// Writes the tensors to a container. Those that it cannot hold are left out.
fn write(kind: usize, all: &mut Vec<(T, usize)>, input: &mut Input<'_>) -> PathBuf {
    match kind {
        0 => {
            let views = all.iter().map(|(t, _)| {
                (
                    t.name.clone(),
                    TensorView::new(t.dtype, t.shape.clone(), &t.data).unwrap(),
                )
            });
            served::file("model.safetensors", &serialize(views, None).unwrap())
        }
        1 => {
            let mut file = Gguf::small();
            for (t, _) in all.drain(..) {
                let (number, values, bytes) = BLOCKS[input.byte() % BLOCKS.len()];
                let (rows, blocks) = (input.byte() % 9, input.byte() % 9);
                let ne = [(blocks * values) as u64, rows as u64];
                file = file.tensor(&t.name, &ne, number, noise(rows, rows * blocks * bytes));
            }
            served::file("model.gguf", &file.bytes())
        }
        _ => {
            all.retain(|(t, _)| !matches!(t.dtype, Dtype::F4 | Dtype::F8_E4M3));
            let entries = all.iter().enumerate();
            let root = Py::Dict(
                entries
                    .map(|(i, (t, layout))| (text(&t.name), strided(i, t, *layout)))
                    .collect(),
            );
            let bytes = if kind == 2 {
                zip_file(&root)
            } else {
                legacy_file(&root)
            };
            served::file("model.pt", &bytes)
        }
    }
}

/// A tensor in a storage with a gap in front, its axes in an order that `layout` decides.
fn strided(key: usize, t: &T, layout: usize) -> Py {
    let size = t.dtype.bitsize() / 8;
    let rank = t.shape.len();
    let mut axes: Vec<usize> = (0..rank).collect();
    axes.rotate_left(layout % rank.max(1));
    if layout & 16 != 0 {
        axes.reverse();
    }
    // The last of `axes` is the innermost in the storage.
    let mut strides = vec![0; rank];
    let mut step = 1 + (layout >> 5 & 1);
    for &axis in axes.iter().rev() {
        strides[axis] = step;
        step *= t.shape[axis].max(1);
    }
    let front = layout >> 6;
    let mut data = noise(99, (front + step) * size);
    for (i, element) in t.data.chunks_exact(size).enumerate() {
        let (mut rest, mut at) = (i, front);
        for axis in (0..rank).rev() {
            at += rest % t.shape[axis] * strides[axis];
            rest /= t.shape[axis];
        }
        data[at * size..][..size].copy_from_slice(element);
    }
    Py::Tensor(Strided {
        key: key.to_string(),
        data,
        class: pytorch::class_of(t.dtype),
        element: size,
        offset: front as i64,
        shape: t.shape.iter().map(|&n| n as i64).collect(),
        strides: strides.iter().map(|&n| n as i64).collect(),
    })
}

/// The stored tensors are what was written, and so are rows joined to one tensor.
fn compare(model: &Model, all: &[(T, usize)]) {
    for (t, _) in all {
        let (id, _) = model.find(&t.name).expect("a stored tensor is served");
        assert!(
            read_all(&*model.raw(id).unwrap()).unwrap() == t.data,
            "raw of {}",
            t.name
        );
        let f32 = read_all(&*model.f32(id).unwrap().unwrap()).unwrap();
        assert!(
            same_f32(t.dtype, &f32, &f32_bytes(t.dtype, &t.data).unwrap()),
            "f32 of {}",
            t.name
        );
    }
    let rows = |names: &[&str]| -> Option<Vec<u8>> {
        let part = |name: &&str| all.iter().find(|(t, _)| t.name == *name);
        Some(
            names
                .iter()
                .map(part)
                .collect::<Option<Vec<_>>>()?
                .iter()
                .flat_map(|(t, _)| t.data.clone())
                .collect(),
        )
    };
    for (joined, parts) in [
        ("l.0.qkv_proj.weight", &NAMES[..3]),
        ("l.0.gate_up_proj.weight", &NAMES[3..5]),
        ("l.0.qkv_proj.bias", &NAMES[5..8]),
    ] {
        // A GGUF file has blocks of its own, which only the whole is compared with.
        if let Ok((id, tensor)) = model.find(joined)
            && tensor.shape.len() <= 2
            && !all.is_empty()
        {
            let want = rows(parts).expect("it has all of its parts");
            assert!(
                read_all(&*model.raw(id).unwrap()).unwrap() == want,
                "{joined}"
            );
        }
    }
}

fuzz_target!(|input: &[u8]| {
    let mut input = Input(input);
    let kind = input.byte() % 4;
    let mut all = tensors(&mut input);
    let path = write(kind, &mut all, &mut input);
    if all.is_empty() && kind != 1 {
        return;
    }
    let model = Model::open(&path, OpenOptions::default(), ModelOptions::default()).unwrap();
    let model = Arc::new(model);
    compare(&model, &all);
    served::files(&model, kind + all.len());
    let ids = model.listing();
    let rows: Vec<_> = TensorFile::all()
        .filter(|row| row.file != TensorFile::Preview)
        .collect();
    // One reader of each view, which keeps what it keeps from read to read.
    let mut open: Vec<(usize, usize, SharedView, Vec<u8>)> = Vec::new();
    for _ in 0..input.byte() % 32 {
        let (i, r) = (input.byte() % ids.len(), input.byte() % rows.len());
        let (from, len) = (input.word(), input.word());
        let position = open.iter().position(|o| (o.0, o.1) == (i, r)).or_else(|| {
            let view = (rows[r].view)(&model, ids[i]).unwrap()?;
            let whole = read_all(&*view).unwrap();
            open.push((i, r, (rows[r].view)(&model, ids[i]).unwrap()?, whole));
            Some(open.len() - 1)
        });
        if let Some((_, _, view, whole)) = position.map(|p| &open[p]) {
            let from = from % (whole.len() + 1);
            served::range(&**view, whole, from as u64, len % (whole.len() - from + 1));
        }
    }
});
