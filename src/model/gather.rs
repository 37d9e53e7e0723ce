//! Slices, permutations and reshapes as arithmetic on strides: however many are applied to one another, the
//! result is one strided array over the first operand's bytes.

use super::Expr;

/// Bytes of an expression in another order: runs that lie at regular distances.
#[derive(Debug, Clone)]
pub struct Gather {
    /// What they are taken from.
    pub of: Expr,
    /// Which bytes, and in which order.
    pub strided: Strided,
}

/// An array over the bytes of another, in its normal form: as few axes as there can be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Strided {
    /// Bytes of the array that it is taken from.
    pub whole: u64,
    /// The first byte.
    pub first: u64,
    /// Bytes that lie in a row in both arrays; 0 if there are none at all.
    pub run: u64,
    /// What cannot be divided: the bytes of an element, or of a block.
    pub unit: u32,
    /// How the runs are laid out, outermost axis first.
    pub axes: Box<[Axis]>,
}

/// An axis of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Axis {
    /// How many there are, at least 2.
    pub size: u64,
    /// Bytes from each to the next.
    pub stride: u64,
}

/// An array with the axes that a user sees: sizes in units, strides in bytes. Here everything is computed;
/// [`Strided`] is what is kept.
#[derive(Debug, Clone)]
pub struct Axes {
    whole: u64,
    first: u64,
    unit: u32,
    axes: Vec<Axis>,
}

impl Strided {
    /// All of an array.
    pub fn all(whole: u64, unit: u32) -> Strided {
        Strided {
            whole,
            first: 0,
            run: whole,
            unit,
            axes: Box::default(),
        }
    }

    /// Whether it is the array that it is taken from.
    pub fn is_all(&self) -> bool {
        self.axes.is_empty() && self.run == self.whole
    }

    /// The range of bytes that it is, if it is one.
    pub fn range(&self) -> Option<std::ops::Range<u64>> {
        let is_range = self.axes.is_empty();
        is_range.then(|| self.first..self.first + self.run)
    }

    /// Its bytes.
    pub fn nbytes(&self) -> u64 {
        self.axes.iter().fold(self.run, |n, axis| n * axis.size)
    }

    /// The array as one of `shape`, which has as many units: the axes of that shape, if they can be told by
    /// strides alone. They cannot where an axis of `shape` covers some runs and a part of the next.
    pub fn shaped(&self, shape: &[u64]) -> Option<Axes> {
        let unit = u64::from(self.unit);
        let mut left = self.axes.iter().copied();
        let mut inner = Axis {
            size: self.run / unit.max(1),
            stride: unit,
        };
        let mut axes = Vec::with_capacity(shape.len());
        let is_empty = shape.contains(&0);
        for &size in shape.iter().rev() {
            if size == 1 || is_empty {
                axes.push(Axis { size, stride: 0 });
                continue;
            }
            if inner.size == 1 {
                inner = left.next_back()?;
            }
            if !inner.size.is_multiple_of(size) {
                return None;
            }
            let stride = inner.stride;
            axes.push(Axis { size, stride });
            inner = Axis {
                size: inner.size / size,
                stride: stride.checked_mul(size)?,
            };
        }
        axes.reverse();
        Some(Axes {
            whole: self.whole,
            first: self.first,
            unit: self.unit,
            axes,
        })
    }
}

impl Axes {
    /// Each `step`th index of an axis from `start` on, `count` of them.
    pub fn slice(&mut self, axis: usize, start: u64, count: u64, step: u64) {
        let Some(axis) = self.axes.get_mut(axis) else {
            return;
        };
        if count > 0 {
            self.first = self.first.saturating_add(start.saturating_mul(axis.stride));
        }
        *axis = Axis {
            size: count,
            stride: axis.stride.saturating_mul(step),
        };
    }

    /// The axes in another order: axis i of the result is axis `order[i]`.
    pub fn permute(&mut self, order: &[usize]) {
        let all = order.iter().filter_map(|&axis| self.axes.get(axis));
        self.axes = all.copied().collect();
    }

    /// The normal form.
    pub fn normal(self) -> Strided {
        let Axes {
            whole,
            first,
            unit,
            axes,
        } = self;
        if axes.iter().any(|axis| axis.size == 0) {
            return Strided {
                first: 0,
                run: 0,
                ..Strided::all(whole, unit)
            };
        }
        let mut run = u64::from(unit);
        // Innermost first.
        let mut kept: Vec<Axis> = Vec::new();
        for axis in axes.into_iter().rev().filter(|axis| axis.size > 1) {
            match kept.last_mut() {
                None if axis.stride == run => run *= axis.size,
                Some(inner) if inner.stride.checked_mul(inner.size) == Some(axis.stride) => {
                    inner.size *= axis.size;
                }
                _ => kept.push(axis),
            }
        }
        kept.reverse();
        Strided {
            whole,
            first,
            run,
            unit,
            axes: kept.into(),
        }
    }
}
