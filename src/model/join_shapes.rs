//! The shapes of joined parts: whether they fit along an axis, and the shape of the result.

use std::sync::Arc;

use super::{Expr, Join, Model, TensorId};
use crate::dtype::ElementType;
use crate::reason::{Reason, reason};

/// What a join takes of its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Face {
    /// Their stored bytes.
    Raw,
    /// Their values, as binary32.
    Values,
    /// Their stored bytes, which must be equal; the result is the first part's.
    Same,
}

impl Face {
    fn of(self, id: TensorId) -> Expr {
        match self {
            Face::Raw | Face::Same => Expr::Raw(id),
            Face::Values => Expr::Values(id),
        }
    }
}

/// Parts that fit together, with the same joined shape in every group.
pub(super) struct Joined {
    /// The joined shape of one group.
    group_shape: Vec<u64>,
    groups: u64,
}

impl Joined {
    /// The shape of the whole; in a stack the groups are a new first axis.
    pub fn shape(&self, stacked: bool) -> Box<[u64]> {
        let mut shape = self.group_shape.clone();
        if stacked {
            shape.insert(0, self.groups);
        }
        shape.into()
    }

    /// The join as an expression.
    pub fn expr(&self, groups: &[Vec<TensorId>], axis: usize, face: Face, stacked: bool) -> Expr {
        let parts = |ids: &[TensorId]| -> Vec<Expr> { ids.iter().map(|&id| face.of(id)).collect() };
        let same = |ids: &Vec<TensorId>| match ids.as_slice() {
            [one] => face.of(*one),
            ids => Expr::Same(parts(ids).into()),
        };
        let (parts, group): (Vec<Expr>, usize) = match face {
            Face::Same if !stacked => return same(&groups[0]),
            Face::Same => (groups.iter().map(same).collect(), 1),
            _ => (parts(&groups.concat()), groups[0].len()),
        };
        let outer = self.group_shape.iter().take(axis).product();
        Expr::Join(Arc::new(Join {
            group,
            stacked,
            ..Join::side_by_side(parts, axis, outer)
        }))
    }
}

impl Model {
    /// The joined shape of every group, which must be the same for all of them.
    pub(super) fn join_shapes(
        &self,
        groups: &[Vec<TensorId>],
        axis: usize,
        face: Face,
    ) -> Result<Joined, Reason> {
        let first_id = groups[0][0];
        let first = self.shape_of(first_id, face);
        let mut one: Option<Vec<u64>> = None;
        for ids in groups {
            let mut at = 0u64;
            for &id in ids {
                let shape = self.shape_of(id, face);
                let fits = shape.len() == first.len()
                    && (0..shape.len())
                        .all(|d| shape[d] == first[d] || (d == axis && face != Face::Same));
                if !fits {
                    return Err(reason!(
                        "shapes do not fit along axis {axis}: '{}' is {first:?}, '{}' is {shape:?}",
                        self.name(first_id),
                        self.name(id)
                    ));
                }
                let rows = shape.get(axis).copied().unwrap_or(1);
                at = match face {
                    Face::Same => rows,
                    _ => at
                        .checked_add(rows)
                        .ok_or("the joined shape would overflow")?,
                };
            }
            let mut shape = first.to_vec();
            if let Some(d) = shape.get_mut(axis) {
                *d = at;
            }
            let one = one.get_or_insert_with(|| shape.clone());
            if *one != shape {
                return Err(reason!(
                    "experts differ: '{}' makes {one:?}, '{}' makes {shape:?}",
                    self.name(first_id),
                    self.name(ids[0])
                ));
            }
        }
        Ok(Joined {
            group_shape: one.unwrap_or_default(),
            groups: groups.len() as u64,
        })
    }

    /// A row of every part must be whole bytes (or blocks), or parts cannot stand side by side.
    pub(super) fn whole_rows(
        &self,
        groups: &[Vec<TensorId>],
        dtype: &ElementType,
        axis: usize,
    ) -> Result<(), Reason> {
        for &id in groups.iter().flatten() {
            let shape = self.shape_of(id, Face::Raw);
            if !dtype.has_whole_rows(shape, axis) {
                return Err(reason!(
                    "a row of '{}' is not a whole number of {} in {dtype}",
                    self.name(id),
                    dtype.unit_name()
                ));
            }
        }
        Ok(())
    }

    /// The shape that a join takes of a part.
    pub(super) fn shape_of(&self, id: TensorId, face: Face) -> &[u64] {
        let Ok(tensor) = self.tensor(id) else {
            return &[];
        };
        match face {
            Face::Raw | Face::Same => tensor.shape,
            Face::Values => tensor.values.map_or(&[], |v| v.shape),
        }
    }
}
