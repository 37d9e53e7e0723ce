//! Arrays in memory, and the operations in their plainest form.

use crate::dtype::decode::decode;
use crate::dtype::{Dtype, ElementType};
use crate::view::Arithmetic;

/// Elements of so many bytes each: of packed types a code, of blocks the block and the place in it.
#[derive(Clone, Debug)]
pub struct Eager {
    pub dtype: ElementType,
    pub shape: Vec<usize>,
    pub elements: Vec<Vec<u8>>,
}

/// All indexes of a shape, in C order.
fn indexes(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut all = vec![Vec::new()];
    for &size in shape {
        let longer = |index: &Vec<usize>| {
            let index = index.clone();
            (0..size).map(move |i| [&index[..], &[i]].concat())
        };
        all = all.iter().flat_map(longer).collect();
    }
    all
}

fn flat(shape: &[usize], index: &[usize]) -> usize {
    let step = |at: usize, (size, i): (&usize, &usize)| at * size + i;
    shape.iter().zip(index).fold(0, step)
}

/// Elements per unit and bytes per unit of what is packed.
fn packed(dtype: &ElementType) -> (usize, usize) {
    match dtype {
        ElementType::Known(Dtype::F4) => (2, 1),
        ElementType::Known(Dtype::F6_E2M3 | Dtype::F6_E3M2) => (4, 3),
        ElementType::Known(dtype) => (1, dtype.bits() as usize / 8),
        ElementType::Block(block) => (block.elements as usize, block.bytes as usize),
        ElementType::Opaque(opaque) => (1, opaque.bytes as usize),
        ElementType::Other(_) => unreachable!(),
    }
}

impl Eager {
    pub fn stored(dtype: impl Into<ElementType>, shape: &[u64], bytes: &[u8]) -> Eager {
        let dtype = dtype.into();
        let shape: Vec<usize> = shape.iter().map(|&n| n as usize).collect();
        let (per, size) = packed(&dtype);
        let unpack = |unit: &[u8]| -> Vec<Vec<u8>> {
            match &dtype {
                ElementType::Block(_) => (0..per).map(|i| [unit, &[i as u8]].concat()).collect(),
                _ if per == 1 => vec![unit.to_vec()],
                _ => {
                    let bits = unit
                        .iter()
                        .rev()
                        .fold(0u32, |all, &b| all << 8 | u32::from(b));
                    let width = 8 * size / per;
                    let code = |i| (bits >> (i * width)) as u8 & ((1 << width) - 1);
                    (0..per).map(|i| vec![code(i)]).collect()
                }
            }
        };
        let elements = bytes.chunks(size).flat_map(unpack).collect();
        Eager {
            dtype,
            shape,
            elements,
        }
    }

    pub fn of_values(shape: &[usize], values: &[f32]) -> Eager {
        Eager {
            dtype: Dtype::F32.into(),
            shape: shape.to_vec(),
            elements: values.iter().map(|v| v.to_le_bytes().to_vec()).collect(),
        }
    }

    /// The bytes, if they are whole units.
    pub fn bytes(&self) -> Option<Vec<u8>> {
        let (per, size) = packed(&self.dtype);
        let mut bytes = Vec::new();
        for unit in self.elements.chunks(per) {
            if unit.len() < per {
                return None;
            }
            match &self.dtype {
                ElementType::Block(_) => {
                    let block = &unit[0][..size];
                    let is_whole =
                        |(i, e): (usize, &Vec<u8>)| e[..size] == *block && e[size] == i as u8;
                    if !unit.iter().enumerate().all(is_whole) {
                        return None;
                    }
                    bytes.extend_from_slice(block);
                }
                _ if per == 1 => bytes.extend_from_slice(&unit[0]),
                _ => {
                    let width = 8 * size / per;
                    let codes = unit.iter().enumerate();
                    let bits = codes.fold(0u32, |all, (i, e)| all | u32::from(e[0]) << (i * width));
                    bytes.extend_from_slice(&bits.to_le_bytes()[..size]);
                }
            }
        }
        let row = self.shape.last().copied().unwrap_or(1);
        let is_block = matches!(self.dtype, ElementType::Block(_));
        (!is_block || row.is_multiple_of(per)).then_some(bytes)
    }

