//! Models of a few tensors of any types and shapes.

use std::sync::Arc;

use super::eager::Eager;
use super::*;
use crate::catalog::RowBytes;
use crate::dtype::ggml;

/// A generator of numbers: a chain follows from its seed.
pub struct Random(pub u64);

impl Random {
    /// A number below `n`, or 0.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % n.max(1)
    }

    /// One of several.
    pub fn of<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len() as u64) as usize]
    }
}

/// What is known of a tensor both ways.
pub type Both = (Derived, Eager);

/// A model with a tensor of each of some types and shapes.
pub fn model(random: &mut Random) -> (Sources, Vec<Both>) {
    let known = Dtype::all().map(ElementType::Known);
    // Q8_0 and Q4_K: blocks of 34 bytes with 32 values, and of 144 with 256.
    let blocks = [8, 12].map(|number| ggml::from_number(number).unwrap());
    let dtypes: Vec<ElementType> = known.chain(blocks).collect();
    let shapes: [&[u64]; 9] = [
        &[],
        &[1],
        &[12],
        &[6, 4],
        &[4, 6],
        &[2, 3, 8],
        &[5, 1, 4],
        &[3, 0, 4],
        &[2, 2, 2, 12],
    ];
    let (mut file, mut rows, mut made) = (vec![7; 3], Vec::new(), Vec::new());
    for number in 0..8 {
        let dtype = random.of(&dtypes).clone();
        let mut shape = random.of(&shapes).to_vec();
        if let (ElementType::Block(block), Some(last)) = (&dtype, shape.last_mut()) {
            *last = (*last / 2) * u64::from(block.elements);
        }
        let Some(nbytes) = dtype.nbytes(&shape).filter(|n| *n < 10_000) else {
            continue;
        };
        let bytes: Vec<u8> = (0..nbytes).map(|i| byte(random, &dtype, i)).collect();
        let name = format!("t{number}");
        let eager = Eager::stored(dtype.clone(), &shape, &bytes);
        rows.push(match random.below(2) {
            0 => row(&name, dtype, &shape, Arc::new(Bytes(bytes.into()))),
            _ => {
                let offset = file.len() as u64;
                file.extend(bytes);
                of_bytes(&name, dtype, &shape, RowBytes::Extent { file: 0, offset })
            }
        });
        made.push((name, eager));
    }
    let sources = sources(vec![("model", &file, rows)]);
    let leaves = made
        .into_iter()
        .map(|(name, eager)| (leaf(&sources, 0, &name), eager));
    let leaves = leaves.collect();
    (sources, leaves)
}

/// A byte of small finite numbers, for the types of which that can be said by the byte.
fn byte(random: &mut Random, dtype: &ElementType, at: u64) -> u8 {
    let any = random.below(256) as u8;
    let width = match dtype {
        ElementType::Known(dtype) => u64::from(dtype.bits() / 8).max(1),
        // A scale of each block is a half.
        ElementType::Block(block) => {
            return if at % u64::from(block.bytes) < 4 {
                0x2c
            } else {
                any
            };
        }
        _ => 1,
    };
    let is_last = width > 1 && at % width == width - 1;
    match dtype {
        ElementType::Known(Dtype::Bool) => any % 2,
        ElementType::Known(dtype) if dtype.is_float_like() && is_last => {
            0x3c | any & 0x80 | any & 3
        }
        ElementType::Known(dtype) if dtype.is_f8() => any & 0xbf,
        _ => any,
    }
}

trait FloatLike {
    fn is_float_like(&self) -> bool;
}

impl FloatLike for Dtype {
    fn is_float_like(&self) -> bool {
        self.is_plain_float() || *self == Dtype::C64
    }
}
