//! Files that are made whole: `model.json`, `index.json` and the exports. At 100,000 tensors each
//! is tens of megabytes and a good part of a second, so all who have one open at a time share what
//! was made, it goes with the last of them, and its size is remembered.

use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use super::{Layout, Node, Top};
use crate::export::{Export, Plan};
use crate::view::{Bytes, SharedView};

/// What is made of one such file.
pub(super) struct Generated<T: ?Sized> {
    len: OnceLock<u64>,
    made: Mutex<Option<Weak<T>>>,
}

impl<T: ?Sized> Default for Generated<T> {
    fn default() -> Self {
        Generated {
            len: OnceLock::new(),
            made: Mutex::new(None),
        }
    }
}

impl<T: ?Sized> Generated<T> {
    /// What others hold, or else makes it. Who asks meanwhile waits, and does not make another.
    fn get(&self, make: impl FnOnce() -> Arc<T>) -> Arc<T> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        made.as_ref().and_then(Weak::upgrade).unwrap_or_else(|| {
            let new = make();
            *made = Some(Arc::downgrade(&new));
            new
        })
    }

    /// The file's length, for which it must be made. It is remembered where all that it depends on
    /// is known for good.
    fn len(
        &self,
        is_final: bool,
        make: impl FnOnce() -> Arc<T>,
        len: impl FnOnce(&T) -> u64,
    ) -> u64 {
        match is_final {
            true => *self.len.get_or_init(|| len(&self.get(make))),
            false => len(&self.get(make)),
        }
    }

    fn is_measured(&self) -> bool {
        self.len.get().is_some()
    }
}

/// All of a mount's.
#[derive(Default)]
pub(super) struct GeneratedFiles {
    model_json: Generated<[u8]>,
    index_json: Generated<[u8]>,
    exports: [Generated<Plan>; Export::ALL.len()],
}

impl Layout {
    fn make_json(&self, top: Top) -> Arc<[u8]> {
        match top {
            Top::IndexJson => crate::meta::index_json(&self.model).into(),
            _ => crate::meta::model_json(&self.model).into(),
        }
    }

    fn json(&self, top: Top) -> &Generated<[u8]> {
        match top {
            Top::IndexJson => &self.generated.index_json,
            _ => &self.generated.model_json,
        }
    }

    /// The bytes of `model.json`, `index.json` or an export; `None` for other nodes. Waits for
    /// facts, and may compute for long.
    pub fn generated_view(&self, node: Node) -> Option<SharedView> {
        Some(match node {
            Node::Top(top @ (Top::ModelJson | Top::IndexJson)) => {
                Arc::new(Bytes(self.json(top).get(|| self.make_json(top))))
            }
            Node::Export(e) => {
                let plan = self.generated.exports[e as usize].get(|| e.plan(&self.model).into());
                Arc::new(plan.view(self.model.clone()))
            }
            _ => return None,
        })
    }

    /// The length of the same.
    pub(super) fn generated_len(&self, node: Node) -> Option<u64> {
        let is_final = self.model.is_whole();
        Some(match node {
            Node::Top(top @ (Top::ModelJson | Top::IndexJson)) => {
                self.json(top)
                    .len(is_final, || self.make_json(top), |bytes| bytes.len() as u64)
            }
            Node::Export(e) => self.generated.exports[e as usize].len(
                is_final,
                || e.plan(&self.model).into(),
                Plan::len,
            ),
            _ => return None,
        })
    }

    /// Whether a node is such a file and its length is not known yet.
    pub(super) fn is_unmeasured(&self, node: Node) -> bool {
        match node {
            Node::Top(top @ (Top::ModelJson | Top::IndexJson)) => !self.json(top).is_measured(),
            Node::Export(e) => !self.generated.exports[e as usize].is_measured(),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_open_is_made_once_and_goes_with_its_last_holder() {
        let generated: Generated<[u8]> = Generated::default();
        let made = std::cell::Cell::new(0);
        let make = || -> Arc<[u8]> {
            made.set(made.get() + 1);
            vec![7; 5].into()
        };
        assert_eq!(generated.len(false, make, |_| 4), 4);
        assert!(!generated.is_measured());
        made.set(0);
        assert_eq!(generated.len(true, make, |b| b.len() as u64), 5);
        assert_eq!((generated.len(true, make, |_| 0), made.get()), (5, 1));
        let (a, b) = (generated.get(make), generated.get(make));
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!(made.get(), 2);
        drop((a, b));
        let _c = generated.get(make);
        assert_eq!(made.get(), 3);
    }
}
