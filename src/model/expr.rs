//! What the bytes of a tensor are, as an expression, and the one walk over expressions: source files,
//! permissions, stored bytes and what a picture or an export is made of all follow from it.

use std::sync::{Arc, OnceLock};

use super::gather::Gather;
use super::{Model, TensorId};
use crate::catalog::Stat;
use crate::dtype::{Dtype, ElementType};
use crate::view::{Arithmetic, Parts, Shared};

/// Bytes that are made of those of other tensors. Which dtype and shape they have is known to the tensor
/// whose bytes they are.
#[derive(Debug, Clone)]
pub enum Expr {
    /// A tensor of the catalog, by its index.
    Stored(u32),
    /// The values of a quantized layer, by its index for [`Model::layer`].
    Layer(u32),
    /// The `raw` of a tensor of the model. As a whole definition: that tensor under a second name.
    Raw(TensorId),
    /// The values of a tensor of the model, as binary32.
    Values(TensorId),
    /// Parts side by side.
    Join(Arc<Join>),
    /// Parts that must hold the same bytes; the result is those bytes, once.
    Same(Arc<[Expr]>),
    /// Bytes of another expression in another order: slices and permutations.
    Gather(Arc<Gather>),
    /// So many bytes of 0.
    Zeros(u64),
    /// A number that meets each value of the other operand of [`Operation::Arithmetic`].
    Number(f32),
    /// Values that are computed from others.
    Computed(Arc<Computed>),
}

/// Values that are computed from others.
#[derive(Debug)]
pub struct Computed {
    /// How.
    pub operation: Operation,
    /// Of what: values as binary32, except for [`Operation::Widen`].
    pub operands: Box<[Expr]>,
}

/// How values are computed.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// Elements of that type, as binary32.
    Widen(ElementType),
    /// Rounded to a narrower float.
    Narrow(Dtype),
    /// With the other sign.
    Negate,
    /// Of two operands, value by value. One of them may be an [`Expr::Number`] or have a single value.
    Arithmetic(Arithmetic),
    /// `a @ b` of matrices `m` × `k` and `k` × `n`.
    #[allow(missing_docs)]
    Product { m: u64, k: u64, n: u64 },
}

/// Expressions joined along an axis, and perhaps stacked.
#[derive(Debug)]
pub struct Join {
    /// The parts, one group after another: a group is one expert's, or all of them.
    pub parts: Box<[Expr]>,
    /// Parts in a group.
    pub group: usize,
    /// The axis that the parts of a group are joined along, counted from the front of a part's shape.
    pub axis: usize,
    /// Whether the groups are stacked along a new first axis. If not, there is one group.
    pub stacked: bool,
    /// Rows that the parts of a group stand side by side in; 1 if they follow one another.
    pub outer: u64,
    /// The parts' bytes, which all open files that show them share.
    pub(super) open: Shared<Parts>,
    /// The files of the bytes, and with them those of the layers that they belong to, once somebody asked.
    pub(super) files: [OnceLock<Box<[u32]>>; 2],
}

/// How far a walk goes from a stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// To its own bytes.
    Bytes,
    /// If it stands for a layer, to all of the layer's parts.
    Layers,
}

impl Join {
    /// Parts side by side, as rows of `outer` of them.
    pub fn side_by_side(parts: Vec<Expr>, axis: usize, outer: u64) -> Join {
        Join {
            group: parts.len(),
            parts: parts.into(),
            axis,
            stacked: false,
            outer,
            open: Shared::default(),
            files: Default::default(),
        }
    }
}

impl Expr {
    /// Its direct operands.
    pub fn operands(&self) -> &[Expr] {
        match self {
            Expr::Join(join) => &join.parts,
            Expr::Same(parts) => parts,
            Expr::Gather(gather) => std::slice::from_ref(&gather.of),
            Expr::Computed(computed) => &computed.operands,
            Expr::Stored(_) | Expr::Layer(_) | Expr::Raw(_) | Expr::Values(_) => &[],
            Expr::Zeros(_) | Expr::Number(_) => &[],
        }
    }

    /// The tensor that this is another name of.
    pub fn alias(&self) -> Option<TensorId> {
        match self {
            Expr::Raw(of) | Expr::Values(of) => Some(*of),
            _ => None,
        }
    }

    /// Whether it is joined of parts or equal to several.
    pub fn is_joined(&self) -> bool {
        matches!(self, Expr::Join(_) | Expr::Same(_))
    }

    /// The stored tensor, if it is one.
    pub fn stored(&self) -> Option<TensorId> {
        match self {
            Expr::Stored(index) => Some(*index),
            _ => None,
        }
    }

    /// Whether it is the values of a quantized layer.
    pub fn is_decoded(&self) -> bool {
        matches!(self, Expr::Layer(_))
    }

    /// Whether it joins only the `raw` of other tensors.
    pub fn is_joined_raw(&self) -> bool {
        let is_raw = |part: &Expr| matches!(part, Expr::Raw(_)) || part.is_joined_raw();
        self.is_joined() && self.operands().iter().all(is_raw)
    }

    /// Whether it is a stack of experts.
    pub fn is_stack(&self) -> bool {
        matches!(self, Expr::Join(join) if join.stacked)
    }

    /// The tensors that a join names, in order. `None` if it has parts of any other kind.
    pub fn parts(&self) -> Option<Vec<TensorId>> {
        let mut ids = Vec::new();
        self.collect_parts(&mut ids).then_some(ids)
    }

