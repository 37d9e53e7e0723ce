//! The shapes of joined parts: whether they fit along an axis, and what comes out.

use super::fuse::Reason;
use super::{Join, JoinOf, Model, Origin, Part, TensorId};
use crate::dtype::{ElementType, numel};

/// What a group's parts (one expert's, or the whole fusion's) become.
pub(super) struct Joined {
    pub(super) shape: Vec<u64>,
    pub(super) parts: Vec<Part>,
}

impl Model {
    /// The joined shape of every group; all groups must come out alike.
    pub(super) fn join_shapes(
        &self,
        groups: &[Vec<TensorId>],
        axis: usize,
        of: JoinOf,
    ) -> Result<Vec<Joined>, Reason> {
        let shape_of = |id| match of {
            JoinOf::Values => self.values_shape(id),
            _ => self.shape(id),
        };
        let first_id = groups[0][0];
        let first = shape_of(first_id);
        let mut out: Vec<Joined> = Vec::with_capacity(groups.len());
        for ids in groups {
            let mut parts = Vec::with_capacity(ids.len());
            let mut at = 0u64;
            for &id in ids {
                let shape = shape_of(id);
                let fits = shape.len() == first.len()
                    && (0..shape.len())
                        .all(|d| shape[d] == first[d] || (d == axis && of != JoinOf::Same));
                if !fits {
                    return Err(format!(
                        "shapes do not fit along axis {axis}: '{}' is {first:?}, '{}' is {shape:?}",
                        self.name(first_id),
                        self.name(id)
                    ));
                }
                let rows = shape.get(axis).copied().unwrap_or(1);
                let end = match of {
                    JoinOf::Same => rows,
                    _ => at
                        .checked_add(rows)
                        .ok_or("the joined shape would overflow")?,
                };
                let start = if of == JoinOf::Same { 0 } else { at };
                parts.push(Part { id, start, end });
                at = end;
            }
            let mut shape = first.to_vec();
            if let Some(d) = shape.get_mut(axis) {
                *d = at;
            }
            if let Some(one) = out.first()
                && one.shape != shape
            {
                return Err(format!(
                    "experts differ: '{}' makes {:?}, '{}' makes {shape:?}",
                    self.name(first_id),
                    one.shape,
                    self.name(ids[0])
                ));
            }
            out.push(Joined { shape, parts });
        }
        Ok(out)
    }

    /// A row of every part must be whole bytes, or parts cannot stand side by side (F4, F6).
    pub(super) fn whole_rows(
        &self,
        groups: &[Vec<TensorId>],
        dtype: &ElementType,
        axis: usize,
    ) -> Result<(), Reason> {
        let Some(d) = dtype.known().filter(|d| d.bits() % 8 != 0) else {
            return Ok(());
        };
        for &id in groups.iter().flatten() {
            let row = numel(&self.shape(id)[axis..]).and_then(|n| d.bytes(n));
            if row.is_none() {
                return Err(format!(
                    "a row of '{}' is no whole number of bytes in {d}",
                    self.name(id)
                ));
            }
        }
        Ok(())
    }

    pub(super) fn shape(&self, id: TensorId) -> &[u64] {
        self.tensor(id).map_or(&[], |t| &t.shape)
    }

    pub(super) fn values_shape(&self, id: TensorId) -> &[u64] {
        self.tensor(id)
            .ok()
            .and_then(|t| t.values.as_ref())
            .map_or(&[], |v| &v.shape)
    }
}

/// The shape of all groups: of a stack with an axis for them in front.
pub(super) fn stack_shape(joined: &[Joined], stacked: bool) -> Vec<u64> {
    let mut shape = joined.first().map(|j| j.shape.clone()).unwrap_or_default();
    if stacked {
        shape.insert(0, joined.len() as u64);
    }
    shape
}

/// Where the joined tensor comes from.
pub(super) fn origin(joined: Vec<Joined>, axis: usize, of: JoinOf, stacked: bool) -> Origin {
    let join = Join {
        groups: joined.into_iter().map(|j| j.parts).collect(),
        axis,
        of,
    };
    match stacked {
        true => Origin::Stacked(join),
        false => Origin::Fused(join),
    }
}
