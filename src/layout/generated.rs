//! Files that are generated as a whole: `model.json`, `index.json` and the exports. At 100,000 tensors
//! each takes tens of megabytes and a good part of a second, so all open files share one copy, which is
//! dropped with the last of them; its size is remembered.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};

use super::{Layout, Node, Top};
use crate::error::Result;
use crate::export::{Export, Plan};
use crate::patience;
use crate::view::{Bytes, SharedView};

/// The shared copy and the size of one such file.
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
    /// The copy that an open file holds, or a new one. Concurrent callers wait for it rather than
    /// generate another.
    ///
    /// # Errors
    /// It must be generated, or is being generated, and the thread must not wait.
    fn get(&self, make: impl FnOnce() -> Arc<T>) -> Result<Arc<T>> {
        let mut made = self.lock()?;
        if let Some(held) = made.as_ref().and_then(Weak::upgrade) {
            return Ok(held);
        }
        patience::take_long()?;
        let new = make();
        *made = Some(Arc::downgrade(&new));
        Ok(new)
    }

    fn lock(&self) -> Result<MutexGuard<'_, Option<Weak<T>>>> {
        match self.made.try_lock() {
            Ok(made) => Ok(made),
            Err(TryLockError::Poisoned(e)) => Ok(e.into_inner()),
            Err(TryLockError::WouldBlock) => {
                patience::take_long()?;
                Ok(self.made.lock().unwrap_or_else(PoisonError::into_inner))
            }
        }
    }

    /// The file's length, for which it must be generated. Remembered if everything it depends on is
    /// final.
    fn len(
        &self,
        is_final: impl FnOnce() -> bool,
        make: impl FnOnce() -> Arc<T>,
        len: impl FnOnce(&T) -> u64,
    ) -> Result<u64> {
        if let Some(&known) = self.len.get() {
            return Ok(known);
        }
        // Checked first: facts that become known meanwhile may be missing from the copy.
        let is_final = is_final();
        let len = len(&*self.get(make)?);
        Ok(match is_final {
            true => *self.len.get_or_init(|| len),
            false => len,
        })
    }
}

/// All such files of a mount.
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
    ///
    /// # Errors
    /// The thread must not wait for it.
    pub fn generated_view(&self, node: Node) -> Result<Option<SharedView>> {
        Ok(match node {
            Node::Top(top @ (Top::ModelJson | Top::IndexJson)) => {
                let json = self.json(top).get(|| self.make_json(top))?;
                Some(Arc::new(Bytes(json)))
            }
            Node::Export(e) => {
                let plan = self.generated.exports[e as usize].get(|| e.plan(&self.model).into())?;
                Some(Arc::new(plan.view(self.model.clone())))
            }
            _ => None,
        })
    }

    /// The length of the same.
    pub(super) fn generated_len(&self, node: Node) -> Result<Option<u64>> {
        let is_final = || self.model.is_whole();
        let len = match node {
            Node::Top(top @ (Top::ModelJson | Top::IndexJson)) => {
                let make = || self.make_json(top);
                self.json(top).len(is_final, make, |json| json.len() as u64)
            }
            Node::Export(e) => {
                let make = || e.plan(&self.model).into();
                self.generated.exports[e as usize].len(is_final, make, Plan::len)
            }
            _ => return Ok(None),
        };
        len.map(Some)
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
        assert_eq!(generated.len(|| false, make, |_| 4).unwrap(), 4);
        assert_eq!(generated.len.get(), None);
        made.set(0);
        assert_eq!(generated.len(|| true, make, |b| b.len() as u64).unwrap(), 5);
        assert_eq!(generated.len(|| true, make, |_| 0).unwrap(), 5);
        assert_eq!(made.get(), 1);
        let (a, b) = (generated.get(make).unwrap(), generated.get(make).unwrap());
        assert!(Arc::ptr_eq(&a, &b));
        assert_eq!(made.get(), 2);
        drop((a, b));
        let _c = generated.get(make).unwrap();
        assert_eq!(made.get(), 3);
    }

    #[test]
    fn nothing_is_made_on_a_request_thread() {
        use patience::{Patience, attempt, with};
        let generated: Generated<[u8]> = Generated::default();
        let make = || -> Arc<[u8]> { vec![7; 5].into() };
        let impatient = || {
            with(Patience::Sources, || {
                attempt(|| generated.get(make).is_ok())
            })
        };
        assert_eq!(impatient(), (false, true));
        let _held = generated.get(make).unwrap();
        assert_eq!(impatient(), (true, false));
        let _locked = generated.made.lock().unwrap();
        assert_eq!(impatient(), (false, true));
    }
}
