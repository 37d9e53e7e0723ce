//! Arithmetic on values, element by element: each operation is rounded to binary32.

use std::ops::Range;
use std::sync::Arc;

use super::floats::{in_bytes, read_values};
use super::{FloatSource, Floats, Scratch, SharedView, View};
use crate::error::Result;
use crate::patience;
use crate::simd::for_each_cpu;

/// Values that are computed at a time: few enough for both operands to stay in the L2 cache, also of a few
/// operations on top of one another.
const PIECE: usize = 16 << 10;
/// What an operation takes for a value, in nanoseconds, with reading its operands.
const NANOSECONDS: u64 = 1;

/// An operation on two values.
#[allow(missing_docs)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arithmetic {
    Add,
    Subtract,
    Multiply,
    Divide,
}

/// What an operation takes.
#[derive(Clone)]
pub enum Operand {
    /// The values of a view (binary32, little-endian).
    Values(SharedView),
    /// A number that meets every value of the other operand.
    Number(f32),
}

impl Arithmetic {
    /// `a op b`, value by value, as binary32. Views have equally many values, or one of them has a single one,
    /// which meets every value of the other. `None` if they do not, or if both are numbers.
    pub fn view(self, a: Operand, b: Operand) -> Option<SharedView> {
        let numel = match (a.numel(), b.numel()) {
            (None, None) => return None,
            (Some(n), None) | (None, Some(n)) => n,
            (Some(a), Some(b)) if a == b => a,
            (Some(1), Some(n)) | (Some(n), Some(1)) => n,
            (Some(_), Some(_)) => return None,
        };
        Some(Arc::new(Floats(Operation {
            op: self,
            a,
            b,
            numel,
        })))
    }
}

impl Operand {
    /// How many values; `None` of a number.
    fn numel(&self) -> Option<u64> {
        match self {
            Operand::Values(view) => Some(view.len() / 4),
            Operand::Number(_) => None,
        }
    }

    /// Its view, if each of `numel` values has a value of its own there.
    fn many(&self, numel: u64) -> Option<&SharedView> {
        match self {
            Operand::Values(view) if view.len() / 4 == numel => Some(view),
            Operand::Values(_) | Operand::Number(_) => None,
        }
    }

    /// The value that all values of the other operand meet.
    fn one(&self) -> Result<f32> {
        let mut value = [0.0];
        match self {
            Operand::Values(view) => read_values(&**view, 0, &mut value)?,
            Operand::Number(number) => value = [*number],
        }
        Ok(value[0])
    }

    /// For one more reader; `None` if that is itself.
    fn opened(&self) -> Option<Operand> {
        match self {
            Operand::Values(view) => view.opened().map(Operand::Values),
            Operand::Number(_) => None,
        }
    }
}

/// `a op b`.
struct Operation {
    op: Arithmetic,
    a: Operand,
    b: Operand,
    numel: u64,
}

impl FloatSource for Operation {
    fn numel(&self) -> u64 {
        self.numel
    }

    fn fill(&self, first: u64, out: &mut [f32]) -> Result<()> {
        let Operation { op, a, b, numel } = self;
        patience::take_time(out.len() as u64 * NANOSECONDS)?;
        let (one_a, one_b) = match (a.many(*numel), b.many(*numel)) {
            (Some(_), Some(_)) => (0.0, 0.0),
            (Some(_), None) => (0.0, b.one()?),
            (None, _) => (a.one()?, 0.0),
        };
        for (i, out) in out.chunks_mut(PIECE).enumerate() {
            let first = first + (i * PIECE) as u64;
            match (a.many(*numel), b.many(*numel)) {
                (Some(a), Some(b)) => {
                    read_values(&**a, first, out)?;
                    let mut other = Scratch::<f32>::take(out.len());
                    read_values(&**b, first, &mut other)?;
                    both(*op, out, &other);
                }
                (Some(a), None) => {
                    read_values(&**a, first, out)?;
                    with_right(*op, out, one_b);
                }
                (None, b) => {
                    // Without values on either side there is one of each.
                    if let Some(b) = b {
                        read_values(&**b, first, out)?;
                    }
                    with_left(*op, one_a, out);
                }
            }
        }
        Ok(())
    }

    fn grain(&self) -> u64 {
        let views = [&self.a, &self.b].into_iter();
        let grains = views.filter_map(|of| Some(of.many(self.numel)?.grain() / 4));
        grains.max().unwrap_or(1).max(1)
    }

    fn will_need(&self, elements: &[Range<u64>]) {
        let ranges = in_bytes(elements, 4);
        for view in [&self.a, &self.b].map(|of| of.many(self.numel)) {
            view.inspect(|view| view.will_need(&ranges));
        }
    }

    fn opened(&self) -> Option<SharedView> {
        let (a, b) = (self.a.opened(), self.b.opened());
        if a.is_none() && b.is_none() {
            return None;
        }
        let a = a.unwrap_or_else(|| self.a.clone());
        self.op.view(a, b.unwrap_or_else(|| self.b.clone()))
    }
}

for_each_cpu! {
    /// `a op b`, into `a`.
    fn both(op: Arithmetic, a: &mut [f32], b: &[f32]) {
        let pairs = a.iter_mut().zip(b);
        match op {
            Arithmetic::Add => pairs.for_each(|(a, b)| *a += b),
            Arithmetic::Subtract => pairs.for_each(|(a, b)| *a -= b),
            Arithmetic::Multiply => pairs.for_each(|(a, b)| *a *= b),
            Arithmetic::Divide => pairs.for_each(|(a, b)| *a /= b),
        }
    }
}

for_each_cpu! {
    /// `a op b`, into `a`.
    fn with_right(op: Arithmetic, a: &mut [f32], b: f32) {
        let a = a.iter_mut();
        match op {
            Arithmetic::Add => a.for_each(|a| *a += b),
            Arithmetic::Subtract => a.for_each(|a| *a -= b),
            Arithmetic::Multiply => a.for_each(|a| *a *= b),
            Arithmetic::Divide => a.for_each(|a| *a /= b),
        }
    }
}

for_each_cpu! {
    /// `a op b`, into `b`.
    fn with_left(op: Arithmetic, a: f32, b: &mut [f32]) {
        let b = b.iter_mut();
        match op {
            Arithmetic::Add => b.for_each(|b| *b += a),
            Arithmetic::Subtract => b.for_each(|b| *b = a - *b),
            Arithmetic::Multiply => b.for_each(|b| *b *= a),
            Arithmetic::Divide => b.for_each(|b| *b = a / *b),
        }
    }
}

/// The values of a view (binary32) with the other sign; of NaN, too.
pub struct Negated(SharedView);

impl Negated {
    /// `-values`.
    pub fn view(values: SharedView) -> SharedView {
        Arc::new(Floats(Negated(values)))
    }
}

impl FloatSource for Negated {
    fn numel(&self) -> u64 {
        self.0.len() / 4
    }

    fn fill(&self, first: u64, out: &mut [f32]) -> Result<()> {
        patience::take_time(out.len() as u64 * NANOSECONDS)?;
        read_values(&*self.0, first, out)?;
        out.iter_mut().for_each(|value| *value = -*value);
        Ok(())
    }

    fn grain(&self) -> u64 {
        (self.0.grain() / 4).max(1)
    }

    fn will_need(&self, elements: &[Range<u64>]) {
        self.0.will_need(&in_bytes(elements, 4));
    }

    fn opened(&self) -> Option<SharedView> {
        self.0.opened().map(Negated::view)
    }
}

#[cfg(test)]
mod tests;
