//! Sizes, strides and the offset of a tensor, and where its elements lie. All sums are made in 128 bits:
//! a file can hold any number.

use super::super::pickle::{Pickle, Ref, Strided, Value};
use crate::dtype::numel as product;
use crate::reason::{Reason, reason};

/// The most bytes that a tensor may have: as many as all tensors of a catalog together.
const MAX_BYTES: u64 = 1 << 56;

/// The most dimensions. PyTorch has no limit, but its operations take at most 64; a hostile file may
/// have one shape of millions in any number of tensors.
const MAX_DIMENSIONS: usize = 128;

/// How a tensor lies in its storage.
pub(super) struct Geometry {
    /// Sizes of its dimensions, as PyTorch has them.
    pub sizes: Vec<u64>,
    /// In elements, as many as sizes.
    pub strides: Vec<u64>,
    /// The first element, counted from the start of the storage.
    offset: u64,
    /// Bytes of an element.
    element: u32,
    /// Bytes of all elements.
    pub nbytes: u64,
    /// Bytes from the first element to the end of the last.
    pub hull: u64,
    /// Whether each element is two values, which the last dimension of the shape counts.
    pairs: bool,
}

impl Geometry {
    /// Reads the numbers.
    ///
    /// # Errors
    /// They are not numbers, or are none that a tensor can have.
    pub fn read(pickle: &Pickle, strided: &Strided<'_>, element: u32) -> Result<Geometry, Reason> {
        let sizes = whole_numbers(pickle, strided.size, "size")?;
        let strides = whole_numbers(pickle, strided.stride, "stride")?;
        if sizes.len() != strides.len() {
            return Err(reason!(
                "has {} sizes and {} strides",
                sizes.len(),
                strides.len()
            ));
        }
        let offset = whole(pickle, strided.offset, "offset")?;
        let numel = product(&sizes).filter(|&n| n < 1 << 63);
        let bytes = numel.map(|n| u128::from(n) * u128::from(element));
        let nbytes = match bytes.map(u64::try_from) {
            Some(Ok(nbytes)) if nbytes <= MAX_BYTES => nbytes,
            _ => {
                let shape = shown(&sizes);
                return Err(match bytes {
                    Some(bytes) => {
                        reason!("shape {shape} needs {bytes} bytes, at most {MAX_BYTES} are served")
                    }
                    None => reason!(
                        "shape {shape} has 2^63 elements or more, at most {MAX_BYTES} bytes are served"
                    ),
                });
            }
        };
        Ok(Geometry {
            sizes,
            strides,
            offset,
            element,
            nbytes,
            hull: 0,
            pairs: false,
        })
    }

    /// Makes each element two values. Returns whether there is a dimension that can count them.
    ///
    /// # Errors
    /// The number of values overflows.
    pub fn double_last(&mut self) -> Result<bool, Reason> {
        self.pairs = true;
        let Some(&last) = self.sizes.last() else {
            return Ok(false);
        };
        let values = last.checked_mul(2).filter(|&n| n < 1 << 63);
        values
            .ok_or_else(|| reason!("size {last} counts pairs, and twice that is over 63 bits"))?;
        Ok(true)
    }

    /// The shape as the catalog has it.
    pub fn shape(&self) -> Vec<u64> {
        let mut shape = self.sizes.clone();
        if let (true, Some(last)) = (self.pairs, shape.last_mut()) {
            *last = last.saturating_mul(2);
        }
        shape
    }

    /// The first element's place in a storage of `has` bytes. Also finds [`Geometry::hull`].
    ///
    /// # Errors
    /// The storage is too short. `what` names it.
    pub fn first_byte(&mut self, has: u64, what: impl Fn() -> String) -> Result<u64, Reason> {
        // Where no element is, the offset does not matter: PyTorch reads such a tensor.
        if self.nbytes == 0 {
            return Ok(0);
        }
        let steps = self.sizes.iter().zip(&self.strides);
        let last = steps
            .map(|(&size, &stride)| u128::from(size - 1).saturating_mul(stride.into()))
            .fold(0u128, u128::saturating_add);
        let element = u128::from(self.element);
        let hull = last.saturating_add(1).saturating_mul(element);
        let start = u128::from(self.offset) * element;
        let needs = start.saturating_add(hull);
        let fits = (needs <= u128::from(has)).then(|| u64::try_from(start).ok()?.into());
        match (fits.flatten(), u64::try_from(hull)) {
            (Some(start), Ok(hull)) => {
                self.hull = hull;
                Ok(start)
            }
            _ => Err(reason!(
                "needs {needs} bytes of {}, which has {has}",
                what()
            )),
        }
    }

    /// Whether the elements lie one after another, in C order. The stride of a dimension of size 1 does
    /// not matter.
    pub fn is_contiguous(&self) -> bool {
        if self.nbytes <= u64::from(self.element) {
            return true;
        }
        let mut next = 1u64;
        for (&size, &stride) in self.sizes.iter().zip(&self.strides).rev() {
            if size == 1 {
                continue;
            }
            if stride != next {
                return false;
            }
            next = next.saturating_mul(size);
        }
        true
    }
}

/// The number of elements, unchecked: 0 if the sizes are not sizes, at most 2^64 − 1.
pub(super) fn numel(pickle: &Pickle, size: Ref) -> u64 {
    let (Value::Tuple(sizes) | Value::List(sizes)) = pickle.get(size) else {
        return 0;
    };
    let sizes = sizes
        .iter()
        .take(MAX_DIMENSIONS)
        .map(|&size| match pickle.get(size) {
            Value::Int(n) => u64::try_from(n).unwrap_or(0),
            _ => 0,
        });
    let mut numel = 1u64;
    for size in sizes {
        if size == 0 {
            return 0;
        }
        numel = numel.saturating_mul(size);
    }
    numel
}

fn whole_numbers(pickle: &Pickle, values: Ref, what: &str) -> Result<Vec<u64>, Reason> {
    let (Value::Tuple(items) | Value::List(items)) = pickle.get(values) else {
        let is = pickle.describe(values);
        return Err(reason!("its {what}s are {is}, not a tuple"));
    };
    if items.len() > MAX_DIMENSIONS {
        return Err(reason!(
            "has {} {what}s, at most {MAX_DIMENSIONS} dimensions are served",
            items.len()
        ));
    }
    items
        .iter()
        .map(|&item| whole(pickle, item, what))
        .collect()
}

fn whole(pickle: &Pickle, value: Ref, what: &str) -> Result<u64, Reason> {
    match pickle.get(value) {
        Value::Int(n) if n >= 0 => Ok(n.unsigned_abs()),
        _ => {
            let is = pickle.describe(value);
            Err(reason!("{what} is {is}, not a whole number from 0 up"))
        }
    }
}

/// A shape for a message, which a hostile file could make any length.
fn shown(sizes: &[u64]) -> String {
    const MOST: usize = 8;
    match sizes.get(..MOST) {
        Some(first) if sizes.len() > MOST => {
            format!("{first:?} and {} more sizes", sizes.len() - MOST)
        }
        _ => format!("{sizes:?}"),
    }
}