    pub fn values(&self) -> Vec<f32> {
        let bytes = self.bytes().unwrap();
        let mut values = vec![0f32; self.elements.len()];
        match &self.dtype {
            ElementType::Known(dtype) => decode(*dtype, &bytes, 0, &mut values),
            ElementType::Block(block) => block.decode.unwrap()(&bytes, &mut values),
            _ => unreachable!(),
        }
        values
    }

    fn taken(&self, shape: Vec<usize>, from: impl Fn(&[usize]) -> Vec<usize>) -> Eager {
        let at = |index: Vec<usize>| self.elements[flat(&self.shape, &from(&index))].clone();
        Eager {
            dtype: self.dtype.clone(),
            elements: indexes(&shape).into_iter().map(at).collect(),
            shape,
        }
    }

    /// First, count, step of each axis, and whether it goes.
    pub fn slice(&self, ranges: &[(usize, usize, usize, bool)]) -> Eager {
        let kept: Vec<_> = ranges.iter().filter(|r| !r.3).map(|r| r.1).collect();
        self.taken(kept, |index| {
            let mut left = index.iter();
            let of = |r: &(usize, usize, usize, bool)| match r.3 {
                true => r.0,
                false => r.0 + left.next().unwrap() * r.2,
            };
            ranges.iter().map(of).collect()
        })
    }

    pub fn permute(&self, axes: &[usize]) -> Eager {
        let shape = axes.iter().map(|&axis| self.shape[axis]).collect();
        self.taken(shape, |index| {
            let mut from = vec![0; axes.len()];
            axes.iter()
                .zip(index)
                .for_each(|(&axis, &i)| from[axis] = i);
            from
        })
    }

    pub fn reshape(&self, shape: &[usize]) -> Eager {
        Eager {
            shape: shape.to_vec(),
            ..self.clone()
        }
    }

    pub fn concat(parts: &[Eager], axis: usize) -> Eager {
        let mut shape = parts[0].shape.clone();
        shape[axis] = parts.iter().map(|part| part.shape[axis]).sum();
        let at = |mut index: Vec<usize>| {
            for part in parts {
                if index[axis] < part.shape[axis] {
                    return part.elements[flat(&part.shape, &index)].clone();
                }
                index[axis] -= part.shape[axis];
            }
            unreachable!()
        };
        Eager {
            dtype: parts[0].dtype.clone(),
            elements: indexes(&shape).into_iter().map(at).collect(),
            shape,
        }
    }

    pub fn stack(parts: &[Eager], axis: usize) -> Eager {
        let longer = |part: &Eager| {
            let mut shape = part.shape.clone();
            shape.insert(axis, 1);
            part.reshape(&shape)
        };
        let parts: Vec<Eager> = parts.iter().map(longer).collect();
        Eager::concat(&parts, axis)
    }

    pub fn zeros(dtype: &ElementType, shape: &[usize]) -> Eager {
        let (per, size) = packed(dtype);
        let element = |at: usize| match dtype {
            ElementType::Block(_) => [&vec![0; size][..], &[(at % per) as u8]].concat(),
            _ if per == 1 => vec![0; size],
            _ => vec![0],
        };
        Eager {
            dtype: dtype.clone(),
            shape: shape.to_vec(),
            elements: (0..shape.iter().product()).map(element).collect(),
        }
    }

    pub fn pad(&self, size: usize, axis: usize) -> Eager {
        let mut shape = self.shape.clone();
        shape[axis] = size - shape[axis];
        Eager::concat(&[self.clone(), Eager::zeros(&self.dtype, &shape)], axis)
    }

