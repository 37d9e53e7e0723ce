//! Experts that are stored stacked: E layers of one format, where each tensor has an axis of E in
//! front, named `P.experts.gate_up_proj` or `P.experts.down_proj`. Fused checkpoints have them,
//! `export/model-fused.safetensors` among them, and transformers writes its FP8 experts this way.
//!
//! `.weight` is dropped from such a name, and other endings stay: words are `X` itself, or
//! `X.qweight` or `X.weight_packed`; beside them are `X.scales`, `X.weight_scale_inv` …
//! (transformers: `X_scale_inv`). Formats need not know about this. They get a listing in which a
//! stack is an ordinary module, whose tensors are those of the first expert ([`Overlay`]), because
//! headers are the same for all experts. The layer that a format then recognizes is converted back
//! to the stack ([`Stacks::stacked`]): its values are those of each expert in turn, decoded by the
//! format's kernel.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::g_idx::MOST_INPUTS;
use super::listing::{Listing, Overlay};
use super::{DeferredShape, Kernel, Layer, Outcome, Recognized, Target};
use crate::catalog::{Catalog, TensorRef};
use crate::dtype::{Dtype, numel};
use crate::error::Result;
use crate::reason::{Reason, reason};
use crate::view::{Concat, SharedView, Slice};

#[cfg(test)]
mod tests;

/// Last components of the names of stacks, below `experts`.
const NAMES: [&str; 2] = ["gate_up_proj", "down_proj"];
/// The float weight's own ending, which a stack's name leaves out.
const WEIGHT: &str = "weight";
/// Other endings that the name of a stack's words may have.
const WORDS: [&str; 2] = ["qweight", "weight_packed"];
/// How transformers names the scales of stacked FP8 experts: without a dot before it.
const SCALE_INV: &str = "_scale_inv";
/// The most experts in a stack, because each has a kernel state of its own. (Models have hundreds.)
const MOST_EXPERTS: u64 = 1 << 14;

/// The stacks of a model.
#[derive(Default)]
pub struct Stacks {
    stacks: Vec<Stack>,
    /// A tensor's stack, by index, and how it belongs to it.
    members: HashMap<u32, (usize, Cut)>,
}

/// Experts under one name.
#[derive(Clone)]
struct Stack {
    name: String,
    experts: u64,
}

/// Which bytes of a stack's tensor are one expert's.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    /// One of E equal slices.
    Slice,
    /// All: one number that holds for every expert.
    Whole,
    /// Unknown, because there is no axis of E in front.
    Misfit,
}

impl Cut {
    fn of(tensor: TensorRef<'_>, experts: u64) -> Cut {
        // A vector of E numbers could also be one for each of E rows.
        let sliced = tensor.shape.len() >= 2 && tensor.shape[0] == experts;
        if sliced && tensor.nbytes.is_multiple_of(experts) {
            Cut::Slice
        } else if tensor.numel() == 1 {
            Cut::Whole
        } else {
            Cut::Misfit
        }
    }

    /// The bytes of expert `e` in a tensor of `len` bytes.
    fn bytes(self, len: u64, e: u64, experts: u64) -> Range<u64> {
        match self {
            Cut::Slice => len / experts * e..len / experts * (e + 1),
            Cut::Whole | Cut::Misfit => 0..len,
        }
    }
}

/// A tensor that may belong to a stack: its index, and the ending of its name in a module.
type Member<'a> = (u32, &'a str);

impl Stacks {
    /// Finds stacks by names, dtypes and shapes. Also returns how formats see their tensors: as
    /// those of the first expert.
    pub fn find(catalog: &Catalog) -> (Stacks, Overlay) {
        let mut named: HashMap<&str, Vec<Member<'_>>> = HashMap::new();
        for (i, tensor) in (0u32..).zip(&catalog.tensors) {
            if let Some((name, last)) = split(tensor.name) {
                named.entry(name).or_default().push((i, last));
            }
        }
        let (mut found, mut overlay) = (Stacks::default(), Overlay::default());
        for (name, members) in named {
            let Some(words) = words(catalog, name, &members) else {
                continue;
            };
            let experts = catalog.tensors.get(words).shape[0];
            for (index, last) in members {
                // A stored `.weight` does not belong to the stack.
                if last == WEIGHT && index != words {
                    continue;
                }
                let tensor = catalog.tensors.get(index);
                let cut = Cut::of(tensor, experts);
                let (shape, nbytes) = match cut {
                    Cut::Slice => (&tensor.shape[1..], tensor.nbytes / experts),
                    Cut::Whole | Cut::Misfit => (tensor.shape, tensor.nbytes),
                };
                overlay.describe(index, &format!("{name}.{last}"), shape, nbytes);
                found.members.insert(index, (found.stacks.len(), cut));
            }
            let name = name.to_string();
            found.stacks.push(Stack { name, experts });
        }
        (found, overlay)
    }

