//! What a synthetic tensor is, or why there is none: its candidates are tried in order, on first use.

use std::cell::RefCell;
use std::sync::OnceLock;

use super::candidates::Candidate;
use super::tensor::{Made, MadeValues};
use super::{Expr, Model, TensorId};
use crate::patience;
use crate::reason::{Missing, Reason};

/// A synthetic tensor, or the reason why there is none, once that is certain. Not locked while it is
/// resolved: two threads that resolve definitions in terms of each other would deadlock.
#[derive(Default)]
pub(super) struct Slot(OnceLock<Result<Box<Made>, Reason>>);

impl Slot {
    /// Whether the answer is known and final.
    pub fn is_certain(&self) -> bool {
        self.0.get().is_some()
    }
}

thread_local! {
    /// The tensors that this thread is resolving, the outermost first.
    static VISITING: RefCell<Vec<Visit>> = const { RefCell::new(Vec::new()) };
}

struct Visit {
    /// The model's address: a thread may resolve tensors of several.
    model: usize,
    id: TensorId,
    /// Its definition needs a tensor that is being resolved at this depth or further out.
    in_circle: bool,
}

/// Marks a tensor as being resolved by this thread, until it is dropped (by a panic, too).
struct Visiting;

impl Visiting {
    fn enter(model: usize, id: TensorId) -> Visiting {
        let visit = Visit {
            model,
            id,
            in_circle: false,
        };
        VISITING.with_borrow_mut(|all| all.push(visit));
        Visiting
    }
}

impl Drop for Visiting {
    fn drop(&mut self) {
        VISITING.with_borrow_mut(|all| all.pop());
    }
}

/// Why a tensor that needs itself does not exist.
const CIRCLE: &str = "is defined by itself";

impl Model {
    /// What the synthetic tensor `id` is.
    pub(super) fn synthetic(&self, id: TensorId) -> Result<&Made, Missing> {
        let slot = &self.slots[self.synthetic_index(id)];
        if let Some(known) = slot.0.get() {
            return known.as_deref().map_err(|why| why.clone().into());
        }
        if self.is_visiting(id) {
            return Err(CIRCLE.into());
        }
        let visiting = Visiting::enter(self.address(), id);
        let made = self.first_candidate(id);
        drop(visiting);
        // A refusal to wait is not an answer.
        let result = match made {
            Err(Missing::Unread(why)) => return Err(Missing::Unread(why)),
            Err(Missing::Reason(why)) => Err(why),
            Ok(made) => Ok(Box::new(made)),
        };
        if patience::is_refused() {
            return Err(Missing::Unread("not resolved yet".into()));
        }
        let known = slot.0.get_or_init(|| result);
        known.as_deref().map_err(|why| why.clone().into())
    }

