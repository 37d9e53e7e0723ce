//! `x[…]`

use super::super::language::{Node, Subscript};
use super::super::mistake::Mistake;
use super::super::ops::{self, Range, shape_text};
use super::super::tensor::Derived;
use super::{Evaluator, Value, number, shown};

impl Evaluator<'_> {
    pub(super) fn index(
        self,
        node: &Node,
        of: &Node,
        subscripts: &[Subscript],
    ) -> Result<Value, Mistake> {
        let x = match self.value(of)? {
            Value::Tensor(x) => x,
            other => {
                let what = format!("{} has no axes to index", shown(&other));
                return Err(Mistake::at(node.at, what));
            }
        };
        let mut ranges = Vec::with_capacity(subscripts.len());
        for (axis, subscript) in subscripts.iter().enumerate() {
            let Some(&size) = x.shape.get(axis) else {
                let (count, rank) = (subscripts.len(), x.shape.len());
                let what = format!(
                    "{count} indexes for {rank} axes: {} is {}",
                    x.label,
                    shape_text(&x.shape)
                );
                return Err(Mistake::at(node.at, what));
            };
            let of_axis = Bounds { x: &x, axis, size };
            ranges.push(self.range(&of_axis, subscript)?);
        }
        let made = ops::slice(&x, &ranges);
        made.map(Value::Tensor)
            .map_err(|why| Mistake::at(node.at, why))
    }

    fn range(self, bounds: &Bounds, subscript: &Subscript) -> Result<Range, Mistake> {
        let whole = |node: &Node| number::whole(&self.value(node)?, node);
        match subscript {
            Subscript::Index(node) => {
                let index = bounds.at(whole(node)?, node, bounds.size.saturating_sub(1))?;
                if index >= bounds.size {
                    return Err(bounds.out_of_range(0, node));
                }
                Ok(Range {
                    start: index,
                    stop: index + 1,
                    step: 1,
                    is_index: true,
                })
            }
            Subscript::Slice {
                start, stop, step, ..
            } => {
                let bound = |node: &Option<Node>, default: u64| match node {
                    Some(node) => bounds.at(whole(node)?, node, bounds.size),
                    None => Ok(default),
                };
                let (start, stop) = (bound(start, 0)?, bound(stop, bounds.size)?);
                let step = step.as_ref().map_or(Ok(1), |node| self.step(node))?;
                Ok(Range {
                    start: start.min(stop),
                    stop,
                    step,
                    is_index: false,
                })
            }
        }
    }

    fn step(self, node: &Node) -> Result<u64, Mistake> {
        let step = number::whole(&self.value(node)?, node)?;
        let positive = u64::try_from(step).ok().filter(|&step| step > 0);
        let what = || format!("steps are positive, not {step}");
        positive.ok_or_else(|| Mistake::at(node.at, what()))
    }
}

/// An axis that is indexed.
struct Bounds<'a> {
    x: &'a Derived,
    axis: usize,
    size: u64,
}

impl Bounds<'_> {
    /// An index of up to `most`, counted from the end where it is negative.
    fn at(&self, index: i64, node: &Node, most: u64) -> Result<u64, Mistake> {
        let from_start = match index {
            0.. => Some(index.unsigned_abs()),
            _ => self.size.checked_sub(index.unsigned_abs()),
        };
        let within = from_start.filter(|&at| at <= most);
        within.ok_or_else(|| self.out_of_range(index, node))
    }

    fn out_of_range(&self, index: i64, node: &Node) -> Mistake {
        let Bounds { x, axis, size } = self;
        let what = format!(
            "{index} is out of range: axis {axis} of {} is {size}",
            x.label
        );
        Mistake::at(node.at, what)
    }
}