    /// Converts a layer recognized in the listing back to the model's own stack.
    pub fn stacked(&self, found: Recognized, listing: &Listing<'_>) -> Recognized {
        let anchor = found.parts.first().and_then(|i| self.members.get(i));
        let Some(&(at, _)) = anchor else {
            return found;
        };
        let stack = &self.stacks[at];
        let outcome = match (self.cuts(at, &found.parts, listing), found.outcome) {
            (Err(reason), _) => Outcome::Damaged(reason),
            (_, Outcome::Damaged(reason)) => Outcome::Damaged(stack.each(&reason)),
            (Ok(cuts), Outcome::Layer(layer)) => stack.layer(&layer, cuts).into(),
            (Ok(cuts), Outcome::Deferred(one)) => match self.cuts(at, &one.sources, listing) {
                Ok(sources) => Outcome::Deferred(stack.deferred(one, sources, cuts)),
                Err(reason) => Outcome::Damaged(reason),
            },
        };
        Recognized {
            method: found.method,
            parts: found.parts,
            target: match found.target {
                Target::Anchor => Target::Anchor,
                Target::Named(_) => Target::Named(stack.name.clone()),
            },
            parameters: found.parameters.map(|n| n.saturating_mul(stack.experts)),
            outcome,
        }
    }

    /// How each of `parts` is divided, if the stack can be taken apart.
    fn cuts(
        &self,
        at: usize,
        parts: &[u32],
        listing: &Listing<'_>,
    ) -> std::result::Result<Vec<Cut>, Reason> {
        let Stack { experts, name } = &self.stacks[at];
        if *experts > MOST_EXPERTS {
            return Err(reason!(
                "'{name}' is a stack of {experts} experts, at most {MOST_EXPERTS} are decoded"
            ));
        }
        let cut = |index: &u32| match self.members.get(index) {
            Some(&(own, cut)) if own == at && cut != Cut::Misfit => Ok(cut),
            _ => Err(self.misfit(at, listing.get(*index))),
        };
        parts.iter().map(cut).collect()
    }

    fn misfit(&self, at: usize, part: TensorRef<'_>) -> Reason {
        let Stack { experts, name } = &self.stacks[at];
        reason!(
            "'{name}' is a stack of {experts} experts, but '{}' {:?} does not begin with an axis of {experts}",
            part.name,
            part.shape
        )
    }
}

impl Stack {
    fn each(&self, reason: &Reason) -> Reason {
        reason.within(format_args!("each of {} stacked layers", self.experts))
    }

    /// E layers like `one`, whose parts are divided by `cuts`.
    fn layer(&self, one: &Layer, cuts: Vec<Cut>) -> std::result::Result<Layer, Reason> {
        let experts = self.experts;
        let inputs = one.shape.last().and_then(|k| k.checked_mul(experts));
        if inputs.is_none_or(|inputs| inputs > MOST_INPUTS) {
            return Err(reason!(
                "'{}' is a stack of {experts} layers {:?}; at most {MOST_INPUTS} inputs are decoded together",
                self.name,
                one.shape
            ));
        }
        let shape: Box<[u64]> = [&[experts], &*one.shape].concat().into();
        if numel(&shape).and_then(|n| n.checked_mul(4)).is_none() {
            return Err(reason!("shape {shape:?} overflows 64 bits"));
        }
        Ok(Layer {
            bits: one.bits,
            group_size: one.group_size,
            shape,
            exact: one.exact,
            // Stacks do not take part in further fusions.
            components: Vec::new(),
            compatible: format!("{experts} stacked: {}", one.compatible),
            kernel: Arc::new(Each {
                kernel: one.kernel.clone(),
                experts,
                cuts,
            }),
        })
    }

