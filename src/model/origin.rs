//! Where a tensor comes from: `meta.json`, `ls` and messages all show this.

use std::borrow::Cow;
use std::sync::Arc;

use serde_json::Value;

use super::{Expr, Join, Model};
use crate::catalog::Object;

/// What an expression is made of, one level deep.
pub struct Origin<'m> {
    /// `stored`, `fused`, `stacked`, `dequantized`, `tied`, or the container's own kind.
    pub kind: &'static str,
    /// The file that holds its first element, and the first byte there, if it is stored.
    pub place: Option<(&'m Arc<dyn Object>, u64)>,
    /// Keys that its container adds.
    pub more: Cow<'m, [(&'static str, Value)]>,
    /// The axis that its parts are joined along, counted from the front.
    pub axis: Option<usize>,
    /// The tensors that it joins, or the one that it is another name of.
    pub parts: Vec<Part<'m>>,
    /// The quantized layer that it is decoded from, by its index for [`Model::layer`].
    pub layer: Option<u32>,
}

/// A tensor that another is made of.
pub struct Part<'m> {
    /// Its name.
    pub name: &'m str,
    /// Which expert it belongs to, in a stack.
    pub index: Option<usize>,
    /// Its start and end along the axis, in a stack within its expert. `None` if it is the whole.
    pub range: Option<[u64; 2]>,
}

impl Model {
    /// What `expr` is made of.
    pub fn origin(&self, expr: &Expr) -> Origin<'_> {
        let mut origin = Origin {
            kind: self.kind(expr),
            place: None,
            more: Cow::default(),
            axis: None,
            parts: Vec::new(),
            layer: None,
        };
        match expr {
            Expr::Stored(index) => {
                origin.place = self.catalog.shown_place(*index);
                origin.more = self.catalog.origin(*index);
            }
            Expr::Layer(layer) => origin.layer = Some(*layer),
            Expr::Raw(_) | Expr::Values(_) => origin.parts = vec![self.part(expr, None)],
            Expr::Join(join) => {
                origin.axis = Some(if join.stacked { 0 } else { join.axis });
                origin.parts = self.joined_parts(join);
            }
            Expr::Same(parts) => {
                origin.axis = Some(0);
                origin.parts = self.same_parts(parts);
            }
            Expr::Gather(_) | Expr::Zeros(_) | Expr::Number(_) | Expr::Computed(_) => {}
        }
        origin
    }

    /// The parts of a join, each with its range along the axis within its group.
    fn joined_parts(&self, join: &Join) -> Vec<Part<'_>> {
        let mut all = Vec::new();
        for (index, group) in join.parts.chunks(join.group.max(1)).enumerate() {
            let mut parts = match group {
                [Expr::Same(parts)] => self.same_parts(parts),
                [one] if join.stacked => vec![self.part(one, None)],
                parts => self.ranges(parts, join.axis),
            };
            if join.stacked {
                parts.iter_mut().for_each(|part| part.index = Some(index));
            }
            all.extend(parts);
        }
        all
    }

    fn ranges(&self, parts: &[Expr], axis: usize) -> Vec<Part<'_>> {
        let mut at = 0;
        let part = |part: &Expr| {
            let start = at;
            at += self.size_along(part, axis);
            self.part(part, Some([start, at]))
        };
        parts.iter().map(part).collect()
    }

    /// Parts that must be equal: each is the whole.
    fn same_parts(&self, parts: &[Expr]) -> Vec<Part<'_>> {
        let part = |part| self.part(part, Some([0, self.size_along(part, 0)]));
        parts.iter().map(part).collect()
    }

    fn part(&self, expr: &Expr, range: Option<[u64; 2]>) -> Part<'_> {
        Part {
            name: expr.alias().map_or("", |id| self.name(id)),
            index: None,
            range,
        }
    }

    /// The size of a part of a join along an axis; 1 for a scalar.
    fn size_along(&self, part: &Expr, axis: usize) -> u64 {
        let tensor = part.alias().and_then(|id| self.tensor(id).ok());
        let shape = tensor.map(|t| match (part, t.values) {
            (Expr::Values(_), Some(values)) => values.shape,
            _ => t.shape,
        });
        shape.and_then(|s| s.get(axis).copied()).unwrap_or(1)
    }
}