    pub fn cast(&self, dtype: Dtype) -> Eager {
        if self.dtype.is(dtype) {
            return self.clone();
        }
        let values = self.values();
        if dtype == Dtype::F32 {
            return Eager::of_values(&self.shape, &values);
        }
        let codes = Codes::of(dtype);
        Eager {
            dtype: dtype.into(),
            shape: self.shape.clone(),
            elements: values.iter().map(|&v| codes.nearest(v)).collect(),
        }
    }

    pub fn arithmetic(op: Arithmetic, a: &Eager, b: &Eager) -> Eager {
        let (left, right) = (a.values(), b.values());
        let shape = match (left.len(), right.len()) {
            (1, 1) if b.shape.len() > a.shape.len() => &b.shape,
            (1, n) if n != 1 => &b.shape,
            _ => &a.shape,
        };
        let at = |values: &[f32], i: usize| {
            if values.len() == 1 {
                values[0]
            } else {
                values[i]
            }
        };
        let one = |i| {
            let (a, b) = (at(&left, i), at(&right, i));
            match op {
                Arithmetic::Add => a + b,
                Arithmetic::Subtract => a - b,
                Arithmetic::Multiply => a * b,
                Arithmetic::Divide => a / b,
            }
        };
        let values: Vec<f32> = (0..shape.iter().product()).map(one).collect();
        Eager::of_values(shape, &values)
    }

    pub fn negate(&self) -> Eager {
        let values: Vec<f32> = self.values().iter().map(|v| -v).collect();
        Eager::of_values(&self.shape, &values)
    }

    pub fn product(&self, other: &Eager) -> Eager {
        let (m, k, n) = (self.shape[0], self.shape[1], other.shape[1]);
        let (a, b) = (self.values(), other.values());
        let of = |at: usize| {
            let terms = (0..k).map(|l| a[at / n * k + l] * b[l * n + at % n]);
            terms.reduce(|sum, term| sum + term).unwrap_or(0.0)
        };
        let values: Vec<f32> = (0..m * n).map(of).collect();
        Eager::of_values(&[m, n], &values)
    }
}

/// The numbers of a narrow float from 0 upwards, with one more behind the last.
struct Codes {
    bytes: usize,
    sign: u32,
    values: Vec<f64>,
}

impl Codes {
    fn of(dtype: Dtype) -> Codes {
        let (bytes, largest) = match dtype {
            Dtype::BF16 => (2, 0x7f7f),
            Dtype::F16 => (2, 0x7bff),
            Dtype::F8_E4M3 => (1, 0x7e),
            Dtype::F8_E5M2 => (1, 0x7b),
            _ => unreachable!(),
        };
        let value = |code: u32| {
            let mut value = [0f32];
            decode(dtype, &code.to_le_bytes()[..bytes], 0, &mut value);
            f64::from(value[0])
        };
        let mut values: Vec<f64> = (0..=largest).map(value).collect();
        let end = values.len();
        values.push(2.0 * values[end - 1] - values[end - 2]);
        let sign = 1 << (8 * bytes - 1);
        Codes {
            bytes,
            sign,
            values,
        }
    }

    fn nearest(&self, v: f32) -> Vec<u8> {
        let size = f64::from(v.abs());
        let above = self.values.partition_point(|&known| known < size);
        let code = match above {
            // All bits set.
            _ if v.is_nan() => self.sign as usize - 1,
            0 => 0,
            above if above == self.values.len() => above - 1,
            above => {
                let (low, high) = (size - self.values[above - 1], self.values[above] - size);
                let is_lower = low < high || low == high && (above - 1) % 2 == 0;
                if is_lower { above - 1 } else { above }
            }
        };
        let sign = if v.is_sign_negative() { self.sign } else { 0 };
        (code as u32 | sign).to_le_bytes()[..self.bytes].to_vec()
    }
}