    /// The shapes of all experts, which must give equal layers.
    fn deferred(&self, one: DeferredShape, sources: Vec<Cut>, cuts: Vec<Cut>) -> DeferredShape {
        let stack = self.clone();
        let DeferredShape {
            sources: indexes,
            finish,
        } = one;
        DeferredShape {
            sources: indexes,
            finish: Box::new(move |bytes| {
                let own = |e: u64| -> Vec<Vec<u8>> {
                    let both = bytes.iter().zip(&sources);
                    both.map(|(bytes, cut)| {
                        let run = cut.bytes(bytes.len() as u64, e, stack.experts);
                        bytes[run.start as usize..run.end as usize].to_vec()
                    })
                    .collect()
                };
                let one = finish(&own(0)).map_err(|why| stack.each(&why))?;
                for e in 1..stack.experts {
                    let other =
                        finish(&own(e)).map_err(|why| why.within(format_args!("expert {e}")))?;
                    if other.shape != one.shape || other.compatible != one.compatible {
                        return Err(reason!(
                            "stacked layers must be alike: expert 0 is {:?}, {}, expert {e} is {:?}, {}",
                            one.shape,
                            one.compatible,
                            other.shape,
                            other.compatible
                        ));
                    }
                }
                stack.layer(&one, cuts.clone())
            }),
        }
    }
}

/// The stack that a tensor would belong to by its name, and the ending of the name that it would
/// have in a module named like the stack.
fn split(name: &str) -> Option<(&str, &str)> {
    let (head, last) = name.rsplit_once('.')?;
    if is_stack(head) {
        return Some((head, last));
    }
    if is_stack(name) {
        return Some((name, WEIGHT));
    }
    let name = name.strip_suffix(SCALE_INV)?;
    is_stack(name).then_some((name, "weight_scale_inv"))
}

fn is_stack(name: &str) -> bool {
    let Some((experts, last)) = name.rsplit_once('.') else {
        return false;
    };
    NAMES.contains(&last) && (experts == "experts" || experts.ends_with(".experts"))
}

/// The stack's words (stacked matrices), if it is a stack. A stored `X.weight` is an ordinary
/// module, which formats with stacks of their own recognize.
fn words(catalog: &Catalog, name: &str, members: &[Member<'_>]) -> Option<u32> {
    let tensor = |index: u32| catalog.tensors.get(index);
    let stored = |last: &str| members.iter().find(|m| m.1 == last).map(|m| m.0);
    let weights = members.iter().filter(|m| m.1 == WEIGHT);
    if weights.clone().any(|m| *tensor(m.0).name != *name) {
        return None;
    }
    let bare = weights.map(|m| m.0).filter(|&i| {
        let dtype = tensor(i).dtype.known();
        // In a manifest, words are named `weight`, and other U32 tensors are integers.
        let integers = catalog.configs.manifest.is_some() && dtype == Some(Dtype::U32);
        dtype.is_some_and(|d| !d.is_plain_float()) && !integers
    });
    let mut words = bare.chain(WORDS.into_iter().filter_map(stored));
    words.find(|&i| matches!(*tensor(i).shape, [experts, _, _] if experts > 0))
}

/// Applies a kernel to each expert in turn.
struct Each {
    kernel: Arc<dyn Kernel>,
    experts: u64,
    /// How each part is divided.
    cuts: Vec<Cut>,
}

impl Each {
    /// The parts of expert `e`.
    fn parts(&self, e: u64, parts: &[SharedView]) -> Vec<SharedView> {
        let both = parts.iter().zip(&self.cuts);
        both.map(|(part, cut)| {
            let run = cut.bytes(part.len(), e, self.experts);
            Arc::new(Slice::new(part.clone(), run.start, run.end - run.start)) as SharedView
        })
        .collect()
    }
}

impl Kernel for Each {
    fn view(&self, parts: &[SharedView]) -> Result<SharedView> {
        let each = (0..self.experts).map(|e| self.kernel.view(&self.parts(e, parts)));
        Ok(Arc::new(Concat::new(each.collect::<Result<_>>()?, 1)))
    }

    fn check(&self, parts: &[SharedView]) -> Vec<String> {
        let problems = (0..self.experts).flat_map(|e| {
            let own = self.kernel.check(&self.parts(e, parts));
            own.into_iter()
                .map(move |problem| format!("expert {e}: {problem}"))
        });
        problems.collect()
    }
}