    /// Whether the thread is already resolving `id`. Then all that it is resolving within `id` is part
    /// of the circle, and none of these may fall back on another candidate: which tensors exist would
    /// otherwise depend on which of them is asked for first.
    fn is_visiting(&self, id: TensorId) -> bool {
        VISITING.with_borrow_mut(|all| {
            let same = |v: &Visit| v.model == self.address() && v.id == id;
            let Some(at) = all.iter().position(same) else {
                return false;
            };
            all[at..].iter_mut().for_each(|v| v.in_circle = true);
            true
        })
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    fn first_candidate(&self, id: TensorId) -> Result<Made, Missing> {
        let mut first_reason = None;
        let in_circle =
            || VISITING.with_borrow(|all| all.last().is_some_and(|visit| visit.in_circle));
        for candidate in self.candidates.of(self.synthetic_index(id)) {
            match self.make(self.name(id), candidate) {
                Ok(made) => return Ok(made),
                // Later candidates must not be tried: once its facts can be read, this one may win.
                Err(Missing::Unread(why)) => return Err(Missing::Unread(why)),
                Err(Missing::Reason(why)) => {
                    let first = first_reason.get_or_insert(why);
                    if in_circle() {
                        return Err(first.clone().into());
                    }
                }
            }
        }
        Err(first_reason.unwrap_or_else(|| "".into()).into())
    }

    fn make(&self, name: &str, candidate: &Candidate) -> Result<Made, Missing> {
        match candidate {
            Candidate::Fused { rule, prefix } => {
                let (prefix, rest) = name.split_at(*prefix as usize);
                let suffix = &rest[rule.fused.len() + 1..];
                self.fused(rule, prefix, suffix)
            }
            Candidate::Stacked {
                rule,
                set,
                prefix,
                experts,
            } => {
                let (prefix, rest) = name.split_at(*prefix as usize);
                let suffix = match &rest[rule.stacked.len()..] {
                    "" => "weight",
                    suffix => &suffix[1..],
                };
                self.stacked(rule.parts[*set as usize], prefix, suffix, *experts)
            }
            Candidate::Dequantized(layer) => {
                Ok(Made::of_layer(*layer, self.settled_layer(*layer)?)?)
            }
            Candidate::Tied { embedding } => self.tied(embedding.clone()?.as_ref()),
        }
    }

    /// The tensor `of` under a second name.
    fn tied(&self, of: &str) -> Result<Made, Missing> {
        let id = self.id(of).ok_or("its embedding does not exist")?;
        let of = self
            .settled(id)
            .map_err(|why| why.within(format_args!("needs '{of}'")))?;
        Ok(Made {
            dtype: of.dtype.clone(),
            shape: of.shape.into(),
            nbytes: of.nbytes,
            values: of.values.as_ref().map(|v| MadeValues {
                shape: v.shape.into(),
                exact: v.exact,
                decoded: v.decoded.as_ref().map(|_| Expr::Values(id)),
            }),
            raw: Expr::Raw(id),
            remark: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::candidates::Candidates;
    use crate::quant::testing::{TestModel, stored};

    fn model(definitions: &[(&str, &[&str])]) -> Model {
        let stored = [stored("a", crate::dtype::Dtype::F32, &[1], [0; 4])];
        let model = TestModel::safetensors(&stored, serde_json::Value::Null);
        let catalog = model.catalog;
        let candidates = definitions.iter().flat_map(|(name, of)| {
            of.iter().map(|of| {
                let embedding = Ok(Arc::from(*of));
                (name.to_string(), Candidate::Tied { embedding })
            })
        });
        let candidates = Candidates::from_list(candidates.collect());
        Model::assemble(catalog, Vec::new(), candidates)
    }

    /// Whether each tensor exists, whichever is asked for first.
    fn there(definitions: &[(&str, &[&str])]) -> Vec<bool> {
        let names = || definitions.iter().map(|(name, _)| *name);
        let ask = |model: &Model, name: &str| model.find(name).is_ok();
        let m = model(definitions);
        let forward: Vec<bool> = names().map(|name| ask(&m, name)).collect();
        for first in names() {
            let m = model(definitions);
            ask(&m, first);
            let again: Vec<bool> = names().map(|name| ask(&m, name)).collect();
            assert_eq!(again, forward, "{first} first");
        }
        forward
    }

    #[test]
    fn a_definition_in_terms_of_itself_is_a_reason() {
        let m = model(&[("x", &["y"]), ("y", &["x"]), ("z", &["x"])]);
        let why = m.find("x").err().unwrap().to_string();
        assert!(why.contains("is defined by itself"), "{why}");
        assert!(m.find("z").is_err());
        assert!(m.find("x").is_err(), "and again");
    }

    #[test]
    fn what_is_there_does_not_depend_on_which_is_asked_for_first() {
        assert_eq!(there(&[("x", &["x"])]), [false]);
        assert_eq!(there(&[("x", &["y"]), ("y", &["a"])]), [true, true]);
        // In a circle no second candidate counts; outside of it, it does.
        assert_eq!(
            there(&[("x", &["y", "a"]), ("y", &["x"]), ("z", &["y", "a"])]),
            [false, false, true]
        );
        assert_eq!(
            there(&[("x", &["y"]), ("y", &["v", "x"]), ("v", &["x", "a"])]),
            [false, false, false]
        );
    }

    #[test]
    fn threads_that_resolve_a_circle_from_both_ends_do_not_wait_for_each_other() {
        for _ in 0..50 {
            let m = model(&[("x", &["y"]), ("y", &["x"])]);
            std::thread::scope(|scope| {
                for name in ["x", "y"] {
                    let m = &m;
                    scope.spawn(move || assert!(m.find(name).is_err()));
                }
            });
        }
    }
}