    fn collect_parts(&self, into: &mut Vec<TensorId>) -> bool {
        match self.alias() {
            Some(id) => {
                into.push(id);
                true
            }
            None => self.is_joined() && self.operands().iter().all(|e| e.collect_parts(into)),
        }
    }
}

impl Model {
    /// Calls `leaf` with the index of each stored tensor that the bytes of `expr` come from, in order,
    /// as often as it occurs.
    pub fn leaves(&self, expr: &Expr, leaf: &mut dyn FnMut(u32)) {
        self.walk(expr, Reach::Bytes, leaf);
    }

    /// The one walk over expressions.
    fn walk(&self, expr: &Expr, reach: Reach, leaf: &mut dyn FnMut(u32)) {
        let layer = |index: u32, leaf: &mut dyn FnMut(u32)| {
            self.recognized(index).parts.iter().for_each(|&i| leaf(i));
        };
        match expr {
            Expr::Stored(index) => match self.layer_of_anchor(*index) {
                Some(of) if reach == Reach::Layers => layer(of, leaf),
                _ => leaf(*index),
            },
            Expr::Layer(index) => layer(*index, leaf),
            Expr::Raw(id) => {
                if let Ok(tensor) = self.tensor(*id) {
                    self.walk(&tensor.raw, reach, leaf);
                }
            }
            Expr::Values(id) => {
                if let Ok(tensor) = self.tensor(*id) {
                    self.walk(tensor.f32_expr(), reach, leaf);
                }
            }
            _ => {
                let operands = expr.operands().iter();
                operands.for_each(|e| self.walk(e, reach, leaf));
            }
        }
    }

    /// Indexes into [`Catalog::files`](crate::catalog::Catalog::files) of the files that the bytes
    /// of `expr` come from, each once, in ascending order.
    pub fn files_of(&self, expr: &Expr) -> Vec<u32> {
        self.files([expr], Reach::Bytes)
    }

    fn files<'e>(&self, all: impl IntoIterator<Item = &'e Expr>, reach: Reach) -> Vec<u32> {
        let mut files = Vec::new();
        for expr in all {
            match expr {
                // It may have hundreds of thousands of parts, and every `stat` asks for this.
                Expr::Join(join) => {
                    let known = &join.files[reach as usize];
                    files.extend(known.get_or_init(|| self.walked_files(expr, reach)));
                }
                _ => files.extend(self.walked_files(expr, reach)),
            }
        }
        files.sort_unstable();
        files.dedup();
        files
    }

    fn walked_files(&self, expr: &Expr, reach: Reach) -> Box<[u32]> {
        let mut files = Vec::new();
        self.walk(expr, reach, &mut |i| {
            for file in self.catalog.files_of(i) {
                // Most parts are in the file of the last one.
                if files.last() != Some(&file) {
                    files.push(file);
                }
            }
        });
        files.sort_unstable();
        files.dedup();
        files.into()
    }

    /// Bytes in the model's files that `expr` is made of.
    pub fn stored_bytes(&self, expr: &Expr) -> u64 {
        let mut bytes = 0u64;
        self.leaves(expr, &mut |i| {
            bytes = bytes.saturating_add(self.catalog.tensors.get(i).nbytes);
        });
        bytes
    }

    /// The quantized layer that `expr`'s values are decoded from (of a join, the first part's), by its
    /// index for [`Model::layer`].
    pub fn decoded_from(&self, expr: &Expr) -> Option<u32> {
        match expr {
            Expr::Layer(layer) => Some(*layer),
            Expr::Stored(_) => None,
            Expr::Raw(id) => self.decoded_from(&self.tensor(*id).ok()?.raw),
            Expr::Values(id) => self.decoded_from(self.tensor(*id).ok()?.f32_expr()),
            _ => self.decoded_from(expr.operands().first()?),
        }
    }

    /// Indexes of the files that a tensor's bytes or values come from, each once. The words of a layer
    /// count for the whole of it, also as parts of a join: a user who may not read the scales may not
    /// read joined words either.
    pub fn source_files(&self, id: TensorId) -> Vec<u32> {
        match self.tensor(id) {
            Ok(tensor) => {
                let all = [&tensor.raw].into_iter().chain(tensor.decoded());
                let mut files = self.files(all, Reach::Layers);
                // Behind all that hold tensors.
                files.extend(self.catalog.derivation.as_ref().map(|d| d.file));
                files
            }
            Err(_) => Vec::new(),
        }
    }

    /// Owner, permissions and mtime of a tensor's files: its source's, or the strictest of several.
    pub fn stat(&self, id: TensorId) -> Stat {
        let files = self.source_files(id);
        Stat::strictest(
            files
                .iter()
                .map(|&f| self.catalog.files[f as usize].stat().clone()),
        )
        .unwrap_or_else(|| self.catalog.stat())
    }

    /// The kind of a tensor whose `raw` is `expr`, in JSON and extended attributes.
    pub fn kind(&self, expr: &Expr) -> &'static str {
        match expr {
            Expr::Stored(index) => self.catalog.kind(*index),
            Expr::Layer(_) => "dequantized",
            Expr::Raw(_) | Expr::Values(_) => "tied",
            Expr::Join(_) if expr.is_stack() => "stacked",
            Expr::Join(_) | Expr::Same(_) => "fused",
            Expr::Gather(_) | Expr::Zeros(_) | Expr::Number(_) | Expr::Computed(_) => "derived",
        }
    }
}
